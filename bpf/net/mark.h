/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Number of times that hosts of an every-host farm forwarded a packet. The flag GUE_LAST of the GUE
 * header has the number, and a tag in the mark authenticates it: core/src/path/mark.rs. The
 * decapsulation program writes the number into the source MAC of the decapsulated frame, and the
 * director's program reads it from there: core/src/path/arrival.rs. Another source MAC marks frames
 * that are punted to the daemon on this host. decapsulate.h drops frames that arrive from the
 * network with the source MAC of a decapsulated frame, since they are forged. */
#ifndef EVENER_MARK_H
#define EVENER_MARK_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <stdbool.h>
#include "net/ip.h"
#include "net/siphash.h"

/* UDP port of GUE (IANA). */
#define GUE_PORT 6080

/* GUE header without optional fields. */
struct gue {
	/* 2 bits version, control flag, 5 bits length of the optional fields in words */
	__u8 first;
	__u8 protocol;
	__be16 flags;
};

/* Private flags of a GUE header. */
#define GUE_LAST 0x0001 /* the receiver must not forward the packet */
#define GUE_MARKED 0x0002 /* a mark follows the header */

#define PASSED_ONCE 1
#define PASSED_ON_TWICE 2

/* Private data of a GUE header. */
struct mark {
	__be32 generation;
	__be32 tag[2];
};

/* Key and generation for a host's marks. A zero key disables marks. */
struct marker {
	struct sip_key key;
	__u64 generation;
};

/* Data that the tag covers. IPv4 addresses are IPv4-mapped. */
struct mark_message {
	struct ip outer_from;
	struct ip outer_to;
	struct ip inner_from;
	struct ip inner_to;
	__be32 generation;
	__be32 passed;
};

/* Not static: the verifier checks a global function only once. */
__noinline __u64 mark_tag(const struct sip_key *key, const struct mark_message *message)
{
	if (!key || !message)
		return 0;
	return siphash(key, (const __u32 *)message, sizeof(*message) / sizeof(__u32));
}

static __always_inline void put_mark(struct mark *mark, const struct marker *marker, struct mark_message *message)
{
	__u64 tag;

	message->generation = bpf_htonl(marker->generation);
	tag = mark_tag(&marker->key, message);
	mark->generation = message->generation;
	mark->tag[0] = bpf_htonl(tag >> 32);
	mark->tag[1] = bpf_htonl(tag);
}

static __always_inline bool mark_is_good(const struct sip_key *key, const struct mark *mark, struct mark_message *message)
{
	__u64 tag;

	message->generation = mark->generation;
	tag = mark_tag(key, message);
	return (key->word[0] | key->word[1]) && mark->tag[0] == bpf_htonl(tag >> 32) && mark->tag[1] == bpf_htonl(tag);
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define MAC_WORD(a, b, c, d, e, f) \
	((__u64)(f) << 56 | (__u64)(e) << 48 | (__u64)(d) << 40 | (__u64)(c) << 32 | (__u64)(b) << 24 | (a) << 16 | 1)
#else
#define MAC_WORD(a, b, c, d, e, f) \
	((__u64)(a) << 56 | (__u64)(b) << 48 | (__u64)(c) << 40 | (__u64)(d) << 32 | (__u64)(e) << 24 | (f) << 16 | 1)
#endif

/* Source MACs of decapsulated frames from another host, encoded by mac_bits(). No interface has
 * them. */
#define PASSED MAC_WORD(2, 'e', 'v', 'n', 'r', 1)
#define PASSED_TWICE MAC_WORD(2, 'e', 'v', 'n', 'r', 2)
/* Source MAC of punted frames, which the daemon on this host reads. */
#define PUNTED MAC_WORD(2, 'e', 'v', 'n', 'r', 3)

static __always_inline void mark_source(__u8 source[6], __u8 mark)
{
	source[0] = 2;
	source[1] = 'e';
	source[2] = 'v';
	source[3] = 'n';
	source[4] = 'r';
	source[5] = mark;
}

static __always_inline void mark_passed(__u8 source[6], bool last)
{
	mark_source(source, last ? 2 : 1);
}

static __always_inline void mark_punted(__u8 source[6])
{
	mark_source(source, 3);
}

/* Encodes a MAC address as a word that is never 0. The function also reads the two bytes behind the
 * address. */
static __always_inline __u64 mac_bits(const __u8 mac[6])
{
	__u64 word = *(const __u64 *)mac;

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return word << 16 | 1;
#else
	return (word & ~0xffffULL) | 1;
#endif
}

#endif
