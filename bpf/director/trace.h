/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Events for subscribers: handed-off connections, and packets of selected clients
 * (dataplane/src/events.rs). The addresses and ports of a packet are recorded before the decision,
 * which may rewrite them.
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

/* Reads the ports and TCP flags, if the frame has the whole transport header. */
static __always_inline void read_endpoints_behind(context *ctx, __u32 l4, struct event *event)
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

/* Reads a packet's addresses, ports, protocol, flags and length: core/src/path/parse/glance.rs. */
__attribute__((noinline)) int read_endpoints(context *ctx, struct event *event)
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
		read_endpoints_behind(ctx, l3 + sizeof(ip.v6), event);
		return true;
	}
	if (ethertype != bpf_htons(ETH_P_IP) || frame_load(ctx, l3, &ip.v4, sizeof(ip.v4)) || ip.v4.version != 4)
		return false;
	event->src = (struct ip){ { ip.v4.saddr } };
	event->dst = (struct ip){ { ip.v4.daddr } };
	event->protocol = ip.v4.protocol;
	event->len = bpf_ntohs(ip.v4.tot_len);
	if (ip.v4.ihl >= 5 && !(ip.v4.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET)))
		read_endpoints_behind(ctx, l3 + ip.v4.ihl * 4, event);
	return true;
}

/* True if the destination port may be one that the director has allocated to a client's session. */
static __always_inline bool may_be_hidden(const struct event *event)
{
	return answering && (__u16)(bpf_ntohs(event->dst_port) - FIRST_PORT) < PORTS;
}

/* Starts an event if the packet is, or may be, from or to a watched client. Returns false for other
 * packets. */
__attribute__((noinline)) int note_packet(context *ctx)
{
	struct scratch *at = scratch_here();
	struct event *event;

	if (!at)
		return false;
	event = &at->trace.packet;
	if (!read_endpoints(ctx, event))
		return false;
	if (is_watched(&event->src, event->v6) || is_watched(&event->dst, event->v6))
		at->pkt.traces = TRACE_PACKET;
	else if (may_be_hidden(event))
		at->pkt.traces = TRACE_ANSWER;
	else
		return false;
	at->trace.is_held = false;
	return true;
}

/* True if the packet is traced. Traced packets skip the fast path, so the fast path needs no code
 * for traces. */
static __always_inline bool is_traced(context *ctx)
{
	return watched() & WATCH_CLIENTS && note_packet(ctx);
}

/* begin() with an event for the connection. */
__attribute__((noinline)) int begin_trace(context *ctx, struct scratch *at)
{
	struct event *event;
	__u32 len;

	if (!at)
		return VERDICT_DROP;
	len = payload_len(at);
	if (len) {
		event = &at->trace.connection;
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
		at->trace.is_held = false;
		at->pkt.traces |= TRACE_CONNECTION;
	}
	return begin(ctx, at);
}

/* Writes an event with `len` bytes of the request's head to the ring buffer. */
static __always_inline void hand_out(struct event *event, __u32 len)
{
	if (bpf_ringbuf_output(&events, event, __builtin_offsetof(struct event, head) + at_most(len, HEAD_MAX), 0))
		__sync_fetch_and_add(&watch.lost, 1);
}

static __always_inline void put_outcome(const struct scratch *at, int outcome, struct event *event)
{
	__u8 verdict = outcome;

	event->reason = (__u32)outcome >> REASON_SHIFT;
	event->also_counted = at->pkt.also_counted;
	if (at->trace.is_held)
		event->verdict = TRACED_HOLD;
	else if (event->reason == REASON_HOST_STACK)
		event->verdict = TRACED_PASS;
	else
		event->verdict = verdict == VERDICT_PASS ? TRACED_PASS : verdict == VERDICT_DROP ? TRACED_DROP : TRACED_FORWARD;
}

/* True if a translated reply goes to a watched client. Stores that client in the event. */
static __always_inline bool goes_to_watched(context *ctx, struct trace *trace, __u32 reason)
{
	struct event *after = &trace->connection;

	if (reason != REASON_ANSWERED && reason != REASON_HOST_STACK)
		return false;
	if (!read_endpoints(ctx, after) || !is_watched(&after->dst, after->v6))
		return false;
	trace->packet.dst = after->dst;
	trace->packet.dst_port = after->dst_port;
	return true;
}

/* Emits the events of a packet after its decision. */
__attribute__((noinline)) int emit_trace(context *ctx, struct scratch *at, int outcome)
{
	__u32 reason = (__u32)outcome >> REASON_SHIFT;
	__u64 now = bpf_ktime_get_ns();
	struct event *event;
	struct trace *trace;

	if (!at)
		return 0;
	trace = &at->trace;
	if (at->pkt.traces & TRACE_CONNECTION) {
		event = &trace->connection;
		event->kind = EVENT_CONNECTION;
		event->latency_ns = now - event->at_ns;
		event->at_ns = now;
		event->server = at->pkt.server;
		event->route = NO_ROUTE;
		/* The route is valid only if it led to a server, and not for punted connections. */
		if (event->server != NO_SERVER && at->pkt.also_counted != REASON_PUNTED)
			event->route = at->reading.route;
		put_outcome(at, outcome, event);
		__builtin_memcpy(event->head, at->reading.payload, HEAD_MAX);
		hand_out(event, event->head_len);
	}
	if (at->pkt.traces & TRACE_PACKET || (at->pkt.traces & TRACE_ANSWER && goes_to_watched(ctx, trace, reason))) {
		event = &trace->packet;
		event->kind = EVENT_PACKET;
		event->at_ns = now;
		event->server = NO_SERVER;
		if (reason == REASON_FORWARDED || reason == REASON_LOCAL || (reason == REASON_REHANDOFF && trace->is_held))
			event->server = at->pkt.server;
		put_outcome(at, outcome, event);
		hand_out(event, 0);
	}
	at->pkt.traces = 0;
	return 0;
}

#endif
