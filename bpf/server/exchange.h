/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The turn on a connection that was handed off: whether the client waits for an answer or the
 * server for the next request. Only then can the connection be taken from this host. Followed are
 * plain turns alone, where one segment has one request, whole and without a body, and where the
 * answer says how long it is (RFC 9112, section 6.3). An exchange that was anything else once stays
 * so: whoever is in doubt takes the connection for busy.
 */
#ifndef EVENER_EXCHANGE_H
#define EVENER_EXCHANGE_H

#include "net/tcp.h"
#include "server/maps.h"
#include "server/message.h"

/* The end of a body in chunks without trailers (RFC 9112, section 7.1), with that of the chunk
 * or head before: CRLF, "0", CRLF, CRLF. */
#define LAST_CHUNK 0x0d0a300d0a0d0aULL
#define LAST_CHUNK_BITS 0xffffffffffffffULL
/* CRLF, which some clients send behind a request or before one, and servers pass over (RFC 9112,
 * section 2.2). */
#define EMPTY_LINE 0x0d0a

/* A segment's data. */
struct payload {
	__u32 sequence;
	__u32 acknowledgment;
	__u32 from; /* from the beginning of the frame, in bytes */
	__u32 len;
	bool urgent;
};

static __always_inline bool follows_exchanges(void)
{
	__u32 first = 0, *does = bpf_map_lookup_elem(&follows, &first);

	return does && *does;
}

static __always_inline __u64 span_of(__u32 begin, __u32 end)
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

static __always_inline bool begins_with_empty_line(struct __sk_buff *skb, const struct payload *payload)
{
	__be16 first;

	return payload->len >= sizeof(first) && !bpf_skb_load_bytes(skb, payload->from, &first, sizeof(first)) &&
	       first == bpf_htons(EMPTY_LINE);
}

/* True for one GET request, whole, perhaps behind an empty line, and nothing else. */
static __always_inline bool is_request(struct __sk_buff *skb, const struct payload *payload)
{
	__u32 empty = begins_with_empty_line(skb, payload) ? sizeof(__be16) : 0;
	__u32 len = payload->len - empty;
	struct message *m;

	if (payload->urgent || !read_message(skb, payload->from + empty, len, MESSAGE_IN))
		return false;
	m = message_here(MESSAGE_IN);
	return m && !m->odd && m->head_len == len && !m->lengths && !m->codings && !m->closes &&
	       word_at(m, 0) >> 32 == WORD(0, 0, 0, 0, 'G', 'E', 'T', ' ');
}

/* True for an empty line alone: no request, and nothing that is answered. */
static __always_inline bool is_empty_line(struct __sk_buff *skb, const struct payload *payload)
{
	return !payload->urgent && payload->len == sizeof(__be16) && begins_with_empty_line(skb, payload);
}

/* The first segment of a connection that is made here. */
static __always_inline void begin_exchange(struct __sk_buff *skb, const struct connection *connection,
					const struct payload *payload)
{
	struct exchange exchange = {
		.request = span_of(payload->acknowledgment, payload->sequence + payload->len),
		/* The end of an answer that nobody has asked for. */
		.response = span_of(payload->acknowledgment - 1, payload->acknowledgment - 1),
		.plain = is_request(skb, payload),
		.ahead = payload->acknowledgment - 1,
	};

	bpf_map_update_elem(&turns, connection, &exchange, BPF_ANY);
}

/* Follows the client's next bytes. */
static __always_inline void follow_request(struct __sk_buff *skb, const struct connection *connection,
					   const struct payload *payload)
{
	struct exchange *exchange = bpf_map_lookup_elem(&turns, connection);
	__u32 end = payload->sequence + payload->len;
	__u64 request, response;

	if (!exchange || !exchange->plain)
		return;
	request = load(&exchange->request);
	response = load(&exchange->response);
	/* Something comes again. */
	if ((__s32)(end - (__u32)request) <= 0)
		return;
	if (payload->sequence == (__u32)request && is_empty_line(skb, payload)) {
		store(&exchange->request, span_of(request >> 32, end));
		return;
	}
	/* The client acknowledges the whole answer to its former request before it sends the
	 * next. */
	if (payload->sequence == (__u32)request && response >> 32 == request >> 32 && response >> 32 != (__u32)response &&
	    payload->acknowledgment == (__u32)response && is_request(skb, payload))
		store(&exchange->request, span_of(payload->acknowledgment, end));
	else
		exchange->plain = false;
}

/* More of an answer in chunks; it may be the end. */
static __always_inline bool add_chunks(struct __sk_buff *skb, struct exchange *exchange, const struct payload *payload, __u32 begin)
{
	__u32 end = payload->sequence + payload->len, from = payload->from + payload->len;
	__u64 last;
	__u8 byte;

	if (payload->len >= sizeof(last)) {
		if (bpf_skb_load_bytes(skb, from - sizeof(last), &last, sizeof(last)))
			return false;
		exchange->tail = bpf_be64_to_cpu(last);
	} else {
		for (__u32 i = 0; i < sizeof(last); i++) {
			if (i >= payload->len)
				break;
			if (bpf_skb_load_bytes(skb, payload->from + i, &byte, sizeof(byte)))
				return false;
			exchange->tail = exchange->tail << 8 | byte;
		}
	}
	exchange->sent = end;
	if ((exchange->tail & LAST_CHUNK_BITS) == LAST_CHUNK)
		store(&exchange->response, span_of(begin, end));
	return true;
}

