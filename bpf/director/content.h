/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Reads a client's request and finds its ring: core/src/path/content. The state of the parser is in
 * the map value `scratch`. The verifier doesn't track values there, so it checks a loop over bytes
 * once, instead of once for each state.
 */
#ifndef EVENER_CONTENT_H
#define EVENER_CONTENT_H

#include "director/head.h"
#include "director/hello.h"

/* Values in place of a hash. ANY matches any host or path. The entry with path PRESENT has the
 * number of the first route with a host pattern. */
#define ANY (1ULL << 63)
#define PRESENT (ANY | PART)

static long hash_host_byte(__u32 turn, void *arg)
{
	struct reading *r = *(struct reading **)arg;
	__u32 at = r->host_end - 1 - turn;
	__u8 byte;

	if (at >= READ_MAX)
		return 1;
	byte = r->payload[at_most(at, READ_MAX - 1)];
	if (r->class == CLASS_HELLO && (!is_name_byte(byte) || (turn == 0 && byte == '.'))) {
		r->is_complete = false;
		return 1;
	}
	if (byte >= 'A' && byte <= 'Z')
		byte |= 0x20;
	r->host_hash = hash_step(r, r->host_hash, byte);
	/* "*.example.com" requires a label before the dot. */
	if (byte == '.' && at > r->host && r->hosts_len <= HOST_LABELS_MAX) {
		r->hosts[r->hosts_len & 15] = r->host_hash | PART;
		r->hosts_len++;
	}
	return 0;
}

/* Computes the keys for the lookup of the host: ANY, the host's suffixes from each dot on, and the
 * whole host. The hash runs from right to left, so one pass computes the hashes of all suffixes. */
static __always_inline void hash_host(struct reading *r)
{
	__u32 len = r->host_end - r->host;

	r->hosts[0] = ANY;
	r->hosts_len = 1;
	r->host_hash = 0;
	if (r->host_end > r->host && len <= HOST_MAX)
		bpf_loop(len, hash_host_byte, &r, 0);
	r->hosts[r->hosts_len & 15] = r->host_hash;
	r->hosts_len++;
}

/* Reads a request or a TLS hello in the `len` bytes at `from` in the frame, up to READ_MAX. True if
 * the request is complete and unambiguous. */
__attribute__((noinline)) int read_payload(context *ctx, struct scratch *at, __u32 from, __u32 len)
{
	struct reading *r;

	if (!at)
		return false;
	r = &at->reading;
	if (len > READ_MAX)
		len = READ_MAX;
	if (from > 0x3fff || !frame_load_some(ctx, from, r->payload, len, READ_MAX))
		return false;
	r->len = len;
	r->host = 0;
	r->host_end = 0;
	r->is_complete = false;
	r->paths[0] = ANY;
	r->paths[1] = 0;
	r->paths_len = 2;
	if (r->payload[0] == HANDSHAKE)
		read_hello(at);
	else
		read_head(r);
	if (r->is_complete)
		hash_host(r);
	return r->is_complete;
}

/* State of the search for a later request: the element that the next byte belongs to. */
enum begins {
	BEGINS_LINE, /* empty lines before the request */
	BEGINS_METHOD,
	BEGINS_TARGET,
	BEGINS_REQUEST, /* rest of the request line */
	BEGINS_NONE, /* no request */
};

static __always_inline bool is_method_byte(__u8 byte)
{
	return (byte >= 'A' && byte <= 'Z') || byte == '-' || byte == '_';
}

/* "GET " and "HTTP/" as numbers: `name` holds the last bytes read. */
#define GET_SPACE 0x47455420
#define HTTP_SLASH 0x485454502fULL

/*
 * Checks a byte after the start of the target; returns 1 at the end of the search. The state
 * becomes BEGINS_NONE if the line can't be a request line: the bytes of a body may begin like one
 * by chance. This is a copy of may_be_line in core/src/path/content/mod.rs.
 */
static __always_inline long follow_line(struct reading *r, __u8 byte)
{
	if (byte == '\r' || byte == '\n') {
		if (!r->version && !r->is_http10)
			r->state = BEGINS_NONE;
		return 1;
	}
	if ((byte < ' ' && byte != '\t') || byte == 0x7f) {
		r->state = BEGINS_NONE;
		return 1;
	}
	if ((r->name & 0xffffffffffULL) == HTTP_SLASH)
		r->version = 1;
	return 0;
}

