/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Guesses at cookies, as core/src/path/guesses.rs has them: so many wrong ones are looked at, and no more. */
#ifndef EVENER_GUESS_H
#define EVENER_GUESS_H

#include <linux/types.h>
#include <stdbool.h>

/* For so many ticks one wrong cookie uses up a try. */
#define GUESS_TRY_TICKS (1 << 4)
/* Tries that are there at first, in ticks. */
#define GUESS_TRIES_TICKS (GUESS_TRY_TICKS << 12)

/* Of each VIP, by its id. */
struct guesses {
	__u64 again; /* the tick at which it has all tries again; 0: it has */
	__u64 bad; /* segments with data whose cookie was wrong */
	__u64 unchecked; /* and that were not looked at */
};

/* Tries that are used up, in ticks, where all are there again at that tick; none at 0. What is further ahead than tries can be is long
 * ago. */
static __always_inline __u32 guesses_used(__u64 again, __u32 now)
{
	__u32 ahead = (__u32)again - now;

	return again && ahead < 2 * GUESS_TRIES_TICKS ? ahead : 0;
}

/* Whether a try is left for a segment without timestamps; those that new clients need are left to them. */
static __always_inline bool may_try(const struct guesses *guesses, __u32 now, bool is_session)
{
	__u32 least = is_session ? GUESS_TRIES_TICKS / 2 : GUESS_TRIES_TICKS;

	return guesses_used(guesses->again, now) + GUESS_TRY_TICKS <= least;
}

/* A cookie was wrong: that uses up a try. */
static __always_inline void guess_failed(struct guesses *guesses, __u32 now)
{
	__u64 was = guesses->again;
	__u32 again = now + guesses_used(was, now) + GUESS_TRY_TICKS;

	/* Another CPU has just noted one: this one is noted behind that. */
	if (__sync_val_compare_and_swap(&guesses->again, was, (__u64)again) != was)
		__sync_fetch_and_add(&guesses->again, GUESS_TRY_TICKS);
}

#endif
