/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Interface of pending.bpf.c and its reader, dataplane/src/pending.rs. */
#ifndef EVENER_PENDING_ABI_H
#define EVENER_PENDING_ABI_H

#include <linux/types.h>

/* Maximum length of a recorded request line, in bytes. */
#define LINE_MAX 160
/* Number of words of 64 ports each. */
#define PORT_WORDS 1024

/* core/src/server/pending.rs, ResponseProgress */
enum pending_answer {
	PENDING_WAITING = 0,
	PENDING_KNOWN = 1,
	PENDING_UNKNOWN = 2,
};

/* core/src/server/pending.rs, Behind */
enum pending_behind {
	BEHIND_UNKNOWN = 0,
	BEHIND_NOTHING = 1,
	BEHIND_REQUEST = 2,
};

enum pending_count {
	/* bytes that servers sent, without retransmissions */
	COUNT_SENT = 0,
	/* requests and response heads that aren't tracked for lack of memory */
	COUNT_UNFOLLOWED = 1,
	/* HTTP/1 requests, of pipelined ones at most two */
	COUNT_REQUESTS = 2,
	/* connections whose first data isn't an HTTP/1 request: TLS, HTTP/2 and others */
	COUNT_UNREAD = 3,
	PENDING_COUNTS,
};

/* A connection's last request: core/src/server/pending.rs, Pending. dataplane/src/pending.rs
 * reads it. */
struct pending {
	__u64 begin;
	__u64 end;
	__u64 since_ns; /* arrival of the request, by the monotonic clock */
	/* sequence number of position `begin`; positions count like TCP's `bytes_acked` */
	__u32 begin_sequence;
	__u32 end_sequence;
	__u8 answer;
	__u8 is_head;
	__u8 line_len;
	__u8 behind;
	__u32 kept; /* bytes of an incomplete response head that are in `heads` */
	__u32 next_sequence; /* with BEHIND_NOTHING: start of the client's next request */
	__u32 sent_to; /* COUNT_SENT includes the bytes up to this sequence number */
	__u8 line[LINE_MAX];
};

#endif
