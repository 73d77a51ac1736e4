/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Interface of the BPF programs and the control plane: map keys, values and counters. The build
 * generates Rust types from the BTF of this file and Rust constants from its text. The build fails
 * if the types or constants differ from those of `core`, or if Rust doesn't use one of them. So
 * types that only C uses are defined in other headers.
 */
#ifndef EVENER_ABI_H
#define EVENER_ABI_H

#include <linux/types.h>
#include "net/ip.h"

/* The daemon doesn't adopt a running data plane with another version. */
#define ABI_VERSION 18
/* Version that has no `clients` and `affinities` but is otherwise the same. The daemon adopts a
 * data plane with this version. */
#define ABI_WITHOUT_AFFINITY 17

/* core/src/path/tables.rs */
#define HASH_SLOTS 65537
#define ORDER_MAX 4096
#define SERVICE_SERVERS_MAX 256
#define SERVER_SLOTS 4096
#define NO_SERVER 0
#define ALL_FULL SERVER_SLOTS /* every server has reached its session limit */
/* core/src/path/select.rs */
#define EXPLORING 32
#define GAIN_UNIT 256
/* a server's score: its load above the lowest load of the service, in units of 1/SCORE_UNIT */
#define SCORE_UNIT 16
#define VIP_PLACES 1024
#define SERVICES_MAX 64
#define INTERFACE_PLACES 256
#define VIP_IDS 256
#define BEHIND_MAX 8
#define RETURN_PLACES 8192
/* Large enough that a multiplier that maps PEERS_MAX peers to distinct places is found quickly. */
#define PEER_PLACES 65536

/* core/src/path/sessions */
#define BUCKET_SESSIONS 8
#define MARK_MASK 0xfff
/* flag of the VIP id in the key of an affinity entry; the other bits are the service */
#define AFFINITY_KEY 0x8000
/* minimum extension of an affinity entry's expiry that is stored, in ticks */
#define AFFINITY_STEP 953

/* core/src/path/content */
#define READ_MAX 2048
#define HOST_MAX 255
#define HOST_LABELS_MAX 8
#define PATH_DEPTH_MAX 16
#define METHOD_MAX 16
#define LATER_LOOKED_MAX 256
#define CLASSES 8
#define NO_ROUTE 0xffff
/* Number of route entries of all services together. There is room for the old and the new routes
 * during a change. */
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

/* core/src/path/content/mod.rs, RequestClass */
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

/* core/src/path/tables.rs, RehandoffMode */
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
	STATE_AFFINITY = 8, /* an affinity entry: core/src/path/affinity.rs */
	STATE_ANSWERED = 10,
	STATE_REPLICATED = 11, /* another director has told of the session */
	STATE_UDP_REPLICATED = 13,
	STATE_UDP_ANSWERED = 14,
	STATE_SERVER_CLOSED = 15,
};
/* Number of idle timeouts of a VIP. The lower three bits of a session's state select one. */
#define STATES 8
/* The first two indexes of `idle` belong to no session state. They define the range of an
 * established session's remaining lifetime in which a packet needn't refresh the session. The first
 * value is the minimum of the range, the second its width. */
#define IDLE_LEAST 0
#define IDLE_STEP 1
/* Maximum remaining lifetime of a session, in ticks. */
#define LIFE_MAX (1 << 30)

/* Set before the programs are loaded. The verifier and the JIT treat them as constants. */
struct settings {
	__u32 abi_version;
	__u32 buckets;
	__u64 seed[2];
	__u64 jiffy_ns; /* 0 in tests: `given_now` is the time */
	__u32 buckets6;
	__u32 fib_parts; /* number of parts of each CPU's next-hop cache */
	__u64 ring_seed[2];
};

/* Destination of a packet, in network byte order. For an IPv6 VIP, `address` is address_digest() of
 * the VIP's address (maps.h). */
struct vip_key {
	__be32 address;
	__be16 port;
	__u8 protocol;
	__u8 v6;
};

