/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Selection of a server for a new session: core/src/path/select.rs. */
#ifndef EVENER_SELECT_H
#define EVENER_SELECT_H

#include "director/maps.h"
#include "director/sessions.h"

/* Returns one of the two rings of a service, or NULL. `half` selects the ring. One ring is active,
 * and the control plane writes the other. */
static __always_inline struct ring *ring_at(__u32 service, __u32 half)
{
	__u32 index = service * 2 + (half & VIP_RING_HALF);

	return bpf_map_lookup_elem(&rings, &index);
}

/* Index of a flow in a hash table of HASH_SLOTS. */
static __always_inline __u64 hash_slot(__u64 ring_hash)
{
	return at_most(scale(ring_hash >> 16, HASH_SLOTS), HASH_SLOTS - 1);
}

/* Returns the server of a flow by the hash table, which is the same on all directors. */
static __always_inline __u16 by_hash(const struct ring *ring, __u64 ring_hash)
{
	if (!ring || ring->hash_len != HASH_SLOTS)
		return NO_SERVER;
	return ring->hash[hash_slot(ring_hash)];
}

/* Returns the server or host in a flow's slot of `previous`, or NO_SERVER. It may have the flow's
 * session. */
static __always_inline __u16 by_previous(__u32 service, __u64 ring_hash)
{
	struct previous *before = bpf_map_lookup_elem(&previous, &service);

	return before ? before->hash[hash_slot(ring_hash)] : NO_SERVER;
}

static __always_inline __u64 advance_cursor(__u32 service)
{
	return __sync_fetch_and_add(&cursors[service % SERVICES_MAX], 1);
}

struct least {
	struct ring *ring;
	__u32 at;
	__u32 len;
	__u64 sessions;
	__u64 weight;
	__u16 server;
};

static long consider(__u32 step, void *arg)
{
	struct least *least = arg;
	__u32 at = least->at + step, slot;
	struct server *server;
	__u64 sessions;

	if (at >= least->len)
		at -= least->len;
	if (at >= ORDER_MAX)
		return 1;
	slot = least->ring->order[at] % SERVER_SLOTS;
	server = &servers[slot];
	if (!(server->flags & SERVER_PRESENT))
		return 0;
	/* The new session is included, since idle servers would be equal otherwise, whatever their
	 * weights. */
	sessions = READ_ONCE(active[slot]) + 1;
	/* sessions / weight < least->sessions / least->weight, without dividing */
	if (least->server == NO_SERVER || sessions * least->weight < least->sessions * server->weight) {
		least->server = slot;
		least->sessions = sessions;
		least->weight = server->weight;
	}
	return 0;
}

static __always_inline __u16 from_order(__u32 service, struct ring *ring, __u32 pick)
{
	struct least least = { .server = NO_SERVER };
	__u32 len = ring->order_len;
	__u64 at;

	if (pick == PICK_LEAST && len > SERVICE_SERVERS_MAX)
		len = SERVICE_SERVERS_MAX;
	if (len == 0 || len > ORDER_MAX)
		return NO_SERVER;
	at = at_most(advance_cursor(service) % len, ORDER_MAX - 1);
	if (pick == PICK_CURSOR)
		return ring->order[at];
	least.ring = ring;
	least.at = at;
	least.len = len;
	bpf_loop(len, consider, &least, 0);
	return least.server;
}

/* Returns the better one of the flow's two candidates. */
static __always_inline __u16 better_of_two(const struct ring *ring, __u64 ring_hash)
{
	__u16 first = by_hash(ring, ring_hash), second;
	struct server *server, *other;
	__u16 score, other_score;
	__u64 cost, other_cost;
	bool by_sessions, by_load;

	second = ring->second[hash_slot(ring_hash)] % SERVER_SLOTS;
	other = present_server(second);
	if (second == NO_SERVER || !other)
		return first;
	server = present_server(first);
	if (!server)
		return second;
	first %= SERVER_SLOTS;
	score = READ_ONCE(scores[first]);
	other_score = READ_ONCE(scores[second]);
	cost = READ_ONCE(active[first]) + 1;
	other_cost = READ_ONCE(active[second]) + 1;
	/* cost / weight of the second < cost / weight of the first, without dividing */
	by_sessions = other_cost * server->weight < cost * other->weight;
	if ((__u8)score == (__u8)other_score)
		return by_sessions ? second : first;
	if (ring_hash % EXPLORING == 0)
		return first;
	/* cost times load; explained at `two` in core's select.rs */
	cost *= SCORE_UNIT + (__u8)score;
	other_cost *= SCORE_UNIT + (__u8)other_score;
	by_load = other_cost * server->weight < cost * other->weight;
	if (by_load && (by_sessions || ring_hash / EXPLORING % GAIN_UNIT <= other_score >> 8))
		return second;
	return first;
}

/* True if a server has reached its limit of sessions. */
static __always_inline bool is_full(__u32 slot)
{
	__u32 limit;

	slot %= SERVER_SLOTS;
	limit = READ_ONCE(limits[slot]);
	return limit && READ_ONCE(active[slot]) >= limit;
}

struct search {
	struct ring *ring;
	__u32 at;
	__u32 len;
	__u16 server;
};

static long find_not_full(__u32 step, void *arg)
{
	struct search *search = arg;
	__u32 at = search->at + step;
	__u16 slot;

	if (at >= search->len)
		at -= search->len;
	if (at >= ORDER_MAX)
		return 1;
	slot = search->ring->order[at];
	if (is_full(slot))
		return 0;
	search->server = slot;
	return 1;
}

/* Returns the first server below its limit, from the flow's position in `order` on, or ALL_FULL. */
static __always_inline __u16 next_not_full(struct ring *ring, __u64 ring_hash)
{
	struct search search = { .ring = ring, .len = ring->order_len, .server = ALL_FULL };

	if (search.len == 0 || search.len > ORDER_MAX)
		return ALL_FULL;
	search.at = ring_hash % search.len;
	bpf_loop(search.len, find_not_full, &search, 0);
	return search.server;
}

/* Selects a server for a new session. Not inlined: only the first packet of a session needs it. */
__attribute__((noinline)) int select_server(__u32 service, __u32 half, __u32 pick, __u64 ring_hash)
{
	struct ring *ring = ring_at(service, half);
	__u16 server;

	if (!ring)
		return NO_SERVER;
	if (pick == PICK_HASH)
		server = by_hash(ring, ring_hash);
	else
		server = pick == PICK_TWO ? better_of_two(ring, ring_hash) : from_order(service, ring, pick);
	return server != NO_SERVER && is_full(server) ? next_not_full(ring, ring_hash) : server;
}

#endif
