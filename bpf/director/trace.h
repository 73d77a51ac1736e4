/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What is told of decisions, where somebody wants to know: each connection that is handed over, each packet of a few
 * clients (dataplane/src/events.rs). What a packet and its sender say is noted before it is decided, since that
 * changes it; the verdict says why.
 */
#ifndef EVENER_TRACE_H
#define EVENER_TRACE_H

#include "director/handoff.h"

static __always_inline __u64 watched(void)
{
	return *(volatile __u64 *)&watch.what;
}

static __always_inline bool is_watched(const struct ip *ip, bool v6)
{
	struct ip whole = mapped(ip->word[0]);

	if (v6)
		whole = *ip;
	for (int i = 0; i < CLIENTS_MAX; i++)
		if (same_ip(&whole, &watch.client[i]))
			return true;
	return false;
}

/* Ports, and TCP's flags, where the frame has the whole header. */
static __always_inline void glance_behind(context *ctx, __u32 l4, struct event *event)
{
	union {
		struct tcphdr tcp;
		struct udphdr udp;
	} header;

	if (event->protocol == IPPROTO_TCP && !frame_load(ctx, l4, &header.tcp, sizeof(header.tcp))) {
		event->src_port = header.tcp.source;
		event->dst_port = header.tcp.dest;
		event->flags = ((__u8 *)&header.tcp)[13];
	} else if (event->protocol == IPPROTO_UDP && !frame_load(ctx, l4, &header.udp, sizeof(header.udp))) {
		event->src_port = header.udp.source;
		event->dst_port = header.udp.dest;
	}
}

/* The packet's two ends, and the little more that tells it from another; core/src/path/parse/glance.rs. */
__attribute__((noinline)) int glance(context *ctx, struct event *event)
{
	__u32 l3 = ETH_HLEN, len;
	union {
		struct iphdr v4;
		struct ip6_header v6;
	} ip;
	__be16 ethertype;

	if (!event)
		return false;
	if (frame_load(ctx, l3 - sizeof(ethertype), &ethertype, sizeof(ethertype)))
		return false;
	for (int i = 0; i < TAGS_MAX; i++) {
		if (ethertype != bpf_htons(ETH_P_8021Q) && ethertype != bpf_htons(ETH_P_8021AD))
			break;
		l3 += TAG_LEN;
		if (frame_load(ctx, l3 - sizeof(ethertype), &ethertype, sizeof(ethertype)))
			return false;
	}
	event->src_port = 0;
	event->dst_port = 0;
	event->flags = 0;
	event->v6 = ethertype == bpf_htons(ETH_P_IPV6);
	if (event->v6) {
		if (frame_load(ctx, l3, &ip.v6, sizeof(ip.v6)) || *(__u8 *)&ip.v6 >> 4 != 6)
			return false;
		event->src = ip.v6.from;
		event->dst = ip.v6.to;
		event->protocol = ip.v6.next;
		len = sizeof(ip.v6) + bpf_ntohs(ip.v6.payload_len);
		event->len = len > 0xffff ? 0xffff : len;
		glance_behind(ctx, l3 + sizeof(ip.v6), event);
		return true;
	}
	if (ethertype != bpf_htons(ETH_P_IP) || frame_load(ctx, l3, &ip.v4, sizeof(ip.v4)) || ip.v4.version != 4)
		return false;
	event->src = (struct ip){ { ip.v4.saddr } };
	event->dst = (struct ip){ { ip.v4.daddr } };
	event->protocol = ip.v4.protocol;
	event->len = bpf_ntohs(ip.v4.tot_len);
	if (ip.v4.ihl >= 5 && !(ip.v4.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET)))
		glance_behind(ctx, l3 + ip.v4.ihl * 4, event);
	return true;
}

/* Whether the packet may be for a client that a port of the director's own stands for. */
static __always_inline bool may_be_hidden(const struct event *event)
{
	return answering && (__u16)(bpf_ntohs(event->dst_port) - FIRST_PORT) < PORTS;
}

/* Whether the packet is from or to a client that is watched, or may be; then what there is to tell is noted. */
__attribute__((noinline)) int note_packet(context *ctx)
{
	struct scratch *at = scratch_here();
	struct event *event;

	if (!at)
		return false;
	event = &at->told.packet;
	if (!glance(ctx, event))
		return false;
	if (is_watched(&event->src, event->v6) || is_watched(&event->dst, event->v6))
		at->pkt.tells = TELLS_PACKET;
	else if (may_be_hidden(event))
		at->pkt.tells = TELLS_ANSWER;
	else
		return false;
	at->told.is_held = false;
	return true;
}

