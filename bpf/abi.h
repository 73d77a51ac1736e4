/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The part that the kernel's side and the control plane share: map keys, values, counters. Rust's
 * types are made from this file's BTF, its constants from this file's text. A build fails where
 * they differ from those of `core`, and where Rust has no use for one: what C alone knows stands
 * elsewhere.
 */
#ifndef EVENER_ABI_H
#define EVENER_ABI_H

#include <linux/types.h>
#include "net/ip.h"

/* A running data plane with another number is not adopted. */
#define ABI_VERSION 17
/* Had no `extents`, and else the same: its sessions are carried over. */
#define ABI_WITHOUT_EXTENTS 15

/* core/src/path/tables.rs */
#define HASH_SLOTS 65537
#define ORDER_MAX 4096
#define SERVICE_SERVERS_MAX 256
#define SERVER_SLOTS 4096
#define NO_SERVER 0
#define ALL_FULL SERVER_SLOTS /* each server has as many sessions as it may have */
/* core/src/path/select.rs */
#define EXPLORING 32
#define GAIN_UNIT 256
/* a score says by how many of these parts a server's load is above the least of its service's */
#define SCORE_UNIT 16
#define VIP_PLACES 1024
#define SERVICES_MAX 64
#define INTERFACE_PLACES 256
#define VIP_IDS 256
#define BEHIND_MAX 8
#define RETURN_PLACES 8192
/* So many that a multiplier which gives each of PEERS_MAX peers a place of its own is soon
 * found. */
#define PEER_PLACES 65536

/* core/src/path/sessions */
#define BUCKET_SESSIONS 8
#define MARK_MASK 0xfff

/* core/src/path/content */
#define READ_MAX 2048
#define HOST_MAX 255
#define HOST_LABELS_MAX 8
#define PATH_DEPTH_MAX 16
#define METHOD_MAX 16
#define LATER_LOOKED_MAX 256
#define CLASSES 8
#define NO_ROUTE 0xffff
/* Of all services, while they are changed: those in force and those to come. */
#define ROUTE_ENTRIES 131072

/* core/src/path/ports.rs */
#define FIRST_PORT 4096
#define PORTS 28672
#define PORT_POOLS 16
#define POOL_BUCKETS (PORTS / BUCKET_SESSIONS)

/* core/src/path/fragments.rs */
#define FRAGMENT_LIFETIME_MS 5000
#define FRAGMENTS_MAX 8192

/* core/src/path/decide/mod.rs */
#define HELD_FRAME_MAX 2048

/* dataplane/src/events.rs */
#define CLIENTS_MAX 4
#define HEAD_MAX 256

/* core/src/path/reason.rs */
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
	REASON_ANSWERED = 19,
	REASON_HOST_STACK = 20,
	REASON_NEIGHBOUR_ANSWERED = 21,
	REASON_ECHO_ANSWERED = 22,
	REASON_TOO_BIG = 23,
	REASON_ICMP_FORWARDED = 24,
	REASON_ICMP_UNKNOWN = 25,
	REASON_FORGED_MTU = 26,
	REASON_FRAGMENT_HELD = 27,
	REASON_FRAGMENT_LOST = 28,
	REASON_TINY_FRAGMENT = 29,
	REASON_FRAGMENT_OVERLAP = 30,
	REASON_EXTENSION_HEADERS = 31,
	REASON_TTL_EXPIRED = 32,
	REASON_NO_PORT = 33,
	REASON_NO_ROUTE = 34,
	REASON_NO_HEADROOM = 35,
	REASON_SECOND_CHANCE = 36,
	REASON_COOKIE_SENT = 37,
	REASON_COOKIE_ACKED = 38,
	REASON_COOKIE_BAD = 39,
	REASON_RESET = 40,
	REASON_PUNTED = 41,
	REASON_ROUTE_MISMATCH = 42,
	REASON_REHANDOFF = 43,
	REASON_BAD_CHECKSUM = 44,
	REASON_REHANDOFF_BUFFERED = 45,
	REASON_LINK_LOCAL = 46,
	REASON_COOKIE_UNCHECKED = 47,
	REASON_SERVERS_FULL = 48,
	REASON_KEEPALIVE_ACKED = 49,
	REASON_MAX,
};

/* core/src/path/content/mod.rs, Class */
enum class {
	CLASS_GET = 0,
	CLASS_HEAD = 1,
	CLASS_POST = 2,
	CLASS_PUT = 3,
	CLASS_DELETE = 4,
	CLASS_OTHER = 5,
	CLASS_HELLO = 6,
};

/* core/src/path/tables.rs, Pick */
enum pick {
	PICK_HASH = 0,
	PICK_CURSOR = 1,
	PICK_LEAST = 2,
	PICK_TWO = 3,
};

/* core/src/path/tables.rs, Later */
enum later {
	LATER_STAY = 0,
	LATER_CLOSE = 1,
	LATER_REHANDOFF = 2,
};

