/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Which server a new session gets: core/src/select.rs. */
#ifndef EVENER_SELECT_H
#define EVENER_SELECT_H

#include "maps.h"
#include "sessions.h"

static __always_inline struct ring *ring_of(const struct vip *vip)
{
	__u32 index = (__u32)vip->service * 2 + (vip->ring & 1);

	return bpf_map_lookup_elem(&rings, &index);
}

static __always_inline __u16 by_hash(const struct vip *vip, __u64 hash)
{
	struct ring *ring = ring_of(vip);
	__u32 slot = scale(hash >> 16, HASH_SLOTS);

	if (!ring || ring->hash_len != HASH_SLOTS || slot >= HASH_SLOTS)
		return NO_SERVER;
	return ring->hash[slot];
}

static __always_inline __u64 next(__u32 service)
{
	return __sync_fetch_and_add(&cursors[service % SERVICES_MAX], 1);
}

struct least {
	struct ring *ring;
	__u32 at;
	__u32 len;
	__u64 active;
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
	sessions = READ_ONCE(active[slot]);
	/* sessions / weight < least->active / least->weight, without dividing */
	if (least->server == NO_SERVER || sessions * least->weight < least->active * server->weight) {
		least->server = slot;
		least->active = sessions;
		least->weight = server->weight;
	}
	return 0;
}

/* Not inlined: only the first packet of a session comes here. */
__attribute__((noinline)) int select_from_ring(__u32 service, __u32 half, __u32 pick)
{
	__u32 index = service * 2 + (half & 1), len;
	__u64 at;
	struct ring *ring = bpf_map_lookup_elem(&rings, &index);
	struct least least = { .server = NO_SERVER };

	if (!ring)
		return NO_SERVER;
	len = ring->order_len;
	if (pick == PICK_LEAST && len > SERVICE_SERVERS_MAX)
		len = SERVICE_SERVERS_MAX;
	if (len == 0 || len > ORDER_MAX)
		return NO_SERVER;
	at = next(service) % len;
	hide(at);
	if (at >= ORDER_MAX) /* never; the verifier wants to see it */
		return NO_SERVER;
	if (pick == PICK_CURSOR)
		return ring->order[at];
	least.ring = ring;
	least.at = at;
	least.len = len;
	bpf_loop(len, consider, &least, 0);
	return least.server;
}

static __always_inline __u16 select_server(const struct vip *vip, __u64 hash)
{
	if (vip->pick == PICK_HASH)
		return by_hash(vip, hash);
	return select_from_ring(vip->service, vip->ring, vip->pick);
}

#endif
