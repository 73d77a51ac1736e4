/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* One packet, one verdict: core/src/decide.rs. */
#ifndef EVENER_DECIDE_H
#define EVENER_DECIDE_H

#include "maps.h"
#include "parse.h"
#include "rewrite.h"
#include "select.h"
#include "sessions.h"

struct flow {
	const struct vip *vip;
	__u64 key;
	__u64 hash;
	__u32 now;
	bool udp;
	__u8 flags;
};

struct choice {
	__u16 server;
	bool new_session;
	__u8 beside; /* a reason counted beside the verdict, or 0 */
};

static __always_inline bool opens(const struct flow *flow)
{
	return flow->udp || (flow->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* `state` is below the mask in any case; the verifier wants to see it. */
static __always_inline __u32 idle_of(const struct vip *vip, __u8 state)
{
	return vip->idle[state & (STATES - 1)];
}

static __always_inline __u64 value_in(const struct flow *flow, __u16 server, __u8 state)
{
	return value_of(server, state, flow->now + idle_of(flow->vip, state));
}

static __always_inline struct server *present_server(__u32 slot)
{
	struct server *server = &servers[slot % SERVER_SLOTS];

	if (!(server->flags & SERVER_PRESENT))
		server = 0;
	hide(server);
	return server;
}

static __always_inline bool chooses_anew(const struct flow *flow, __u64 value, const struct server *server)
{
	__u8 state = value_state(value);

	if (!server)
		return true;
	if (!opens(flow))
		return false;
	return state == STATE_CLOSING || ((state == STATE_NEW || state == STATE_UDP) && !(server->flags & SERVER_UP));
}

static __always_inline void follow(const struct flow *flow, struct found *found)
{
	__u8 was = value_state(found->value), state = was;
	__u32 step;
	__u64 value;

	if ((was == STATE_NEW || was == STATE_ESTABLISHED) && flow->flags & (TCP_FIN | TCP_RST))
		state = STATE_CLOSING;
	else if (was == STATE_NEW && !(flow->flags & TCP_SYN))
		state = STATE_ESTABLISHED;
	value = value_in(flow, value_server(found->value), state);
	step = idle_of(flow->vip, state) >> 6;
	if (step > 1 << 12)
		step = 1 << 12;
	if (state != was || (__s32)(value_expires(value) - value_expires(found->value)) > (__s32)step)
		change_session(found, value);
}

static __always_inline void open_session(const struct flow *flow, struct found *found, bool known,
					 struct choice *choice)
{
	__u16 server = select_server(flow->vip, flow->hash);
	__u64 value;

	choice->server = server;
	if (server == NO_SERVER)
		return;
	choice->new_session = true;
	value = value_in(flow, server, flow->udp ? STATE_UDP : STATE_NEW);
	if (known) {
		if (change_session(found, value))
			return;
		choice->beside = REASON_NO_SESSION;
	} else {
		if (insert_session(flow->key, flow->hash, value, flow->now))
			return;
		choice->beside = REASON_TABLE_FULL;
	}
	choice->server = by_hash(flow->vip, flow->hash);
}

/* Returns the server's entry, or NULL where there is none. */
static __always_inline struct server *choose(const struct flow *flow, struct choice *choice)
{
	struct found found = {};
	bool known = find_session(flow->key, flow->hash, flow->now, &found);

	if (known) {
		struct server *server = present_server(value_server(found.value));

		if (!chooses_anew(flow, found.value, server)) {
			follow(flow, &found);
			choice->server = value_server(found.value);
			return server;
		}
	}
	if (opens(flow)) {
		open_session(flow, &found, known, choice);
	} else {
		choice->server = by_hash(flow->vip, flow->hash);
		choice->beside = REASON_NO_SESSION;
	}
	return present_server(choice->server);
}

static __always_inline void count_server(__u32 slot, __u64 bytes, bool new_session)
{
	struct server_stats *stats = bpf_map_lookup_elem(&server_stats, &slot);

	if (!stats)
		return;
	stats->packets += 1;
	stats->bytes += bytes;
	stats->connections += new_session;
}

static __always_inline int count_and(int verdict, enum reason reason)
{
	count_reason(reason);
	return verdict;
}

static __always_inline int decide_segment(struct xdp_md *ctx, struct packet *packet, const struct vip *vip)
{
	struct choice choice = {};
	struct server *server;
	struct flow flow = {
		.vip = vip,
		.key = session_key(packet->client, packet->client_port, vip->id),
		.now = ticks_now(),
		.udp = packet->protocol == IPPROTO_UDP,
		.flags = packet->flags,
	};

	if (packet->flags & TCP_SYN && packet->flags & (TCP_FIN | TCP_RST))
		return count_and(XDP_DROP, REASON_BAD_FLAGS);
	flow.hash = flow_hash(flow.key);
	server = choose(&flow, &choice);
	if (!server)
		return count_and(XDP_DROP, REASON_NO_SERVER);
	if (choice.beside)
		count_reason(choice.beside);
	count_server(choice.server, frame_len(ctx), choice.new_session);
	if (server->flags & SERVER_LOCAL)
		return count_and(XDP_PASS, REASON_LOCAL);
	rewrite_l2(packet->ethernet, server);
	/* Forwarded packets are the sum of the servers' own. */
	if (server->ifindex == ctx->ingress_ifindex)
		return XDP_TX;
	return bpf_redirect(server->ifindex, 0);
}

static __always_inline int decide(struct xdp_md *ctx)
{
	struct interface *own = find_interface(ctx->ingress_ifindex);
	struct packet packet = {};
	struct address *address;
	struct vip *vip;

	switch (parse(ctx, own, &packet)) {
	case PARSED_SEGMENT:
		vip = find_vip(vip_bits(packet.address, packet.port, packet.protocol));
		if (!vip)
			return count_and(XDP_PASS, REASON_NOT_SERVICE);
		return decide_segment(ctx, &packet, vip);
	case PARSED_ARP_REQUEST: {
		__be32 asked = packet.arp->target_ip;

		address = bpf_map_lookup_elem(&addresses, &asked);
		/* A sender that claims the address itself is no question but a conflict (RFC 5227). */
		if (!address || !address->announce || !own || packet.arp->sender_ip == asked)
			return count_and(XDP_PASS, REASON_NOT_SERVICE);
		rewrite_arp_answer(packet.ethernet, packet.arp, own->mac);
		return count_and(XDP_TX, REASON_ARP_ANSWERED);
	}
	case PARSED_ODD: {
		__be32 dst = packet.address;

		if (!bpf_map_lookup_elem(&addresses, &dst))
			return count_and(XDP_PASS, REASON_NOT_SERVICE);
		return count_and(XDP_DROP, packet.reason);
	}
	default:
		return count_and(XDP_PASS, packet.reason);
	}
}

#endif
