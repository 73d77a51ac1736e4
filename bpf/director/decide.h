/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Decision about one packet: core/src/path/decide. */
#ifndef EVENER_DECIDE_H
#define EVENER_DECIDE_H

#include "director/icmp.h"
#include "director/fast_path.h"
#include "director/trace.h"

/* Loads the fields from which a reset as the answer to a packet is made. Returns false if the
 * packet must not be answered with a reset. */
static __always_inline bool load_unmatched(context *ctx, struct scratch *at)
{
	const struct packet_context *pkt = &at->pkt;

	return pkt->protocol == IPPROTO_TCP && (pkt->flags & (TCP_SYN | TCP_ACK)) != TCP_SYN &&
	       load_ends(ctx, pkt->l3, pkt->v6, &at->src, &at->dst) &&
	       !frame_load(ctx, pkt->l4, &at->tcp, sizeof(at->tcp));
}

/* Sends a client's packet to the server that was selected for it. */
__attribute__((noinline)) int send_to_server(context *ctx, struct scratch *at)
{
	struct packet_context *pkt;
	struct server *server;
	struct vip *vip;
	__u8 also_counted;

	if (!at)
		return VERDICT_DROP;
	pkt = &at->pkt;
	/* The second reason is counted only if the packet is forwarded. */
	also_counted = pkt->also_counted;
	pkt->also_counted = 0;
	server = present_server(pkt->server);
	vip = find_vip_by_id(pkt->vip);
	if (!server || !vip)
		return with_reason(VERDICT_DROP, REASON_NO_SERVER);
	/* Without a session the server's reply couldn't be translated back. */
	if (server->flags & SERVER_NAT && !pkt->session) {
		__u32 reason = also_counted ? also_counted : REASON_NO_SESSION;

		return reason == REASON_NO_SESSION && load_unmatched(ctx, at) ? unmatched_segment(pkt, reason) :
										with_reason(VERDICT_DROP, reason);
	}
	if (server->flags & SERVER_NAT && !to_port_key(ctx, pkt, server, &at->key6))
		return with_reason(VERDICT_DROP, REASON_LINK_LOCAL);
	if (server->flags & SERVER_SOURCE_NAT) {
		pkt->port = source_nat_port(vip, &at->key6, pkt->hash, pkt->session, ticks_now());
		if (!pkt->port)
			return with_reason(VERDICT_DROP, REASON_NO_PORT);
	}
	if (pkt->is_fragment && !record_fragment(ctx, at, false))
		return with_reason(VERDICT_DROP, REASON_FRAGMENT_OVERLAP);
	pkt->also_counted = also_counted;
	return deliver(ctx, at, server);
}

/* Stores the selection for send_to_server(). */
static __always_inline int note_selected(const struct packet *packet, const struct flow *flow,
				  const struct selected *selected, __u32 frame_bytes)
{
	struct scratch *at = scratch_for(packet);

	if (!at)
		return VERDICT_DROP;
	at->pkt.hash = flow->hash;
	at->pkt.session = selected->session;
	at->pkt.also_counted = selected->also_counted;
	at->pkt.server = selected->server;
	at->pkt.vip = flow->vip->id;
	at->pkt.arrival = flow->arrival;
	at->pkt.bytes = frame_bytes;
	at->pkt.new_session = selected->new_session;
	return selected->server == NO_SERVER ? STEP_HAND_OFF : STEP_SEND_TO_SERVER;
}

/* Length of the whole frame. The first buffer may hold only a part of it. */
static __always_inline __u32 whole_len(context *ctx, const struct packet *packet)
{
	__u32 here = ctx->data_end - ctx->data;

	return packet->l3 + packet->len > here ? frame_len(ctx) : here;
}

/* Does the same as send_to_server(), but by the code of the fast path if the packet permits
 * this. */
