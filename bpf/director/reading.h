/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Common parts of reading heads and hellos: core/src/path/content/mod.rs and hash.rs. */
#ifndef EVENER_READING_H
#define EVENER_READING_H

#include <linux/types.h>
#include <stdbool.h>
#include "abi.h"

#define HASH_PRIME 0x7fffffffU
/* A host's end from a dot on, or a path's beginning up to a slash. */
#define PART (1ULL << 31)

/* A client's request, and the key by which it is looked up: core/src/path/content. */
struct reading {
	__u64 method; /* letters of the method, or the last eight */
	__u64 name; /* a header's in lower case, the last eight letters */
	__u64 host_hash; /* as far as it has come */
	/* keys of the host's look-up: HOST_LABELS_MAX + 2, and room for a mask */
	__u64 hosts[16];
	/* the same for the path: PATH_DEPTH_MAX + 2; the whole one's hash is the second */
	__u64 paths[32];
	__u32 multiplier[2];
	__u32 len; /* of what there is of the payload */
	__u32 at, end; /* in a hello */
	__u32 host, host_end; /* host within it; no end: no host */
	__u32 hosts_len, paths_len;
	__u8 state;
	__u8 segment;
	__u8 version; /* letters of it that were met */
	__u8 is_old; /* HTTP/1.0, which needs no host (RFC 9112, section 3.2) */
	__u8 is_dot; /* the host's last byte */
	__u8 class;
	__u8 is_asked; /* true if there is no doubt */
	__u16 route, ring; /* the first that was found */
	__u8 payload[READ_MAX];
};

/* (hash * multiplier + byte + 1) modulo the prime, whose multiples are easily taken off: 2^31 is
 * 1. */
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

/* The characters between the brackets of an IPv6 address (RFC 3986, section 3.2.2). */
static __always_inline bool is_v6_byte(__u8 byte)
{
	__u8 lower = byte | 0x20;

	return (lower >= 'a' && lower <= 'f') || is_digit(byte) || byte == ':' || byte == '.';
}

#endif
