/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Per-CPU cache of the next hops of replies to IPv4 clients. A lookup in the kernel's routing table
 * costs more than the rest of such a packet. An entry is valid for one second, with or without a
 * daemon. The daemon invalidates all entries when a route or a neighbour changes (`fib_epoch`).
 *
 * There are many clients and few next hops, so a client's entry refers to its next hop by number.
 * Numbers are never reused, so when a hop expires, the entries of all its clients expire, too. The
 * index of a hop is the hash of its content. If another valid hop has this index, the result isn't
 * cached. Numbers grow at most once a second and once for each change. */
#ifndef EVENER_FIB_CACHE_H
#define EVENER_FIB_CACHE_H

#include "director/sessions.h"

/* Entries in 32 KB, the maximum size of a per-CPU map value. */
#define FIB_PART_WORDS 4096
#define FIB_HOPS 64
/* A second, in ticks of 2^20 ns. */
#define FIB_LIFE_TICKS (1000000000ULL >> 20)

struct fib_part {
	__u64 word[FIB_PART_WORDS]; /* upper half: client address; lower half: number of the hop */
};

struct fib_hop {
	__u32 number; /* modulo FIB_HOPS: its place */
	__u32 since;
	__u64 epoch;
	__be32 src; /* address of the service; routing rules may match it */
	__u32 ingress; /* interface that the reply was received on; routing rules may match it */
	__u32 ifindex;
	__u32 mtu;
	__u8 link[2 * ETH_ALEN]; /* destination and source MAC */
	__u32 pad;
};

struct fib_hops {
	struct fib_hop hop[FIB_HOPS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fib_part);
} fib_clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fib_hops);
} fib_hops SEC(".maps");

static __always_inline __u64 epoch_now(void)
{
	return READ_ONCE(fib_epoch);
}

/* Returns the client's entry in this CPU's cache. */
static __always_inline __u64 *fib_word(__be32 src, __be32 dst)
{
	/* The hash is keyed, so that clients can't choose an index. */
	__u64 hash = ((__u64)src << 32 ^ dst) * settings.seed[0];
	__u32 part = scale(hash >> 32, settings.fib_parts);
	struct fib_part *words = bpf_map_lookup_elem(&fib_clients, &part);

	return words ? &words->word[hash >> 20 & (FIB_PART_WORDS - 1)] : 0;
}

static __always_inline bool is_good(const struct fib_hop *hop, __u32 now, __u64 epoch)
{
	return now - hop->since < FIB_LIFE_TICKS && hop->epoch == epoch;
}

/* Returns the cached next hop of a packet from `src` to `dst` received on interface `ingress`, or
 * NULL. */
static __always_inline const struct fib_hop *known_hop(__be32 src, __be32 dst, __u32 ingress, __u32 now)
{
	__u32 first = 0;
	__u64 *word = fib_word(src, dst);
	struct fib_hops *hops;
	struct fib_hop *hop;

	if (!word || *word >> 32 != dst)
		return 0;
	hops = bpf_map_lookup_elem(&fib_hops, &first);
	if (!hops)
		return 0;
	hop = &hops->hop[*word % FIB_HOPS];
	hide(hop);
	if (hop->number != (__u32)*word || hop->src != src || hop->ingress != ingress || !is_good(hop, now, epoch_now()))
		return 0;
	return hop;
}

/* Caches the result of a routing lookup for `dst`. `found` has no number yet. */
static __always_inline void remember_hop(const struct fib_hop *found, __be32 dst)
{
	const __u32 *link = (const void *)found->link, *its;
	__u64 mixed = ((__u64)found->src << 32 ^ link[0] ^ (__u64)link[1] << 16 ^ link[2]) * settings.seed[0] ^
		      ((__u64)found->ingress << 32 ^ found->ifindex) * settings.seed[1];
	__u32 first = 0, place = (mixed >> 32) % FIB_HOPS;
	struct fib_hops *hops = bpf_map_lookup_elem(&fib_hops, &first);
	__u64 *word = fib_word(found->src, dst);
	struct fib_hop *hop;
	bool is_same;

	if (!hops || !word)
		return;
	hop = &hops->hop[place];
	its = (const void *)hop->link;
	is_same = hop->src == found->src && hop->ingress == found->ingress && hop->ifindex == found->ifindex &&
		  hop->mtu == found->mtu && its[0] == link[0] && its[1] == link[1] && its[2] == link[2];
	if (is_good(hop, found->since, found->epoch)) {
		if (!is_same)
			return;
	} else {
		__u32 number = hop->number - hop->number % FIB_HOPS + FIB_HOPS + place;

		*hop = *found;
		hop->number = number;
	}
	*word = (__u64)dst << 32 | hop->number;
}

#endif
