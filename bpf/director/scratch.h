/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The state of a packet's rarer ways. It stands in a map and not on the stack, of which all
 * functions on one way have 512 bytes together. Programs are not interrupted by others on their
 * CPU.
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

/* A client's TCP header, as far as a handshake needs it: core/src/path/parse/tcp.rs. */
struct tcp_header {
	__be32 ports;
	__be32 sequence;
	__be32 acknowledgment;
	__be32 rest[2];
};

/* Of an answer: what Linux sends. */
#define SYN_ACK_OPTIONS_MAX 20

/* An answer's payload, and its headers. */
struct tcp_answer {
	__be32 sequence;
	__be32 acknowledgment;
	__be16 flags; /* the lower byte */
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

/* The client's address, of IPv4 mapped, and port with VIP id: key of a `struct session6`. */
struct key6 {
	__u64 word[3];
};

/* A packet on its way, for what is not inlined: by offsets, since pointers don't survive a call. */
struct packet_context {
	__u64 hash;
	__u64 session; /* current value; 0 without a session */
	__u64 found; /* value as found */
	__u64 source; /* of the frame: mac_bits() */
	__u64 numbers; /* of TCP: the acknowledgment number above the sequence number */
	__u32 slot; /* place as found, or NOT_FOUND */
	__u32 server; /* slot */
	__u32 l3, l4;
	__u32 len; /* of the IP packet */
	__u32 bytes; /* of the frame, for the server's count */
	__u8 new_session;
	__u8 reason; /* counted in the place of the server, or 0 */
	__u8 also_counted; /* a reason that is counted beside the verdict's, or 0 */
	__u8 traces; /* event to emit in the end */
	__u16 vip;
	__u16 port; /* the number that stands for the client, or 0 */
	__u16 arrival;
	__u8 protocol;
	__u8 v6;
	__u8 flags;
	__u8 is_fragment;
	struct fragment fragment;
	__be16 src_port, dst_port;
};

/* The session that goes first where room is short, as far as the search has come. */
struct weighed {
	__u64 rank;
	__u64 value;
	__u32 place; /* of the first bucket's, then of the second's */
	__u32 now;
	__u16 vip;
	__u8 takes; /* true if assured sessions may be evicted */
	/* Of embryonic sessions' clients, or NO_SOURCE; behind them the newcomer's. */
	__u64 sources[2 * BUCKET_SESSIONS + 1];
};

/* The new ends of a packet; a port of 0 stays as it is. */
struct ends {
	struct ip src, dst;
	__be16 src_port, dst_port;
	__u8 has_src, has_dst;
};

/* Location of a client with a link-local address for which a port stands. */
struct near {
	__u32 link; /* 0: it has no such address */
	__u32 pad;
	__be64 mac; /* in the first six bytes */
};

/* The session that a server's reply belongs to. */
struct reply {
	struct ip client;
	struct ip service;
	struct ip own; /* the director's own address towards the server */
	__be16 service_port;
	__be16 client_port;
	__u16 server;
	__u16 vip;
	__u16 port; /* the number that stands for the client, or 0 */
	struct near near;
	__u8 v6;
};

/* A packet's source and destination. */
struct way_back {
	struct endpoint_key from;
	struct ip to;
	__be16 to_port;
	__u16 pad;
	__u32 now;
};

/* Next hop of a packet by the host's routes. */
struct hop {
	__u32 ifindex; /* 0: the neighbour's MAC isn't known yet */
	__u32 lan; /* interface whose tags a frame may keep */
	__u32 mtu; /* not 0: the packet is longer than this */
	__u8 src[8];
	__u8 dst[8];
	__u32 most; /* the longest packet that the way takes */
	__u64 epoch; /* of routes, before this was asked */
	__u32 next_ifindex; /* way to the neighbour */
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

/* A link header in halves of words: the stack is read and written at multiples of what is read. */
struct link {
	__u16 half[LINK_LEN_MAX / 2 + 1];
};

/* An IPv6 header, with addresses as the rest has them. */
struct ip6_header {
	__be32 word; /* version, traffic class, flow label */
	__be16 payload_len;
	__u8 next;
	__u8 hop_limit;
	struct ip from;
	struct ip to;
};

/* The headers before the packet that an ICMP error quotes. */
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

/* A neighbour advertisement with its one option. */
struct advertisement {
	struct ip6_header ip;
	struct icmp icmp;
	struct ip target;
	__u8 option[2];
	__u16 mac[ETH_ALEN / 2];
};

/*
 * The codes that a function that is not inlined may give in the place of a verdict: which one comes
 * next. So none has to call another from deep within, and stacks stay short.
 */
enum step {
	STEP = 0x100, /* a bit that no verdict has, nor a reason above it */
	STEP_ANY = 0x101, /* in the order in which they may follow each other */
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
#define TRACE_ANSWER 4 /* if it goes to a client that is watched */

/* The trace of a packet: see trace.h. */
struct trace {
	__u8 is_held; /* a held packet is dropped here */
	struct event packet;
	struct event connection; /* `at_ns` is when it began to be decided */
};

struct scratch {
	struct packet_context pkt;
	struct way_back back;
	struct key6 key6; /* of the packet's session */
	struct reply reply;
	struct ends ends; /* the packet's new ones */
	struct quoted quoted;
	struct ends quoted_ends; /* the quoted packet's new ones */
	struct hop hop;
	struct ip src, dst; /* the packet's own */
	struct ip from; /* sender of the error that the packet is too big, */
	__u32 mtu; /* and for what */
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
	struct weighed weighed;
};

#endif
