/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Servers' replies through the director: core/src/path/decide/reply.rs. */
#ifndef EVENER_REPLY_H
#define EVENER_REPLY_H

#include "director/deliver.h"
#include "director/fib_cache.h"

#ifndef AF_INET
#define AF_INET 2
#define AF_INET6 10
#endif

/* Finds the session to which a source port is allocated, and stores the session's key. Returns
 * false if there is no such session. */
static __always_inline bool port_holder(__u32 server, __u16 port, __u32 now, struct key6 *key, struct found *found)
{
	__u32 number = (__u32)port - FIRST_PORT, index;
	struct bucket6 *bucket;
	struct session6 *slot;

	if (number >= PORTS)
		return false;
	index = server % PORT_POOLS * POOL_BUCKETS + number / BUCKET_SESSIONS;
	bucket = bpf_map_lookup_elem(&ports, &index);
	if (!bucket)
		return false;
	slot = &bucket->slot[number % BUCKET_SESSIONS];
	key->word[0] = READ_ONCE(slot->key[0]);
	key->word[1] = READ_ONCE(slot->key[1]);
	key->word[2] = READ_ONCE(slot->key[2]);
	found->place = &slot->value;
	found->value = READ_ONCE(slot->value);
	return has_key(TABLE_PORTS, slot->key, key) && is_live(found->value, now) && value_server(found->value) == server;
}

static __always_inline struct ip client_of(const struct key6 *key, bool v6)
{
	struct ip client = {};

	if (v6) {
		__u64 *half = (void *)&client;

		half[0] = bpf_cpu_to_be64(key->word[0]);
		half[1] = bpf_cpu_to_be64(key->word[1]);
	} else {
		client.word[0] = bpf_htonl(key->word[1]);
	}
	return client;
}

/* Reverts to_port_key(): changes the key in `ports` to that of the session. */
static __always_inline void to_session_key(struct key6 *key, struct near *near)
{
	near->link = 0;
	if (key->word[0] >> 48 != LINK_LOCAL >> 48)
		return;
	near->link = key->word[0];
	near->mac = bpf_cpu_to_be64(key->word[0] >> 32 << 48 | key->word[2] >> 32 << 16);
	key->word[0] = LINK_LOCAL;
	key->word[2] &= 0xffffffff;
}

/* Argument of find_reply_session() that leaves the session as it is. */
#define FOLLOW_NOT 0x100

/*
 * Finds the session of a reply, given its VIP and server, and updates the session by the TCP
 * `flags`. Returns false if there is no such session. Not inlined, so that the verifier checks this
 * code only once, and not for each pair of VIP and server of an endpoint.
 */
__attribute__((noinline)) int reply_session_of(struct scratch *at, __u32 vip_id, __u32 slot, __u32 flags)
{
	struct server *server = present_server(slot);
	struct found session = {}, port = {};
	const struct way_back *back;
	struct reply *reply;
	struct vip *vip;
	__u64 value;
	bool v6;

	if (!at || !server || !(server->flags & SERVER_NAT))
		return false;
	back = &at->back;
	reply = &at->reply;
	v6 = back->from.v6;
	reply->port = 0;
	reply->near.link = 0;
	if (server->flags & SERVER_SOURCE_NAT) {
		reply->port = bpf_ntohs(back->to_port);
		if (!same_ip(&back->to, &server->own) ||
		    !port_holder(slot, reply->port, back->now, &at->key6, &port) ||
		    (__u16)at->key6.word[2] != vip_id)
			return false;
		to_session_key(&at->key6, &reply->near);
	} else {
		at->key6 = session_key6(&back->to, v6, back->to_port, vip_id);
	}
	if (!find_session(&at->key6, v6, session_hash(&at->key6, v6), back->now, &session) || value_server(session.value) != slot)
		return false;
	if (!(flags & FOLLOW_NOT) && !takes(&session, flags, at->pkt.numbers >> 32, back->now))
		return false;
	vip = find_vip_by_id(vip_id);
	if (!vip)
		return false;
	reply->client = client_of(&at->key6, v6);
	reply->client_port = bpf_htons(at->key6.word[2] >> 16);
	if (v6)
		reply->service = vip->address6;
	else
		reply->service = (struct ip){ { vip->key.address } };
	reply->service_port = vip->key.port;
	reply->own = server->own;
	reply->server = slot;
	reply->vip = vip_id;
	reply->v6 = v6;
	if (flags & FOLLOW_NOT)
		return true;
	struct flow flow = {
		.vip = vip,
		.now = back->now,
		.udp = back->from.protocol == IPPROTO_UDP,
		.flags = flags,
		.numbers = at->pkt.numbers,
	};
	value = follow(&flow, OF_SERVER, &session);
	if (port.place && is_stale(vip, port.value, value))
		__sync_val_compare_and_swap(port.place, port.value, value);
	return true;
}

