// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Programs of servers: decapsulation (by XDP or TC), clamping of the maximum segment size to the
 * tunnel's MTU, and acceptance of handed-off connections.
 */
#define EVENER_TC
#include <linux/pkt_cls.h>
#include "server/accept.h"
#include "server/decapsulate.h"
#include "server/socket.h"

/* Number of bytes that decap_tc() makes accessible: Ethernet, IPv6, UDP, GUE with optional fields,
 * IPv6 with some extension headers, ports. */
#define HEADERS_LEN 256
/* BPF_F_ADJ_ROOM_DECAP_L3_IPV4 and _IPV6 of <linux/bpf.h> (Linux 6.3 and later): the frame's new
 * protocol. */
#define DECAP_L3_IPV4 (1ULL << 7)
#define DECAP_L3_IPV6 (1ULL << 8)
/* Value of `tc_index` of a decapsulated packet, for programs on virtual interfaces above the one
 * that received it. */
#define OPENED 0xe7e4

static __always_inline int refused(__u32 reason, int drop)
{
	count_server(reason);
	return drop;
}

/* Writes the link header of the inner packet. In an every-host farm the source MAC shows how often
 * the packet was forwarded. A packet without a mark counts as forwarded twice, so that it stays on
 * this host. Returns true in an every-host farm. */
static __always_inline bool finish(struct ethhdr *ethernet, const struct inner *inner)
{
	__u32 first = 0, *are_on = bpf_map_lookup_elem(&marks, &first);

	ethernet->h_proto = inner->ethertype;
	if (!are_on || !*are_on)
		return false;
	mark_passed(ethernet->h_source, inner->passed != PASSED_ONCE);
	return true;
}

SEC("xdp")
int decap_xdp(struct xdp_md *ctx)
{
	struct cursor cursor = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
	struct ethhdr ethernet, *old, *new;
	struct inner inner = {};
	int verdict;

	if (is_forged(cursor))
		return refused(SERVER_FORGED_MARK, XDP_DROP);
	verdict = decapsulate(cursor, cursor.end - cursor.at, &inner);
	if (verdict == NOT_OURS)
		return XDP_PASS;
	if (verdict != SERVER_DECAPSULATED)
		return refused(verdict, XDP_DROP);
	/* A new cursor: the verifier would check the following code once for each range that
	 * decapsulate() has read. */
	hide(ctx);
	cursor.at = (void *)(long)ctx->data;
	old = take(&cursor, sizeof(*old));
	if (!old)
		return refused(verdict, XDP_DROP);
	ethernet = *old;
	if (bpf_xdp_adjust_head(ctx, inner.outer_len))
		return refused(SERVER_ADJUST_ROOM_FAILED, XDP_DROP);
	cursor.at = (void *)(long)ctx->data;
	cursor.end = (void *)(long)ctx->data_end;
	new = take(&cursor, sizeof(*new));
	if (!new)
		return refused(SERVER_ADJUST_ROOM_FAILED, XDP_DROP);
	*new = ethernet;
	finish(new, &inner);
	count_server(SERVER_DECAPSULATED);
	return XDP_PASS;
}

SEC("tc")
int decap_tc(struct __sk_buff *skb)
{
	__u64 decap = BPF_F_ADJ_ROOM_FIXED_GSO;
	struct inner inner = {};
	struct ethhdr *ethernet;
	struct cursor cursor;
	int verdict;

	cursor.at = (void *)(long)skb->data;
	cursor.end = (void *)(long)skb->data_end;
	if (skb->tc_index != OPENED && skb->tc_index != CLEARED && is_forged(cursor))
		return refused(SERVER_FORGED_MARK, TC_ACT_SHOT);
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return TC_ACT_UNSPEC;
	cursor = beginning(skb, HEADERS_LEN);
	verdict = decapsulate(cursor, skb->len, &inner);
	if (verdict == NOT_OURS)
		return TC_ACT_UNSPEC;
	if (verdict != SERVER_DECAPSULATED)
		return refused(verdict, TC_ACT_SHOT);
	/* FIXED_GSO: the segments that GRO has merged keep their length. */
	decap |= inner.ethertype == bpf_htons(ETH_P_IP) ? DECAP_L3_IPV4 : DECAP_L3_IPV6;
	if (bpf_skb_adjust_room(skb, -(__s32)inner.outer_len, BPF_ADJ_ROOM_MAC, decap))
		return refused(SERVER_ADJUST_ROOM_FAILED, TC_ACT_SHOT);
	cursor.at = (void *)(long)skb->data;
	cursor.end = (void *)(long)skb->data_end;
	ethernet = take(&cursor, sizeof(*ethernet));
	if (ethernet && finish(ethernet, &inner))
		skb->tc_index = OPENED;
	count_server(SERVER_DECAPSULATED);
	return TC_ACT_UNSPEC;
}

/* Lowers the MSS option among the options from offset `at` to `end` in the frame. If there are two,
 * the last one counts. */
static __always_inline void lower_mss(struct __sk_buff *skb, __u32 at, __u32 end, __u16 mss)
{
	const __u32 sum = at - TCP_LEN + __builtin_offsetof(struct tcphdr, check);
	struct tcp_options *found = options_here();
	__be16 was, now = bpf_htons(mss);

	if (!found || !read_options(skb, at, end - at, found) || !found->has_mss || found->mss <= mss)
		return;
	was = bpf_htons(found->mss);
	at += found->mss_at + 2;
	if (bpf_skb_store_bytes(skb, at, &now, sizeof(now), 0))
		return;
	/* The checksum adds 16-bit words of the TCP header, and the option isn't aligned. */
	if (found->mss_at & 1) {
		was = was << 8 | was >> 8;
		now = now << 8 | now >> 8;
	}
	if (!bpf_l4_csum_replace(skb, sum, was, now, sizeof(was)))
		count_server(SERVER_CLAMPED);
}