/* Flags of a VIP. */
#define VIP_RING_HALF 1 /* the active half of the service's ring */
#define VIP_ANNOUNCE 2
#define VIP_STATELESS 4
#define VIP_HANDOFF 8 /* the VIP has an entry in `handoffs` */
/* with VIP_HANDOFF: later requests are read, too; see `later` of struct handoff */
#define VIP_LATER 16
#define VIP_AFFINITY 32 /* the VIP has an entry in `clients` */

/*
 * Value of `vips`: one cache line, all zero if the entry is empty. The control plane finds a
 * multiplier that maps each VIP to an entry of its own, so a lookup reads one entry. `commit` has
 * the multiplier and the active half of the map, so one store switches all VIPs and rings at once.
 */
struct vip {
	struct vip_key key;
	__u16 id;
	__u16 service;
	__u8 pick;
	__u8 flags;
	__u16 own; /* every-host farm: slot of this host; NO_SERVER on a director */
	__u32 idle[STATES]; /* in ticks of 2^20 ns; index: lower three bits of the state */
	struct ip address6; /* zeros for IPv4 */
} __attribute__((aligned(64)));

/*
 * Value of `handoffs`: parameters of the handshake with clients of a VIP, and of the lookup of
 * their requests. Index: that of the VIP in `vips`.
 */
struct handoff {
	__u64 ring_halves; /* bit n: the active half of ring n; routes may select any ring */
	__u32 multiplier[2]; /* of the hash of hosts and paths */
	__u32 generation; /* of the service's entries in `routes` */
	__u16 mss;
	__u16 punt; /* server slot of the daemon on this host */
	__u16 complex_from;
	__u16 default_ring;
	__u16 later; /* enum later */
	__u16 held; /* server slot of connections that are being moved */
};

/* Key of `routes`. Each service has its own generation, which changes with the service's routes. */
struct route_key {
	__u64 host;
	__u64 path;
	__u32 generation;
	__u32 pad;
};

/* Value of `routes`; index: enum class. core/src/path/content/routes.rs, RouteEntry */
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
#define ADDRESS_ENDPOINT 4 /* address of a server that replies through the director */

/* Value of `addresses`. */
struct address {
	__u32 flags;
};

/* Key of `endpoints`: source of the replies that servers send through the director. */
struct endpoint_key {
	struct ip address;
	__be16 port;
	__u8 protocol;
	__u8 v6;
};

/* VIP and server slot that an endpoint belongs to. */
struct behind {
	__u16 vip;
	__u16 server;
};

/* Value of `endpoints`. */
struct endpoint {
	__u32 count;
	struct behind behind[BEHIND_MAX];
};

/* Value of `returns`: VIP and server of an endpoint. It is zero if the endpoint belongs to several
 * VIPs or servers. Two endpoints may have the same index, so the reader compares the endpoint with
 * the server's entry. */
struct hint {
	__u16 vip;
	__u16 server;
};

/* Value of `rings`; index: service * 2 + half. The control plane writes the inactive half. */
struct ring {
	__u32 order_len;
	__u32 hash_len; /* 0 or HASH_SLOTS */
	__u16 order[ORDER_MAX];
	__u16 hash[HASH_SLOTS];
	__u16 second[HASH_SLOTS]; /* PICK_TWO: the second candidate, or NO_SERVER */
	__u16 pad[2];
};

#define SERVER_PRESENT 1
#define SERVER_UP 2
#define SERVER_LOCAL 4
/* core/src/path/tables.rs, Forwarding; layer 2 (Link) if neither NAT nor TUNNEL is set */
#define SERVER_NAT 8
#define SERVER_SOURCE_NAT 16
#define SERVER_TUNNEL 32
#define SERVER_GUE 64
#define SERVER_V6 128 /* `to` and `own` are IPv6 addresses */
#define SERVER_LAST 256 /* with SERVER_GUE: the receiver must not forward the packet again */
/* with SERVER_LOCAL: the packet goes to the daemon, which selects a server by the request */
#define SERVER_PUNTED 512
#define SERVER_BLACKHOLE 1024 /* packets are held or dropped: slot of connections that move */
/* with SERVER_GUE: the header has a mark, with the number of forwardings (net/mark.h) */
#define SERVER_MARKED 2048

/* Value of `previous`; index: service. Hash table for flows without a session: `previous` of Ring
 * in core/src/path/tables.rs. NO_SERVER if that table has no entry for the flow. */
