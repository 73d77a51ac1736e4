/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Common code of the parsers of HTTP heads and TLS hellos: core/src/path/content/mod.rs and
 * hash.rs. */
#ifndef EVENER_READING_H
#define EVENER_READING_H

#include <linux/types.h>
#include <stdbool.h>
#include "abi.h"

#define HASH_PRIME 0x7fffffffU
/* Flag in the hash of a part: a host's suffix from a dot on, or a path's prefix up to a slash. */
#define PART (1ULL << 31)

/* State of a parser, and the keys for the lookup of a client's request: core/src/path/content. */
struct reading {
	__u64 method; /* last eight letters of the method */
	__u64 name; /* last eight letters of a field name, in lower case */
	__u64 host_hash; /* hash of the bytes so far */
	/* keys of the host: HOST_LABELS_MAX + 2, rounded up to a power of two for a mask */
	__u64 hosts[16];
	/* keys of the path: PATH_DEPTH_MAX + 2, rounded up; the second is that of the whole path */
	__u64 paths[32];
	__u32 multiplier[2];
	__u32 len; /* bytes in `payload` */
	__u32 at, end; /* hello: offset of the next byte, and end of the message */
	__u32 host, host_end; /* offsets of the host; no host if `host_end` is 0 */
	__u32 hosts_len, paths_len;
	__u8 state;
	__u8 segment;
	__u8 version; /* number of matched letters of VERSION */
	__u8 is_http10; /* HTTP/1.0, which needs no host (RFC 9112, section 3.2) */
	__u8 ends_with_dot; /* the last byte of the host was a dot */
	__u8 class;
	__u8 is_complete; /* the request is complete and unambiguous */
	__u16 route, ring; /* of the first matching route so far */
	__u8 payload[READ_MAX];
};

/* Returns (hash * multiplier + byte + 1) modulo HASH_PRIME. The reduction is an addition, since
 * 2^31 is congruent to 1. */
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

/* True for a character between the brackets of an IPv6 address (RFC 3986, section 3.2.2). */
static __always_inline bool is_v6_byte(__u8 byte)
{
	__u8 lower = byte | 0x20;

	return (lower >= 'a' && lower <= 'f') || is_digit(byte) || byte == ':' || byte == '.';
}

#endif
