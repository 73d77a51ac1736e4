/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Parser of HTTP/1 request heads (RFC 9112), byte by byte: core/src/path/content/head.rs. */
#ifndef EVENER_HEAD_H
#define EVENER_HEAD_H

#include "director/reading.h"
#include "director/rewrite.h"

/* State of the parser: the element that the next byte belongs to. */
enum head {
	HEAD_METHOD,
	HEAD_TARGET,
	HEAD_PATH,
	HEAD_QUERY,
	HEAD_VERSION,
	HEAD_CR,
	HEAD_LF,
	HEAD_LINE_START,
	HEAD_NAME,
	HEAD_VALUE,
	HEAD_BEFORE_HOST,
	HEAD_HOST_NAME,
	HEAD_HOST_V6,
	HEAD_AFTER_V6,
	HEAD_COLON,
	HEAD_PORT,
	HEAD_AFTER_HOST,
	HEAD_LAST_LF,
	HEAD_DONE,
	HEAD_ODD,
};

/* Content of the current path segment, up to the current byte. */
enum segment {
	SEGMENT_EMPTY,
	SEGMENT_DOT,
	SEGMENT_DOTS,
	SEGMENT_NAMED,
};

/* "HTTP/1." as a number. */
#define VERSION 0x485454502f312eULL
#define VERSION_LEN 7
#define NAME_HOST 0x686f7374ULL

static __always_inline bool is_visible(__u8 byte)
{
	return byte >= 0x21 && byte <= 0x7e;
}

/* Returns the class of an HTTP method. The bytes of `method` are the letters of its name. */
static __always_inline __u8 class_of(__u64 method)
{
	switch (method) {
	case 0x474554: /* GET */
		return CLASS_GET;
	case 0x48454144: /* HEAD */
		return CLASS_HEAD;
	case 0x504f5354: /* POST */
		return CLASS_POST;
	case 0x505554: /* PUT */
		return CLASS_PUT;
	case 0x44454c455445ULL: /* DELETE */
		return CLASS_DELETE;
	default:
		return CLASS_OTHER;
	}
}

static __always_inline void hash_path(struct reading *r, __u8 byte)
{
	r->paths[1] = hash_step(r, r->paths[1], byte);
	if (byte == '/' && r->paths_len < PATH_DEPTH_MAX + 2) {
		r->paths[r->paths_len & 31] = r->paths[1] | PART;
		r->paths_len++;
	}
}

static __always_inline __u8 in_request_line(struct reading *r, __u32 at, __u8 byte)
{
	switch (r->state) {
	case HEAD_METHOD:
		if (byte >= 'A' && byte <= 'Z' && at < METHOD_MAX) {
			r->method = r->method << 8 | byte;
			return HEAD_METHOD;
		}
		return byte == ' ' && at > 0 ? HEAD_TARGET : HEAD_ODD;
	case HEAD_TARGET:
		/* Only the origin form (RFC 9112, section 3.2.1): the other forms have a host of
		 * their own, or no path. */
		if (byte != '/')
			return HEAD_ODD;
		hash_path(r, byte);
		return HEAD_PATH;
	case HEAD_QUERY:
		if (byte == ' ')
			return HEAD_VERSION;
		return is_visible(byte) ? HEAD_QUERY : HEAD_ODD;
	default:
		if (r->version == VERSION_LEN) {
			r->is_http10 = byte == '0';
			return byte == '0' || byte == '1' ? HEAD_CR : HEAD_ODD;
		}
		if (byte != (__u8)(VERSION >> (VERSION_LEN - 1 - (r->version & 7)) * 8))
			return HEAD_ODD;
		r->version++;
		return HEAD_VERSION;
	}
}

/* Parses a path. Accepts only normal paths (RFC 3986, section 6.2.2), without percent-encoding, dot
 * segments and empty segments. */
static __always_inline __u8 in_path(struct reading *r, __u8 byte)
{
	bool dotted = r->segment == SEGMENT_DOT || r->segment == SEGMENT_DOTS;

	if (byte == '?' || byte == ' ') {
		if (dotted)
			return HEAD_ODD;
		return byte == '?' ? HEAD_QUERY : HEAD_VERSION;
	}
	if (!is_visible(byte) || byte == '%' || byte == '#')
		return HEAD_ODD;
	if (byte == '/') {
		if (r->segment != SEGMENT_NAMED)
			return HEAD_ODD;
		r->segment = SEGMENT_EMPTY;
	} else if (byte == '.') {
		if (r->segment != SEGMENT_NAMED)
			r->segment++;
	} else {
		r->segment = SEGMENT_NAMED;
	}
	hash_path(r, byte);
	return HEAD_PATH;
}

