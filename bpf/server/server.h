/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What a server's side shares with the agent that loads it: maps, keys, reasons. Rust's numbers are held
 * against this file's BTF when it is built.
 */
#ifndef EVENER_SERVER_H
#define EVENER_SERVER_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "net/cookie.h"
#include "net/cursor.h"
#include "net/mark.h"

/* Maps that were pinned with another number are not adopted. */
#define SERVER_ABI_VERSION 8

/* dataplane/src/server/mod.rs: the mark of what a director that is this host sends by itself. */
#define SENT_ON 0xe7e3

/* Room in the maps; addresses come from configuration only. */
#define OWN_ADDRESSES_MAX 64
#define DIRECTORS_MAX 1024
#define OWN_SERVICES_MAX 8192
/* The oldest make way. */
#define EXPECTED_MAX 8192
#define TURNS_MAX 65536
#define MADE_MAX 32768

/* dataplane/src/server/reason.rs. Packets that are no tunnel packets to this host are not counted, nor are
 * segments of connections that are at work. */
enum server_reason {
	SERVER_DECAPSULATED = 0,
	SERVER_CLAMPED = 1,
	SERVER_UNLISTED_SOURCE = 2,
	SERVER_NOT_OWN_SERVICE = 3,
	SERVER_INNER_MARTIAN = 4,
	SERVER_NESTED = 5,
	SERVER_MALFORMED = 6,
	SERVER_GUE_HEADER = 7,
	SERVER_OUTER_FRAGMENT = 8,
	SERVER_CONGESTION = 9,
	SERVER_NOT_SHRUNK = 10,
	SERVER_ACCEPTED = 11,
	SERVER_NO_LISTENER = 12,
	SERVER_BAD_COOKIE = 13,
	SERVER_REFUSED = 14,
	SERVER_TIME_WAIT_CLEARED = 15,
	SERVER_STALE_CLEARED = 16,
	SERVER_NOT_CLEARED = 17,
	SERVER_RESET_HELD = 18,
	SERVER_FORGED_MARK = 19,
	SERVER_REASON_MAX,
};

/* Of either family; IPv4 as IPv4-mapped IPv6 (RFC 4291, section 2.5.5.2). */
struct ip_address {
	__be32 word[4];
};

/* Key of `own_services`. Port and protocol 0: any packet to the address that has no port to go by. */
struct own_service {
	struct ip_address address;
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

/* Its value. */
struct offer {
	__u32 mss; /* the largest segment that servers may offer, in bytes; 0 leaves what they offer */
	__be16 listener; /* the port of the socket that accepts what is handed off; 0: nothing is */
	__be16 punt_listener; /* that of what is to be read here, by the frame's source; 0: the same */
	__u16 turns; /* whether those of its connections are followed: exchange.h */
	__u16 is_marked; /* whether it comes out of tunnels only with a host's mark */
};

/* Key of `made`, `expected` and `turns`. */
struct connection {
	struct ip_address client;
	struct ip_address service;
	__be16 client_port;
	__be16 service_port;
};

/* Value of `made`: the segment's numbers, and whose socket it is. */
struct made {
	__u32 sequence;
	__u32 acknowledgment;
	__be16 listener;
	__u16 pad;
};

/* Value of `expected`: a segment that a connection is made of, and what was agreed on long before it. */
struct expectation {
	__u64 until; /* by the monotonic clock, in nanoseconds */
	__u32 sequence;
	__u32 acknowledgment;
	__u16 mss;
	__u8 send_scale; /* of what the client announces */
	__u8 receive_scale; /* of what we do */
	__u8 scaled;
	__u8 sack;
	__u8 timestamps;
	__u8 made; /* whether a socket was made of it: what is said to a server a second time never becomes one again */
};

/*
 * Value of `turns`: the last request of a connection, and its answer. Where the answer begins comes first in both, in the
 * upper half: by that they belong together. Each is written at once, the one on the way in and the other on the way out, so
 * who reads both may take them for being of different turns, and never for another turn's end.
 */
struct turn {
	__u64 asked; /* in the lower half where the request ends */
	__u64 answered; /* in the lower half where the answer ends, or where it begins as long as that isn't known */
	__u64 tail; /* of an answer in chunks the last bytes, the very last one lowest */
	__u32 sent; /* of an answer in chunks what is behind them */
	__u32 chunked;
	__u32 plain; /* 0 once there was something else than whole requests and their answers, in turn */
	__u32 pad;
};

/* What `look` is given, behind an Ethernet header, and what it makes of that. */
struct looked {
	struct connection connection;
	__u32 state; /* 0: no socket */
	__u32 receive_next;
	__u32 copied;
	__u32 send_next;
	__u32 write_next;
	__u32 send_update;
	__u32 send_window;
	__u32 send_window_max;
	__u32 receive_window;
	__u32 receive_update;
	__u32 request_end;
	__u32 answer_begin; /* that of the request */
	__u32 answered_begin; /* that of the answer */
	__u32 answered_end;
	__u16 mss;
	__u8 send_scale;
	__u8 receive_scale;
	__u8 scaled;
	__u8 sack;
	__u8 timestamps;
	__u8 plain;
};

/* What the maps were made by. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} server_about SEC(".maps");

/* Not 0 where every host decides: what comes out says by its source how often it was passed on, and marks are believed by
 * `mark_key`. */
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

/* This host's addresses that tunnels end at. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, OWN_ADDRESSES_MAX);
	__type(key, struct ip_address);
	__type(value, __u32);
} own_addresses SEC(".maps");

/* From whom tunnels are accepted. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DIRECTORS_MAX);
	__type(key, struct ip_address);
	__type(value, __u32);
} directors SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, OWN_SERVICES_MAX);
	__type(key, struct own_service);
	__type(value, struct offer);
} own_services SEC(".maps");

/* Not 0 where the turns of any service are followed: what leaves is looked at no closer elsewhere. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} follows SEC(".maps");

/* By which segment a socket was made of a connection last. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MADE_MAX);
	__type(key, struct connection);
	__type(value, struct made);
} made SEC(".maps");

/* Connections that are to come in the middle of their life, for which no cookie vouches. */
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
	__type(value, struct turn);
} turns SEC(".maps");

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

static __always_inline void count_server(__u32 reason)
{
	__u64 *count = bpf_map_lookup_elem(&server_reasons, &reason);

	if (count)
		*count += 1;
}

/* A frame's first bytes, as many as `len` if it has them. Some drivers leave all but a few in pages that are not
 * looked at here. */
static __always_inline struct cursor beginning(struct __sk_buff *skb, __u32 len)
{
	struct cursor cursor = { (void *)(long)skb->data, (void *)(long)skb->data_end };

	if (cursor.at + len > cursor.end && cursor.end - cursor.at < skb->len) {
		bpf_skb_pull_data(skb, skb->len < len ? skb->len : len);
		cursor.at = (void *)(long)skb->data;
		cursor.end = (void *)(long)skb->data_end;
	}
	return cursor;
}

#endif
