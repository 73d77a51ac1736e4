/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Evicts an old connection with the same addresses and ports as a new one, and delays other
 * segments of the new connection until its socket exists: core/src/server/clear.rs.
 */
#ifndef EVENER_CLEAR_H
#define EVENER_CLEAR_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include "net/checksum.h"
#include "server/arrived.h"
#include "server/maps.h"
#include "server/segment.h"

/* Value of `tc_index` of a copied segment that follows the reset of the old connection. Nothing
 * else uses the field at ingress. */
#define CLEARED 0xe7e2

/* Maximum time until the copy is received, in nanoseconds: it waits in the backlog queue of a
 * CPU. */
#define CLEARING_NS 50000000ULL

/* True if the segment belongs to a newer connection than the old one. False for a delayed segment
 * of the old connection or of an earlier one. The rules are those for a SYN in TIME-WAIT (RFC 6191,
 * section 2), except that a higher sequence number is always enough. */
static __always_inline bool is_newer(const struct arrived *arrived, const struct old *old)
{
	const struct timestamps *timestamps = &arrived->timestamps;

	if ((__s32)(arrived->sequence - 1 - old->next) > 0)
		return true;
	return timestamps->present && old->timestamp && (__s32)(timestamps->value - old->timestamp) > 0;
}

/* Rewrites the segment as a reset of the old connection (RFC 9293, section 3.5.2): a TCP header
 * without options, so that no timestamp makes the stack reject it. */
static __always_inline bool become_reset(struct __sk_buff *skb, const struct arrived *arrived, __u32 sequence)
{
	const __u32 addresses_len = arrived->v6 ? 2 * sizeof(struct in6_addr) : 2 * sizeof(__be32);
	__be32 header[sizeof(struct tcphdr) / 4] = {};
	__u16 len = sizeof(header) + (arrived->v6 ? 0 : sizeof(struct iphdr));
	__be16 ip_len = bpf_htons(len);
	__s64 sum;

	header[0] = arrived->message.word[arrived->v6 ? COOKIE_ENDS6 - 1 : COOKIE_ENDS4 - 1];
	header[1] = bpf_htonl(sequence);
	header[3] = bpf_htonl(sizeof(header) / 4 << 28 | TCP_RST << 16);
	sum = bpf_csum_diff(0, 0, (__be32 *)arrived->message.word, addresses_len,
			    bpf_htonl(IPPROTO_TCP + sizeof(header)));
	if (sum < 0)
		return false;
	sum = bpf_csum_diff(0, 0, header, sizeof(header), sum);
	if (sum < 0)
		return false;
	*(__u16 *)&header[4] = ~fold(sum);
	if (bpf_skb_change_tail(skb, arrived->l4 + sizeof(header), 0) ||
	    bpf_skb_store_bytes(skb, arrived->l4, header, sizeof(header), BPF_F_RECOMPUTE_CSUM))
		return false;
	if (arrived->v6)
		return !bpf_skb_store_bytes(skb, ETH_HLEN + __builtin_offsetof(struct ipv6hdr, payload_len), &ip_len,
					    sizeof(ip_len), BPF_F_RECOMPUTE_CSUM);
	/* Length and header checksum change by opposite amounts, so the sum over the frame that a
	 * device computed stays valid. */
	return !bpf_l3_csum_replace(skb, ETH_HLEN + __builtin_offsetof(struct iphdr, check), arrived->ip_len, ip_len,
				    sizeof(ip_len)) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN + __builtin_offsetof(struct iphdr, tot_len), &ip_len, sizeof(ip_len),
				    0);
}

/*
 * Evicts the old connection. The director answers a client's SYN, so the server's stack can't see
 * by a SYN that the client reuses its port. If the old connection is in TIME-WAIT, or is still open
 * because its end was lost, the stack would not answer the new connection's segment. So that
 * segment is rewritten as a reset of the old connection, and a copy of the segment is received
 * after it.
 */
static __always_inline int clear(struct __sk_buff *skb, const struct arrived *arrived, const struct old *old,
				 __u32 reason)
{
	struct clearing cleared = { .until = bpf_ktime_get_ns() + CLEARING_NS };
	struct connection connection;

	/* The reset is not sent twice, since the stack may be configured to ignore such resets
	 * (ip-sysctl, tcp_rfc1337). */
	if (skb->tc_index == CLEARED) {
		count_server(SERVER_NOT_EVICTED);
		return TC_ACT_UNSPEC;
	}
	connection_of(arrived, &connection);
	bpf_map_update_elem(&clearing, &connection, &cleared, BPF_ANY);
	clearing_until = cleared.until;
	skb->tc_index = CLEARED;
	bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->tc_index = 0;
	if (!become_reset(skb, arrived, old->next))
		return TC_ACT_SHOT;
	count_server(reason);
	return TC_ACT_UNSPEC;
}

/* Records that the copy was received. If no connection was created from it (`made` is false), later
 * segments of the connection needn't wait: the entry is removed. */
static __always_inline void note_copy(const struct arrived *arrived, bool made)
{
	struct connection connection;
	struct clearing *cleared;

	connection_of(arrived, &connection);
	cleared = made ? bpf_map_lookup_elem(&clearing, &connection) : 0;
	if (cleared)
		cleared->copy_received = true;
	else
		bpf_map_delete_elem(&clearing, &connection);
}

/* True if the stack has a socket of the new connection: neither a listener nor the old connection
 * in TIME-WAIT. */
static __always_inline bool has_connection(struct __sk_buff *skb, const struct segment *segment)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *found;
	__u32 state, len;

	if (segment->v6) {
		__builtin_memcpy(tuple.ipv6.saddr, &segment->src, sizeof(tuple.ipv6.saddr));
		__builtin_memcpy(tuple.ipv6.daddr, &segment->dst, sizeof(tuple.ipv6.daddr));
		tuple.ipv6.sport = segment->tcp->source;
		tuple.ipv6.dport = segment->tcp->dest;
		len = sizeof(tuple.ipv6);
	} else {
		tuple.ipv4.saddr = segment->src.word[3];
		tuple.ipv4.daddr = segment->dst.word[3];
		tuple.ipv4.sport = segment->tcp->source;
		tuple.ipv4.dport = segment->tcp->dest;
		len = sizeof(tuple.ipv4);
	}
	found = bpf_skc_lookup_tcp(skb, &tuple, len, BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return false;
	state = found->state;
	bpf_sk_release(found);
	return state != BPF_TCP_LISTEN && state != BPF_TCP_TIME_WAIT;
}

/* True if a segment has to wait because its connection is still being created after an eviction.
 * The listener would reset a segment of an unknown connection. */
__noinline int must_wait(struct __sk_buff *skb)
{
	struct connection connection;
	struct clearing *cleared;
	struct segment segment;
	__u64 now;

	if (skb->tc_index == CLEARED)
		return false;
	now = bpf_ktime_get_ns();
	if (now >= clearing_until ||
	    !read_segment(beginning(skb, ETH_HLEN + sizeof(struct ipv6hdr) + TCP_LEN), &segment))
		return false;
	connection.client = segment.src;
	connection.service = segment.dst;
	connection.client_port = segment.tcp->source;
	connection.service_port = segment.tcp->dest;
	cleared = bpf_map_lookup_elem(&clearing, &connection);
	if (!cleared)
		return false;
	/* The end of waiting is stored, because has_connection() becomes false again when the
	 * server has closed the new connection and its socket is in TIME-WAIT. */
	if (cleared->copy_received && has_connection(skb, &segment))
		cleared->until = 0;
	return now < cleared->until;
}

#endif
