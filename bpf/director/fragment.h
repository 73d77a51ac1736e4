/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Records of first fragments (core/src/path/decide/fragment.rs), and frames that the daemon
 * buffers. */
#ifndef EVENER_FRAGMENT_H
#define EVENER_FRAGMENT_H

#include "director/rewrite.h"
#include "director/sessions.h"

static __always_inline bool fragment_key_of(context *ctx, const struct packet_context *pkt, struct fragment_key *key)
{
	key->id = pkt->fragment.id;
	/* In IPv6 the identification is enough (RFC 8200, section 4.5), and later fragments don't
	 * have the protocol. */
	key->protocol = pkt->v6 ? 0 : pkt->protocol;
	key->v6 = pkt->v6;
	key->pad = 0;
	return load_ends(ctx, pkt->l3, pkt->v6, &key->src, &key->dst);
}

static __always_inline struct track *find_track(const struct fragment_key *key, __u32 now)
{
	/* Linux 6.1 rejects a key that is behind a function's argument. */
	struct fragment_key copy = *key;
	struct track *track = bpf_map_lookup_elem(&fragments, &copy);

	if (track && track->expires - now - 1 >= (FRAGMENT_LIFETIME_MS * 1000000ULL >> 20))
		track = 0;
	return track;
}

/* Records a first fragment. Returns false if another first fragment of the same packet differs from
 * this one. */
__attribute__((noinline)) int record_fragment(context *ctx, struct scratch *at, __u32 answer)
{
	struct track track = {}, *seen;
	__u32 now = ticks_now();
	struct packet_context *pkt;
	struct fragment_key key;

	if (!at)
		return false;
	pkt = &at->pkt;
	if (!fragment_key_of(ctx, pkt, &key))
		return false;
	seen = find_track(&key, now);
	if (seen)
		return seen->server == pkt->server && seen->vip == pkt->vip && seen->port == pkt->port &&
		       seen->first_end == pkt->fragment.end && seen->answer == answer;
	track.expires = now + (FRAGMENT_LIFETIME_MS * 1000000ULL >> 20);
	track.server = pkt->server;
	track.vip = pkt->vip;
	track.port = pkt->port;
	track.first_end = pkt->fragment.end;
	track.answer = answer;
	bpf_map_update_elem(&fragments, &key, &track, BPF_ANY);
	return true;
}

/* Copies a frame to the ring buffer `held`. False if the frame is too long or the buffer is
 * full. */
static __always_inline bool copy_for_daemon(context *ctx, __u32 reason, __u16 server)
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
	if (!frame_load_some(ctx, 0, copy->frame, len, HELD_FRAME_MAX)) {
		bpf_ringbuf_discard(copy, 0);
		return false;
	}
	bpf_ringbuf_submit(copy, 0);
	return true;
}

/* Drops a frame after copying it for the daemon. The daemon decides fragments again. It gives
 * segments of a connection that moves to the task that moves the connection. */
__attribute__((noinline)) int hold(context *ctx, struct scratch *at, __u32 reason)
{
	if (!at)
		return VERDICT_DROP;
	if (reason == REASON_FRAGMENT_HELD && frame_len(ctx) > HELD_FRAME_MAX)
		return with_reason(VERDICT_DROP, REASON_FRAGMENT_LOST);
	at->trace.is_held = copy_for_daemon(ctx, reason, at->pkt.server);
	/* The buffer is full, so the fragment is lost. */
	if (reason == REASON_FRAGMENT_HELD && !at->trace.is_held)
		at->pkt.also_counted = REASON_FRAGMENT_LOST;
	return with_reason(VERDICT_DROP, reason);
}

#endif
