/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Interface of a server's programs and the agent: map keys, values and reasons. The build compares
 * Rust's constants with these.
 */
#ifndef EVENER_SERVER_H
#define EVENER_SERVER_H

#include <linux/types.h>
#include "net/ip.h"

/* The agent doesn't adopt pinned maps with another version. */
#define SERVER_ABI_VERSION 9

/* dataplane/src/server/mod.rs: SO_MARK of packets that a director on this host generates. */
#define SENT_ON 0xe7e3

/* dataplane/src/server/reason.rs. Packets that aren't tunnel packets to this host, and segments of
 * established connections, aren't counted. */
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
	SERVER_ADJUST_ROOM_FAILED = 10,
	SERVER_ACCEPTED = 11,
	SERVER_NO_LISTENER = 12,
	SERVER_BAD_COOKIE = 13,
	SERVER_REFUSED = 14,
	SERVER_TIME_WAIT_EVICTED = 15,
	SERVER_STALE_EVICTED = 16,
	SERVER_NOT_EVICTED = 17,
	SERVER_RESET_DELAYED = 18,
	SERVER_FORGED_MARK = 19,
	SERVER_REASON_MAX,
};

/* Key of `own_services`. Port and protocol are 0 for packets without a port. */
struct own_service {
	struct ip address;
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

/* Value of `own_services`. */
struct offer {
	__u32 mss; /* maximum MSS that the server may offer, in bytes; 0: any */
	__be16 listener; /* port of the listener for handed-off connections; 0: no handoff */
	__be16 punt_listener; /* port of the listener for punted connections; 0: `listener` */
	__u16 turns; /* exchanges are tracked: exchange.h */
	__u16 is_marked; /* only tunnel packets with a mark are accepted */
};

/* Key of `made`, `expected` and `turns`. */
struct connection {
	struct ip client;
	struct ip service;
	__be16 client_port;
	__be16 service_port;
};

/* Value of `made`: the numbers of the segment, and the listener's port. */
struct made {
	__u32 sequence;
	__u32 acknowledgment;
	__be16 listener;
	__u16 pad;
};

/* Value of `clearing`: other segments of the connection wait until the copy of its first segment
 * was received and its socket exists. */
struct clearing {
	__u64 until; /* by the monotonic clock, in nanoseconds */
	__u32 copy_received; /* the copy was received */
	__u32 pad;
};

/* Value of `expected`: the segment from which a moved connection will be created, and the terms
 * that were negotiated at its start. */
struct expectation {
	__u64 until; /* by the monotonic clock, in nanoseconds */
	__u32 sequence;
	__u32 acknowledgment;
	__u16 mss;
	__u8 send_scale; /* window scale of the client */
	__u8 receive_scale; /* window scale of the server */
	__u8 scaled;
	__u8 sack;
	__u8 timestamps;
	__u8 made; /* a socket was made: retransmissions must not create another one */
};

/*
 * Value of `turns`: the last request of a connection, and the last response. The upper half of
 * `request` and of `response` is the sequence number at which the response starts. If both are
 * equal, request and response belong together. Each of them is one word, which the program of its
 * direction stores atomically. So a reader may see a response that belongs to another request, but
 * never a mixture of two requests or two responses.
 */
struct exchange {
	__u64 request; /* lower half: end of the request */
	__u64 response; /* lower half: end of the response; its start if the end is unknown */
	__u64 tail; /* chunked response: the last eight bytes, the last one lowest */
	__u32 sent; /* chunked response: sequence number behind the sent bytes */
	__u16 chunked;
	__u16 kept; /* bytes of an incomplete response head that are in `answer_heads` */
	__u32 plain; /* 0 after anything but complete requests and responses in turn */
	__u32 ahead; /* start of a response whose first segment was overtaken by another */
};

/* Input (`connection`) and result of the program `look`, behind an Ethernet header. */
struct socket_snapshot {
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
	__u32 answer_begin; /* start of the response to the last request */
	__u32 answered_begin; /* start of the last response that was sent */
	__u32 answered_end;
	__u16 mss;
	__u8 send_scale;
	__u8 receive_scale;
	__u8 scaled;
	__u8 sack;
	__u8 timestamps;
	__u8 plain;
};

#endif