/* A segment that the server sends. */
struct leaving {
	struct connection connection;
	struct payload payload;
	__u32 l4; /* offset of the TCP header in the frame, in bytes */
	__u8 flags;
	bool v6;
};

static __always_inline bool read_leaving(struct __sk_buff *skb, struct leaving *leaving)
{
	struct cursor cursor = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	struct connection *connection = &leaving->connection;
	struct segment segment;

	if (!read_segment(cursor, &segment))
		return false;
	connection->service = known_by(&segment.src, segment.v6);
	connection->client = known_by(&segment.dst, segment.v6);
	connection->service_port = segment.tcp->source;
	connection->client_port = segment.tcp->dest;
	leaving->l4 = segment.l4;
	leaving->v6 = segment.v6;
	leaving->flags = segment.flags;
	leaving->payload.sequence = bpf_ntohl(segment.tcp->seq);
	leaving->payload.from = segment.l4_end;
	if (skb->len > segment.l4_end)
		leaving->payload.len = skb->len - segment.l4_end;
	return true;
}

/* Hash of the receiver of a segment, for is_retransmission(). */
static __always_inline __u64 mixed(const struct leaving *leaving)
{
	const struct connection *connection = &leaving->connection;
	const __be32 *word = connection->client.word;
	__u64 client = word[3];

	if (leaving->v6)
		client = (__u64)(word[0] ^ word[2]) << 32 | (word[1] ^ word[3]);
	client ^= (__u32)connection->client_port << 16 | connection->service_port;
	client *= 0x9e3779b97f4a7c15;
	client = (client ^ client >> 32) * 0xd6e8feb86659fd93;
	return client ^ client >> 32;
}

/*
 * Servers send to clients directly, so the director doesn't see these segments. This program lowers
 * the MSS that servers offer (RFC 9293, section 3.7.1), so that clients' segments fit into the
 * tunnel, and tracks responses if necessary.
 *
 * With handoff, a segment may overtake the first segment of its connection, or arrive after the
 * connection has moved to another host. The stack answers such a segment with a reset without an
 * acknowledgment (RFC 9293, section 3.10.7.1). This program drops such a reset until the client has
 * retransmitted the segment.
 */
SEC("tc")
int outgoing(struct __sk_buff *skb)
{
	struct own_service key = { .protocol = IPPROTO_TCP };
	struct leaving leaving = {};
	struct offer *offer;
	__u8 flags;

	if (!read_leaving(skb, &leaving))
		return TC_ACT_UNSPEC;
	flags = leaving.flags;
	/* Most segments leave here. */
	if (!(flags & (TCP_SYN | TCP_RST)) && !((leaving.payload.len || flags & TCP_FIN) && follows_exchanges()))
		return TC_ACT_UNSPEC;
	key.address = leaving.connection.service;
	key.port = leaving.connection.service_port;
	offer = bpf_map_lookup_elem(&own_services, &key);
	if (!offer)
		return TC_ACT_UNSPEC;
	if (flags & TCP_SYN && offer->mss)
		lower_mss(skb, leaving.l4 + TCP_LEN, leaving.payload.from, offer->mss);
	/* Excludes packets that a director on this host forwards (they have an ingress interface)
	 * or generates (they have the mark SENT_ON). */
	if ((flags & (TCP_RST | TCP_ACK)) == TCP_RST && offer->listener && !skb->ingress_ifindex && skb->mark != SENT_ON &&
	    !is_retransmission(unmatched, mixed(&leaving), leaving.payload.sequence, bpf_ktime_get_ns() >> 20))
		return refused(SERVER_RESET_DELAYED, TC_ACT_SHOT);
	if (offer->turns && !(flags & TCP_SYN))
		follow_answer(skb, &leaving.connection, &leaving.payload, flags & (TCP_FIN | TCP_RST));
	return TC_ACT_UNSPEC;
}

/*
 * Runs after the director's program, so a packet here is for this host. The host's stack handles
 * segments from which no connection is created, and resets unknown connections.
 */
SEC("tc")
int accept(struct __sk_buff *skb)
{
	struct arrived arrived = {};

	/* Requeues the segment behind the copy, until the copy was received. */
	if (clearing_until && must_wait(skb))
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	if (!read_arrived(skb, &arrived))
		return TC_ACT_UNSPEC;
	return answer(skb, &arrived);
}

/* Only the agent runs this program, on a frame with a struct socket_snapshot. The program reads
 * `connection` and fills in the other fields. */
SEC("tc")
int look(struct __sk_buff *skb)
{
	struct socket_snapshot snapshot = {};

	return look_at(skb, &snapshot) ? TC_ACT_OK : TC_ACT_SHOT;
}

/* Never runs. The program refers to a map that only the agent uses, so that the map stays in the
 * object file. */
SEC("xdp")
int describe_server(struct xdp_md *ctx)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&server_about, &first) ? XDP_PASS : XDP_ABORTED;
}

/* Types that no map uses. The variables make the compiler emit their BTF. */
const volatile enum server_reason abi_server_reason = SERVER_DECAPSULATED;
const volatile struct socket_snapshot abi_socket_snapshot = {};

char LICENSE[] SEC("license") = "Dual MIT/GPL";
