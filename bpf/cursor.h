/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The one place where a packet's bounds are checked. */
#ifndef EVENER_CURSOR_H
#define EVENER_CURSOR_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct cursor {
	void *at;
	void *end;
};

static __always_inline struct cursor cursor_of(struct xdp_md *ctx)
{
	struct cursor cursor = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
	return cursor;
}

static __always_inline __u64 frame_len(struct xdp_md *ctx)
{
	return (void *)(long)ctx->data_end - (void *)(long)ctx->data;
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

static __always_inline __u64 left(const struct cursor *cursor)
{
	return cursor->end - cursor->at;
}

#endif
