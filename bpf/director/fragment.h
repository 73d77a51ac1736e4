/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* What is remembered of first fragments: core/src/path/fragments.rs. */
#ifndef EVENER_FRAGMENT_H
#define EVENER_FRAGMENT_H

#include "director/rewrite.h"
#include "director/sessions.h"

static __always_inline bool fragment_key_of(context *ctx, const struct packet_context *pkt, struct fragment_key *key)
{
	key->id = pkt->fragment.id;
	/* Of IPv6 the identification alone tells (RFC 8200, section 4.5): later fragments don't name it. */
	key->protocol = pkt->v6 ? 0 : pkt->protocol;
	key->v6 = pkt->v6;
	key->pad = 0;
	return load_ends(ctx, pkt->l3, pkt->v6, &key->src, &key->dst);
}

static __always_inline struct track *find_track(const struct fragment_key *key, __u32 now)
{
	struct track *track = bpf_map_lookup_elem(&fragments, key);

	if (track && track->expires - now - 1 >= (FRAGMENT_LIFETIME_MS * 1000000ULL >> 20))
		track = 0;
	return track;
}

/* Remembers a first fragment; false if another one of the same packet says otherwise. */
__attribute__((noinline)) int note_track(context *ctx, struct scratch *at, __u32 answer)
{
	struct track track = {}, *seen;
	__u32 now = ticks_now();
	struct packet_context *pkt;

	if (!at)
		return false;
	pkt = &at->pkt;
	if (!fragment_key_of(ctx, pkt, &at->key))
		return false;
	seen = find_track(&at->key, now);
	if (seen)
		return seen->server == pkt->server && seen->vip == pkt->vip && seen->port == pkt->port &&
		       seen->first_end == pkt->fragment.end && seen->answer == answer;
	track.expires = now + (FRAGMENT_LIFETIME_MS * 1000000ULL >> 20);
	track.server = pkt->server;
	track.vip = pkt->vip;
	track.port = pkt->port;
	track.first_end = pkt->fragment.end;
	track.answer = answer;
	bpf_map_update_elem(&fragments, &at->key, &track, BPF_ANY);
	return true;
}

#endif
