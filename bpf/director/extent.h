/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Extent of a session table: the part of its buckets that is in use. A copy of
 * core/src/path/sessions/extent.rs. */
#ifndef EVENER_EXTENT_H
#define EVENER_EXTENT_H

#include "director/maps.h"

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, to) (*(volatile typeof(x) *)&(x) = (to))

/* Tables of the director. Only the first two, those of sessions, have an entry in `extents`. */
enum table {
	TABLE_SESSIONS,
	TABLE_SESSIONS6,
	TABLE_PORTS, /* the first pool of ports; pool n is TABLE_PORTS + n */
};

/* The current bucket mask. A bucket in use is the hash's bucket number under this mask. */
static __always_inline __u32 extent_mask(__u32 table)
{
	return READ_ONCE(extents[table]);
}

/* True while a table is resized: the current and the previous mask differ. */
static __always_inline bool is_moving(__u32 table)
{
	__u64 extent = READ_ONCE(extents[table]);

	return (__u32)extent != extent >> 32;
}

/* Number of buckets in which a session that may be moving is searched. The two buckets under the
 * previous mask come first, then the two under the current mask, since the session may move there
 * during the search. */
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
