/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* All maps of a server's programs. The agent pins some of them, so that they outlive it. */
#ifndef EVENER_SERVER_MAPS_H
#define EVENER_SERVER_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "net/cookie.h"
#include "net/cursor.h"
#include "net/mark.h"
#include "net/tcp.h"
#include "server/head.h"
#include "server/server.h"

/* Sizes of the maps whose entries come from the configuration. */
#define OWN_ADDRESSES_MAX 64
#define DIRECTORS_MAX 1024
#define OWN_SERVICES_MAX 8192
/* Sizes of the maps that evict the least recently used entries. */
#define EXPECTED_MAX 8192
#define TURNS_MAX 65536
#define ANSWER_HEADS_MAX 1024
/* Maximum length of a response head, in bytes: core/src/server/exchange.rs */
#define ANSWER_HEAD_MAX 2048
#define MADE_MAX 32768
#define CLEARING_MAX 4096

/* SERVER_ABI_VERSION of the maps. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} server_about SEC(".maps");

/* Not 0 in an every-host farm. Then marks are verified with `mark_key`, and the source MAC of a
 * decapsulated packet shows how often it was forwarded. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} marks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sip_key);
} mark_key SEC(".maps");

/* Addresses of this host that are tunnel endpoints. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, OWN_ADDRESSES_MAX);
	__type(key, struct ip);
	__type(value, __u32);
} own_addresses SEC(".maps");

/* Permitted sources of tunnel packets. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DIRECTORS_MAX);
	__type(key, struct ip);
	__type(value, __u32);
} directors SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, OWN_SERVICES_MAX);
	__type(key, struct own_service);
	__type(value, struct offer);
} own_services SEC(".maps");

/* Not 0 if the exchanges of any service are tracked. Otherwise the data of sent segments isn't
 * read. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} follows SEC(".maps");

/* The segment from which the last socket was created, by addresses and ports. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MADE_MAX);
	__type(key, struct connection);
	__type(value, struct made);
} made SEC(".maps");

/* New connections whose predecessor was evicted a moment ago. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CLEARING_MAX);
	__type(key, struct connection);
	__type(value, struct clearing);
} clearing SEC(".maps");

/* Time at which the last entry of `clearing` expires, by the monotonic clock in nanoseconds. It
 * makes most lookups unnecessary. */
__u64 clearing_until;

/* Connections that will be moved to this host. They have no cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, EXPECTED_MAX);
	__type(key, struct connection);
	__type(value, struct expectation);
} expected SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TURNS_MAX);
	__type(key, struct connection);
	__type(value, struct exchange);
} turns SEC(".maps");

/* First bytes of a response head that is split over several segments. */
struct answer_head {
	__u64 word[ANSWER_HEAD_MAX / 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, ANSWER_HEADS_MAX);
	__type(key, struct connection);
	__type(value, struct answer_head);
} answer_heads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cookie_keys);
} cookie_keys SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SERVER_REASON_MAX);
	__type(key, __u32);
	__type(value, __u64);
} server_reasons SEC(".maps");

/* Data that are too long for the stack. */
struct scratch {
	struct tcp_options options;
	struct message message;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MESSAGE_PLACES);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

/* core/src/path/unmatched.rs */
__u64 unmatched[STRAY_PLACES];

static __always_inline struct tcp_options *options_here(void)
{
	__u32 first = 0;
	struct scratch *at = bpf_map_lookup_elem(&scratch, &first);

	return at ? member_of(at, options) : 0;
}

static __always_inline struct message *message_here(__u32 place)
{
	struct scratch *at = bpf_map_lookup_elem(&scratch, &place);

	return at ? member_of(at, message) : 0;
}

static __always_inline void count_server(__u32 reason)
{
	__u64 *count = bpf_map_lookup_elem(&server_reasons, &reason);

	if (count)
		*count += 1;
}

#endif
