/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What the kernel's side and the control plane share: map keys, values, counters. Rust's types are made
 * from this file's BTF, and a build fails where they differ from those of `core`.
 */
#ifndef EVENER_ABI_H
#define EVENER_ABI_H

#include <linux/types.h>

/* A running data plane with another number is not adopted. */
#define ABI_VERSION 1

/* core/src/tables.rs */
#define HASH_SLOTS 65537
#define ORDER_MAX 4096
#define SERVICE_SERVERS_MAX 256
#define SERVER_SLOTS 4096
#define NO_SERVER 0
#define VIP_PLACES 1024
#define SERVICES_MAX 64
#define INTERFACE_PLACES 256

/* core/src/sessions.rs */
#define BUCKET_SESSIONS 8

/* core/src/reason.rs */
enum reason {
	REASON_FORWARDED = 0,
	REASON_LOCAL = 1,
	REASON_ARP_ANSWERED = 2,
	REASON_NOT_SERVICE = 3,
	REASON_NOT_IP = 4,
	REASON_VLAN = 5,
	REASON_OTHER_HOST = 6,
	REASON_RUNT = 7,
	REASON_BAD_VERSION = 8,
	REASON_TRUNCATED = 9,
	REASON_BAD_LENGTH = 10,
	REASON_IP_OPTIONS = 11,
	REASON_FRAGMENT = 12,
	REASON_MULTICAST_SOURCE = 13,
	REASON_MARTIAN_SOURCE = 14,
	REASON_BAD_FLAGS = 15,
	REASON_NO_SERVER = 16,
	REASON_TABLE_FULL = 17,
	REASON_NO_SESSION = 18,
	REASON_MAX,
};

/* core/src/tables.rs, Pick */
enum pick {
	PICK_HASH = 0,
	PICK_CURSOR = 1,
	PICK_LEAST = 2,
};

/* core/src/sessions.rs, State */
enum session_state {
	STATE_FREE = 0,
	STATE_CLAIMED = 1,
	STATE_NEW = 2,
	STATE_ESTABLISHED = 3,
	STATE_CLOSING = 4,
	STATE_UDP = 5,
};
/* Room for states: a power of two, so that a mask bounds an index. */
#define STATES 8

/* Set before loading; a program's constants to the verifier and the JIT. */
struct settings {
	__u32 abi_version;
	__u32 buckets;
	__u64 seed[2];
	__u64 jiffy_ns;
};

/* What a packet is recognised by. In network byte order, as the packet has them. */
struct vip_key {
	__be32 address;
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

/*
 * Value of `vips`, one cache line; all zero where there is none. The control plane finds a multiplier that
 * gives each VIP a place of its own, so a look-up reads one place. `commit` names the multiplier and the
 * half of the map in force: one store switches every VIP and ring at once.
 */
struct vip {
	struct vip_key key;
	__u16 id;
	__u16 service;
	__u8 pick;
	__u8 ring; /* which half of the service's rings: 0 or 1 */
	__u8 announce;
	__u8 pad;
	__u32 idle[STATES]; /* in ticks of 2^20 ns, by session state */
	__u64 pad2[2];
};

/* Value of `addresses`: is this a service address, and does the director answer ARP for it? */
struct address {
	__u32 announce;
};

/* Value of `rings`; index: service * 2 + half. Written while the other half is in force. */
struct ring {
	__u32 order_len;
	__u32 hash_len; /* 0 or HASH_SLOTS */
	__u16 order[ORDER_MAX];
	__u16 hash[HASH_SLOTS];
	__u16 pad[3];
};

#define SERVER_PRESENT 1
#define SERVER_UP 2
#define SERVER_LOCAL 4

/* Value of `servers`; index: server slot. Each 64-bit word is written at once. */
struct server {
	__u8 dst[6];
	__u16 weight;
	__u8 src[6];
	__u16 flags;
	__u32 ifindex;
	__u32 pad;
	__u64 identity;
};

/* Value of `interfaces`; index: ifindex modulo INTERFACE_PLACES. */
struct interface {
	__u8 mac[6];
	__u16 pad;
	__u32 ifindex;
	__u32 pad2;
};

/* One session: key is client address, client port, VIP id; value is expiry, state, server slot. */
struct session {
	__u64 key;
	__u64 value;
};

/* Two neighbouring cache lines. */
struct bucket {
	struct session slot[BUCKET_SESSIONS];
};

/* Value of `server_stats`, per CPU; index: server slot. */
struct server_stats {
	__u64 packets;
	__u64 bytes;
	__u64 connections;
	__u64 pad;
};

#endif