/* Parses the blank line, a field name, or the value of any field but Host. */
static __always_inline __u8 in_header(struct reading *r, __u8 byte)
{
	if (r->state == HEAD_VALUE) {
		if (byte == '\r')
			return HEAD_LF;
		return byte == '\t' || (byte >= 0x20 && byte != 0x7f) ? HEAD_VALUE : HEAD_ODD;
	}
	if (r->state == HEAD_LINE_START && byte == '\r')
		return r->is_http10 || r->host_end ? HEAD_LAST_LF : HEAD_ODD;
	if (byte == ':') {
		if (r->state == HEAD_LINE_START)
			return HEAD_ODD;
		if (r->name != NAME_HOST)
			return HEAD_VALUE;
		return r->host_end ? HEAD_ODD : HEAD_BEFORE_HOST;
	}
	/* Rejects white space before the colon and folded lines (RFC 9112, section 5): servers
	 * interpret them differently. */
	if (!is_visible(byte))
		return HEAD_ODD;
	r->name = (r->state == HEAD_NAME ? r->name << 8 : 0) | (byte | 0x20);
	return HEAD_NAME;
}

/* Parses the port and trailing white space of a Host field. In state HEAD_HOST_NAME `byte` is the
 * first byte after the name. */
static __always_inline __u8 after_host(__u8 state, __u8 byte)
{
	if (byte == ':' && (state == HEAD_HOST_NAME || state == HEAD_AFTER_V6))
		return HEAD_COLON;
	if (is_digit(byte) && (state == HEAD_COLON || state == HEAD_PORT))
		return HEAD_PORT;
	if (state == HEAD_COLON)
		return HEAD_ODD;
	if (byte == ' ' || byte == '\t')
		return HEAD_AFTER_HOST;
	return byte == '\r' ? HEAD_LF : HEAD_ODD;
}

static __always_inline __u8 in_host_v6(struct reading *r, __u32 at, __u8 byte)
{
	bool ends = byte == ']' && at > r->host + 1;

	if (!ends && !is_v6_byte(byte))
		return HEAD_ODD;
	if (ends)
		r->host_end = at + 1;
	if (at - r->host >= HOST_MAX)
		return HEAD_ODD;
	return ends ? HEAD_AFTER_V6 : HEAD_HOST_V6;
}

static __always_inline __u8 in_host(struct reading *r, __u32 at, __u8 byte)
{
	if (r->state == HEAD_HOST_V6)
		return in_host_v6(r, at, byte);
	if (r->state == HEAD_BEFORE_HOST) {
		if (byte == ' ' || byte == '\t')
			return HEAD_BEFORE_HOST;
		if (byte != '[' && !is_name_byte(byte))
			return HEAD_ODD;
		r->host = at;
		if (byte == '[')
			return HEAD_HOST_V6;
	} else if (!is_name_byte(byte)) {
		if (r->ends_with_dot)
			return HEAD_ODD;
		r->host_end = at;
		return after_host(HEAD_HOST_NAME, byte);
	}
	/* A host that ends with a dot is rejected: "example.com." is the same name as
	 * "example.com", but only some servers remove the dot. */
	r->ends_with_dot = byte == '.';
	return at - r->host < HOST_MAX ? HEAD_HOST_NAME : HEAD_ODD;
}

static __always_inline __u8 head_step(struct reading *r, __u32 at, __u8 byte)
{
	__u8 state = r->state;

	switch (state) {
	case HEAD_VALUE: /* most bytes */
	case HEAD_LINE_START:
	case HEAD_NAME:
		return in_header(r, byte);
	case HEAD_METHOD:
	case HEAD_TARGET:
	case HEAD_QUERY:
	case HEAD_VERSION:
		return in_request_line(r, at, byte);
	case HEAD_PATH:
		return in_path(r, byte);
	case HEAD_CR:
		return byte == '\r' ? HEAD_LF : HEAD_ODD;
	case HEAD_LF:
		return byte == '\n' ? HEAD_LINE_START : HEAD_ODD;
	case HEAD_BEFORE_HOST:
	case HEAD_HOST_NAME:
	case HEAD_HOST_V6:
		return in_host(r, at, byte);
	case HEAD_AFTER_V6:
	case HEAD_COLON:
	case HEAD_PORT:
	case HEAD_AFTER_HOST:
		return after_host(state, byte);
	case HEAD_LAST_LF:
		return byte == '\n' ? HEAD_DONE : HEAD_ODD;
	default:
		return HEAD_ODD;
	}
}

static long read_head_byte(__u32 at, void *arg)
{
	struct reading *r = *(struct reading **)arg;

	if (at >= READ_MAX)
		return 1;
	r->state = head_step(r, at, r->payload[at_most(at, READ_MAX - 1)]);
	return r->state >= HEAD_DONE;
}

static __always_inline void read_head(struct reading *r)
{
	r->state = HEAD_METHOD;
	r->segment = SEGMENT_EMPTY;
	r->version = 0;
	r->is_http10 = false;
	r->ends_with_dot = false;
	r->method = 0;
	r->name = 0;
	bpf_loop(r->len, read_head_byte, &r, 0);
	r->class = class_of(r->method);
	r->is_complete = r->state == HEAD_DONE;
}

#endif