/* Puts the beginning of an answer's head, which has left before, where the head is read. */
static __always_inline bool bring_head(const struct connection *connection, struct message *m)
{
	struct answer_head *head = bpf_map_lookup_elem(&answer_heads, connection);

	if (!head)
		return false;
	for (__u32 i = 0; i < ANSWER_HEAD_MAX / 8; i++)
		((__u64 *)m->byte)[i] = head->word[i];
	return true;
}

/* True if an answer begins with the version, as far as its bytes go. */
static __always_inline bool has_version(const struct message *m)
{
	__u64 differs = word_at(m, 0) ^ WORD('H', 'T', 'T', 'P', '/', '1', '.', '1');

	return m->len < sizeof(differs) ? !(differs >> (8 * (sizeof(differs) - m->len) & 63)) : !differs;
}

/* The first of an answer, or more of its head; false where its end is not to be known. */
static __always_inline bool begin_answer(struct __sk_buff *skb, const struct connection *connection,
					 struct exchange *exchange, const struct payload *payload, __u32 begin)
{
	__u32 kept = exchange->kept, room = ANSWER_HEAD_MAX - kept, end;
	__u32 len = payload->len < room ? payload->len : room;
	struct message *m = message_here(MESSAGE_OUT);
	__u64 status;

	exchange->kept = 0;
	if (!m || kept >= ANSWER_HEAD_MAX || (kept && !bring_head(connection, m)) ||
	    !read_behind(skb, payload->from, len, kept, MESSAGE_OUT) || !has_version(m))
		return false;
	if (is_cut(m) && kept + len < ANSWER_HEAD_MAX) {
		exchange->kept = kept + len;
		return !bpf_map_update_elem(&answer_heads, connection, m->byte, BPF_ANY);
	}
	if (m->odd || m->closes || !m->head_len)
		return false;
	/* Provisional ones are not the answer. */
	status = word_at(m, 8) >> 32;
	if (status < WORD(0, 0, 0, 0, ' ', '2', '0', '0') || status > WORD(0, 0, 0, 0, ' ', '5', '9', '9'))
		return false;
	end = begin + m->head_len;
	exchange->chunked = false;
	if (status != WORD(0, 0, 0, 0, ' ', '2', '0', '4') && status != WORD(0, 0, 0, 0, ' ', '3', '0', '4')) {
		if (m->lengths + m->codings != 1)
			return false;
		if (m->codings) {
			/* Chunks are followed in order. */
			if (exchange->ahead == begin)
				return false;
			exchange->chunked = true;
			/* The head's last line ends in it, and may have begun before. */
			exchange->tail = '\r';
			store(&exchange->response, span_of(begin, begin));
			return add_chunks(skb, exchange, payload, begin);
		}
		end += (__u32)m->length;
	}
	store(&exchange->response, span_of(begin, end));
	return (__s32)(begin + payload->len - end) <= 0;
}

/*
 * Later bytes of an answer of which the first have not left. Segments that waited until a neighbour
 * was found are overtaken by those sent once it is: a host's queue for it is emptied on one CPU,
 * while a process goes on on another.
 */
static __always_inline bool begins_or_overtakes(struct __sk_buff *skb, const struct connection *connection,
						struct exchange *exchange, const struct payload *payload, __u32 begin)
{
	__u32 next = begin + exchange->kept;

	if (payload->sequence == next)
		return begin_answer(skb, connection, exchange, payload, begin);
	if ((__s32)(payload->sequence + payload->len - next) <= 0)
		return true; /* of its head, that comes again */
	exchange->ahead = begin;
	return (__s32)(payload->sequence - next) > 0;
}

/* Follows the server's bytes; with `last` they are the last. */
static __always_inline void follow_answer(struct __sk_buff *skb, const struct connection *connection,
					  const struct payload *payload, bool last)
{
	struct exchange *exchange = bpf_map_lookup_elem(&turns, connection);
	__u32 begin, end = payload->sequence + payload->len;
	__u64 response;
	bool plain;

	if (!exchange || !exchange->plain)
		return;
	begin = load(&exchange->request) >> 32;
	response = load(&exchange->response);
	if (last)
		plain = false;
	else if ((__s32)(end - begin) <= 0)
		plain = true; /* of an answer before, that comes again */
	else if (response >> 32 != begin)
		plain = begins_or_overtakes(skb, connection, exchange, payload, begin);
	else if (!exchange->chunked)
		plain = (__s32)(end - (__u32)response) <= 0;
	else if ((__s32)(end - exchange->sent) <= 0)
		plain = true; /* The other direction as well. */
	else
		plain = payload->sequence == exchange->sent && (__u32)response == begin && add_chunks(skb, exchange, payload, begin);
	if (!plain)
		exchange->plain = false;
}

#endif
