/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Selection of a server for a client's packet: core/src/path/decide/choose.rs. */
#ifndef EVENER_CHOOSE_H
#define EVENER_CHOOSE_H

#include "director/affinity.h"
#include "director/follow.h"
#include "director/parse.h"
#include "director/select.h"
#include "director/sessions.h"

/* The server selected for a packet. */
struct selected {
	__u64 session; /* value of the session after this packet; 0 if there is none */
	__u16 server;
	bool new_session;
	__u8 also_counted; /* second reason to count, or 0 */
};

/* Returns the server of a flow without a session. A director prefers the table `previous`, which
 * ignores drains, so that directors agree. */
static __always_inline __u16 by_tables(__u32 service, __u32 half, __u64 ring_hash, __u32 own)
{
	if (own == NO_SERVER) {
		__u16 older = by_previous(service, ring_hash);

		if (present_server(older))
			return older;
	}
	return by_hash(ring_at(service, half), ring_hash);
}

/*
 * Selects a server for a packet that has no session and opens none. Bits 16 and above of the result
 * are the reason to count. Not inlined, since packets with a session don't need this code.
 */
__attribute__((noinline)) int select_without_session(__u32 service, __u32 flags, __u64 ring_hash, __u32 own, __u32 arrival)
{
	struct server *server;
	__u16 slot;

	if (arrival == ARRIVED_DIRECT) {
		slot = by_tables(service, flags, ring_hash, own);
		/* In a stateless service a missing session is normal, so it is not counted. */
		if (slot == NO_SERVER || slot != own)
			return slot | (flags & VIP_STATELESS ? 0 : REASON_NO_SESSION) << 16;
	}
	if (arrival != ARRIVED_PASSED_TWICE) {
		slot = by_previous(service, ring_hash);
		server = present_server(slot);
		if (server && !(server->flags & SERVER_LOCAL))
			return slot | REASON_SECOND_CHANCE << 16;
	}
	return own | REASON_NO_SESSION << 16;
}

/* True if the session decides the destination of a packet. */
static __always_inline bool session_applies(__u16 arrival, const struct vip *vip, __u64 value)
{
	return arrival == ARRIVED_DIRECT || value_server(value) == vip->own;
}

static __always_inline bool selects_new_server(const struct flow *flow, __u64 value, const struct server *server)
{
	if (!server)
		return true;
	if (!opens(flow))
		return false;
	if (has_ended(value))
		return true;
	switch (value_state(value)) {
	case STATE_NEW:
	case STATE_ANSWERED:
	case STATE_UDP_NEW:
	case STATE_UDP_ANSWERED:
	case STATE_UDP:
	case STATE_UDP_REPLICATED:
		return !(server->flags & SERVER_UP);
	case STATE_HALF_CLOSED:
	case STATE_SERVER_CLOSED:
		return flow->vip->flags & VIP_STATELESS || !(server->flags & SERVER_UP) || !server->weight;
	default:
		return false;
	}
}

/* True if a session takes precedence over a SYN that another host seems to have forwarded. */
static __always_inline bool stands(const struct flow *flow, __u64 value)
{
	bool is_open = is_assured(value) || (is_ending(value) && !has_ended(value));

	return is_open && !session_applies(flow->arrival, flow->vip, value) && present_server(value_server(value));
}

static __always_inline void open_session(const struct flow *flow, struct client_entry *client, struct found *found,
					 bool known, struct selected *selected)
{
	const struct vip *vip = flow->vip;
	__u64 ring_hash = ring_hash_of(flow), value;
	__u16 server = vip->own;

	if (flow->arrival == ARRIVED_DIRECT) {
		server = NO_SERVER;
		if (has_affinity_entries(vip)) {
			set_client(client, flow);
			server = former_server(client);
		}
		if (server == NO_SERVER)
			server = select_server(vip->service, vip->flags, vip->pick, ring_hash);
	}
	selected->server = server;
	if (server == NO_SERVER || server == ALL_FULL || (known && stands(flow, found->value)))
		return;
	selected->new_session = true;
	/* A stateless service forwards by the hash and needs no session. An existing session would
	 * override the hash, so that session is updated. */
	if (vip->flags & VIP_STATELESS && server != vip->own && !known)
		return;
	value = with_mark(value_in(flow, server, flow->udp ? STATE_UDP_NEW : STATE_NEW), first_mark(flow));
	selected->also_counted = put_session(flow, found, known, value);
	if (!selected->also_counted)
		selected->session = value;
	else if (flow->arrival == ARRIVED_DIRECT)
		selected->server = by_tables(vip->service, vip->flags, ring_hash, vip->own);
}

/* Selects the server of a packet. Returns the entry of the selected server, or NULL if no server
 * was selected. */
static __always_inline struct server *choose(const struct packet *packet, struct flow *flow, struct selected *selected)
{
	const struct vip *vip = flow->vip;
	struct found found = {};
	bool known = find_flow(flow, &found);

	/* `arrival` is set only now, since a value that is set earlier stays on the stack during
	 * the lookup. */
	flow->arrival = arrival_of(vip, packet->ethernet);
	if (known) {
		struct server *server = present_server(value_server(found.value));

		if (session_applies(flow->arrival, vip, found.value) && !selects_new_server(flow, found.value, server)) {
			selected->session = follow(flow, server->flags & SERVER_NAT ? SEES_ANSWERS : 0, &found);
			if (has_affinity_entries(vip) && is_assured(selected->session) && !is_assured(found.value))
				note_client(&packet->at->client, flow, value_server(found.value));
			selected->server = value_server(found.value);
			return server;
		}
	}
	if (opens(flow)) {
		open_session(flow, &packet->at->client, &found, known, selected);
	} else {
		int chosen = select_without_session(vip->service, vip->flags, ring_hash_of(flow), vip->own, flow->arrival);

		selected->server = chosen;
		selected->also_counted = chosen >> 16;
	}
	return present_server(selected->server);
}

#endif
