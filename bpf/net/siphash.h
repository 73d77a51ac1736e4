/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* SipHash-2-4, a keyed hash of short messages (Aumasson and Bernstein 2012). */
#ifndef EVENER_SIPHASH_H
#define EVENER_SIPHASH_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

struct sip_key {
	__u64 word[2];
};

struct sip_state {
	__u64 v0, v1, v2, v3;
};

static __always_inline __u64 rotated(__u64 word, __u32 by)
{
	return word << by | word >> (64 - by);
}

static __always_inline void sip_round(struct sip_state *s)
{
	s->v0 += s->v1;
	s->v1 = rotated(s->v1, 13) ^ s->v0;
	s->v0 = rotated(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = rotated(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = rotated(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = rotated(s->v1, 17) ^ s->v2;
	s->v2 = rotated(s->v2, 32);
}

static __always_inline void sip_word(struct sip_state *s, __u64 word)
{
	s->v3 ^= word;
	sip_round(s);
	sip_round(s);
	s->v0 ^= word;
}

/* SipHash reads words in little-endian byte order. */
static __always_inline __u64 sip_half(__u32 word)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return word;
#else
	return __builtin_bswap32(word);
#endif
}

/* Hash of a message of `words` 32-bit words. `words` must be a constant. */
static __always_inline __u64 siphash(const struct sip_key *key, const __u32 *message, const __u32 words)
{
	struct sip_state s = {
		key->word[0] ^ 0x736f6d6570736575ULL,
		key->word[1] ^ 0x646f72616e646f6dULL,
		key->word[0] ^ 0x6c7967656e657261ULL,
		key->word[1] ^ 0x7465646279746573ULL,
	};

	#pragma unroll
	for (__u32 i = 0; i + 1 < words; i += 2)
		sip_word(&s, sip_half(message[i]) | sip_half(message[i + 1]) << 32);
	/* The remaining bytes, and the length in bytes. */
	sip_word(&s, (words & 1 ? sip_half(message[words - 1]) : 0) | (__u64)words * 4 << 56);
	s.v2 ^= 0xff;
	sip_round(&s);
	sip_round(&s);
	sip_round(&s);
	sip_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

#endif
