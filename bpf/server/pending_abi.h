/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Shared by the programs that follow requests and their reader: dataplane/src/pending.rs. */
#ifndef EVENER_PENDING_ABI_H
#define EVENER_PENDING_ABI_H

#include <linux/types.h>

/* Bytes of a request that are kept: its first line, as far as it goes. */
#define LINE_MAX 160
/* Of 64 ports each. */
#define PORT_WORDS 1024

/* core/src/server/pending.rs, Answer */
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
	/* bytes that were sent for the first time */
	COUNT_SENT = 0,
	/* requests, or heads of answers, for which there was no memory: of these nothing is
	 * known */
	COUNT_UNFOLLOWED = 1,
	PENDING_COUNTS,
};

/* A connection's last request: core/src/server/pending.rs, Pending. dataplane/src/pending.rs
 * reads it. */
struct pending {
	__u64 begin;
	__u64 end;
	__u64 since_ns; /* arrival of the request, by the monotonic clock */
	/* `bytes_acked` of TCP is the position of this sequence number when the answer began */
	__u32 begin_sequence;
	__u32 end_sequence;
	__u8 answer;
	__u8 is_head;
	__u8 line_len;
	__u8 behind;
	__u32 kept; /* bytes of the answer's head that were sent, while that isn't whole: heads */
	__u32 next_sequence; /* beginning of the client's next request, with BEHIND_NOTHING */
	__u32 sent_to; /* up to this sequence number the server's bytes are counted */
	__u8 line[LINE_MAX];
};

#endif