struct previous {
	__u16 hash[HASH_SLOTS];
	__u16 pad[3];
};

/* Value of `servers`, one cache line; index: server slot. Writers store each 64-bit word
 * atomically. */
struct server {
	__u8 dst[6]; /* `dst` and `src` are laid out as the start of a frame */
	__u8 src[6];
	__u16 flags;
	__u16 weight;
	__u32 ifindex;
	__be16 port; /* NAT: the server's port */
	__u16 mtu; /* NAT, TUNNEL: path MTU to the server, outer headers included */
	__u64 identity;
	struct ip to; /* NAT: the server's address; TUNNEL: the outer destination */
	struct ip own; /* NAT: the director's address on the server's side; TUNNEL: outer source */
} __attribute__((aligned(64)));

/* Value of `interfaces`; index: ifindex modulo INTERFACE_PLACES. */
struct interface {
	__u8 mac[6];
	__u16 pad;
	__u32 ifindex;
	__u32 pad2;
} __attribute__((aligned(8)));

/* Value of `shares`; index: VIP id. */
struct share {
	__u64 own; /* assured sessions that the session table reserves for the VIP */
	__u64 assured; /* assured sessions that the VIP has */
};

/* Value of `clients`; index: VIP id. core/src/path/tables.rs, Affinity */
struct affinity {
	__u64 mask[2]; /* of a client's address in the key of a struct session6 */
	__u32 lifetime; /* of an entry, in ticks */
	__u16 tag;
	__u16 pad;
};

/* Value of `affinities`; index: service. */
struct affinity_count {
	__u64 entries; /* affinity entries in the session tables */
	__u64 evicted; /* entries that were evicted before they expired */
};

/* A session. Its key consists of client address, client port and VIP id. Its value consists, from
 * the highest bit on, of expiry (32 bits), mark (12), state (4) and server slot (16). */
struct session {
	__u64 key;
	__u64 value;
};

/* Two neighbouring cache lines. */
struct bucket {
	struct session slot[BUCKET_SESSIONS];
};

/* Session of an IPv6 client, or (in `ports`) the session to which a source port is allocated. The
 * first two words of the key are the client's address, where an IPv4 address is IPv4-mapped. The
 * third word has client port and VIP id. All words are in host byte order. */
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
	__u32 id; /* in host byte order */
	__u8 protocol;
	__u8 v6;
	__u16 pad;
};

/* Value of `fragments`: core/src/path/fragments.rs, Track */
struct track {
	__u32 expires;
	__u16 server;
	__u16 vip;
	__u16 port; /* in host byte order */
	__u16 first_end;
	__u32 answer;
};

/* Record of the ring buffer `held`: a frame that the daemon buffers. */
struct held {
	__u32 ifindex;
	__u32 len;
	__u16 reason; /* reason of the hold */
	__u16 server; /* server whose connection moves */
	__u8 frame[HELD_FRAME_MAX];
};

#define WATCH_CONNECTIONS 1
#define WATCH_CLIENTS 2

/* Subscriptions to events. */
struct watch {
	__u64 what;
	__u64 lost; /* events dropped because the ring buffer was full */
	struct ip client[CLIENTS_MAX]; /* IPv4-mapped if IPv4; unused places repeat an address */
};

enum event_kind {
	EVENT_CONNECTION = 1,
	EVENT_PACKET = 2,
};

/* dataplane/src/events.rs, TracedVerdict */
enum told_verdict {
	TRACED_FORWARD = 0,
	TRACED_PASS = 1,
	TRACED_DROP = 2,
	TRACED_HOLD = 3,
};

/* Record of the ring buffer `events`. An event of kind EVENT_CONNECTION has the start of the
 * request in `head`. For EVENT_PACKET `head` is empty. */
struct event {
	__u64 at_ns;
	struct ip src, dst;
	__be16 src_port, dst_port;
	__u32 latency_ns;
	__u16 server;
	__u16 route; /* or NO_ROUTE */
	__u16 len; /* length of the IP packet */
	__u8 kind;
	__u8 v6;
	__u8 verdict;
	__u8 reason;
	__u8 also_counted; /* second reason that was counted, or 0 */
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