/*
 * Finds the session of a packet from a server's endpoint to a client, or to the director's port
 * that is allocated to a client. Updates the session by the TCP `flags`, unless they are
 * FOLLOW_NOT. Returns false if there is no such session.
 */
static __always_inline bool find_reply_session(struct scratch *at, __u32 flags)
{
	/* Linux 6.1 rejects a key that is behind a function's argument. */
	struct endpoint_key from = at->back.from;
	struct endpoint *endpoint = bpf_map_lookup_elem(&endpoints, &from);

	if (!endpoint)
		return false;
	for (int i = 0; i < BEHIND_MAX; i++) {
		if (i >= endpoint->count)
			break;
		if (reply_session_of(at, endpoint->behind[i].vip, endpoint->behind[i].server, flags))
			return true;
	}
	return false;
}

/* Fills in the next hop to a client with a link-local address from the port's key. The client's
 * packets had no VLAN tag, so the reply has none. */
static __always_inline bool find_near(context *ctx, struct hop *hop, const struct near *near, __u32 len)
{
	struct interface *own = find_interface(near->link);
	__u32 mtu = 0;

	if (!own || bpf_check_mtu(ctx, near->link, &mtu, 0, 0) < 0)
		return false;
	if (mtu > 0xffff)
		mtu = 0xffff;
	if (len > mtu) {
		hop->mtu = mtu;
		return true;
	}
	hop->ifindex = near->link;
	hop->lan = 0;
	copy_mac(hop->src, own->mac);
	copy_mac(hop->dst, (const __u8 *)&near->mac);
	return true;
}

