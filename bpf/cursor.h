/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The one place where a packet's bounds are checked. */
#ifndef EVENER_CURSOR_H
#define EVENER_CURSOR_H

#include "frame.h"
#include "maps.h"

struct cursor {
	void *at;
	void *end;
};

static __always_inline struct cursor cursor_of(context *ctx)
{
	struct cursor cursor = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
	return cursor;
}

/* The next `len` bytes, or NULL where the frame ends before. */
static __always_inline void *take(struct cursor *cursor, __u32 len)
{
	void *at = cursor->at;

	if (at + len > cursor->end)
		return 0;
	cursor->at = at + len;
	return at;
}

/* The `len` bytes at `offset`, or NULL where the frame ends before. */
static __always_inline void *bytes_at(context *ctx, __u32 offset, __u32 len)
{
	void *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	hide(at); /* what was checked is what is used */
	at += offset;
	hide(at);
	return at + len > end ? 0 : at;
}

/* A cursor at `offset`, which may well lie behind the end: then there is nothing to take. */
static __always_inline struct cursor cursor_at(context *ctx, __u32 offset)
{
	struct cursor cursor = cursor_of(ctx);

	hide(cursor.at);
	cursor.at += offset;
	hide(cursor.at);
	return cursor;
}

static __always_inline __u64 left(const struct cursor *cursor)
{
	return cursor->end - cursor->at;
}

#endif