static long find_request_byte(__u32 at, void *arg)
{
	struct reading *r = *(struct reading **)arg;
	__u8 byte;

	if (at >= READ_MAX)
		return 1;
	byte = r->payload[at_most(at, READ_MAX - 1)];
	r->name = r->name << 8 | byte;
	if (r->state == BEGINS_REQUEST)
		return follow_line(r, byte);
	if (r->state == BEGINS_LINE && (byte == '\r' || byte == '\n'))
		return 0;
	if (r->state == BEGINS_LINE) {
		r->at = at;
		r->state = BEGINS_METHOD;
	}
	if (r->state == BEGINS_METHOD && is_method_byte(byte) && at - r->at < METHOD_MAX)
		return 0;
	if (byte == ' ' && at > r->at) {
		/* Requests of HTTP/0.9 have the method GET and no version. */
		if (at - r->at == 3 && (__u32)r->name == GET_SPACE)
			r->is_http10 = 1;
		r->state = BEGINS_TARGET;
		return 0;
	}
	/* A target is a path, a whole URL, or an asterisk (RFC 9112, section 3.2). */
	if (r->state == BEGINS_TARGET && (byte == '/' || byte == '*' || (byte | 0x20) == 'h')) {
		r->state = BEGINS_REQUEST;
		/* The version can't include bytes before the target. */
		r->name = byte;
		return 0;
	}
	r->state = BEGINS_NONE;
	return 1;
}

/* Searches the `len` bytes at `from` in the frame, in the middle of a connection, for a later
 * request. Returns its offset from `from`, or -1: later_request in core/src/path/content/mod.rs. */
__attribute__((noinline)) int find_request(context *ctx, struct scratch *at, __u32 from, __u32 len)
{
	bool is_more = len > LATER_LOOKED_MAX;
	struct reading *r;

	if (!at)
		return -1;
	r = &at->reading;
	if (is_more)
		len = LATER_LOOKED_MAX;
	if (from > 0x3fff || !frame_load_some(ctx, from, r->payload, len, LATER_LOOKED_MAX))
		return -1;
	r->at = len;
	r->state = BEGINS_LINE;
	r->name = 0;
	r->version = 0;
	r->is_http10 = 0;
	bpf_loop(len, find_request_byte, &r, 0);
	if (r->state == BEGINS_NONE || (r->state == BEGINS_LINE && !is_more))
		return -1;
	return r->at;
}

/* Looks up the routes with one host pattern. Stores the first match in `reading` if it precedes the
 * match found so far. */
__attribute__((noinline)) int of_host(struct scratch *at, __u64 host, __u32 generation)
{
	struct route_key key = { .host = host, .path = PRESENT, .generation = generation };
	struct route_entry *entry;
	struct reading *r;
	__u32 class;

	if (!at)
		return 0;
	r = &at->reading;
	class = r->class & (CLASSES - 1);
	entry = bpf_map_lookup_elem(&routes, &key);
	if (!entry || entry->route[class] >= r->route)
		return 0;
	for (int i = 0; i < PATH_DEPTH_MAX + 2; i++) {
		if (i >= r->paths_len)
			break;
		key.path = r->paths[i];
		entry = bpf_map_lookup_elem(&routes, &key);
		if (entry && entry->route[class] < r->route) {
			r->route = entry->route[class];
			r->ring = entry->ring[class];
		}
	}
	return 0;
}

/* Result of find_ring() if a complex route may come before the match. The daemon decides then. */
#define NO_RING 0x10000

/* Returns the ring of the request in `reading`. It is the ring of the first matching route, or else
 * `default_ring`. `complex_from` is the number of the first complex route. */
__attribute__((noinline)) int find_ring(struct scratch *at, __u32 generation, __u32 complex_from, __u32 default_ring)
{
	struct reading *r;

	if (!at)
		return NO_RING;
	r = &at->reading;
	r->route = NO_ROUTE;
	r->ring = default_ring;
	for (int i = 0; i < HOST_LABELS_MAX + 2; i++) {
		if (i >= r->hosts_len)
			break;
		of_host(at, r->hosts[i], generation);
	}
	return r->route <= complex_from ? r->ring : NO_RING;
}

#endif
