/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Maps of the programs that record the last request of each connection: pending.bpf.c. */
#ifndef EVENER_PENDING_MAPS_H
#define EVENER_PENDING_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "net/ip.h"
#include "server/head.h"
#include "server/pending_abi.h"

/* Maximum number of entries in `early`. The map evicts the least recently used ones. */
#define EARLY_MAX 4096

/* The last request of each connection. The kernel frees an entry with its socket, so that only
 * connections accepted by the host need memory. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct pending);
} pending SEC(".maps");

/* First bytes of a response head that is split over several segments, while it is incomplete. */
struct head_start {
	__u64 word[MESSAGE_MAX / 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct head_start);
} heads SEC(".maps");

/* A connection, as the key of `early`. */
struct early_key {
	struct ip client, server;
	__be16 client_port, server_port;
};

/* First requests of connections that have no socket yet: the segment with the request also
 * completes the handshake, and the kernel creates the socket from this segment. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, EARLY_MAX);
	__type(key, struct early_key);
	__type(value, struct pending);
} early SEC(".maps");

/* The server's TCP ports whose requests are recorded, one bit each. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORT_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} ports SEC(".maps");

/* Counters; enum pending_count has their indexes. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PENDING_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MESSAGE_PLACES);
	__type(key, __u32);
	__type(value, struct message);
} scratch SEC(".maps");

static __always_inline struct message *message_here(__u32 place)
{
	return bpf_map_lookup_elem(&scratch, &place);
}

static __always_inline bool is_followed(__u32 port)
{
	__u32 at = port >> 6;
	__u64 *word = bpf_map_lookup_elem(&ports, &at);

	return word && *word >> (port & 63) & 1;
}

static __always_inline void count(__u32 what, __u64 more)
{
	__u64 *count = bpf_map_lookup_elem(&counts, &what);

	if (count)
		*count += more;
}

#endif
