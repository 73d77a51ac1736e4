/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Exchanges on a connection that was handed off: requests, and the responses to them. They show if
 * the client waits for a response or the server waits for a request. This is a copy of
 * core/src/server/exchange.rs.
 *
 * A connection can be released to another host only while the server waits for a request. Only
 * plain exchanges are tracked: one segment has one complete request without a body, and the
 * response states its length or is chunked (RFC 9112, section 6.3). After any other exchange the
 * connection counts as busy until it ends.
 */
#ifndef EVENER_EXCHANGE_H
#define EVENER_EXCHANGE_H

#include "net/tcp.h"
#include "server/maps.h"
#include "server/message.h"

/* End of a chunked body without trailers (RFC 9112, section 7.1): the CRLF of the previous chunk or
 * of the head, the last chunk "0" CRLF, and the final CRLF. */
#define LAST_CHUNK 0x0d0a300d0a0d0aULL
#define LAST_CHUNK_BITS 0xffffffffffffffULL
/* CRLF that some clients send before or after a request, and that servers ignore (RFC 9112, section
 * 2.2). */
#define EMPTY_LINE 0x0d0a

/* Payload of a TCP segment, and fields of its header. */
struct payload {
	__u32 sequence;
	__u32 acknowledgment;
	__u32 from; /* offset of the payload in the frame, in bytes */
	__u32 len;
	bool urgent;
};

/* True if the exchanges of any service are tracked. */
static __always_inline bool follows_exchanges(void)
{
	__u32 first = 0, *does = bpf_map_lookup_elem(&follows, &first);

	return does && *does;
}

static __always_inline __u64 span_of(__u32 begin, __u32 end)
{
	return (__u64)begin << 32 | end;
}

/* Reads a span as one word, since a program for the other direction may write it on another CPU. */
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

/* True if the payload is exactly one complete GET request without a body and without `Connection:
 * close`. An empty line before the request is allowed. */
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

/* True if the payload is an empty line only, which is not a request. */
static __always_inline bool is_empty_line(struct __sk_buff *skb, const struct payload *payload)
{
	return !payload->urgent && payload->len == sizeof(__be16) && begins_with_empty_line(skb, payload);
}

/* Stores the state after the client's first data segment, from which this host creates the
 * connection. */
static __always_inline void begin_exchange(struct __sk_buff *skb, const struct connection *connection,
					const struct payload *payload)
{
	struct exchange exchange = {
		.request = span_of(payload->acknowledgment, payload->sequence + payload->len),
		/* This response belongs to no request, since the first response begins one byte
		 * later. */
		.response = span_of(payload->acknowledgment - 1, payload->acknowledgment - 1),
		.plain = is_request(skb, payload),
		.ahead = payload->acknowledgment - 1,
	};

	bpf_map_update_elem(&turns, connection, &exchange, BPF_ANY);
}

/* Updates the state with a segment from the client. */
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
	/* The segment is a retransmission. */
	if ((__s32)(end - (__u32)request) <= 0)
		return;
	if (payload->sequence == (__u32)request && is_empty_line(skb, payload)) {
		store(&exchange->request, span_of(request >> 32, end));
		return;
	}
	/* The client has acknowledged the whole previous response before this request. */
	if (payload->sequence == (__u32)request && response >> 32 == request >> 32 && response >> 32 != (__u32)response &&
	    payload->acknowledgment == (__u32)response && is_request(skb, payload))
		store(&exchange->request, span_of(payload->acknowledgment, end));
	else
		exchange->plain = false;
}

/* Handles the next bytes of a chunked response, and sets its end after the last chunk. False if the
 * bytes can't be loaded. */
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

/* Copies the first bytes of the response head, from earlier segments, to the parser's buffer. */
static __always_inline bool load_head_start(const struct connection *connection, struct message *m)
{
	struct answer_head *head = bpf_map_lookup_elem(&answer_heads, connection);

	if (!head)
		return false;
	for (__u32 i = 0; i < ANSWER_HEAD_MAX / 8; i++)
		((__u64 *)m->byte)[i] = head->word[i];
	return true;
}

