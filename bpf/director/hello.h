/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Parser of the server name in a TLS ClientHello (RFC 8446, section 4.1.2; RFC 6066, section 3):
 * core/src/path/content/hello.rs. */
#ifndef EVENER_HELLO_H
#define EVENER_HELLO_H

#include "director/reading.h"
#include "director/rewrite.h"

/* Content type of handshake records (RFC 8446, section 5.1). */
#define HANDSHAKE 0x16
#define RECORD_HEADER 5
#define CLIENT_HELLO 1
#define VERSION_AND_RANDOM 34
#define SESSION_ID_MAX 32
/* An extension has at least 4 bytes. */
#define EXTENSIONS_IN_HELLO_MAX (READ_MAX / 4)
#define SERVER_NAME 0
#define HOST_NAME 0

/* Result of take_u8() and take_u16() at the end of the message. It is greater than any 16-bit
 * number. */
#define MISSING 0x10000

static __always_inline bool skip(struct reading *r, __u32 len)
{
	__u32 end = r->at + len;

	if (end > r->end || end > r->len)
		return false;
	r->at = end;
	return true;
}

static __always_inline __u32 take_u8(struct reading *r)
{
	__u32 at = r->at;

	if (at >= r->end || at >= r->len || at >= READ_MAX)
		return MISSING;
	r->at = at + 1;
	return r->payload[at_most(at, READ_MAX - 1)];
}

static __always_inline __u32 take_u16(struct reading *r)
{
	__u32 high = take_u8(r), low = take_u8(r);

	return high == MISSING || low == MISSING ? MISSING : high << 8 | low;
}

/* Reads a server_name extension of `len` bytes, whose list must have exactly one name. Removes a
 * dot at the end of the name. hash_host() checks the characters. */
static __always_inline bool take_server_name(struct reading *r, __u32 len)
{
	__u32 end = r->at + len, name;

	if (r->host_end || take_u16(r) + 2 != len || take_u8(r) != HOST_NAME)
		return false;
	name = take_u16(r);
	if (name < 1 || name > HOST_MAX + 1 || r->at + name != end)
		return false;
	r->host = r->at;
	if (!skip(r, name))
		return false;
	r->host_end = r->payload[at_most(end - 1, READ_MAX - 1)] == '.' ? end - 1 : end;
	return r->host_end > r->host && r->host_end - r->host <= HOST_MAX;
}

static long read_extension(__u32 turn, void *arg)
{
	struct reading *r = *(struct reading **)arg;
	__u32 kind, len;

	if (r->at == r->end)
		return 1;
	kind = take_u16(r);
	len = take_u16(r);
	if (kind == MISSING || len == MISSING || !(kind == SERVER_NAME ? take_server_name(r, len) : skip(r, len))) {
		r->state = false;
		return 1;
	}
	return 0;
}

/* Reads the record and message headers. The record must hold the whole ClientHello and nothing
 * else. */
static __always_inline bool open_hello(struct reading *r)
{
	__u32 len, high;

	r->at = 0;
	r->end = RECORD_HEADER;
	if (take_u8(r) != HANDSHAKE || take_u8(r) != 3)
		return false;
	/* The minor version is ignored (RFC 8446, section 5.1; RFC 5246, appendix E.1). */
	take_u8(r);
	len = take_u16(r);
	if (len > READ_MAX - RECORD_HEADER)
		return false;
	r->end = RECORD_HEADER + len;
	if (take_u8(r) != CLIENT_HELLO)
		return false;
	high = take_u8(r);
	len = take_u16(r);
	return high == 0 && len != MISSING && r->at + len == r->end;
}

/* Reads the whole ClientHello. Not inlined, so that the verifier checks this code only once. */
__attribute__((noinline)) int walk_hello(struct scratch *at)
{
	struct reading *r;
	__u32 len;

	if (!at)
		return false;
	r = &at->reading;
	if (!open_hello(r) || !skip(r, VERSION_AND_RANDOM))
		return false;
	len = take_u8(r);
	if (len > SESSION_ID_MAX || !skip(r, len))
		return false;
	len = take_u16(r);
	if (len == MISSING || !skip(r, len))
		return false;
	len = take_u8(r);
	if (len == MISSING || !skip(r, len))
		return false;
	/* Up to TLS 1.2 the extensions are optional (RFC 5246, section 7.4.1.2). */
	if (r->at == r->end)
		return true;
	len = take_u16(r);
	if (len == MISSING || r->at + len != r->end)
		return false;
	r->state = true;
	bpf_loop(EXTENSIONS_IN_HELLO_MAX, read_extension, &r, 0);
	return r->state && r->at == r->end;
}

static __always_inline void read_hello(struct scratch *at)
{
	at->reading.class = CLASS_HELLO;
	at->reading.is_complete = walk_hello(at);
}

#endif
