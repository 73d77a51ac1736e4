/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Which server a client's packet goes to: core/src/decide/choose.rs. */
#ifndef EVENER_CHOOSE_H
#define EVENER_CHOOSE_H

#include "arrival.h"
#include "parse.h"
#include "select.h"
#include "sessions.h"

struct flow {
	const struct vip *vip;
	__u64 key; /* of an IPv4 session */
	struct key6 *key6; /* of an IPv6 session */
	__u64 hash;
	__u32 now;
	__u16 arrival;
	bool v6;
	bool udp;
	__u8 flags;
};

struct choice {
	__u64 session; /* as it now is; 0 if there is none */
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

/* Whether a noted value is worth writing anew: every few seconds is enough. */
static __always_inline bool is_stale(const struct vip *vip, __u64 old, __u64 new)
{
	__u32 step = idle_of(vip, value_state(new)) >> 6;

	if (step > 1 << 12)
		step = 1 << 12;
	return (__u32)old != (__u32)new || (__s32)(value_expires(new) - value_expires(old)) > (__s32)step;
}

static __always_inline bool find_flow(const struct flow *flow, struct found *found)
{
	if (flow->v6)
		return find6(TABLE_SESSIONS6, 0, flow->key6, flow->hash, flow->now, found) != NOT_FOUND;
	return find_session(flow->key, flow->hash, flow->now, found);
}

static __always_inline bool insert_flow(const struct flow *flow, __u64 value)
{
	if (flow->v6)
		return insert_session6(flow->key6, flow->hash, value, flow->now);
	return insert_session(flow->key, flow->hash, value, flow->now);
}

static __always_inline __u64 ring_hash_of(const struct flow *flow)
{
	return flow->v6 ? ring_hash6(flow->key6) : ring_hash(flow->key);
}

/*
 * The server of a packet that no session is known of and that begins none, and from bit 16 on what to count beside.
 * Not inlined, as all that packets with a session don't need.
 */
__attribute__((noinline)) int unknown(__u32 service, __u32 flags, __u64 ring_hash, __u32 own, __u32 arrival)
{
	struct server *server;
	__u16 slot;

	if (arrival == ARRIVED_DIRECT) {
		slot = by_hash(ring_at(service, flags), ring_hash);
		/* What is stateless needs no session. */
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

/* Whether a session says where a packet goes. */
static __always_inline bool heeds(__u16 arrival, const struct vip *vip, __u64 value)
{
	return arrival == ARRIVED_DIRECT || value_server(value) == vip->own;
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

/* Keeps a session alive and moves its state on, whichever side the packet is from. */
static __always_inline __u64 follow(const struct flow *flow, struct found *found)
{
	__u8 was = value_state(found->value), state = was;
	__u64 value;

	if ((was == STATE_NEW || was == STATE_ESTABLISHED) && flow->flags & (TCP_FIN | TCP_RST))
		state = STATE_CLOSING;
	else if (was == STATE_NEW && !(flow->flags & TCP_SYN))
		state = STATE_ESTABLISHED;
	value = with_mark(value_in(flow, value_server(found->value), state), value_mark(found->value));
	if (is_stale(flow->vip, found->value, value))
		change_session(found, value);
	return value;
}

static __always_inline void open_session(const struct flow *flow, struct found *found, bool known,
					 struct choice *choice)
{
	const struct vip *vip = flow->vip;
	__u64 ring_hash = ring_hash_of(flow), value;
	__u16 server = vip->own;

	if (flow->arrival == ARRIVED_DIRECT)
		server = select_server(vip->service, vip->flags, vip->pick, ring_hash);

	choice->server = server;
	if (server == NO_SERVER)
		return;
	choice->new_session = true;
	/* Only an old session must not stand against what goes by the hash, packet by packet: it is changed. */
	if (vip->flags & VIP_STATELESS && server != vip->own && !known)
		return;
	value = value_in(flow, server, flow->udp ? STATE_UDP : STATE_NEW);
	if (known ? change_session(found, value) : insert_flow(flow, value)) {
		choice->session = value;
		return;
	}
	choice->beside = known ? REASON_NO_SESSION : REASON_TABLE_FULL;
	if (flow->arrival == ARRIVED_DIRECT)
		choice->server = select_server(vip->service, vip->flags, PICK_HASH, ring_hash);
}

/*
 * The session of an IPv4 connection that was handed off and is at work, as it now is; 0 for all that hand_off() is to
 * look at. Not inlined: what other services' packets don't need takes nothing of their stack.
 */
__attribute__((noinline)) __u64 follow_handed(__u64 key, __u64 hash, __u32 vip, __u32 flags, __u32 arrival)
{
	struct flow flow = { .hash = hash, .now = ticks_now(), .flags = flags };
	struct found found = {};

	if (opens(&flow) || !find_session(key, hash, flow.now, &found))
		return 0;
	flow.vip = find_vip_by_id(vip);
	if (!flow.vip || value_state(found.value) == STATE_NEW || !present_server(value_server(found.value)))
		return 0;
	/* Of what was passed on, only what is surely no other connection's. */
	if (arrival != ARRIVED_DIRECT &&
	    (value_server(found.value) != flow.vip->own || value_state(found.value) == STATE_CLOSING))
		return 0;
	return follow(&flow, &found);
}

/* Returns the server's entry, or NULL where there is none. */
static __always_inline struct server *choose(const struct packet *packet, struct flow *flow, struct choice *choice)
{
	const struct vip *vip = flow->vip;
	struct found found = {};
	bool known = find_flow(flow, &found);

	/* Not before: what is known early stands on the stack for long. */
	flow->arrival = arrival_of(vip, packet->ethernet);
	if (known) {
		struct server *server = present_server(value_server(found.value));

		if (heeds(flow->arrival, vip, found.value) && !chooses_anew(flow, found.value, server)) {
			choice->session = follow(flow, &found);
			choice->server = value_server(found.value);
			return server;
		}
	}
	if (opens(flow)) {
		open_session(flow, &found, known, choice);
	} else {
		int chosen = unknown(vip->service, vip->flags, ring_hash_of(flow), vip->own, flow->arrival);

		choice->server = chosen;
		choice->beside = chosen >> 16;
	}
	return present_server(choice->server);
}

#endif