/* True if the bytes of a response so far begin with HTTP/1.1, or are the first ones of it. */
static __always_inline bool has_version(const struct message *m)
{
	__u64 differs = word_at(m, 0) ^ WORD('H', 'T', 'T', 'P', '/', '1', '.', '1');

	return m->len < sizeof(differs) ? !(differs >> (8 * (sizeof(differs) - m->len) & 63)) : !differs;
}

/* Handles the first bytes of a response, or further bytes of its head. False if the end of the
 * response can't be determined, or if the segment has bytes beyond that end. */
static __always_inline bool begin_answer(struct __sk_buff *skb, const struct connection *connection,
					 struct exchange *exchange, const struct payload *payload, __u32 begin)
{
	__u32 kept = exchange->kept, room = ANSWER_HEAD_MAX - kept, end;
	__u32 len = payload->len < room ? payload->len : room;
	struct message *m = message_here(MESSAGE_OUT);
	__u64 status;

	exchange->kept = 0;
	if (!m || kept >= ANSWER_HEAD_MAX || (kept && !load_head_start(connection, m)) ||
	    !read_behind(skb, payload->from, len, kept, MESSAGE_OUT) || !has_version(m))
		return false;
	if (is_cut(m) && kept + len < ANSWER_HEAD_MAX) {
		exchange->kept = kept + len;
		return !bpf_map_update_elem(&answer_heads, connection, m->byte, BPF_ANY);
	}
	if (m->odd || m->closes || !m->head_len)
		return false;
	/* After an interim response (1xx) the client still waits for the final response. */
	status = word_at(m, 8) >> 32;
	if (status < WORD(0, 0, 0, 0, ' ', '2', '0', '0') || status > WORD(0, 0, 0, 0, ' ', '5', '9', '9'))
		return false;
	end = begin + m->head_len;
	exchange->chunked = false;
	if (status != WORD(0, 0, 0, 0, ' ', '2', '0', '4') && status != WORD(0, 0, 0, 0, ' ', '3', '0', '4')) {
		if (m->lengths + m->codings != 1)
			return false;
		if (m->codings) {
			/* Chunks can be tracked only in order, but later bytes were sent first. */
			if (exchange->ahead == begin)
				return false;
			exchange->chunked = true;
			/* The segment may begin with the LF of the CRLF that ends the head. Its CR,
			 * sent with the previous segment, is part of LAST_CHUNK. */
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
 * Handles a segment while the response head is incomplete: the next bytes of the head, a
 * retransmission, or bytes that overtake the head. A segment can overtake segments that wait for
 * neighbour resolution: the kernel empties that queue on one CPU, while the server's process
 * continues to send on another CPU. Returns false if the connection is no longer plain.
 */
static __always_inline bool begins_or_overtakes(struct __sk_buff *skb, const struct connection *connection,
						struct exchange *exchange, const struct payload *payload, __u32 begin)
{
	__u32 next = begin + exchange->kept;

	if (payload->sequence == next)
		return begin_answer(skb, connection, exchange, payload, begin);
	if ((__s32)(payload->sequence + payload->len - next) <= 0)
		return true; /* Retransmission of the first bytes of the head. */
	exchange->ahead = begin;
	return (__s32)(payload->sequence - next) > 0;
}

/* Updates the state with a segment from the server. `last` is true for a FIN or RST. */
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
		plain = true; /* Retransmission of an earlier response. */
	else if (response >> 32 != begin)
		plain = begins_or_overtakes(skb, connection, exchange, payload, begin);
	else if (!exchange->chunked)
		plain = (__s32)(end - (__u32)response) <= 0;
	else if ((__s32)(end - exchange->sent) <= 0)
		plain = true; /* Retransmission of the current response. */
	else
		plain = payload->sequence == exchange->sent && (__u32)response == begin && add_chunks(skb, exchange, payload, begin);
	if (!plain)
		exchange->plain = false;
}

#endif
