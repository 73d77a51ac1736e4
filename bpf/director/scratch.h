/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Variables of the slow path. They are in a per-CPU map and not on the stack: all functions of a
 * call chain share 512 bytes of stack. No other packet's program interrupts this one on its CPU.
 */
#ifndef EVENER_SCRATCH_H
#define EVENER_SCRATCH_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include "abi.h"
#include "director/frame.h"
#include "director/reading.h"
#include "net/cookie.h"
#include "net/ip.h"
#include "net/mark.h"
#include "net/tcp.h"

/* A client's TCP header without options: core/src/path/parse/tcp.rs. */
struct tcp_header {
	__be32 ports;
	__be32 sequence;
	__be32 acknowledgment;
	__be32 rest[2];
};

/* Maximum length of a SYN-ACK's options, in bytes. Linux sends no more. */
#define SYN_ACK_OPTIONS_MAX 20

/* TCP segment that replaces a client's packet. */
struct tcp_answer {
	__be32 sequence;
	__be32 acknowledgment;
	__be16 flags; /* in the lower byte */
	__be16 window;
	__u32 options_len;
	__be32 tcp[(20 + SYN_ACK_OPTIONS_MAX) / 4];
	__be32 ip[10];
};

/* The first fields of ICMP and ICMPv6 messages. */
struct icmp {
	__u8 type;
	__u8 code;
	__u16 checksum;
	__be32 rest;
};

/* Key of a `struct session6`: client address (IPv4-mapped if IPv4), client port and VIP id. */
struct key6 {
	__u64 word[3];
};

/* State of a packet for functions that aren't inlined. It has offsets and no pointers, since the
 * verifier forgets packet pointers in a call. */
struct packet_context {
	__u64 hash;
	__u64 session; /* current value; 0 without a session */
	__u64 found; /* value as found */
	__u64 source; /* source MAC: mac_bits() */
	__u64 numbers; /* TCP: upper half: acknowledgment number; lower half: sequence number */
	__u32 slot; /* index of the session's slot in its table, or NOT_FOUND */
	__u32 server; /* server slot */
	__u32 l3, l4;
	__u32 len; /* length of the IP packet */
	__u32 bytes; /* length of the frame, for the server's counter */
	__u8 new_session;
	__u8 reason; /* reason to count instead of adding to the server's counter, or 0 */
	__u8 also_counted; /* second reason to count, or 0 */
	__u8 traces; /* events to emit after the decision: TRACE_* */
	__u16 vip; /* VIP id */
	__u16 port; /* source port allocated to the session, or 0 */
	__u16 arrival;
	__u8 protocol;
	__u8 v6;
	__u8 flags;
	__u8 is_fragment;
	struct fragment fragment;
	__be16 src_port, dst_port;
};

/* Candidate for eviction: the session with the lowest rank so far. */
struct weighed {
	__u64 rank;
	__u64 value;
	__u32 place; /* index over both buckets; BUCKET_SESSIONS and higher are in the second */
	__u32 now;
	__u16 vip;
	__u16 may_go; /* set of the states that may be evicted */
	__u8 takes; /* true if assured sessions may be evicted */
	/* network of each session's client, NO_SOURCE if the session isn't embryonic; the last
	 * entry is for the new session */
	__u64 sources[2 * BUCKET_SESSIONS + 1];
};

/* Affinity entry that the packet's client needs: affinity.h. The value is 0 if it needs none. */
struct client_entry {
	struct key6 key;
	__u64 value;
	__u32 now;
	bool v6;
};

/* New addresses and ports of a packet. A port of 0 isn't changed. */
struct ends {
	struct ip src, dst;
	__be16 src_port, dst_port;
	__u8 has_src, has_dst;
};

/* Interface and MAC of a client with a link-local address. They are stored with the source port
 * allocated to the session, since routes can't find such a client for replies. */
struct near {
	__u32 link; /* ifindex; 0 if the address isn't link-local */
	__u32 pad;
	__be64 mac; /* in the first six bytes */
};

/* The session that a server's reply belongs to. */
struct reply {
	struct ip client;
	struct ip service;
	struct ip own; /* the director's address on the server's side */
	__be16 service_port;
	__be16 client_port;
	__u16 server;
	__u16 vip;
	__u16 port; /* source port allocated to the session, or 0 */
	struct near near;
	__u8 v6;
};