/* core/src/path/sessions, State */
enum session_state {
	STATE_FREE = 0,
	STATE_CLAIMED = 1,
	STATE_NEW = 2,
	STATE_ESTABLISHED = 3,
	STATE_CLOSING = 4,
	STATE_UDP = 5,
	STATE_UDP_NEW = 6,
	STATE_HALF_CLOSED = 7,
	STATE_ANSWERED = 10,
	STATE_UDP_ANSWERED = 14,
	STATE_SERVER_CLOSED = 15,
};
/* Idle times: a state's lower three bits name its own. */
#define STATES 8
/* No session's state names the first two: of the state that a VIP's sessions are at work in, how
 * much of its time must be left that a packet needn't note it anew, and how much more there may
 * be. */
#define IDLE_LEAST 0
#define IDLE_STEP 1
/* The furthest that an expiry is ahead, in ticks. */
#define LIFE_MAX (1 << 30)

/* Set before loading; a program's constants to the verifier and the JIT. */
struct settings {
	__u32 abi_version;
	__u32 buckets;
	__u64 seed[2];
	__u64 jiffy_ns; /* 0: what `given_now` says is the time, for tests */
	__u32 buckets6;
	__u32 fib_parts; /* of each CPU, of the cache of the kernel's routes */
	__u64 ring_seed[2];
};

/* The key by which a packet is recognised. In network byte order, as the packet has it; of an
 * IPv6 address address_digest() in maps.h. */
struct vip_key {
	__be32 address;
	__be16 port;
	__u8 protocol;
	__u8 v6;
};

/* Of a VIP. */
#define VIP_RING_HALF 1 /* half of the service's rings in use */
#define VIP_ANNOUNCE 2
#define VIP_STATELESS 4
#define VIP_HANDOFF 8 /* `handoffs` has more of it */
/* with VIP_HANDOFF: later requests are looked at; struct handoff says what becomes of them */
#define VIP_LATER 16

/*
 * Value of `vips`, one cache line; all zero where there is none. The control plane finds a
 * multiplier that gives each VIP a place of its own, so a look-up reads one place. `commit` names
 * the multiplier and the half of the map in force: one store switches every VIP and ring at once.
 */
struct vip {
	struct vip_key key;
	__u16 id;
	__u16 service;
	__u8 pick;
	__u8 flags;
	__u16 own; /* slot of this host where every host decides, else NO_SERVER */
	__u32 idle[STATES]; /* in ticks of 2^20 ns, by the lower bits of the session's state */
	struct ip address6; /* zeros for IPv4 */
} __attribute__((aligned(64)));

/*
 * Value of `handoffs`: how a VIP's connections are accepted, and what a client's wish is looked up
 * by. At the same place as the VIP in `vips`.
 */
struct handoff {
	__u64 ring_halves; /* half of each ring in use: routes name other rings as well */
	__u32 multiplier[2]; /* of the hash of hosts and paths */
	__u32 generation; /* of the service's routes */
	__u16 mss;
	__u16 punt; /* server slot */
	__u16 complex_from;
	__u16 default_ring;
	__u16 later; /* enum later */
	__u16 held; /* server slot: nobody's, while connections move */
};

/* Key of `routes`. Each service's routes have a generation of their own, and so do they after a
 * change. */
struct route_key {
	__u64 host;
	__u64 path;
	__u32 generation;
	__u32 pad;
};

/* Value of `routes`, by class: core/src/path/content/routes.rs, RouteEntry */
struct route_entry {
	__u16 route[CLASSES];
	__u16 ring[CLASSES];
};

/* Key of `addresses`. */
struct address_key {
	struct ip address;
	__u32 v6;
};

#define ADDRESS_SERVICE 1
#define ADDRESS_ANNOUNCED 2 /* the director answers ARP or neighbour discovery for it */
#define ADDRESS_ENDPOINT 4 /* a server's, which answers through the director */

/* Value of `addresses`. */
struct address {
	__u32 flags;
};

/* Key of `endpoints`: where answers come from that go through the director. */
struct endpoint_key {
	struct ip address;
	__be16 port;
	__u8 protocol;
	__u8 v6;
};

struct behind {
	__u16 vip;
	__u16 server;
};

/* Value of `endpoints`. */
struct endpoint {
	__u32 count;
	struct behind behind[BEHIND_MAX];
};

/* Value of `returns`: the VIP and the server of an endpoint that is one server's of one VIP
 * alone; zeros for others, and where another endpoint has the place. A hint: the server's entry
 * says whether it is so. */
struct hint {
	__u16 vip;
	__u16 server;
};

/* Value of `rings`; index: service * 2 + half. Written while the other half is in force. */
struct ring {
	__u32 order_len;
	__u32 hash_len; /* 0 or HASH_SLOTS */
	__u16 order[ORDER_MAX];
	__u16 hash[HASH_SLOTS];
	__u16 second[HASH_SLOTS]; /* PICK_TWO: the other candidate; NO_SERVER where there is none */
	__u16 pad[2];
};

