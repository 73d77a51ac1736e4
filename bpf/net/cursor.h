/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The one place where a packet's bounds are checked. */
#ifndef EVENER_CURSOR_H
#define EVENER_CURSOR_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/*
 * Keeps the compiler from using what it knows of a value: from dropping a check that the verifier wants to
 * see, or putting in the place of a check for NULL the comparison that the NULL came from.
 */
#define hide(x) asm volatile("" : "+r"(x))

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
