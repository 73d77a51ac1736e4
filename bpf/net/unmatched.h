/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Segments of connections that nobody knows, as core/src/path/unmatched.rs has them: they are answered when they come again. */
#ifndef EVENER_UNMATCHED_H
#define EVENER_UNMATCHED_H

#include <linux/types.h>
#include <stdbool.h>

#define STRAY_PLACES 1024
/* Ticks are 2^20 ns. */
#define STRAY_PATIENCE_TICKS (3000ULL * 1000000 >> 20)
#define STRAY_FORGOTTEN_TICKS (300000ULL * 1000000 >> 20)

/* Whether a flow was met before, long enough ago. */
static __always_inline bool meet_unmatched(__u64 places[STRAY_PLACES], __u64 flow, __u32 now)
{
	__u64 *place = &places[flow % STRAY_PLACES], was = *place;
	__u32 age = now - (__u32)was;

	if (was && was >> 32 == flow >> 32 && age < STRAY_FORGOTTEN_TICKS) {
		if (age < STRAY_PATIENCE_TICKS)
			return false;
		*place = 0;
		return true;
	}
	*place = flow >> 32 << 32 | now;
	return false;
}

#endif
