/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Whose turn it is on a connection that was handed off: whether the client waits for an answer or the server for the next
 * request. Only then can the connection be taken from this host. Followed are plain turns alone, where one segment has one
 * request, whole and without a body, and where the answer says how long it is (RFC 9112, section 6.3). What was anything
 * else once stays so: whoever is in doubt takes the connection for busy.
 */
#ifndef EVENER_EXCHANGE_H
#define EVENER_EXCHANGE_H

#include "net/tcp.h"
#include "server/maps.h"
#include "server/message.h"

/* Of an answer's head: servers write it at once. */
#define ANSWER_HEAD_MAX 2048
/* The end of a body in chunks without trailers (RFC 9112, section 7.1), with that of the chunk or head before: CRLF, "0",
 * CRLF, CRLF. */
#define LAST_CHUNK 0x0d0a300d0a0d0aULL
#define LAST_CHUNK_BITS 0xffffffffffffffULL
/* CRLF, which some clients send behind a request or before one, and servers pass over (RFC 9112, section 2.2). */
#define EMPTY_LINE 0x0d0a

/* A segment's data. */
struct said {
	__u32 sequence;
	__u32 acknowledgment;
	__u32 from; /* from the beginning of the frame, in bytes */
	__u32 len;
	bool urgent;
};

static __always_inline bool follows_turns(void)
{
	__u32 first = 0, *does = bpf_map_lookup_elem(&follows, &first);

	return does && *does;
}

static __always_inline __u64 turn_of(__u32 begin, __u32 end)
{
	return (__u64)begin << 32 | end;
}

/* At once, since the other direction may be at work on another CPU. */
static __always_inline __u64 load(const __u64 *from)
{
	return *(const volatile __u64 *)from;
}

static __always_inline void store(__u64 *to, __u64 word)
{
	*(volatile __u64 *)to = word;
}

static __always_inline bool begins_with_empty_line(struct __sk_buff *skb, const struct said *said)
{
	__be16 first;

	return said->len >= sizeof(first) && !bpf_skb_load_bytes(skb, said->from, &first, sizeof(first)) &&
	       first == bpf_htons(EMPTY_LINE);
}

/* Whether this is one GET request, whole, perhaps behind an empty line, and nothing else. */
static __always_inline bool is_request(struct __sk_buff *skb, const struct said *said)
{
	__u32 empty = begins_with_empty_line(skb, said) ? sizeof(__be16) : 0;
	__u32 len = said->len - empty;
	struct message *m;

	if (said->urgent || !read_message(skb, said->from + empty, len))
		return false;
	m = message_here();
	return m && !m->odd && m->head_len == len && !m->lengths && !m->codings && !m->closes &&
	       word_at(m, 0) >> 32 == WORD(0, 0, 0, 0, 'G', 'E', 'T', ' ');
}

/* Whether this is an empty line alone: no request, and nothing that is answered. */
static __always_inline bool is_empty_line(struct __sk_buff *skb, const struct said *said)
{
	return !said->urgent && said->len == sizeof(__be16) && begins_with_empty_line(skb, said);
}

/* The first segment of a connection that is made here. */
static __always_inline void begin_turns(struct __sk_buff *skb, const struct connection *connection,
					const struct said *said)
{
	struct turn turn = {
		.asked = turn_of(said->acknowledgment, said->sequence + said->len),
		/* The end of an answer that nobody has asked for. */
		.answered = turn_of(said->acknowledgment - 1, said->acknowledgment - 1),
		.plain = is_request(skb, said),
		.ahead = said->acknowledgment - 1,
	};

	bpf_map_update_elem(&turns, connection, &turn, BPF_ANY);
}

/* What the client says next. */
static __always_inline void follow_request(struct __sk_buff *skb, const struct connection *connection,
					   const struct said *said)
{
	struct turn *turn = bpf_map_lookup_elem(&turns, connection);
	__u32 end = said->sequence + said->len;
	__u64 asked, answered;

	if (!turn || !turn->plain)
		return;
	asked = load(&turn->asked);
	answered = load(&turn->answered);
	/* Something comes again. */
	if ((__s32)(end - (__u32)asked) <= 0)
		return;
	if (said->sequence == (__u32)asked && is_empty_line(skb, said)) {
		store(&turn->asked, turn_of(asked >> 32, end));
		return;
	}
	/* It has the whole answer to what it has asked before, and says so: only now it asks again. */
	if (said->sequence == (__u32)asked && answered >> 32 == asked >> 32 && answered >> 32 != (__u32)answered &&
	    said->acknowledgment == (__u32)answered && is_request(skb, said))
		store(&turn->asked, turn_of(said->acknowledgment, end));
	else
		turn->plain = false;
}

