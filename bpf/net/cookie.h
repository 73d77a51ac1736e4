/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* SYN cookies: core/src/path/cookie.rs. The initial sequence number of the SYN-ACK contains the
 * negotiated TCP options (terms) and bits of a keyed hash. */
#ifndef EVENER_COOKIE_H
#define EVENER_COOKIE_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "net/siphash.h"

/* Mask of the epoch in a cookie. */
#define COOKIE_EPOCH_BITS 3
/* Window scale in the SYN-ACK. */
#define COOKIE_RCV_WSCALE 7
/* Maximum window scale (RFC 7323, section 2.3). */
#define COOKIE_WSCALE_MAX 14
/* The client offered no window scaling, or no selective acknowledgments. */
#define COOKIE_NO_SCALE 15
/* Upper bounds (exclusive) of the difference between the echoed timestamp and the cookie's, in
 * milliseconds. The first is for a client's first segment, the second for a segment that the
 * director replays. */
#define COOKIE_FIRST 1
#define COOKIE_REPLAYED (1 << 15)
/* Number of words of the hashed addresses and ports. */
#define COOKIE_ENDS4 3
#define COOKIE_ENDS6 9

/* Input of a cookie's hash: addresses of client and service, their ports, the client's initial
 * sequence number, the terms. There is no padding, so an IPv4 message is shorter. */
struct cookie_message {
	__be32 word[COOKIE_ENDS6 + 2];
};

/* Fields of a client's segment that echo a cookie. */
struct echoed_numbers {
	__u32 sequence;
	__u32 acknowledgment;
	__u32 echo; /* echoed timestamp, if the segment has timestamps */
	__u32 has_echo;
};

/* A farm's key and its epoch: core/src/path/cookie.rs, Schedule. A zero key disables cookies. */
struct cookie_keys {
	struct sip_key key;
	__u64 epoch_ns; /* length of an epoch */
	__u64 since; /* upper half: an epoch; lower half: tick of its start */
};

/* Returns the epoch at tick `now`, which must be less than 2^32 ticks after `since`. */
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

/* Returns the client's maximum segment size, in bytes, rounded down to one of four values. */
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

/* Encodes the terms of a client's SYN: maximum segment size and window scale. `scale` is
 * COOKIE_NO_SCALE unless the client offers window scaling and selective acknowledgments. */
static __always_inline __u8 cookie_terms(__u16 mss, __u8 scale, __u32 epoch, bool v6)
{
	__u8 index = 0;

	#pragma unroll
	for (__u8 i = 1; i < 4; i++)
		index += cookie_mss(i << 2, v6) <= mss;
	return scale << 4 | index << 2 | (epoch & COOKIE_EPOCH_BITS);
}

/* Bit of a session's mark, set if a SYN has arrived since the first segment. The other bits are
 * part of the cookie: core/src/path/cookie.rs. */
#define MARK_SYN_SEEN 0x800

static __always_inline __u16 cookie_mark(__u32 cookie)
{
	return cookie >> 8 & (MARK_SYN_SEEN - 1);
}

/* Returns the terms with the next smaller segment size, if there is one. */
static __always_inline __u8 cookie_shorter(__u8 terms)
{
	return terms & 3 << 2 ? terms - (1 << 2) : terms;
}

/* Terms and epoch in one word, for the hash. */
static __always_inline __u32 cookie_sealed(__u8 terms, __u32 epoch)
{
	return (__u32)terms << 24 | (epoch & 0xffffff);
}

/* Returns a cookie. The lower half is the initial sequence number (terms and 24 bits of the hash),
 * the upper half the timestamp (32 bits of the hash). Not static, since the verifier checks a
 * global function only once. */
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

/* True if a segment echoes a valid cookie of the previous, the current or the next epoch. With
 * timestamps, the echoed timestamp must be less than `late` after the cookie's. */
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

/* Rate limit of invalid cookies: core/src/path/guesses.rs. A token bucket, measured in ticks. */

/* Time in which one token is refilled. */
#define GUESS_TRY_TICKS (1 << 4)
/* Size of the bucket. */
#define GUESS_TRIES_TICKS (GUESS_TRY_TICKS << 12)

/* State of a VIP. */
struct guesses {
	__u64 again; /* tick at which the bucket is full again; 0: it is full */
	__u64 bad; /* number of segments with data and an invalid cookie */
	__u64 unchecked; /* number of segments that were not checked */
};

/* Returns the used part of the bucket, in ticks, from the tick at which it is full again. A tick
 * too far ahead is in the past: ticks wrap around. */
static __always_inline __u32 guesses_used(__u64 again, __u32 now)
{
	__u32 ahead = (__u32)again - now;

	return again && ahead < 2 * GUESS_TRIES_TICKS ? ahead : 0;
}

/* True if the cookie of a segment without timestamps may be checked. Segments that may belong to a
 * session may use half of the bucket, so that the rest is left to new clients. */
static __always_inline bool may_try(const struct guesses *guesses, __u32 now, bool is_session)
{
	__u32 least = is_session ? GUESS_TRIES_TICKS / 2 : GUESS_TRIES_TICKS;

	return guesses_used(guesses->again, now) + GUESS_TRY_TICKS <= least;
}

/* Takes a token for an invalid cookie. */
static __always_inline void guess_failed(struct guesses *guesses, __u32 now)
{
	__u64 was = guesses->again;
	__u32 again = now + guesses_used(was, now) + GUESS_TRY_TICKS;

	/* Another CPU has taken a token at the same time. */
	if (__sync_val_compare_and_swap(&guesses->again, was, (__u64)again) != was)
		__sync_fetch_and_add(&guesses->again, GUESS_TRY_TICKS);
}

#endif
