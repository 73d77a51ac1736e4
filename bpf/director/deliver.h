/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Delivery of a packet to its server: core/src/path/decide/deliver.rs. */
#ifndef EVENER_DELIVER_H
#define EVENER_DELIVER_H

#include "director/choose.h"
#include "director/fragment.h"
#include "director/tunnel.h"

/* Computes the new addresses and ports of a client's packet to a server by NAT. */
static __always_inline void ends_towards(const struct server *server, __u16 port, struct ends *ends)
{
	*ends = (struct ends){ .has_dst = true, .dst = server->to, .dst_port = server->port };
	if (server->flags & SERVER_SOURCE_NAT) {
		ends->has_src = true;
		ends->src = server->own;
		ends->src_port = bpf_htons(port);
	}
}

/* True if a packet fits a path MTU of `most` bytes and its time to live permits forwarding.
 * Otherwise stores the verdict or the next step. */
static __always_inline bool fits(context *ctx, struct scratch *at, __u32 most, int *verdict)
{
	const struct packet_context *pkt = &at->pkt;

	if (load_ttl(ctx, pkt->l3, pkt->v6) <= 1) {
		*verdict = with_reason(VERDICT_DROP, REASON_TTL_EXPIRED);
		return false;
	}
	if (longest(ctx, pkt) <= most)
		return true;
	at->mtu = most;
	if (load_ends(ctx, pkt->l3, pkt->v6, &at->src, &at->from))
		*verdict = STEP_TOO_BIG;
	else
		*verdict = with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	return false;
}

/* Adds a packet to the counters of its server, and a session if the packet opens one. */
static __always_inline void count_server(__u32 slot, __u64 bytes, bool new_session)
{
	struct server_stats *stats = bpf_map_lookup_elem(&server_stats, &slot);

	if (!stats)
		return;
	stats->packets += 1;
	stats->bytes += bytes;
	stats->connections += new_session;
}

/* Counts a packet that is sent to its server. Forwarded packets have no reason, since their number
 * is the sum of the servers' counters. */
static __always_inline int delivered(const struct packet_context *pkt, int verdict)
{
	if (!pkt->reason)
		count_server(pkt->server, pkt->bytes, pkt->new_session);
	return with_reason(verdict, pkt->reason);
}

/* Sends a packet to a server by tunnel or NAT. Not inlined, since packets by layer 2 don't need
 * it. */
__attribute__((noinline)) int deliver_far(context *ctx, struct scratch *at)
{
	const struct packet_context *pkt;
	struct server *server;
	__u32 most;
	int verdict;

	if (!at)
		return VERDICT_DROP;
	pkt = &at->pkt;
	server = present_server(pkt->server);
	if (!server)
		return with_reason(VERDICT_DROP, REASON_NO_SERVER);
	most = server->mtu;
	if (server->flags & SERVER_TUNNEL)
		most = most > outer_len(server) ? most - outer_len(server) : 0;
	if (!fits(ctx, at, most, &verdict))
		return verdict;
	if (server->flags & SERVER_TUNNEL) {
		if (!wrap(ctx, pkt, server, &at->mark))
			return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
		return delivered(pkt, frame_send(ctx, server->ifindex));
	}
	ends_towards(server, pkt->port, &at->ends);
	if (!translate(ctx, pkt, &at->ends, true) ||
	    !relink(ctx, pkt->l3, server->ifindex, pkt->v6, server->src, server->dst))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	return delivered(pkt, frame_send(ctx, server->ifindex));
}

/* Sends a packet to a server by its forwarding method. */
static __always_inline int deliver(context *ctx, struct scratch *at, const struct server *server)
{
	const struct packet_context *pkt = &at->pkt;

	if (server->flags & SERVER_BLACKHOLE)
		return with_reason(VERDICT_DROP, REASON_NO_SERVER);
	if (server->flags & SERVER_LOCAL || !may_go_to(pkt->arrival, server)) {
		struct ethhdr *ethernet = server->flags & SERVER_PUNTED ? bytes_at(ctx, 0, sizeof(*ethernet)) : 0;

		if (ethernet)
			mark_punted(ethernet->h_source);
		return delivered(pkt, VERDICT_PASS) | (pkt->reason ? 0 : REASON_LOCAL << REASON_SHIFT);
	}
	if (server->flags & (SERVER_TUNNEL | SERVER_NAT))
		return STEP_DELIVER;
	if (!relink(ctx, pkt->l3, server->ifindex, pkt->v6, server->src, server->dst))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	return delivered(pkt, frame_send(ctx, server->ifindex));
}

/* Upper 64 bits of link-local addresses (RFC 4291, section 2.5.6). */
#define LINK_LOCAL (0xfe80ULL << 48)

/* Converts the result of mac_bits() to a 48-bit number. */
static __always_inline __u64 mac_number(__u64 bits)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return bpf_be64_to_cpu(bits) & 0xffffffffffffULL;
#else
	return bits >> 16;
#endif
}

/*
 * Changes a session's key to its key in `ports`. For a client with a link-local address, the key in
 * `ports` includes the client's interface and MAC. Returns false if the server's reply couldn't
 * reach the client.
 */
static __always_inline bool to_port_key(context *ctx, const struct packet_context *pkt, const struct server *server,
				     struct key6 *key)
{
	__u64 mac = mac_number(pkt->source);

	if (key->word[0] >> 54 != LINK_LOCAL >> 54)
		return true;
	if (key->word[0] != LINK_LOCAL || pkt->l3 != ETH_HLEN || frame_tags(ctx))
		return false;
	/* Without source NAT the server replies on its own link. */
	if (!(server->flags & SERVER_SOURCE_NAT))
		return server->ifindex == frame_ingress(ctx);
	key->word[0] |= mac >> 32 << 32 | frame_ingress(ctx);
	key->word[2] |= mac << 32;
	return true;
}

/* Returns the source port that is allocated to a session, and stores the port's slot in `found`.
 * Returns 0 if the session has no port. */
static __always_inline __u16 find_port(__u32 server, const struct key6 *key, __u64 hash, __u32 now, struct found *found)
{
	if (!find(ports_of(server), key, hash, now, found))
		return 0;
	return FIRST_PORT + found->slot - server % PORT_POOLS * PORTS;
}

/* Returns the source port of a session, allocated if necessary; 0 if none is free. */
static __always_inline __u16 source_nat_port(const struct vip *vip, const struct key6 *key, __u64 hash, __u64 session,
					 __u32 now)
{
	struct found found = {};
	__u16 port = find_port(value_server(session), key, hash, now, &found);

	if (!port)
		return allocate_port(key, hash, session, now);
	if (is_stale(vip, found.value, session))
		__sync_val_compare_and_swap(found.place, found.value, session);
	return port;
}

#endif
