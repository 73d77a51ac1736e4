/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Extent of a session table that is in use: core/src/path/sessions/extent.rs. */
#ifndef EVENER_EXTENT_H
#define EVENER_EXTENT_H

#include "director/maps.h"

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, to) (*(volatile typeof(x) *)&(x) = (to))

/* Tables; the first two have `extents`. */
enum table {
	TABLE_SESSIONS,
	TABLE_SESSIONS6,
	TABLE_PORTS, /* the first pool of ports: the others follow */
};

/* The bits of a bucket's number that count now. */
static __always_inline __u32 extent_mask(__u32 table)
{
	return READ_ONCE(extents[table]);
}

/* True while sessions move to another extent. */
static __always_inline bool is_moving(__u32 table)
{
	__u64 extent = READ_ONCE(extents[table]);

	return (__u32)extent != extent >> 32;
}

/* A session on its way is looked for in each of its two buckets by the extent of before, and
 * then by that of now, where it may have come meanwhile. */
#define MOVING_TURNS 4

static __always_inline __u32 half_in_turn(__u64 hash, __u32 turn)
{
	return turn & 1 ? hash >> 32 : hash;
}

static __always_inline __u32 mask_in_turn(__u32 table, __u32 turn)
{
	__u64 extent = READ_ONCE(extents[table]);

	return turn < MOVING_TURNS / 2 ? extent >> 32 : extent;
}

#endif
