/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The part that a server's side shares with the agent that loads it: keys, values, reasons. Rust's
 * numbers are held against these when it is built.
 */
#ifndef EVENER_SERVER_H
#define EVENER_SERVER_H

#include <linux/types.h>
#include "net/ip.h"

/* Maps that were pinned with another number are not adopted. */
#define SERVER_ABI_VERSION 9

/* dataplane/src/server/mod.rs: the mark of what a director that is this host sends by itself. */
#define SENT_ON 0xe7e3

/* dataplane/src/server/reason.rs. Packets that are no tunnel packets to this host are not
 * counted, nor are segments of connections that are at work. */
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

/* Key of `own_services`. Port and protocol 0: any packet to the address that has no port to go
 * by. */
struct own_service {
	struct ip address;
	__be16 port;
	__u8 protocol;
	__u8 pad;
};

/* Value of an offer. */
struct offer {
	/* the largest segment that servers may offer, in bytes; 0 leaves what they offer */
	__u32 mss;
	__be16 listener; /* the port of the socket that accepts what is handed off; 0: nothing is */
	/* port of the listener for punted segments, by the frame's source; 0: the same */
	__be16 punt_listener;
	__u16 turns; /* true if exchanges of its connections are followed: exchange.h */
	__u16 is_marked; /* true if only tunnels with a host's mark are taken */
};

/* Key of `made`, `expected` and `turns`. */
struct connection {
	struct ip client;
	struct ip service;
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

/* Value of `clearing`: other segments of the connection wait for the copy of its first one, and
 * for the socket that is made of that. */
struct clearing {
	__u64 until; /* by the monotonic clock, in nanoseconds */
	__u32 is_in; /* true once the copy has come in */
	__u32 pad;
};

/* Value of `expected`: a segment that a connection is made of, and what was agreed on long
 * before it. */
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
	/* true once a socket was made: a retransmission never becomes a second one */
	__u8 made;
};

/*
 * Value of `turns`: the last request of a connection, and its answer. Where the answer begins comes
 * first in both, in the upper half: by that they belong together. Each is written at once, the one
 * on the way in and the other on the way out, so who reads both may take them for being of
 * different turns, and never for another turn's end.
 */
struct exchange {
	__u64 request; /* in the lower half where the request ends */
	/* in the lower half where the answer ends, or where it begins as long as that isn't
	 * known */
	__u64 response;
	__u64 tail; /* of an answer in chunks the last bytes, the very last one lowest */
	__u32 sent; /* of an answer in chunks what is behind them */
	__u16 chunked;
	__u16 kept; /* bytes of the answer's head that have left, while it isn't whole */
	/* 0 once there was something else than whole requests and their answers, in turn */
	__u32 plain;
	__u32 ahead; /* beginning of the answer of which something left before its first segment */
};

/* The input of `look`, behind an Ethernet header, and its result. */
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
	__u32 answer_begin; /* beginning of the request */
	__u32 answered_begin; /* beginning of the answer */
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
