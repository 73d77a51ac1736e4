/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* One packet, one verdict: core/src/decide. */
#ifndef EVENER_DECIDE_H
#define EVENER_DECIDE_H

#include "icmp.h"

/* The whole frame, of which the first buffer may hold only a part. */
static __always_inline __u32 whole_len(context *ctx, const struct packet *packet)
{
	__u32 here = ctx->data_end - ctx->data;

	return packet->l3 + packet->len > here ? frame_len(ctx) : here;
}

/* Goes on with what is left to do. */
static __always_inline int finish(context *ctx, struct scratch *at, int verdict)
{
	if (verdict == STEP_ERROR_TO_SERVER)
		verdict = error_to_server(ctx, at);
	else if (verdict == STEP_ERROR_TO_CLIENT)
		verdict = error_to_client(ctx, at);
	if (verdict == STEP_DELIVER)
		verdict = deliver_far(ctx, at);
	if (verdict == STEP_TOO_BIG)
		verdict = too_big(ctx, at);
	return verdict;
}

/* A packet whose way to its server is longer than a new MAC address, or that is a first fragment. */
static __always_inline int decide_far(context *ctx, const struct packet *packet, const struct flow *flow,
				      const struct choice *choice, const struct server *server)
{
	struct scratch *at = scratch_for(packet);
	struct journey *journey;
	struct key6 *key;

	if (!at)
		return VERDICT_DROP;
	journey = &at->journey;
	journey->hash = flow->hash;
	journey->server = choice->server;
	journey->vip = flow->vip->id;
	if (server->flags & SERVER_NAT) {
		/* What no session is known of couldn't be answered either. */
		if (!choice->session)
			return count_and(VERDICT_DROP, choice->beside ? choice->beside : REASON_NO_SESSION);
		key = &at->owner.key;
		if (!flow->v6)
			*key = (struct key6){ { 0, 0xffff00000000ULL | flow->key >> 32, flow->key & 0xffffffff } };
		if (server->flags & SERVER_SOURCE_NAT) {
			journey->port = hidden_port(flow->vip, key, flow->hash, choice->session, flow->now);
			if (!journey->port)
				return count_and(VERDICT_DROP, REASON_NO_PORT);
		}
	}
	if (packet->is_fragment && !note_track(ctx, at, false))
		return count_and(VERDICT_DROP, REASON_FRAGMENT_OVERLAP);
	if (choice->beside)
		count_reason(choice->beside);
	journey->bytes = whole_len(ctx, packet);
	journey->new_session = choice->new_session;
	return finish(ctx, at, deliver(ctx, at, server));
}

/*
 * The short way for what is most: whole, untagged IPv4 packets into an IPIP tunnel over IPv4, or to new addresses
 * with the client's own port. Does what the long way does, by pointers; 0 where that one must be taken.
 */
static __always_inline int wrap_near(context *ctx, const struct packet *packet, const struct server *server)
{
	struct iphdr *ip = (void *)packet->ethernet + ETH_HLEN;
	struct inherited inherited = { .class = ip->tos, .fragment = ip->frag_off & bpf_htons(IPV4_DONT_FRAGMENT) };
	struct {
		__u16 link[7];
		__u32 ip[5];
	} __attribute__((packed)) *outer;

	inherited.id = inherited.fragment ? 0 : ip->id;
	decrement_ttl4(ip);
	if (frame_wrap(ctx, ETH_HLEN, sizeof(*ip), ETH_HLEN, false, false))
		return count_and(VERDICT_DROP, REASON_NO_ROOM);
	outer = bytes_at(ctx, 0, sizeof(*outer));
	if (!outer)
		return count_and(VERDICT_DROP, REASON_NO_ROOM);
	rewrite_link((void *)outer, server->src, server->dst);
	outer->link[6] = bpf_htons(ETH_P_IP);
	put_outer4((void *)outer->ip, server, &inherited, packet->len, IPPROTO_IPIP);
	if (server->ifindex == frame_ingress(ctx))
		return frame_back(ctx);
	frame_leave(ctx);
	return bpf_redirect(server->ifindex, 0);
}

static __always_inline int translate_near(context *ctx, const struct packet *packet, const struct server *server)
{
	struct iphdr *ip = (void *)packet->ethernet + ETH_HLEN;
	__be16 *ports = (void *)(ip + 1);
	bool udp = packet->protocol == IPPROTO_UDP;
	struct change change = {};

	rewrite_link(packet->ethernet, server->src, server->dst);
	put_word(&ip->daddr, server->to.word[0], &change.pseudo);
	ip->check = changed(ip->check, change.pseudo);
	decrement_ttl4(ip);
	change.body = (__u16)~ports[1] + server->port;
	ports[1] = server->port;
	frame_fix(ctx, ETH_HLEN + sizeof(*ip) + (udp ? 6 : 16), &change, udp, false);
	if (server->ifindex == frame_ingress(ctx))
		return frame_back(ctx);
	frame_leave(ctx);
	return bpf_redirect(server->ifindex, 0);
}