static __always_inline int send_segment(context *ctx, const struct packet *packet, const struct flow *flow,
					const struct selected *selected, const struct server *server)
{
	__u32 flags = server->flags & ~SERVER_UP & 0xffff;
	void *frame = bytes_at(ctx, 0, SHORT_LEN);

	/* Most packets that open a session take this branch. */
	if (frame && !(packet->v6 | packet->is_fragment) && packet->l3 == ETH_HLEN && may_go_to(flow->arrival, server) &&
	    (selected->session || flags & SERVER_TUNNEL) && fast_path_may_send(ctx, frame, server, flags)) {
		count_server(selected->server, whole_len(ctx, packet), selected->new_session);
		return (__u8)fast_path_send(ctx, frame, flags, packet->protocol, server);
	}
	if (flags & (SERVER_TUNNEL | SERVER_NAT) || packet->is_fragment || packet->l3 != ETH_HLEN)
		return note_selected(packet, flow, selected, whole_len(ctx, packet));
	count_server(selected->server, whole_len(ctx, packet), selected->new_session);
	if (server->flags & SERVER_LOCAL || !may_go_to(flow->arrival, server)) {
		if (server->flags & SERVER_PUNTED)
			mark_punted(packet->ethernet->h_source);
		return with_reason(VERDICT_PASS, REASON_LOCAL);
	}
	rewrite_link(packet->ethernet, server->src, server->dst);
	/* Forwarded packets have no counter of their own, since their number is the sum of the
	 * servers' counters. */
	if (server->ifindex == frame_ingress(ctx))
		return frame_back(ctx);
	frame_leave(ctx);
	return bpf_redirect(server->ifindex, 0);
}

static __always_inline int decide_segment(context *ctx, const struct packet *packet, const struct vip *vip)
{
	struct scratch *at = packet->at;
	struct selected selected = {};
	struct server *server;
	struct flow flow = {
		.vip = vip,
		.now = ticks_now(),
		.v6 = packet->v6,
		.udp = packet->protocol == IPPROTO_UDP,
		.flags = packet->flags,
		.numbers = packet->numbers,
	};

	if (has_bad_flags(packet->flags))
		return with_reason(VERDICT_DROP, REASON_BAD_FLAGS);
	if (!at)
		return VERDICT_DROP;
	flow.key = &at->key6;
	if (packet->v6) {
		*flow.key = session_key6(&at->src, true, packet->client_port, vip->id);
		flow.hash = flow_hash6(flow.key);
	} else {
		*flow.key = session_key6(&(struct ip){ { packet->src4 } }, false, packet->client_port, vip->id);
		flow.hash = flow_hash(word_of(flow.key));
	}
	if (vip->flags & VIP_HANDOFF) {
		flow.arrival = arrival_of(vip, packet->ethernet);
		/* hand_off() selects the server. */
		return note_selected(packet, &flow, &selected, whole_len(ctx, packet));
	}
	server = choose(packet, &flow, &selected);
	if (!server)
		return with_reason(VERDICT_DROP, selected.server == ALL_FULL ? REASON_SERVERS_FULL : REASON_NO_SERVER);
	/* emit_trace() reads these fields. */
	at->pkt.server = selected.server;
	at->pkt.also_counted = selected.also_counted;
	return send_segment(ctx, packet, &flow, &selected, server);
}

static __always_inline struct vip *vip_of(const struct packet *packet)
{
	if (packet->v6)
		return packet->at ? find_vip6(&packet->at->dst, packet->port, packet->protocol) : 0;
	return find_vip(vip_bits(packet->dst4, packet->port, packet->protocol));
}

/* Hides the parsed values from the verifier, so that it checks the following code once and not once
 * for each path through parse(). Returns false if the frame is shorter than an IPv4 header, which
 * parse() has excluded. */
static __always_inline bool forget_parse(context *ctx, struct packet *packet)
{
	__u32 unknown = frame_ingress(ctx);

	forget(packet->l3, unknown);
	forget(packet->protocol, unknown);
	forget(packet->flags, unknown);
	forget(packet->v6, unknown);
	forget(packet->is_fragment, unknown);
	packet->ethernet = bytes_at(ctx, 0, sizeof(struct ethhdr) + sizeof(struct iphdr));
	return packet->ethernet;
}

/* First step of the slow path. Not inlined, since its variables would take stack during the later
 * steps, too. */
