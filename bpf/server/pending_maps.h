/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Every map of the programs that follow requests. */
#ifndef EVENER_PENDING_MAPS_H
#define EVENER_PENDING_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "net/ip.h"
#include "server/head.h"
#include "server/pending_abi.h"

/* First requests that came before their connection's socket; the oldest make way. */
#define EARLY_MAX 4096

/* Ends with the socket that it belongs to: nobody fills it but by connections that the host has
 * taken. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct pending);
} pending SEC(".maps");

/* The beginning of an answer's head that segments have cut. */
struct head_start {
	__u64 word[MESSAGE_MAX / 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct head_start);
} heads SEC(".maps");

/* Key of `early`. */
struct early_key {
	struct ip client, server;
	__be16 client_port, server_port;
};

/* Requests that complete a handshake: the connection's socket is made of them. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, EARLY_MAX);
	__type(key, struct early_key);
	__type(value, struct pending);
} early SEC(".maps");

/* Ports whose requests are followed, one bit each. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORT_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} ports SEC(".maps");

/* By enum pending_count. */
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
