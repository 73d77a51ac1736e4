/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* What reading heads and hellos has in common: core/src/path/content/mod.rs and hash.rs. */
#ifndef EVENER_READING_H
#define EVENER_READING_H

#include "director/rewrite.h"

#define HASH_PRIME 0x7fffffffU
/* A host's end from a dot on, or a path's beginning up to a slash. */
#define PART (1ULL << 31)

/* core/src/path/content/mod.rs, Class */
enum class {
	CLASS_GET = 0,
	CLASS_HEAD = 1,
	CLASS_POST = 2,
	CLASS_PUT = 3,
	CLASS_DELETE = 4,
	CLASS_OTHER = 5,
	CLASS_HELLO = 6,
};

/* (hash * multiplier + byte + 1) modulo the prime, whose multiples are easily taken off: 2^31 is 1. */
static __always_inline __u64 hash_half(__u64 hash, __u32 multiplier, __u8 byte)
{
	__u64 sum = hash * multiplier + byte + 1;

	sum = (sum & HASH_PRIME) + (sum >> 31);
	return sum >= HASH_PRIME ? sum - HASH_PRIME : sum;
}

static __always_inline __u64 hash_step(const struct reading *r, __u64 hash, __u8 byte)
{
	return hash_half(hash >> 32, r->multiplier[0], byte) << 32 |
	       hash_half(hash & 0xffffffff, r->multiplier[1], byte);
}

static __always_inline bool is_digit(__u8 byte)
{
	return byte >= '0' && byte <= '9';
}

static __always_inline bool is_name_byte(__u8 byte)
{
	__u8 lower = byte | 0x20;

	return (lower >= 'a' && lower <= 'z') || is_digit(byte) || byte == '.' || byte == '-' || byte == '_';
}

/* What stands between the brackets of an IPv6 address (RFC 3986, section 3.2.2). */
static __always_inline bool is_v6_byte(__u8 byte)
{
	__u8 lower = byte | 0x20;

	return (lower >= 'a' && lower <= 'f') || is_digit(byte) || byte == ':' || byte == '.';
}

#endif