/* Such packets are all decided as rare ones are, and so the others need not ask again. */
static __always_inline bool is_traced(context *ctx)
{
	return watched() & WATCH_CLIENTS && note_packet(ctx);
}

/* begin() of a connection that is told. */
__attribute__((noinline)) int begin_told(context *ctx, struct scratch *at)
{
	struct event *event;
	__u32 len;

	if (!at)
		return VERDICT_DROP;
	len = payload_len(at);
	if (len) {
		event = &at->told.connection;
		event->at_ns = bpf_ktime_get_ns();
		event->src = at->src;
		event->dst = at->dst;
		event->src_port = at->pkt.src_port;
		event->dst_port = at->pkt.dst_port;
		event->v6 = at->pkt.v6;
		event->protocol = IPPROTO_TCP;
		event->flags = at->pkt.flags;
		event->len = at->pkt.len;
		event->head_len = len < HEAD_MAX ? len : HEAD_MAX;
		at->told.is_held = false;
		at->pkt.tells |= TELLS_CONNECTION;
	}
	return begin(ctx, at);
}

/* Hands it to the reader, `len` bytes of its head included. */
static __always_inline void hand_out(struct event *event, __u32 len)
{
	hide(len);
	if (len > HEAD_MAX)
		len = HEAD_MAX;
	if (bpf_ringbuf_output(&events, event, __builtin_offsetof(struct event, head) + len, 0))
		__sync_fetch_and_add(&watch.lost, 1);
}

static __always_inline void put_outcome(const struct scratch *at, int outcome, struct event *event)
{
	__u8 verdict = outcome;

	event->reason = (__u32)outcome >> REASON_SHIFT;
	event->also_counted = at->pkt.also_counted;
	if (at->told.is_held)
		event->verdict = TOLD_HOLD;
	else if (event->reason == REASON_BY_HOST)
		event->verdict = TOLD_PASS;
	else
		event->verdict = verdict == VERDICT_PASS ? TOLD_PASS : verdict == VERDICT_DROP ? TOLD_DROP : TOLD_FORWARD;
}

/* Whether an answer, as it now stands, goes to a client that is watched; then it is told as one to him. */
static __always_inline bool goes_to_watched(context *ctx, struct told *told, __u32 reason)
{
	struct event *after = &told->connection;

	if (reason != REASON_ANSWERED && reason != REASON_BY_HOST)
		return false;
	if (!glance(ctx, after) || !is_watched(&after->dst, after->v6))
		return false;
	told->packet.dst = after->dst;
	told->packet.dst_port = after->dst_port;
	return true;
}

/* Tells what became of the packet. */
__attribute__((noinline)) int tell(context *ctx, struct scratch *at, int outcome)
{
	__u32 reason = (__u32)outcome >> REASON_SHIFT;
	__u64 now = bpf_ktime_get_ns();
	struct event *event;
	struct told *told;

	if (!at)
		return 0;
	told = &at->told;
	if (at->pkt.tells & TELLS_CONNECTION) {
		event = &told->connection;
		event->kind = EVENT_CONNECTION;
		event->took_ns = now - event->at_ns;
		event->at_ns = now;
		event->server = at->pkt.server;
		event->route = NO_ROUTE;
		/* Where the server is yet to be chosen, no route has done it. */
		if (event->server != NO_SERVER && at->pkt.also_counted != REASON_PUNTED)
			event->route = at->reading.route;
		put_outcome(at, outcome, event);
		__builtin_memcpy(event->head, at->reading.payload, HEAD_MAX);
		hand_out(event, event->head_len);
	}
	if (at->pkt.tells & TELLS_PACKET || (at->pkt.tells & TELLS_ANSWER && goes_to_watched(ctx, told, reason))) {
		event = &told->packet;
		event->kind = EVENT_PACKET;
		event->at_ns = now;
		event->server = NO_SERVER;
		if (reason == REASON_FORWARDED || reason == REASON_LOCAL || (reason == REASON_MOVES && told->is_held))
			event->server = at->pkt.server;
		put_outcome(at, outcome, event);
		hand_out(event, 0);
	}
	at->pkt.tells = 0;
	return 0;
}

#endif
