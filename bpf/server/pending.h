/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Bytes that a server still has to send in answer to a connection's request:
 * core/src/server/pending.rs, step by step. */
#ifndef EVENER_PENDING_H
#define EVENER_PENDING_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <stdbool.h>
#include "server/pending_maps.h"
/* The longest body that is believed: positions are added to it. */
#define LENGTH_MAX (1ULL << 60)
#include "server/message.h"

#define REQUEST_MIN 16
#define ANSWER_HEAD_MAX MESSAGE_MAX
/* The bytes of an answer that are copied at first: most heads are shorter, and a copy of the
 * most costs as much as to read them. */
#define ANSWER_HEAD_USUAL 512
#define PROVISIONAL_MAX 2
/* The body of a request whose end is known: less than half of all sequence numbers. */
#define FOLLOWED_BODY_MAX (1ULL << 30)
#define VERSION_LEN 8

/* A segment's data. */
struct data {
	__u32 sequence;
	__u32 acknowledgment;
	__u32 from; /* from the beginning of the packet, in bytes */
	__u32 len;
	bool is_last; /* nothing comes behind it */
};

static __always_inline void copy_words(__u64 *to, const __u64 *from)
{
	for (__u32 i = 0; i < ANSWER_HEAD_MAX / 8; i++)
		to[i] = from[i];
}

/* A method that is read byte by byte (RFC 9110, section 5.6.2). */
struct method {
	__u8 byte[REQUEST_MIN];
	bool is_method;
};

static long read_method_byte(__u32 at, void *arg)
{
	struct method *method = arg;
	__u8 byte = method->byte[at_most(at, REQUEST_MIN - 1)];

	method->is_method = byte == ' ' && at > 0;
	return byte != '-' && byte != '_' && (byte < 'A' || byte > 'Z');
}

/* The client has sent up to here: another request, if its first goes no further. */
static __always_inline void note_behind(struct pending *p, __u32 end)
{
	if (p->behind == BEHIND_NOTHING && (__s32)(end - p->next_sequence) > 0)
		p->behind = BEHIND_REQUEST;
}

/* Finds the end of a request that begins there. */
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

/* True if a request begins there; `p` becomes that request. */
static __always_inline bool read_request(struct __sk_buff *skb, const struct data *data, struct pending *p)
{
	__u32 from = data->from, len = data->len;
	struct method start = {};
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
	/* Last, since what leaves may be looked at on another CPU. */
	barrier();
	p->answer = word >> 32 == WORD(0, 0, 0, 0, 'P', 'R', 'I', ' ') || word == WORD('C', 'O', 'N', 'N', 'E', 'C', 'T', ' ') ?
			    PENDING_UNKNOWN :
			    PENDING_WAITING;
	return true;
}

/* True if an earlier request is unanswered, or its answer in flight. */
static __always_inline bool is_open(const struct pending *p, const struct data *data)
{
	return p->answer == PENDING_WAITING ||
	       (p->answer == PENDING_KNOWN && (p->end_sequence != data->acknowledgment || p->behind == BEHIND_REQUEST));
}

/* Reads the length of the body; false if it can't be known. */
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

/* Puts the beginning of the head, which was sent before, where the head is read. */
static __always_inline bool bring_start(struct bpf_sock *sk, struct message *m)
{
	struct head_start *start = bpf_sk_storage_get(&heads, sk, 0, 0);

	if (start)
		copy_words((__u64 *)m->byte, start->word);
	return start;
}

/* Keeps what is there of a head that isn't whole. */
static __always_inline bool keep_start(struct bpf_sock *sk, const struct message *m)
{
	struct head_start *start = bpf_sk_storage_get(&heads, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (start)
		copy_words(start->word, (const __u64 *)m->byte);
	else
		count(COUNT_UNFOLLOWED, 1);
	return start;
}

/* True if the beginning of a head can be read, with these bytes behind the kept ones. */
static __always_inline bool read_head(struct __sk_buff *skb, const struct message *m, __u32 from, __u32 len, __u32 kept)
{
	__u32 room = ANSWER_HEAD_MAX - kept;

	if (!kept && !read_message(skb, from, len < ANSWER_HEAD_USUAL ? len : ANSWER_HEAD_USUAL, MESSAGE_OUT))
		return false;
	if ((kept || (is_cut(m) && len > ANSWER_HEAD_USUAL)) && !read_behind(skb, from, len < room ? len : room, kept, MESSAGE_OUT))
		return false;
	return m->len < VERSION_LEN || word_at(m, 0) >> 8 == WORD(0, 'H', 'T', 'T', 'P', '/', '1', '.');
}

/* The first bytes of an answer, or more of its head; false where its end is not to be known. */
static __always_inline bool begin_answer(struct __sk_buff *skb, struct bpf_sock *sk, struct pending *p,
					 const struct data *data, __u64 position)
{
	__u32 from = data->from, len = data->len, sequence = p->begin_sequence, kept = p->kept;
	struct message *m = message_here(MESSAGE_OUT);

	position -= kept;
	/* Also of one whose end is unknown. */
	p->begin = position;
	if (!m || kept >= ANSWER_HEAD_MAX || (kept && !bring_start(sk, m)))
		return false;
	for (__u32 i = 0; i <= PROVISIONAL_MAX; i++) {
		__u64 status, length, end;

		if (len && !read_head(skb, m, from, len, kept))
			return false;
		if (!len || (is_cut(m) && kept + len < ANSWER_HEAD_MAX)) {
			p->begin_sequence = sequence;
			p->begin = position;
			p->kept = kept + len;
			return !len || keep_start(sk, m);
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

/* Nothing comes behind: an answer that has promised more ends here. */
static __always_inline void finish(struct pending *p, const struct data *data, __u64 end)
{
	if (p->answer == PENDING_WAITING) {
		p->answer = PENDING_UNKNOWN;
	} else if (p->answer == PENDING_KNOWN && end < p->end) {
		p->end = end;
		p->end_sequence = data->sequence + data->len;
	}
}

/* Counts what the server has not sent before: a queue that is full has it try the same again. */
static __always_inline void count_sent(struct pending *p, const struct data *data)
{
	__s32 more = data->sequence + data->len - p->sent_to;

	if (more <= 0)
		return;
	count(COUNT_SENT, (__u32)more < data->len ? (__u32)more : data->len);
	p->sent_to += more;
}

/* Follows the server's next bytes; `position` is that of their first. */
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
		/* More than it promised, or the answer to a request that came ahead, of which
		 * nothing was kept. */
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