/* Finds the next hop of a packet from `src` to the reply's client. False if there is no route. */
__attribute__((noinline)) int find_hop(context *ctx, struct scratch *at, const struct ip *src, __u32 len)
{
	struct bpf_fib_lookup route = {};
	const struct ip *dst;
	struct hop *hop;

	if (!at || !src)
		return false;
	dst = &at->reply.client;
	hop = &at->hop;
	hop->ifindex = 0;
	hop->mtu = 0;
	hop->epoch = epoch_now();
	route.ifindex = frame_ingress(ctx);
	route.tot_len = len;
	if (at->pkt.v6) {
		route.family = AF_INET6;
		*(struct ip *)route.ipv6_src = *src;
		*(struct ip *)route.ipv6_dst = *dst;
		if (at->reply.near.link)
			return find_near(ctx, hop, &at->reply.near, len);
		/* bpf_fib_lookup() doesn't support link-local addresses. The host's stack resolves
		 * the client's address on the interface that received the reply. */
		if (is_link_local(dst)) {
			hop->next_ifindex = frame_ingress(ctx);
			hop->next.nh_family = AF_INET6;
			*(struct ip *)hop->next.ipv6_nh = *dst;
			return true;
		}
	} else {
		route.family = AF_INET;
		route.ipv4_src = src->word[0];
		route.ipv4_dst = dst->word[0];
	}
	switch (bpf_fib_lookup(ctx, &route, sizeof(route), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		hop->ifindex = hop->lan = route.ifindex;
		hop->most = route.mtu_result;
		for (int i = 0; i < ETH_ALEN / 2; i++) {
			((__u16 *)hop->src)[i] = ((__u16 *)route.smac)[i];
			((__u16 *)hop->dst)[i] = ((__u16 *)route.dmac)[i];
		}
		return true;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		/* The lookup has replaced the destination by the gateway, if there is one. */
		hop->next_ifindex = route.ifindex;
		hop->next.nh_family = route.family;
		if (route.family == AF_INET6)
			*(struct ip *)hop->next.ipv6_nh = *(struct ip *)route.ipv6_dst;
		else
			hop->next.ipv4_nh = route.ipv4_dst;
		return true;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		hop->mtu = route.mtu_result;
		return true;
	default:
		return false;
	}
}

/*
 * Passes a translated packet to the host's stack, which resolves the neighbour and sends it. If
 * this host has the service's address, the daemon has set accept_local, so that the stack accepts
 * the packet (ip-sysctl).
 */
static __always_inline int send_by_host(context *ctx, struct scratch *at)
{
	/* bpf_redirect_neigh() would not find the packet behind VLAN tags. */
	if (!FRAME_FINDS_NEIGHBOURS || at->pkt.l3 != ETH_HLEN)
		return with_reason(VERDICT_PASS, REASON_HOST_STACK);
	frame_leave(ctx);
	return with_reason(frame_to_neighbour(ctx, at->hop.next_ifindex, &at->hop.next), REASON_HOST_STACK);
}

/* Sends the error of too_big() to the client by the host's routes. too_big() alone would send it to
 * the host that forwarded the packet. */
__attribute__((noinline)) int too_big_by_route(context *ctx, struct scratch *at)
{
	int outcome = too_big(ctx, at);

	if (!at || (__u8)outcome == VERDICT_DROP)
		return outcome;
	at->reply.client = at->src;
	at->reply.near.link = 0;
	/* If the neighbour isn't resolved, the error is dropped, since the host's stack doesn't
	 * forward packets that have its own source address. */
	if (!find_hop(ctx, at, &at->from, sizeof(at->error6) + QUOTE_LEN) || !at->hop.ifindex ||
	    !relink(ctx, at->pkt.l3, at->hop.lan, at->pkt.v6, at->hop.src, at->hop.dst))
		return with_reason(VERDICT_DROP, REASON_TOO_BIG);
	return with_reason(frame_send(ctx, at->hop.ifindex), REASON_TOO_BIG);
}

/* Computes the addresses and ports of a reply as the client expects them. */
static __always_inline void reply_ends(const struct reply *reply, struct ends *ends)
{
	*ends = (struct ends){};
	ends->has_src = true;
	ends->src = reply->service;
	ends->src_port = reply->service_port;
	if (reply->port) {
		ends->has_dst = true;
		ends->dst = reply->client;
		ends->dst_port = reply->client_port;
	}
}

/* Caches the next hop to a client for the fast path. */
static __always_inline void keep_hop(context *ctx, const struct scratch *at)
{
	const struct hop *hop = &at->hop;
	struct fib_hop found = {
		.since = at->back.now,
		.epoch = hop->epoch,
		.src = at->reply.service.word[0],
		.ingress = frame_ingress(ctx),
		.ifindex = hop->ifindex,
		.mtu = hop->most,
	};

	copy_mac(found.link, hop->dst);
	copy_mac(found.link + ETH_ALEN, hop->src);
	remember_hop(&found, at->reply.client.word[0]);
}

/* Translates a reply and sends it by the host's routes. */
static __always_inline int send_reply(context *ctx, struct scratch *at)
{
	const struct packet_context *pkt = &at->pkt;
	const struct hop *hop = &at->hop;

	if (!find_hop(ctx, at, &at->reply.service, longest(ctx, pkt)))
		return with_reason(VERDICT_DROP, REASON_NO_ROUTE);
	if (load_ttl(ctx, pkt->l3, pkt->v6) <= 1)
		return with_reason(VERDICT_DROP, REASON_TTL_EXPIRED);
	if (hop->mtu) {
		at->mtu = hop->mtu;
		at->from = at->reply.own;
		return STEP_TOO_BIG;
	}
	reply_ends(&at->reply, &at->ends);
	if (!translate(ctx, pkt, &at->ends, hop->ifindex != 0))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	if (!hop->ifindex)
		return send_by_host(ctx, at);
	if (!pkt->v6 && !is_later(pkt))
		keep_hop(ctx, at);
	if (!relink(ctx, pkt->l3, hop->lan, pkt->v6, hop->src, hop->dst))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	return with_reason(frame_send(ctx, hop->ifindex), REASON_ANSWERED);
}

/* Decides a packet that is not for a service. It may be a server's reply. */
__attribute__((noinline)) int decide_reply(context *ctx, struct scratch *at)
{
	struct packet_context *pkt;
	struct way_back *back;
	__u32 flags;

	if (!at)
		return VERDICT_DROP;
	pkt = &at->pkt;
	flags = pkt->flags;
	back = &at->back;
	if (!load_ends(ctx, pkt->l3, pkt->v6, &back->from.address, &back->to))
		return with_reason(VERDICT_PASS, REASON_NOT_SERVICE);
	back->from.port = pkt->src_port;
	back->from.protocol = pkt->protocol;
	back->from.v6 = pkt->v6;
	back->to_port = pkt->dst_port;
	back->now = ticks_now();
	/* Flags that no stack sends don't update the session. */
	if (has_bad_flags(flags))
		flags = FOLLOW_NOT;
	if (!find_reply_session(at, flags))
		return with_reason(VERDICT_PASS, REASON_NOT_SERVICE);
	if (flags & FOLLOW_NOT)
		return with_reason(VERDICT_DROP, REASON_BAD_FLAGS);
	pkt->server = at->reply.server;
	pkt->vip = at->reply.vip;
	pkt->port = at->reply.port;
	if (pkt->is_fragment && !record_fragment(ctx, at, true))
		return with_reason(VERDICT_DROP, REASON_FRAGMENT_OVERLAP);
	return send_reply(ctx, at);
}

/* Sends a later fragment of a reply to the client of the first fragment. */
static __always_inline int later_reply(context *ctx, struct scratch *at, const struct track *track,
					const struct vip *vip, const struct server *server, __u32 now)
{
	struct reply *reply = &at->reply;
	bool v6 = at->pkt.v6;
	struct found found;

	reply->client = at->key.dst;
	reply->near.link = 0;
	if (track->port) {
		if (!port_holder(track->server, track->port, now, &at->key6, &found))
			return with_reason(VERDICT_DROP, REASON_FRAGMENT_LOST);
		to_session_key(&at->key6, &reply->near);
		reply->client = client_of(&at->key6, v6);
	}
	if (!(server->flags & SERVER_NAT))
		return with_reason(VERDICT_DROP, REASON_FRAGMENT_LOST);
	if (v6)
		reply->service = vip->address6;
	else
		reply->service = (struct ip){ { vip->key.address } };
	reply->own = server->own;
	reply->port = track->port;
	return send_reply(ctx, at);
}

/* Decides a fragment other than the first: core/src/path/decide/fragment.rs. */
__attribute__((noinline)) int later_fragment(context *ctx, struct scratch *at)
{
	struct packet_context *pkt;
	struct server *server;
	struct track *track;
	__u32 now = ticks_now();
	struct vip *vip;

	if (!at)
		return VERDICT_DROP;
	pkt = &at->pkt;
	if (!fragment_key_of(ctx, pkt, &at->key))
		return with_reason(VERDICT_PASS, REASON_NOT_SERVICE);
	track = find_track(&at->key, now);
	if (!track) {
		if (address_flags(&at->key.dst, pkt->v6) & ADDRESS_SERVICE ||
		    address_flags(&at->key.src, pkt->v6) & ADDRESS_ENDPOINT)
			return hold(ctx, at, REASON_FRAGMENT_HELD);
		return with_reason(VERDICT_PASS, REASON_NOT_SERVICE);
	}
	if (pkt->fragment.offset < track->first_end)
		return with_reason(VERDICT_DROP, REASON_FRAGMENT_OVERLAP);
	server = present_server(track->server);
	vip = find_vip_by_id(track->vip);
	if (!server || !vip)
		return with_reason(VERDICT_DROP, REASON_NO_SERVER);
	pkt->server = track->server;
	pkt->port = track->port;
	if (track->answer)
		return later_reply(ctx, at, track, vip, server, now);
	if (vip->own != NO_SERVER)
		pkt->arrival = arrival_from(pkt->source);
	pkt->bytes = frame_len(ctx);
	return deliver(ctx, at, server);
}

#endif
