/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* A packet of a session, from the client or from the server: core/src/path/decide/flow.rs. */
#ifndef EVENER_FLOW_H
#define EVENER_FLOW_H

#include <linux/if_ether.h>
#include "director/sessions.h"
#include "net/mark.h"
#include "net/tcp.h"

/* Origin of a packet on a host of an every-host farm: a client, or another host that forwarded the
 * packet (core/src/path/arrival.rs). The value is a set of server flags. If it isn't 0, the packet
 * may be sent only to a server that has one of these flags. */
enum arrival {
	ARRIVED_DIRECT = 0,
	ARRIVED_PASSED = SERVER_LOCAL | SERVER_LAST,
	ARRIVED_PASSED_TWICE = SERVER_LOCAL,
};

/* Returns the origin of a frame by its source MAC, encoded by mac_bits(). */
static __always_inline __u16 arrival_from(__u64 source)
{
	__u64 word = *(volatile __u64 *)&peers_in;
	__u64 place = place_by(word, source, PEER_PLACES);
	__u32 arrival = ARRIVED_DIRECT;

	if (source == PASSED_TWICE)
		arrival = ARRIVED_PASSED_TWICE;
	else if (source == PASSED || (word && peers[place] == source))
		arrival = ARRIVED_PASSED;
	/* The verifier would check the following code once for each of the three values. */
	forget(arrival, place);
	return arrival;
}

/* Returns the origin of a packet. It is always ARRIVED_DIRECT if the farm isn't an every-host
 * farm. */
static __always_inline __u16 arrival_of(const struct vip *vip, const struct ethhdr *ethernet)
{
	return vip->own == NO_SERVER ? ARRIVED_DIRECT : arrival_from(mac_bits(ethernet->h_source));
}

static __always_inline bool may_go_to(__u16 arrival, const struct server *server)
{
	return !arrival || server->flags & arrival;
}

struct flow {
	const struct vip *vip;
	struct key6 *key;
	__u64 hash;
	__u32 now;
	__u64 numbers; /* TCP: upper half: acknowledgment number; lower half: sequence number */
	__u16 arrival;
	bool v6;
	bool udp;
	__u8 flags;
};

static __always_inline bool opens(const struct flow *flow)
{
	return flow->udp || (flow->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* True for SYN together with FIN or RST, which no TCP stack sends. The result is hidden from the
 * verifier, which would check the following code once for each result. */
static __always_inline bool has_bad_flags(__u32 flags)
{
	__u32 ends = flags | flags >> 2;

	hide(ends);
	return flags >> 1 & ends & 1;
}

/* `state` is below STATES after the mask, which the verifier requires. */
static __always_inline __u32 idle_of(const struct vip *vip, __u8 state)
{
	return vip->idle[state & (STATES - 1)];
}

static __always_inline __u64 value_in(const struct flow *flow, __u16 server, __u8 state)
{
	return value_of(server, state, flow->now + idle_of(flow->vip, state));
}

/* The mark of a session is the client's last sequence number, shortened by near_mark(). In a
 * half-closed session, this bit of the mark is set if the FIN or RST had a plausible sequence
 * number. */
#define PLAUSIBLE 0x800
#define NEAR_MASK (PLAUSIBLE - 1)
/* Maximum distance of a plausible sequence number from the mark, in units of near_mark() (1 KB). */
#define NEAR 64

/* True if a client has sent so much data that its mark must be updated. */
static __always_inline bool has_moved_on(__u16 old, __u16 new)
{
	return ((new - old + NEAR / 4) & NEAR_MASK) > NEAR / 2;
}

/* True if a session's value must be stored: its state or mark differs, or its expiry is more than a
 * few seconds later. */
static __always_inline bool is_stale(const struct vip *vip, __u64 old, __u64 new)
{
	__u32 step = idle_of(vip, value_state(new)) >> 6;
	bool differs = (__u32)old != (__u32)new;

	if (step > 1 << 12)
		step = 1 << 12;
	if (value_state(new) == STATE_ESTABLISHED)
		differs = (__u32)with_mark(old, 0) != (__u32)with_mark(new, 0) ||
			  has_moved_on(value_mark(old), value_mark(new));
	return differs || (__s32)(value_expires(new) - value_expires(old)) > (__s32)step;
}

static __always_inline bool find_flow(const struct flow *flow, struct found *found)
{
	return find_session(flow->key, flow->v6, flow->hash, flow->now, found);
}

/* Restores the result of an earlier find_flow() from its slot and value. Another CPU may have
 * changed the session since; change_session() detects that. */
static __always_inline bool find_again(const struct flow *flow, __u32 number, __u64 value, struct found *found)
{
	if (number == NOT_FOUND)
		return false;
	found->value = value;
	found->vip = flow->vip->id;
	found->place = flow->v6 ? value_by_number(TABLE_SESSIONS6, number) : value_by_number(TABLE_SESSIONS, number);
	return found->place;
}

/* Inserts a session. If its buckets are full, another session is evicted. A second attempt follows,
 * because another CPU may evict the same session at the same time. */
static __always_inline bool insert_flow(const struct flow *flow, __u64 value)
{
	__u32 table = flow->v6 ? TABLE_SESSIONS6 : TABLE_SESSIONS;
	const struct key6 *key = flow->key;

	if (flow->v6 ? insert_session6(key, flow->hash, value, flow->now) : insert_session(key, flow->hash, value, flow->now))
		return true;
	return replace(table, key, flow->hash, value, flow->now) != NOT_FOUND ||
	       replace(table, key, flow->hash, value, flow->now) != NOT_FOUND;
}

/* Stores a flow's new session, in place of `found` if `known` is true. Returns 0, or the reason to
 * count if another CPU has changed `found` or the table is full. */
static __always_inline __u32 put_session(const struct flow *flow, struct found *found, bool known, __u64 value)
{
	if (known)
		return change_session(found, value) ? 0 : REASON_NO_SESSION;
	return insert_flow(flow, value) ? 0 : REASON_TABLE_FULL;
}

/* Returns the hash by which a flow selects from hash tables. With affinity it covers the client and
 * not the port. */
static __always_inline __u64 vip_ring_hash(const struct vip *vip, const struct key6 *key, bool v6)
{
	struct key6 of = *key;

	if (vip->flags & VIP_AFFINITY) {
		const struct affinity *affinity = &clients[vip->id % VIP_IDS];

		of.word[0] &= affinity->mask[0];
		of.word[1] &= affinity->mask[1];
		of.word[2] = 0;
	}
	return session_ring_hash(&of, v6);
}

static __always_inline __u64 ring_hash_of(const struct flow *flow)
{
	return vip_ring_hash(flow->vip, flow->key, flow->v6);
}

#endif