/* More of an answer in chunks; it may be the end. */
static __always_inline bool add_chunks(struct __sk_buff *skb, struct turn *turn, const struct said *said, __u32 begin)
{
	__u32 end = said->sequence + said->len, from = said->from + said->len;
	__u64 last;
	__u8 byte;

	if (said->len >= sizeof(last)) {
		if (bpf_skb_load_bytes(skb, from - sizeof(last), &last, sizeof(last)))
			return false;
		turn->tail = bpf_be64_to_cpu(last);
	} else {
		for (__u32 i = 0; i < sizeof(last) && i < said->len; i++) {
			if (bpf_skb_load_bytes(skb, said->from + i, &byte, sizeof(byte)))
				return false;
			turn->tail = turn->tail << 8 | byte;
		}
	}
	turn->sent = end;
	if ((turn->tail & LAST_CHUNK_BITS) == LAST_CHUNK)
		store(&turn->answered, turn_of(begin, end));
	return true;
}

/* The first of an answer; false where its end is not to be known. */
static __always_inline bool begin_answer(struct __sk_buff *skb, struct turn *turn, const struct said *said)
{
	__u32 begin = said->sequence, end;
	struct message *m;
	__u64 status;

	if (!read_message(skb, said->from, said->len < ANSWER_HEAD_MAX ? said->len : ANSWER_HEAD_MAX))
		return false;
	m = message_here();
	if (!m || m->odd || m->closes || !m->head_len || word_at(m, 0) != WORD('H', 'T', 'T', 'P', '/', '1', '.', '1'))
		return false;
	/* Provisional ones are not the answer. */
	status = word_at(m, 8) >> 32;
	if (status < WORD(0, 0, 0, 0, ' ', '2', '0', '0') || status > WORD(0, 0, 0, 0, ' ', '5', '9', '9'))
		return false;
	end = begin + m->head_len;
	turn->chunked = false;
	if (status != WORD(0, 0, 0, 0, ' ', '2', '0', '4') && status != WORD(0, 0, 0, 0, ' ', '3', '0', '4')) {
		if (m->lengths + m->codings != 1)
			return false;
		if (m->codings) {
			/* Chunks are followed in order. */
			if (turn->ahead == begin)
				return false;
			turn->chunked = true;
			turn->tail = 0;
			store(&turn->answered, turn_of(begin, begin));
			return add_chunks(skb, turn, said, begin);
		}
		end += (__u32)m->length;
	}
	store(&turn->answered, turn_of(begin, end));
	return (__s32)(begin + said->len - end) <= 0;
}

/*
 * What leaves of an answer of which the first has not. What waited until a neighbour was found is overtaken by what is sent once
 * it is: a host's queue for it is emptied on one CPU, while a process goes on on another.
 */
static __always_inline bool begins_or_overtakes(struct __sk_buff *skb, struct turn *turn, const struct said *said,
						__u32 begin)
{
	if (said->sequence == begin)
		return begin_answer(skb, turn, said);
	turn->ahead = begin;
	return (__s32)(said->sequence - begin) > 0;
}

/* What the server says; with `last` it is the last. */
static __always_inline void follow_answer(struct __sk_buff *skb, const struct connection *connection,
					  const struct said *said, bool last)
{
	struct turn *turn = bpf_map_lookup_elem(&turns, connection);
	__u32 begin, end = said->sequence + said->len;
	__u64 answered;
	bool plain;

	if (!turn || !turn->plain)
		return;
	begin = load(&turn->asked) >> 32;
	answered = load(&turn->answered);
	if (last)
		plain = false;
	else if ((__s32)(end - begin) <= 0)
		plain = true; /* of an answer before, that comes again */
	else if (answered >> 32 != begin)
		plain = begins_or_overtakes(skb, turn, said, begin);
	else if (!turn->chunked)
		plain = (__s32)(end - (__u32)answered) <= 0;
	else if ((__s32)(end - turn->sent) <= 0)
		plain = true; /* this, too */
	else
		plain = said->sequence == turn->sent && (__u32)answered == begin && add_chunks(skb, turn, said, begin);
	if (!plain)
		turn->plain = false;
}

#endif
