/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Client segments with data, from which this host may create a connection:
 * core/src/server/accept.rs. */
#ifndef EVENER_ARRIVED_H
#define EVENER_ARRIVED_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include "net/cookie.h"
#include "net/cursor.h"
#include "net/mark.h"
#include "net/tcp.h"
#include "server/decapsulate.h"
#include "server/maps.h"
#include "server/segment.h"

/* The timestamps option (RFC 7323, section 3.2). */
struct timestamps {
	__u32 value;
	__u32 echo;
	__u32 present;
};

/* A client's segment with data, to a service with handoff. */
struct arrived {
	/* The first words are laid out like struct bpf_sock_tuple. */
	struct cookie_message message;
	__u32 sequence;
	__u32 acknowledgment;
	__u32 l4; /* offset of the TCP header in the frame, in bytes */
	__u32 l4_end; /* offset of the end of the TCP header */
	__u32 len; /* length of the data, in bytes */
	__be16 ip_len; /* length field of the IP header, unchanged */
	__be16 from;
	__be16 port;
	__be16 listener;
	bool v6;
	bool turns; /* exchanges of the connection are tracked */
	bool urgent;
	__u16 checksum; /* checksum field of the TCP header, unchanged */
	struct timestamps timestamps; /* set by look_for_timestamps() */
};

/* An old connection with the same addresses and ports as a new one. */
struct old {
	__u32 next; /* next expected sequence number */
	__u32 timestamp; /* last received timestamp, or 0 */
};

/* Writes the client's port and the destination port `to` behind the addresses of the message. */
static __always_inline void set_ports(struct arrived *arrived, __be16 to)
{
	__be32 ports = bpf_htonl((__u32)bpf_ntohs(arrived->from) << 16 | bpf_ntohs(to));

	if (arrived->v6)
		arrived->message.word[COOKIE_ENDS6 - 1] = ports;
	else
		arrived->message.word[COOKIE_ENDS4 - 1] = ports;
}

/* Reads a frame. False if no connection can be created from it. Most segments to a busy server have
 * no data and are rejected early. */
static __always_inline bool read_arrived(struct __sk_buff *skb, struct arrived *arrived)
{
	struct own_service key = { .protocol = IPPROTO_TCP };
	struct segment segment;
	struct offer *offer;

	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return false;
	if (!read_segment(beginning(skb, ETH_HLEN + sizeof(struct ipv6hdr) + TCP_LEN), &segment))
		return false;
	arrived->len = segment.l4 + segment.len - segment.l4_end;
	if ((__s32)arrived->len <= 0 || segment.l4 + segment.len > skb->len)
		return false;
	if ((segment.flags & (TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK)
		return false;
	arrived->v6 = segment.v6;
	if (segment.v6) {
		__builtin_memcpy(&arrived->message.word[0], &segment.src, sizeof(segment.src));
		__builtin_memcpy(&arrived->message.word[4], &segment.dst, sizeof(segment.dst));
	} else {
		arrived->message.word[0] = segment.src.word[3];
		arrived->message.word[1] = segment.dst.word[3];
	}
	arrived->from = segment.tcp->source;
	arrived->port = segment.tcp->dest;
	set_ports(arrived, segment.tcp->dest);
	arrived->sequence = bpf_ntohl(segment.tcp->seq);
	arrived->acknowledgment = bpf_ntohl(segment.tcp->ack_seq);
	arrived->checksum = segment.tcp->check;
	arrived->ip_len = segment.ip_len;
	arrived->l4 = segment.l4;
	arrived->l4_end = segment.l4_end;
	arrived->urgent = segment.flags & TCP_URG;
	key.address = known_by(&segment.dst, segment.v6);
	key.port = segment.tcp->dest;
	offer = bpf_map_lookup_elem(&own_services, &key);
	if (!offer || !offer->listener)
		return false;
	/* In an every-host farm, this host may be a server and also accept punted connections. */
	arrived->listener = segment.from == PUNTED && offer->punt_listener ? offer->punt_listener : offer->listener;
	arrived->turns = offer->turns;
	return true;
}

/* Reads the timestamps option. If there are two, the last one counts, as in the kernel's stack. */
static __always_inline void look_for_timestamps(struct __sk_buff *skb, struct arrived *arrived)
{
	struct tcp_options *found = options_here();

	if (!found || !read_options(skb, arrived->l4 + TCP_LEN, arrived->l4_end - arrived->l4 - TCP_LEN, found))
		return;
	arrived->timestamps.value = bpf_ntohl(found->timestamp);
	arrived->timestamps.echo = found->echo;
	arrived->timestamps.present = found->has_timestamp;
}

static __always_inline struct bpf_sock *look_up(struct __sk_buff *skb, struct arrived *arrived)
{
	struct bpf_sock_tuple *tuple = (void *)arrived->message.word;
	__u32 len = arrived->v6 ? sizeof(tuple->ipv6) : sizeof(tuple->ipv4);

	return bpf_skc_lookup_tcp(skb, tuple, len, BPF_F_CURRENT_NETNS, 0);
}

static __always_inline void connection_of(const struct arrived *arrived, struct connection *connection)
{
	const __be32 *word = arrived->message.word;

	if (arrived->v6) {
		__builtin_memcpy(&connection->client, &word[0], sizeof(connection->client));
		__builtin_memcpy(&connection->service, &word[4], sizeof(connection->service));
	} else {
		connection->client = mapped(word[0]);
		connection->service = mapped(word[1]);
	}
	connection->client_port = arrived->from;
	connection->service_port = arrived->port;
}

#endif