#define SERVER_PRESENT 1
#define SERVER_UP 2
#define SERVER_LOCAL 4
/* core/src/path/tables.rs, Forwarding; without NAT or TUNNEL it is Link */
#define SERVER_NAT 8
#define SERVER_SOURCE_NAT 16
#define SERVER_TUNNEL 32
#define SERVER_GUE 64
#define SERVER_V6 128 /* of `to` and `own` */
#define SERVER_LAST 256 /* of SERVER_GUE: who opens the tunnel keeps the packet */
/* of SERVER_LOCAL: application space, which reads what is not decided here */
#define SERVER_PUNTED 512
#define SERVER_BLACKHOLE 1024 /* stands for nobody, while connections move */
/* of SERVER_GUE: the header says how often the packet was passed on: mark.h */
#define SERVER_MARKED 2048

/* Value of `previous`; index: service. Who may know a flow that has no session, by the table of
 * before the last drain or change of hosts; zeros where that is who `hash` names, or nobody. */
struct previous {
	__u16 hash[HASH_SLOTS];
	__u16 pad[3];
};

/* Value of `servers`, one cache line; index: server slot. Each 64-bit word is written at once. */
struct server {
	__u8 dst[6]; /* with the next, the beginning of a frame */
	__u8 src[6];
	__u16 flags;
	__u16 weight;
	__u32 ifindex;
	__be16 port; /* NAT: the server's own */
	__u16 mtu; /* NAT, TUNNEL: the longest packet on the way, outer headers included */
	__u64 identity;
	struct ip to; /* NAT: the server's own address; TUNNEL: the outer destination */
	struct ip own; /* NAT: the director's own address towards it; TUNNEL: the outer source */
} __attribute__((aligned(64)));

/* Value of `interfaces`; index: ifindex modulo INTERFACE_PLACES. */
struct interface {
	__u8 mac[6];
	__u16 pad;
	__u32 ifindex;
	__u32 pad2;
} __attribute__((aligned(8)));

/* Value of `shares`, by VIP id: of the session table, the assured sessions that are the VIP's
 * own, and that it has. */
struct share {
	__u64 own;
	__u64 assured;
};

/* Session: the key is client address, client port and VIP id; the value from the top is expiry
 * (32 bits), mark (12), state (4) and server slot (16). */
struct session {
	__u64 key;
	__u64 value;
};

/* Two neighbouring cache lines. */
struct bucket {
	struct session slot[BUCKET_SESSIONS];
};

/* A session whose client has an IPv6 address, or (in `ports`) a port's holder: the client's
 * address in two words, of IPv4 mapped; port and VIP id in the third. All are numbers, not
 * bytes. */
struct session6 {
	__u64 key[3];
	__u64 value;
};

/* Value of `sessions6` and `ports`: four neighbouring cache lines. */
struct bucket6 {
	struct session6 slot[BUCKET_SESSIONS];
};

/* Key of `fragments`. */
struct fragment_key {
	struct ip src;
	struct ip dst;
	__u32 id; /* a number */
	__u8 protocol;
	__u8 v6;
	__u16 pad;
};

/* Value of `fragments`: core/src/path/fragments.rs, Track */
struct track {
	__u32 expires;
	__u16 server;
	__u16 vip;
	__u16 port; /* a number */
	__u16 first_end;
	__u32 answer;
};

/* A record of `held`, for user space. */
struct held {
	__u32 ifindex;
	__u32 len;
	__u16 reason; /* reason of the hold */
	__u16 server; /* server whose connection moves */
	__u8 frame[HELD_FRAME_MAX];
};

#define WATCH_CONNECTIONS 1
#define WATCH_CLIENTS 2

/* The subscriptions to events. */
struct watch {
	__u64 what;
	__u64 lost; /* events that found no room */
	struct ip client[CLIENTS_MAX]; /* of IPv4 mapped; each place has one, if any has */
};

enum event_kind {
	EVENT_CONNECTION = 1,
	EVENT_PACKET = 2,
};

/* dataplane/src/events.rs, Told */
enum told_verdict {
	TRACED_FORWARD = 0,
	TRACED_PASS = 1,
	TRACED_DROP = 2,
	TRACED_HOLD = 3,
};

/* A record of `events`: of a packet without a head, of a connection with as much as there is. */
struct event {
	__u64 at_ns;
	struct ip src, dst;
	__be16 src_port, dst_port;
	__u32 latency_ns;
	__u16 server;
	__u16 route; /* or NO_ROUTE */
	__u16 len; /* of the IP packet */
	__u8 kind;
	__u8 v6;
	__u8 verdict;
	__u8 reason;
	__u8 also_counted; /* a reason, or 0 */
	__u8 protocol;
	__u8 flags;
	__u8 pad;
	__u16 head_len;
	__u8 head[HEAD_MAX];
};

/* Value of `server_stats`, per CPU; index: server slot. */
struct server_stats {
	__u64 packets;
	__u64 bytes;
	__u64 connections;
	__u64 pad;
};

#endif
