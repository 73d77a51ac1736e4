/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The one place where a packet's bounds are checked. XDP sees a frame before the kernel has made
 * anything of it, TC the kernel's socket buffer; what both can do is written once, for `context`.
 */
#ifndef EVENER_CURSOR_H
#define EVENER_CURSOR_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "net/verifier.h"

/* `frame_load`: copies so many bytes of a frame from there on, or fails. `MAY_BE_PARTIAL`:
 * whether checksums may be left to the hardware. */
#ifdef EVENER_TC
typedef struct __sk_buff context;
#define frame_load bpf_skb_load_bytes
#define MAY_BE_PARTIAL true
#else
typedef struct xdp_md context;
#define frame_load bpf_xdp_load_bytes
#define MAY_BE_PARTIAL false
#endif

/*
 * Copies `len` bytes of a frame, from `at` on. False if `len` is not from 1 to `max`, a constant,
 * or if the frame ends before.
 */
#define frame_load_some(ctx, at, to, len, max)                          \
	({                                                              \
		__u32 len_ = (len);                                     \
		len_ - 1 < (max) &&                                       \
		!frame_load(ctx, at, to, clamp(len_, 1, max));          \
	})

struct cursor {
	void *at;
	void *end;
};

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
