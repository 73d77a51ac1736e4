/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* SYN cookies, as core/src/path/cookie.rs has them: the number holds what was agreed on, and a
 * keyed hash of it. */
#ifndef EVENER_COOKIE_H
#define EVENER_COOKIE_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "net/siphash.h"

/* Of a cookie, the bits that say of which epoch it is. */
#define COOKIE_EPOCH_BITS 3
/* The window scale that is offered to clients. */
#define COOKIE_RCV_WSCALE 7
/* The largest there is (RFC 7323, section 2.3). */
#define COOKIE_WSCALE_MAX 14
/* Neither window scaling nor selective acknowledgments. */
#define COOKIE_NO_SCALE 15
/* The part of our clock that a client's first segment echoes: less than so many milliseconds
 * behind the answer's; and one that is said again in its place. */
#define COOKIE_FIRST 1
#define COOKIE_REPLAYED (1 << 15)
/* Of what is hashed, in words: both addresses and both ports. */
#define COOKIE_ENDS4 3
#define COOKIE_ENDS6 9

/* The data that a cookie vouches for: the client's address, the service's, their ports, and
 * behind these, wherever they end, the client's initial sequence number and the terms. */
struct cookie_message {
	__be32 word[COOKIE_ENDS6 + 2];
};

/* The parts of a cookie in a client's segment. */
struct echoed_numbers {
	__u32 sequence;
	__u32 acknowledgment;
	__u32 echo; /* the clock, if it has timestamps */
	__u32 has_echo;
};

/* A farm's key, and what the epoch is: core/src/path/cookie.rs, Schedule. A zero key is none. */
struct cookie_keys {
	struct sip_key key;
	__u64 epoch_ns; /* length of an epoch */
	__u64 since; /* epoch that is over, and below it the tick at which it began */
};

/* The epoch at this tick, less than 2^32 ticks after the keys were written. */
static __always_inline __u32 cookie_epoch(const struct cookie_keys *keys, __u32 now)
{
	__u64 since = keys->since, epoch_ns = keys->epoch_ns;
	__u64 age_ns = (__u64)(__u32)(now - (__u32)since) << 20;

	return (since >> 32) + (epoch_ns ? age_ns / epoch_ns : 0);
}

static __always_inline __u8 cookie_scale(__u8 terms)
{
	return terms >> 4;
}

/* The largest segment to send to the client, in bytes. */
static __always_inline __u16 cookie_mss(__u8 terms, bool v6)
{
	switch (terms >> 2 & 3) {
	case 0:
		return v6 ? 1220 : 536;
	case 1:
		return 1300;
	case 2:
		return v6 ? 1420 : 1440;
	default:
		return v6 ? 1440 : 1460;
	}
}

/* Terms of what a client's SYN offers: the largest segment that it takes, and its window scale
 * if it knows selective acknowledgments too, or COOKIE_NO_SCALE. */
static __always_inline __u8 cookie_terms(__u16 mss, __u8 scale, __u32 epoch, bool v6)
{
	__u8 index = 0;

	#pragma unroll
	for (__u8 i = 1; i < 4; i++)
		index += cookie_mss(i << 2, v6) <= mss;
	return scale << 4 | index << 2 | (epoch & COOKIE_EPOCH_BITS);
}

/* The part of a cookie in a session's mark, and beside it that a SYN came since:
 * core/src/path/cookie.rs. */
#define MARK_DOUBTED 0x800

static __always_inline __u16 cookie_mark(__u32 cookie)
{
	return cookie >> 8 & (MARK_DOUBTED - 1);
}

/* The same terms with shorter segments, if there are. */
static __always_inline __u8 cookie_shorter(__u8 terms)
{
	return terms & 3 << 2 ? terms - (1 << 2) : terms;
}

/* Terms and the epoch in one word, as they are hashed. */
static __always_inline __u32 cookie_sealed(__u8 terms, __u32 epoch)
{
	return (__u32)terms << 24 | (epoch & 0xffffff);
}

/* The initial sequence number: the terms, and of a keyed hash over all that a cookie vouches for
 * the lowest 24 bits. Above it the clock for clients with timestamps: its highest 32. Global, so
 * that it is verified once and not for each way that leads to it. */
__noinline __u64 cookie_of(const struct sip_key *key, struct cookie_message *message, __u32 client_isn, __u32 sealed,
			   bool v6)
{
	__u64 hash;

	if (!key || !message)
		return 0;
	if (v6) {
		message->word[COOKIE_ENDS6] = bpf_htonl(client_isn);
		message->word[COOKIE_ENDS6 + 1] = bpf_htonl(sealed);
		hash = siphash(key, message->word, COOKIE_ENDS6 + 2);
	} else {
		message->word[COOKIE_ENDS4] = bpf_htonl(client_isn);
		message->word[COOKIE_ENDS4 + 1] = bpf_htonl(sealed);
		hash = siphash(key, message->word, COOKIE_ENDS4 + 2);
	}
	return hash >> 32 << 32 | (__u32)((__u32)hash << 8 | sealed >> 24);
}

/* True if a segment with these numbers is the first one after an answer with a cookie, of the
 * previous, this or the next epoch. Its echo of our clock is less than `late` behind the
 * answer's; a client without timestamps has nothing to echo. */
static __always_inline bool cookie_is_good(const struct cookie_keys *keys, __u32 now, struct cookie_message *message,
					   const struct echoed_numbers *echo, __u32 late, bool v6)
{
	__u32 number = echo->acknowledgment - 1, next = cookie_epoch(keys, now) + 1;
	__u32 age = (next - number) & COOKIE_EPOCH_BITS;
	__u64 cookie;

	if (!(keys->key.word[0] | keys->key.word[1]) || age == COOKIE_EPOCH_BITS)
		return false;
	cookie = cookie_of(&keys->key, message, echo->sequence - 1, cookie_sealed(number, next - age), v6);
	return (__u32)cookie == number && (!echo->has_echo || echo->echo - (__u32)(cookie >> 32) < late);
}

/* Guesses at cookies, as core/src/path/guesses.rs has them: so many wrong ones are looked at,
 * and no more. */

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

/* Tries that are used up, in ticks, where all are there again at that tick; none at 0. A tick
 * further ahead than tries can be is long ago. */
static __always_inline __u32 guesses_used(__u64 again, __u32 now)
{
	__u32 ahead = (__u32)again - now;

	return again && ahead < 2 * GUESS_TRIES_TICKS ? ahead : 0;
}

/* True if a segment without timestamps may still be checked; the tries that new clients need
 * are left to them. */
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
