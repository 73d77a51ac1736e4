/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* How often a packet was passed on, as a GUE header says it, and the tag that shows that a host says so: core/src/path/mark.rs. */
#ifndef EVENER_MARK_H
#define EVENER_MARK_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <stdbool.h>
#include "net/siphash.h"

/* In the private flags of a GUE header: who opens the tunnel keeps the packet; a mark follows. */
#define GUE_LAST 0x0001
#define GUE_MARKED 0x0002

#define PASSED_ONCE 1
#define PASSED_ON_TWICE 2

/* The private data of such a header. */
struct mark {
	__be32 generation;
	__be32 tag[2];
};

/* What a host writes marks with. A zero key is none. */
struct marker {
	struct sip_key key;
	__u64 generation;
};

/* What the tag covers; addresses as IPv6 has them. */
struct mark_message {
	__be32 outer_from[4];
	__be32 outer_to[4];
	__be32 inner_from[4];
	__be32 inner_to[4];
	__be32 generation;
	__be32 passed;
};

static __always_inline void mark_ipv4(__be32 to[4], __be32 address)
{
	to[0] = 0;
	to[1] = 0;
	to[2] = bpf_htonl(0xffff);
	to[3] = address;
}

static __always_inline void mark_ipv6(__be32 to[4], const void *address)
{
	__builtin_memcpy(to, address, 4 * sizeof(*to));
}

/* Apart from its callers, whose instructions are few. */
static __noinline __u64 mark_tag(const struct sip_key *key, const struct mark_message *message)
{
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

#endif
