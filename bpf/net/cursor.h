/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Bounds checks of packets. `context` is the packet of an XDP or a TC program, so that the same
 * code serves both.
 */
#ifndef EVENER_CURSOR_H
#define EVENER_CURSOR_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "net/verifier.h"

/* frame_load(ctx, offset, to, len) copies bytes of a frame and returns 0, or an error.
 * MAY_BE_PARTIAL: hardware may have to complete checksums. */
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
 * Copies `len` bytes of a frame from offset `at`. False if `len` is not within 1 and the constant
 * `max`, or if the frame is shorter.
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

/* Returns the next `len` bytes, or NULL if the frame is shorter. */
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
