/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Frames that application space has next: core/src/path/decide/mod.rs, Verdict. */
#ifndef EVENER_HOLD_H
#define EVENER_HOLD_H

#include "director/scratch.h"

/* Gives a frame to application space; whether it could. */
static __always_inline bool give(context *ctx, __u32 reason, __u16 server)
{
	__u32 len = frame_len(ctx);
	struct held *copy;

	if (len == 0 || len > HELD_FRAME_MAX)
		return false;
	copy = bpf_ringbuf_reserve(&held, sizeof(*copy), 0);
	if (!copy)
		return false;
	copy->ifindex = frame_ingress(ctx);
	copy->len = len;
	copy->reason = reason;
	copy->server = server;
	hide(len);
	if (len == 0 || len > HELD_FRAME_MAX || frame_load(ctx, 0, copy->frame, len)) {
		bpf_ringbuf_discard(copy, 0);
		return false;
	}
	bpf_ringbuf_submit(copy, 0);
	return true;
}

/* Holds a frame: a fragment is decided again in application space, and what moves, and what is kept back meanwhile, goes to who
 * moves it. */
__attribute__((noinline)) int hold(context *ctx, struct scratch *at, __u32 reason)
{
	if (!at)
		return VERDICT_DROP;
	if (reason == REASON_FRAGMENT_HELD && frame_len(ctx) > HELD_FRAME_MAX)
		return count_and(VERDICT_DROP, REASON_FRAGMENT_LOST);
	at->told.is_held = give(ctx, reason, at->pkt.server);
	/* It was to wait, and there is no room for it any more. */
	if (reason == REASON_FRAGMENT_HELD && !at->told.is_held)
		count_reason(REASON_FRAGMENT_LOST);
	return count_and(VERDICT_DROP, reason);
}

#endif
