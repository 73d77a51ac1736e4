/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Bytes that a server still has to send in response to a connection's request: the same steps as
 * core/src/server/pending.rs. */
#ifndef EVENER_PENDING_H
#define EVENER_PENDING_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <stdbool.h>
#include "server/pending_maps.h"
/* Maximum length of a body, in bytes, so that sums of positions don't overflow. */
#define LENGTH_MAX (1ULL << 60)
#include "server/message.h"

#define REQUEST_MIN 16
#define ANSWER_HEAD_MAX MESSAGE_MAX
/* Number of bytes of a response that are parsed first. Most heads are shorter, and copying
 * ANSWER_HEAD_MAX bytes costs as much as parsing them. */
#define ANSWER_HEAD_USUAL 512
#define PROVISIONAL_MAX 2
/* Maximum length of a request's body whose end is tracked: less than half of all sequence
 * numbers. */
#define FOLLOWED_BODY_MAX (1ULL << 30)
#define VERSION_LEN 8

/* Payload of a segment. */
struct data {
	__u32 sequence;
	__u32 acknowledgment;
	__u32 from; /* offset in the packet, in bytes */
	__u32 len;
	bool is_last; /* the segment has a FIN */
};

static __always_inline void copy_words(__u64 *to, const __u64 *from)
{
	for (__u32 i = 0; i < ANSWER_HEAD_MAX / 8; i++)
		to[i] = from[i];
}

/* State of the parser of a method (RFC 9110, section 5.6.2). */
struct http_method {
	__u8 byte[REQUEST_MIN];
	bool is_method;
};

static long read_method_byte(__u32 at, void *arg)
{
	struct http_method *method = arg;
	__u8 byte = method->byte[at_most(at, REQUEST_MIN - 1)];

	method->is_method = byte == ' ' && at > 0;
	return byte != '-' && byte != '_' && (byte < 'A' || byte > 'Z');
}

/* Records that the client has sent data up to `end`. Data behind the request is another request. */
static __always_inline void note_behind(struct pending *p, __u32 end)
{
	if (p->behind == BEHIND_NOTHING && (__s32)(end - p->next_sequence) > 0)
		p->behind = BEHIND_REQUEST;
}

/* Stores the end of the request at offset `from` in the packet, if it can be determined. `len` is
 * the number of payload bytes from there on. */
static __always_inline void find_end(struct __sk_buff *skb, const struct data *data, struct pending *p, __u32 from, __u32 len)
{
	__u32 most = len < ANSWER_HEAD_MAX ? len : ANSWER_HEAD_MAX;
	struct message *m = message_here(MESSAGE_IN);

	p->behind = BEHIND_UNKNOWN;
	if (!m || !read_message(skb, from, most, MESSAGE_IN) || m->odd || !m->head_len || m->lengths > 1 || m->codings ||
	    (m->lengths && m->length >= FOLLOWED_BODY_MAX))
		return;
	p->next_sequence = data->sequence + (from - data->from) + m->head_len + (m->lengths ? (__u32)m->length : 0);
	p->behind = BEHIND_NOTHING;
	note_behind(p, data->sequence + data->len);
}

/* True if the payload starts with a request. Stores that request in `p`. */
static __always_inline bool read_request(struct __sk_buff *skb, const struct data *data, struct pending *p)
{
	__u32 from = data->from, len = data->len;
	struct http_method start = {};
	__u64 word;

	if (len < REQUEST_MIN || bpf_skb_load_bytes(skb, from, start.byte, sizeof(start.byte)))
		return false;
	if (start.byte[0] == '\r' && start.byte[1] == '\n') {
		from += 2;
		len -= 2;
		if (len < REQUEST_MIN || bpf_skb_load_bytes(skb, from, start.byte, sizeof(start.byte)))
			return false;
	}
	bpf_loop(REQUEST_MIN, read_method_byte, &start, 0);
	if (!start.is_method)
		return false;
	__builtin_memcpy(&word, start.byte, sizeof(word));
	word = bpf_be64_to_cpu(word);
	find_end(skb, data, p, from, len);
	if (len > LINE_MAX)
		len = LINE_MAX;
	if (!frame_load_some(skb, from, p->line, len, LINE_MAX))
		return false;
	p->line_len = len;
	p->since_ns = bpf_ktime_get_ns();
	p->is_head = word >> 24 == WORD(0, 0, 0, 'H', 'E', 'A', 'D', ' ');
	p->begin_sequence = data->acknowledgment;
	p->end_sequence = 0;
	p->begin = 0;
	p->end = 0;
	p->kept = 0;
	/* `answer` is stored last, so that the egress program on another CPU finds the other fields
	 * complete once it sees the new request. */
	barrier();
	p->answer = word >> 32 == WORD(0, 0, 0, 0, 'P', 'R', 'I', ' ') || word == WORD('C', 'O', 'N', 'N', 'E', 'C', 'T', ' ') ?
			    PENDING_UNKNOWN :
			    PENDING_WAITING;
	return true;
}

/* True if an earlier request has no complete response, if the client hasn't acknowledged the
 * response, or if the client has sent a further request. */
static __always_inline bool is_open(const struct pending *p, const struct data *data)
{
	return p->answer == PENDING_WAITING ||
	       (p->answer == PENDING_KNOWN && (p->end_sequence != data->acknowledgment || p->behind == BEHIND_REQUEST));
}

/* Stores the length of the response's body. False if it can't be determined. */
static __always_inline bool body_of(const struct pending *p, const struct message *m, __u64 status, __u64 *length)
{
	*length = 0;
	if (status == WORD(0, 0, 0, 0, ' ', '1', '0', '1'))
		return false;
	if (p->is_head || status == WORD(0, 0, 0, 0, ' ', '2', '0', '4') || status == WORD(0, 0, 0, 0, ' ', '3', '0', '4'))
		return true;
	*length = m->length;
	return m->lengths == 1 && !m->codings;
}