/* Whether one of them will do. */
static __always_inline bool is_near(context *ctx, const struct packet *packet, const struct choice *choice,
				    const struct server *server)
{
	const struct iphdr *ip = (void *)packet->ethernet + ETH_HLEN;
	__u32 outer = server->flags & SERVER_TUNNEL ? sizeof(*ip) : 0;

	return !(packet->v6 | packet->is_fragment) && packet->l3 == ETH_HLEN &&
	       !(server->flags & (SERVER_LOCAL | SERVER_V6 | SERVER_GUE | SERVER_SOURCE_NAT)) && choice->session &&
	       ip->ttl > 1 && packet->len + outer <= server->mtu && !segment_len(ctx);
}

static __always_inline int decide_segment(context *ctx, struct packet *packet, const struct vip *vip)
{
	struct choice choice = {};
	struct server *server;
	struct flow flow = {
		.vip = vip,
		.now = ticks_now(),
		.v6 = packet->v6,
		.udp = packet->protocol == IPPROTO_UDP,
		.flags = packet->flags,
	};

	if (packet->flags & TCP_SYN && packet->flags & (TCP_FIN | TCP_RST))
		return count_and(VERDICT_DROP, REASON_BAD_FLAGS);
	if (packet->v6) {
		if (!packet->at)
			return VERDICT_DROP;
		flow.key6 = &packet->at->owner.key;
		*flow.key6 = session_key6(&packet->at->src, true, packet->client_port, vip->id);
		flow.hash = flow_hash6(flow.key6);
	} else {
		flow.key = session_key(packet->src4, packet->client_port, vip->id);
		flow.hash = flow_hash(flow.key);
	}
	server = choose(&flow, &choice);
	if (!server)
		return count_and(VERDICT_DROP, REASON_NO_SERVER);
	if (server->flags & (SERVER_TUNNEL | SERVER_NAT) && is_near(ctx, packet, &choice, server)) {
		count_server(choice.server, whole_len(ctx, packet), choice.new_session);
		return server->flags & SERVER_TUNNEL ? wrap_near(ctx, packet, server) :
						       translate_near(ctx, packet, server);
	}
	if (server->flags & (SERVER_TUNNEL | SERVER_NAT) || packet->is_fragment || packet->l3 != ETH_HLEN)
		return decide_far(ctx, packet, &flow, &choice, server);
	if (choice.beside)
		count_reason(choice.beside);
	count_server(choice.server, whole_len(ctx, packet), choice.new_session);
	if (server->flags & SERVER_LOCAL)
		return count_and(VERDICT_PASS, REASON_LOCAL);
	rewrite_link(packet->ethernet, server->src, server->dst);
	/* Forwarded packets are the sum of the servers' own. */
	if (server->ifindex == frame_ingress(ctx))
		return frame_back(ctx);
	frame_leave(ctx);
	return bpf_redirect(server->ifindex, 0);
}

static __always_inline struct vip *vip_of(const struct packet *packet)
{
	if (packet->v6)
		return packet->at ? find_vip6(&packet->at->dst, packet->port, packet->protocol) : 0;
	return find_vip(vip_bits(packet->dst4, packet->port, packet->protocol));
}

static __always_inline int decide(context *ctx)
{
	struct interface *own = find_interface(frame_ingress(ctx));
	struct packet packet = {};
	struct scratch *at;
	struct vip *vip;

	frame_begin(ctx);
	switch (parse(ctx, own, &packet)) {
	case PARSED_SEGMENT:
		vip = vip_of(&packet);
		if (vip)
			return decide_segment(ctx, &packet, vip);
		if (!answering)
			return count_and(VERDICT_PASS, REASON_NOT_SERVICE);
		at = scratch_for(&packet);
		return at ? finish(ctx, at, answer(ctx, at)) : VERDICT_DROP;
	case PARSED_LATER_FRAGMENT:
		at = scratch_for(&packet);
		return at ? finish(ctx, at, later_fragment(ctx, at)) : VERDICT_DROP;
	case PARSED_ICMP:
		at = scratch_for(&packet);
		return at ? finish(ctx, at, decide_icmp(ctx, at)) : VERDICT_DROP;
	case PARSED_ARP_REQUEST: {
		struct ip asked = { { packet.arp->target_ip } };

		/* A sender that claims the address itself is no question but a conflict (RFC 5227). */
		if (!(address_flags(&asked, false) & ADDRESS_ANNOUNCED) || !own ||
		    packet.arp->sender_ip == asked.word[0])
			return count_and(VERDICT_PASS, REASON_NOT_SERVICE);
		rewrite_arp_answer(packet.ethernet, packet.arp, own->mac);
		return count_and(frame_back(ctx), REASON_ARP_ANSWERED);
	}
	case PARSED_SOLICITATION:
		at = scratch_for(&packet);
		return at ? answer_solicitation(ctx, at) : VERDICT_DROP;
	case PARSED_ODD: {
		struct ip dst = { { packet.dst4 } };

		if (packet.v6 && packet.at)
			dst = packet.at->dst;
		return odd_verdict(&dst, packet.v6, packet.reason);
	}
	default:
		return count_and(VERDICT_PASS, packet.reason);
	}
}

#endif
