/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Parser of the head of an HTTP/1.1 message (RFC 9112), for the length of the message. Callers
 * ignore unusual heads (`odd`). The state is in a map: the verifier doesn't track values there, so
 * it checks the loop over bytes once and not once for each state. A program includes a header with
 * message_here(place) before this one.
 */
#ifndef EVENER_MESSAGE_H
#define EVENER_MESSAGE_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <stdbool.h>
#include "net/cursor.h"
#include "server/head.h"

/* Maximum length of a body, in bytes: body and head must be less than half of all sequence numbers.
 * A caller that uses 64-bit positions defines another one. */
#ifndef LENGTH_MAX
#define LENGTH_MAX 0x7fff0000
#endif

#define FIELD_OTHER 0
#define FIELD_LENGTH 1
#define FIELD_CONNECTION 2

/* Eight characters as a number, like word_at(). */
#define WORD(a, b, c, d, e, f, g, h)                                                                              \
	((__u64)(a) << 56 | (__u64)(b) << 48 | (__u64)(c) << 40 | (__u64)(d) << 32 | (__u64)(e) << 24 | (f) << 16 | \
	 (g) << 8 | (h))

static __always_inline __u64 word_at(const struct message *m, __u32 at)
{
	return bpf_be64_to_cpu(*(const __u64 *)(m->byte + at));
}

/* Like word_at() with lower-case letters. Other characters that change don't occur in field
 * names. */
static __always_inline __u64 lower_at(const struct message *m, __u32 at)
{
	return word_at(m, at) | 0x2020202020202020;
}

/* Starts a line at offset `at` and recognises its field. The comparison may read stale bytes behind
 * the data; such a line is incomplete and doesn't count. */
static __always_inline void begin_line(struct message *m, __u32 at)
{
	__u64 first = lower_at(m, at), second = lower_at(m, at + 8);

	m->line = at;
	m->field = FIELD_OTHER;
	if (at >= m->len)
		return;
	/* A folded line (RFC 9112, section 5.2). */
	if (m->byte[at] == ' ' || m->byte[at] == '\t') {
		m->odd = true;
	} else if (first == WORD('c', 'o', 'n', 't', 'e', 'n', 't', '-') &&
		   second >> 8 == WORD(0, 'l', 'e', 'n', 'g', 't', 'h', ':')) {
		m->field = FIELD_LENGTH;
		m->value = at + 15;
		m->digits = 0;
		m->length = 0;
		m->lengths++;
	} else if (first == WORD('t', 'r', 'a', 'n', 's', 'f', 'e', 'r') &&
		   second == WORD('-', 'e', 'n', 'c', 'o', 'd', 'i', 'n') &&
		   lower_at(m, at + 16) >> 48 == WORD(0, 0, 0, 0, 0, 0, 'g', ':')) {
		at += m->byte[at + 18] == ' ' ? 19 : 18;
		if (lower_at(m, at) >> 8 != WORD(0, 'c', 'h', 'u', 'n', 'k', 'e', 'd') || m->byte[at + 7] != '\r')
			m->odd = true;
		m->codings++;
	} else if (first == WORD('c', 'o', 'n', 'n', 'e', 'c', 't', 'i') &&
		   second >> 40 == WORD(0, 0, 0, 0, 0, 'o', 'n', ':')) {
		m->field = FIELD_CONNECTION;
		m->value = at + 11;
	}
}

static __always_inline void end_line(struct message *m, __u32 at)
{
	/* A line feed without CR is odd, since only some recipients accept it (RFC 9112, section
	 * 2.2). */
	if (m->before != '\r' || (m->field == FIELD_LENGTH && !m->digits))
		m->odd = true;
	else if (at - m->line == 1)
		m->head_len = at + 1;
	else
		begin_line(m, at + 1);
}

static __always_inline void read_length(struct message *m, __u8 byte)
{
	if (byte >= '0' && byte <= '9') {
		if (m->digits && (m->before == ' ' || m->before == '\t'))
			m->odd = true;
		m->length = m->length * 10 + (byte - '0');
		m->digits++;
		if (m->length > LENGTH_MAX)
			m->odd = true;
	} else if (byte != '\r' && byte != ' ' && byte != '\t') {
		m->odd = true;
	}
}

/* Returns a mask of the control characters in a word (Warren, Hacker's Delight, section 6-1). Bytes
 * above a control character may be marked too. */
static __always_inline __u64 controls(__u64 word)
{
	return (word - 0x2020202020202020) & ~word & 0x8080808080808080;
}

/* Returns a number of next bytes without a control character: 8, 4 or 0. */
static __always_inline __u32 plain_bytes(const struct message *m, __u32 at)
{
	__u64 word = word_at(m, at);

	if (!controls(word))
		return 8;
	return controls(word >> 32 | 0xffffffff00000000) ? 0 : 4;
}

/* Reads the next byte, or up to eight bytes that don't matter. Returns 1 at the end. */
static long read_on(__u32 turn, void *arg)
{
	struct message *m = *(struct message **)arg;
	__u32 at = m->at;
	__u32 plain;
	__u8 byte;

	if (at >= MESSAGE_MAX || at >= m->len)
		return 1;
	plain = m->field == FIELD_OTHER && m->before != '\r' ? plain_bytes(m, at) : 0;
	if (plain) {
		m->before = 0;
		m->at = at + plain;
		return 0;
	}
	byte = m->byte[at];
	/* Recipients interpret these bytes differently (RFC 9112, section 2.2; RFC 9110, section
	 * 5.5). */
	if (byte != '\n' && (m->before == '\r' || (byte < ' ' && byte != '\t' && byte != '\r')))
		m->odd = true;
	else if (byte == '\n')
		end_line(m, at);
	else if (m->field == FIELD_LENGTH && at >= m->value)
		read_length(m, byte);
	else if (m->field == FIELD_CONNECTION && lower_at(m, at) >> 24 == WORD(0, 0, 0, 'c', 'l', 'o', 's', 'e'))
		m->closes = true;
	m->before = byte;
	m->at = at + 1;
	/* The loop stops only at the end of a line, since an incomplete line is read again with
	 * more data. */
	return byte == '\n' && (m->odd || m->head_len);
}

/* True if the head is incomplete and no complete line is unusual. */
static __always_inline bool is_cut(const struct message *m)
{
	return !m->head_len && !(m->odd && m->before == '\n');
}

/* Parses the first `kept` bytes in the buffer, followed by `len` bytes at offset `from` in the
 * packet. False if these can't be loaded. Not static: the verifier checks a global function only
 * once. */
__noinline int read_behind(struct __sk_buff *skb, __u32 from, __u32 len, __u32 kept, __u32 place)
{
	struct message *m = message_here(place);

	if (!m || kept > MESSAGE_MAX ||
	    !frame_load_some(skb, from, m->byte + at_most(kept, MESSAGE_MAX), len, MESSAGE_MAX))
		return false;
	m->at = 0;
	m->len = kept + len;
	m->line = 0;
	m->field = FIELD_OTHER;
	m->head_len = 0;
	m->lengths = 0;
	m->codings = 0;
	m->closes = false;
	m->odd = false;
	m->before = 0;
	m->length = 0;
	bpf_loop(m->len, read_on, &m, 0);
	return true;
}

/* Parses a message that starts with this segment. */
static __always_inline int read_message(struct __sk_buff *skb, __u32 from, __u32 len, __u32 place)
{
	return read_behind(skb, from, len, 0, place);
}

#endif