static __always_inline bool is_status(__u64 status)
{
	__u8 first = status >> 16, second = status >> 8, third = status;

	return status >> 24 == ' ' && first >= '1' && first <= '9' && second >= '0' && second <= '9' && third >= '0' &&
	       third <= '9';
}

/* Copies the first bytes of the head, from earlier segments, to the parser's buffer. */
static __always_inline bool load_head_start(struct bpf_sock *sk, struct message *m)
{
	struct head_start *start = bpf_sk_storage_get(&heads, sk, 0, 0);

	if (start)
		copy_words((__u64 *)m->byte, start->word);
	return start;
}

/* Stores the first bytes of an incomplete head. */
static __always_inline bool save_head_start(struct bpf_sock *sk, const struct message *m)
{
	struct head_start *start = bpf_sk_storage_get(&heads, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (start)
		copy_words(start->word, (const __u64 *)m->byte);
	else
		count(COUNT_UNFOLLOWED, 1);
	return start;
}

/* Parses the head of a response: the `kept` bytes in the buffer, followed by `len` bytes at offset
 * `from`. False if they aren't an HTTP/1 response. */
static __always_inline bool read_head(struct __sk_buff *skb, const struct message *m, __u32 from, __u32 len, __u32 kept)
{
	__u32 room = ANSWER_HEAD_MAX - kept;

	if (!kept && !read_message(skb, from, len < ANSWER_HEAD_USUAL ? len : ANSWER_HEAD_USUAL, MESSAGE_OUT))
		return false;
	if ((kept || (is_cut(m) && len > ANSWER_HEAD_USUAL)) && !read_behind(skb, from, len < room ? len : room, kept, MESSAGE_OUT))
		return false;
	return m->len < VERSION_LEN || word_at(m, 0) >> 8 == WORD(0, 'H', 'T', 'T', 'P', '/', '1', '.');
}

/* Handles the first bytes of a response, or further bytes of its head. False if the end of the
 * response can't be determined. */
static __always_inline bool begin_answer(struct __sk_buff *skb, struct bpf_sock *sk, struct pending *p,
					 const struct data *data, __u64 position)
{
	__u32 from = data->from, len = data->len, sequence = p->begin_sequence, kept = p->kept;
	struct message *m = message_here(MESSAGE_OUT);

	position -= kept;
	/* Stored even if the end turns out to be unknown. */
	p->begin = position;
	if (!m || kept >= ANSWER_HEAD_MAX || (kept && !load_head_start(sk, m)))
		return false;
	for (__u32 i = 0; i <= PROVISIONAL_MAX; i++) {
		__u64 status, length, end;

		if (len && !read_head(skb, m, from, len, kept))
			return false;
		if (!len || (is_cut(m) && kept + len < ANSWER_HEAD_MAX)) {
			p->begin_sequence = sequence;
			p->begin = position;
			p->kept = kept + len;
			return !len || save_head_start(sk, m);
		}
		status = word_at(m, VERSION_LEN) >> 32;
		if (!m->head_len || m->odd || !is_status(status))
			return false;
		if (status >> 16 == (' ' << 8 | '1') && status != WORD(0, 0, 0, 0, ' ', '1', '0', '1')) {
			from += m->head_len - kept;
			len -= m->head_len - kept;
			position += m->head_len;
			sequence += m->head_len;
			kept = 0;
			continue;
		}
		if (!body_of(p, m, status, &length))
			return false;
		end = position + m->head_len + length;
		if (position + kept + len > end)
			return false;
		p->begin_sequence = sequence;
		p->end_sequence = sequence + (__u32)(end - position);
		p->begin = position;
		p->end = end;
		barrier();
		p->answer = PENDING_KNOWN;
		return true;
	}
	return false;
}

/* Handles a FIN: the response ends here, even if it announced more. */
static __always_inline void finish(struct pending *p, const struct data *data, __u64 end)
{
	if (p->answer == PENDING_WAITING) {
		p->answer = PENDING_UNKNOWN;
	} else if (p->answer == PENDING_KNOWN && end < p->end) {
		p->end = end;
		p->end_sequence = data->sequence + data->len;
	}
}

/* Counts the bytes of a segment that the server sends for the first time. Retransmitted bytes don't
 * count. */
static __always_inline void count_sent(struct pending *p, const struct data *data)
{
	__s32 more = data->sequence + data->len - p->sent_to;

	if (more <= 0)
		return;
	count(COUNT_SENT, (__u32)more < data->len ? (__u32)more : data->len);
	p->sent_to += more;
}

/* Updates the state with a segment from the server. `position` is that of its first byte. */
static __always_inline void follow(struct __sk_buff *skb, struct bpf_sock *sk, struct pending *p, const struct data *data,
				   __u64 position)
{
	if (p->answer == PENDING_WAITING) {
		__s32 ahead = data->sequence - (p->begin_sequence + p->kept);

		if (ahead < 0)
			return;
		if (ahead || !begin_answer(skb, sk, p, data, position))
			p->answer = PENDING_UNKNOWN;
	} else if (p->answer == PENDING_KNOWN && position + data->len > p->end) {
		/* The server sent more bytes than the head announced, or the response to a
		 * pipelined request, which wasn't recorded. */
		p->line_len = 0;
		p->answer = PENDING_UNKNOWN;
	}
	if (data->is_last)
		finish(p, data, position + data->len);
	if (p->kept && p->answer != PENDING_WAITING) {
		p->kept = 0;
		bpf_sk_storage_delete(&heads, sk);
	}
}

#endif