__attribute__((noinline)) int first_step(context *ctx, struct scratch *at)
{
	struct interface *own = find_interface(frame_ingress(ctx));
	struct packet packet = { .at = at };
	struct vip *vip;

	if (!at)
		return VERDICT_DROP;
	switch (parse(ctx, own, &packet)) {
	case PARSED_SEGMENT:
		if (!forget_parse(ctx, &packet))
			return VERDICT_DROP;
		vip = vip_of(&packet);
		if (vip)
			return decide_segment(ctx, &packet, vip);
		if (!answering)
			return with_reason(VERDICT_PASS, REASON_NOT_SERVICE);
		at = scratch_for(&packet);
		return at ? STEP_REPLY : VERDICT_DROP;
	case PARSED_LATER_FRAGMENT:
		at = scratch_for(&packet);
		return at ? STEP_LATER_FRAGMENT : VERDICT_DROP;
	case PARSED_ICMP:
		at = scratch_for(&packet);
		return at ? STEP_ICMP : VERDICT_DROP;
	case PARSED_ARP_REQUEST: {
		struct ip asked = { { packet.arp->target_ip } };

		/* A request whose sender has the requested address is an address conflict (RFC
		 * 5227). */
		if (!(address_flags(&asked, false) & ADDRESS_ANNOUNCED) || !own || !lease_holds(ticks_now()) ||
		    packet.arp->sender_ip == asked.word[0])
			return with_reason(VERDICT_PASS, REASON_NOT_SERVICE);
		rewrite_arp_answer(packet.ethernet, packet.arp, own->mac);
		return with_reason(frame_back(ctx), REASON_ARP_ANSWERED);
	}
	case PARSED_SOLICITATION:
		at = scratch_for(&packet);
		return at ? STEP_SOLICITATION : VERDICT_DROP;
	case PARSED_ODD: {
		struct ip dst = { { packet.dst4 } };

		if (packet.v6 && packet.at)
			dst = packet.at->dst;
		return odd_verdict(&dst, packet.v6, packet.reason);
	}
	default:
		return with_reason(VERDICT_PASS, packet.reason);
	}
}

/* Runs the steps of the slow path. Each step returns the next one, the last returns the verdict. */
static __always_inline int take_steps(context *ctx, struct scratch *at)
{
	int step = first_step(ctx, at);

	if (step == STEP_SOLICITATION)
		return answer_solicitation(ctx, at);
	if (step == STEP_ICMP)
		step = decide_icmp(ctx, at);
	if (step == STEP_ERROR_TO_SERVER)
		step = error_to_server(ctx, at);
	else if (step == STEP_ERROR_TO_CLIENT)
		step = error_to_client(ctx, at);
	else if (step == STEP_REPLY)
		step = decide_reply(ctx, at);
	else if (step == STEP_LATER_FRAGMENT)
		step = later_fragment(ctx, at);
	else if (step == STEP_HAND_OFF)
		step = hand_off(ctx, at);
	if (step == STEP_SYN_ACK)
		return answer_syn(ctx, at);
	if (step == STEP_BEGIN)
		step = watched() & WATCH_CONNECTIONS ? begin_trace(ctx, at) : begin(ctx, at);
	else if (step == STEP_LATER_SEGMENT)
		step = later_segment(ctx, at);
	if (step == STEP_ACKNOWLEDGE)
		return acknowledge(ctx, at);
	if (step == STEP_SEND_TO_SERVER)
		step = send_to_server(ctx, at);
	if (step == STEP_RESET)
		return reset(ctx, at);
	if (step == STEP_DELIVER)
		step = deliver_far(ctx, at);
	if (step == STEP_TOO_BIG)
		step = at->pkt.arrival ? too_big_by_route(ctx, at) : too_big(ctx, at);
	return step;
}

/* Runs the slow path, counts its reason and returns the kernel's verdict. Not inlined, since the
 * fast path needs all registers. */
__attribute__((noinline)) int slow_path(context *ctx)
{
	struct scratch *at = scratch_here();
	__u32 reason;
	int outcome;

	if (!at)
		return (__s8)VERDICT_DROP;
	at->pkt.also_counted = 0;
	at->client.value = 0;
	frame_begin(ctx);
	outcome = take_steps(ctx, at);
	if (at->client.value)
		record_client(&at->client);
	reason = (__u32)outcome >> REASON_SHIFT;
	if (at->pkt.also_counted)
		count_reason(at->pkt.also_counted);
	if (at->pkt.traces)
		emit_trace(ctx, at, outcome);
	if (reason)
		count_reason(reason);
	return (__s8)outcome;
}

static __always_inline int decide(context *ctx)
{
	if (!is_traced(ctx)) {
		int verdict = fast_path(ctx);

		if (verdict != STEP_ANY)
			return verdict;
	}
	return slow_path(ctx);
}

#endif