/* Source and destination of a server's reply. */
struct way_back {
	struct endpoint_key from;
	struct ip to;
	__be16 to_port;
	__u16 pad;
	__u32 now;
};

/* Next hop of a packet by the host's routes. */
struct hop {
	__u32 ifindex; /* 0: the neighbour's MAC isn't resolved */
	__u32 lan; /* ifindex; a frame that arrived on this interface keeps its VLAN tags */
	__u32 mtu; /* path MTU if the packet exceeds it, else 0 */
	__u8 src[8];
	__u8 dst[8];
	__u32 most; /* path MTU */
	__u64 epoch; /* `fib_epoch` before the lookup */
	__u32 next_ifindex; /* interface of an unresolved neighbour */
	struct bpf_redir_neigh next;
};

/* The packet that an ICMP error quotes. */
struct quoted {
	struct ip src, dst;
	__be16 src_port, dst_port;
	__u32 l3, l4;
	__u8 protocol;
	__u8 v6;
};

/* Link header in 16-bit units, since its length is a multiple of 2 only. */
struct link {
	__u16 half[LINK_LEN_MAX / 2 + 1];
};

/* IPv6 header with addresses of type `struct ip`. */
struct ip6_header {
	__be32 word; /* version, traffic class, flow label */
	__be16 payload_len;
	__u8 next;
	__u8 hop_limit;
	struct ip from;
	struct ip to;
};

/* Headers of an ICMP error, in front of the quoted packet. */
struct v4_error {
	struct iphdr ip;
	struct icmp icmp;
};

struct v6_error {
	struct ip6_header ip;
	struct icmp icmp;
};

/* A neighbour solicitation without options. */
struct solicitation {
	struct ip6_header ip;
	struct icmp icmp;
	struct ip target;
};

/* A neighbour advertisement with a target link-layer address option. */
struct advertisement {
	struct ip6_header ip;
	struct icmp icmp;
	struct ip target;
	__u8 option[2];
	__u16 mac[ETH_ALEN / 2];
};

/*
 * Steps of the slow path. A step's function returns the next step or the verdict. take_steps()
 * calls them in turn, so that call chains and stacks stay short.
 */
enum step {
	STEP = 0x100, /* bit that neither verdicts nor reasons use */
	STEP_ANY = 0x101, /* first step; the following ones are in the order in which they run */
	STEP_SOLICITATION,
	STEP_ICMP,
	STEP_ERROR_TO_SERVER,
	STEP_ERROR_TO_CLIENT,
	STEP_REPLY,
	STEP_LATER_FRAGMENT,
	STEP_HAND_OFF,
	STEP_SYN_ACK,
	STEP_BEGIN,
	STEP_LATER_SEGMENT,
	STEP_ACKNOWLEDGE,
	STEP_SEND_TO_SERVER,
	STEP_RESET,
	STEP_DELIVER,
	STEP_TOO_BIG,
};

#define TRACE_PACKET 1
#define TRACE_CONNECTION 2
#define TRACE_ANSWER 4 /* emitted only if the reply goes to a watched client */

/* The trace of a packet: see trace.h. */
struct trace {
	__u8 is_held; /* the daemon has a copy of the dropped packet */
	struct event packet;
	struct event connection; /* `at_ns`: start of the decision */
};

struct scratch {
	struct packet_context pkt;
	struct way_back back;
	struct key6 key6; /* key of the packet's session */
	struct reply reply;
	struct ends ends; /* new ends of the packet */
	struct quoted quoted;
	struct ends quoted_ends; /* new ends of the quoted packet */
	struct hop hop;
	struct ip src, dst; /* addresses of the packet */
	struct ip from; /* too_big(): source of the error */
	__u32 mtu; /* too_big(): MTU */
	struct fragment_key key;
	struct link link;
	struct v4_error error4;
	struct v6_error error6;
	struct solicitation question;
	struct advertisement advertisement;
	struct cookie_message message;
	struct mark_message mark;
	struct tcp_header tcp;
	struct tcp_options offered;
	struct tcp_answer answer;
	struct reading reading;
	struct trace trace;
	struct client_entry client;
	struct weighed weighed;
};

#endif
