/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The fast path: core/src/path/decide/fast_path.rs. Whole, untagged packets of sessions that are at
 * work and are as they will be after the packet, and those that are for no service. It does what
 * the slow path does, in few enough instructions that the processor has begun with the next packet
 * while it waits for this one's session; nothing is changed or counted before it is known that it
 * will do. A test holds it to a number of instructions (dataplane/tests/differential/budget.rs).
 */
#ifndef EVENER_FAST_PATH_H
#define EVENER_FAST_PATH_H

#include "director/reply.h"

/* The bytes that it wants of a frame in one piece: the headers of TCP, also of UDP, whose frames
 * are seldom shorter. */
#define SHORT_LEN (ETH_HLEN + sizeof(struct iphdr) + sizeof(struct tcphdr))

/* Fields of a frame, in one load each: of packed structs the compiler loads bytes. */
#define BYTE_AT(at) (*(__u8 *)(frame + (at)))
#define HALF_AT(at) (*(__be16 *)(frame + (at)))
#define WORD_AT(at) (*(__be32 *)(frame + (at)))

/* A verdict and its reason, which is counted. */
static __always_inline int settle_short(int verdict, __u32 reason)
{
	count_reason(reason);
	return (__s8)verdict;
}

/* The frame has this destination, and its source is no group's: in one comparison, where bytes
 * stand so. */
static __always_inline bool is_for(void *frame, const struct interface *own)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	/* Six bytes, and the lowest bit of the seventh, which is zero in `own`. */
	__u64 differs = (*(__u64 *)frame ^ *(const __u64 *)own) << 15;

	hide(differs);
	return !differs;
#else
	return same_mac(frame, own->mac) && !(BYTE_AT(ETH_ALEN) & 1);
#endif
}

/* The rest of a key's bucket, where it isn't at home. */
static __always_inline struct session *look_round(struct bucket *bucket, __u64 key, __u32 home)
{
	__u32 place = home;

	for (int i = 1; i < BUCKET_SESSIONS; i++) {
		place = next_place(place);
		if (READ_ONCE(bucket->slot[place].key) == key)
			return &bucket->slot[place];
	}
	return 0;
}

static __always_inline struct session *look_at(struct bucket *bucket, __u64 key, __u64 hash)
{
	struct session *slot;

	if (!bucket)
		return 0;
	/* By bytes: the compiler else keeps place and slot, each on the stack. */
	slot = (void *)bucket + (hash * sizeof(*slot) & (sizeof(*bucket) - sizeof(*slot)));
	if (READ_ONCE(slot->key) == key)
		return slot;
	return look_round(bucket, key, home_of(hash));
}

/* Returns the place of a key, live or expired. */
static __always_inline struct session *look_up(__u64 key)
{
	__u64 hash = flow_hash(key);
	__u32 index;
	struct session *slot = look_at(bucket_now(TABLE_SESSIONS, hash, &index), key, hash);

	return slot ? slot : look_at(bucket_now(TABLE_SESSIONS, hash >> 32, &index), key, hash);
}

/* A session's value, if it is at work and has so much time left at `now` that none is to be
 * noted. */
static __always_inline bool is_at_work(struct session *slot, __u64 key, const struct vip *vip, __u32 state, __u32 now,
				       __u64 *value)
{
	*value = READ_ONCE(slot->value);
	/* Half of it may be another session's. */
	return READ_ONCE(slot->key) == key && value_state(*value) == state &&
	       (__u32)(value_expires(*value) - now - vip->idle[IDLE_LEAST]) <= vip->idle[IDLE_STEP];
}

/* True if a client's mark stays: the segment is close behind the mark, or doesn't belong there. */
static __always_inline bool keeps_mark(__u64 value, __u32 sequence)
{
	__u32 ahead = (sequence >> 10) - (__u32)(value >> 20) + NEAR / 4;

	return (ahead & NEAR_MASK) <= NEAR / 2 || ((ahead + NEAR - NEAR / 4) & NEAR_MASK) > 2 * NEAR;
}

/* Of a service whose connections are handed over, or which every host decides: whether a packet
 * goes by its session alone. */
static __always_inline bool goes_by_session(void *frame, __u8 protocol, const struct vip *vip, __u64 value)
{
	if (vip->own != NO_SERVER && arrival_from(mac_bits(frame + ETH_ALEN)) != ARRIVED_DIRECT)
		return false;
	if (!(vip->flags & VIP_HANDOFF))
		return protocol == IPPROTO_UDP || keeps_mark(value, bpf_ntohl(WORD_AT(38)));
	/* Later requests may be other servers'. */
	if (vip->flags & VIP_LATER && (BYTE_AT(46) >> 2 & 0x3c) + sizeof(struct iphdr) < bpf_ntohs(HALF_AT(16)))
		return false;
	return !(value_mark(value) & MARK_DOUBTED);
}

/* The MACs of a server's entry, as they stand in a frame. */
static __always_inline void put_link(void *frame, const struct server *server)
{
	*(__u64 *)frame = *(const __u64 *)server;
	*(__u32 *)(frame + 8) = *(const __u32 *)((const void *)server + 8);
}

static __always_inline int go_out(context *ctx, __u32 ifindex)
{
	if (ifindex == frame_ingress(ctx))
		return frame_back(ctx);
	frame_leave(ctx);
	return bpf_redirect(ifindex, 0);
}

/* Into an IPIP tunnel over IPv4. */
static __always_inline int wrap_short(context *ctx, void *frame, __u32 len, const struct server *server)
{
	struct iphdr *ip = frame + ETH_HLEN;
	struct inherited inherited = { .class = BYTE_AT(15), .fragment = HALF_AT(20) & bpf_htons(IPV4_DONT_FRAGMENT) };

	inherited.id = inherited.fragment ? 0 : HALF_AT(18);
	decrement_ttl4(ip);
	if (frame_wrap(ctx, ETH_HLEN, sizeof(*ip), ETH_HLEN, false, false))
		return settle_short(VERDICT_DROP, REASON_NO_HEADROOM);
	frame = bytes_at(ctx, 0, ETH_HLEN + sizeof(*ip));
	if (!frame)
		return settle_short(VERDICT_DROP, REASON_NO_HEADROOM);
	put_link(frame, server);
	HALF_AT(12) = bpf_htons(ETH_P_IP);
	put_outer4(frame + ETH_HLEN, server, &inherited, len, IPPROTO_IPIP);
	return go_out(ctx, server->ifindex);
}

/* To an address and a port of its own. */
static __always_inline int translate_short(context *ctx, void *frame, const struct server *server, bool udp)
{
	struct iphdr *ip = frame + ETH_HLEN;
	struct change change = {};

	put_link(frame, server);
	put_word(&WORD_AT(30), server->to.word[0], &change.pseudo);
	HALF_AT(24) = changed(HALF_AT(24), change.pseudo);
	decrement_ttl4(ip);
	change.body = (__u16)~HALF_AT(36) + server->port;
	HALF_AT(36) = server->port;
	frame_fix(ctx, ETH_HLEN + sizeof(*ip) + (udp ? 6 : 16), &change, udp);
	return go_out(ctx, server->ifindex);
}

/* A server's flags without whether it is up, as far as that doesn't matter: open connections
 * stay where they are. Datagrams find another one. */
static __always_inline __u32 ways_of(const struct server *server, __u8 protocol)
{
	return protocol == IPPROTO_UDP ? server->flags ^ SERVER_UP : server->flags & ~SERVER_UP & 0xffff;
}

/* True if a whole, untagged IPv4 packet may go to a server behind a tunnel or NAT here: by IPIP
 * over IPv4, or with the client's own port. */
static __always_inline bool fast_path_may_send(context *ctx, void *frame, const struct server *server, __u32 flags)
{
	__u32 outer = flags & SERVER_TUNNEL ? sizeof(struct iphdr) : 0;

	return (flags == (SERVER_PRESENT | SERVER_TUNNEL) || flags == (SERVER_PRESENT | SERVER_NAT)) && BYTE_AT(22) > 1 &&
	       bpf_ntohs(HALF_AT(16)) + outer <= server->mtu && !segment_len(ctx);
}

/* Sends such a packet there. */
static __always_inline int fast_path_send(context *ctx, void *frame, __u32 flags, __u8 protocol, const struct server *server)
{
	if (flags & SERVER_TUNNEL)
		return wrap_short(ctx, frame, bpf_ntohs(HALF_AT(16)), server);
	return translate_short(ctx, frame, server, protocol == IPPROTO_UDP);
}

/* To the server of a session at work. */
static __always_inline int to_server(context *ctx, void *frame, __u32 bytes, __u8 protocol, __u32 slot)
{
	struct server *server = &servers[slot];
	__u32 flags;

	/* Keeps the address in one register; else the sum is computed at each use. */
	hide(server);
	flags = ways_of(server, protocol);
	if (flags == SERVER_PRESENT) {
		__u32 ifindex = server->ifindex;

		put_link(frame, server);
		count_server(slot, bytes, false);
		return go_out(ctx, ifindex);
	}
	if (flags == (SERVER_PRESENT | SERVER_LOCAL)) {
		count_server(slot, bytes, false);
		return settle_short(VERDICT_PASS, REASON_LOCAL);
	}
	if (!fast_path_may_send(ctx, frame, server, flags))
		return STEP_ANY;
	count_server(slot, bytes, false);
	return fast_path_send(ctx, frame, flags, protocol, server);
}

/* Of a service that every host decides without remembering what it passes on: to the host that
 * the hash table names. */
static __always_inline int by_table(context *ctx, void *frame, __u32 bytes, __u8 protocol, __u64 key, const struct vip *vip)
{
	int chosen;

	if (protocol == IPPROTO_UDP || vip->flags & VIP_HANDOFF ||
	    arrival_from(mac_bits(frame + ETH_ALEN)) != ARRIVED_DIRECT)
		return STEP_ANY;
	chosen = select_without_session(vip->service, vip->flags, ring_hash(key), vip->own, ARRIVED_DIRECT);
	/* With something to count beside, or to nobody. */
	if (chosen >> 16 || chosen == NO_SERVER)
		return STEP_ANY;
	return to_server(ctx, frame, bytes, protocol, chosen % SERVER_SLOTS);
}

/* Of `struct vip`, what most services have none of, in one word with its neighbours. */
#define VIP_RULES (*(const __u32 *)&vip->pick)
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define SELDOM (VIP_HANDOFF << 8 | 0xffff0000)
#else
#define SELDOM (VIP_HANDOFF << 16 | 0xffff)
#endif

/* From a server that is reached by NAT to a client, where the kernel's routes said a moment ago. */
static __always_inline int short_reply(context *ctx, void *frame, __u32 now, __u8 protocol)
{
	struct hint hint = returns[hint_place(vip_bits(WORD_AT(26), HALF_AT(34), protocol))];
	struct server *server = &servers[hint.server % SERVER_SLOTS];
	struct vip *vip = &vips[place_by_id(hint.vip)];
	struct iphdr *ip = frame + ETH_HLEN;
	const struct fib_hop *hop;
	struct change change = {};
	struct session *slot;
	__u64 key, value;
	__u32 ifindex;

	hide(server);
	hide(vip);
	if ((server->flags & ~SERVER_UP & 0xffff) != (SERVER_PRESENT | SERVER_NAT) || !hint.server ||
	    server->to.word[0] != WORD_AT(26) || server->port != HALF_AT(34) || vip->id != hint.vip ||
	    vip->key.protocol != protocol || vip->key.v6)
		return STEP_ANY;
	if (BYTE_AT(22) <= 1 || segment_len(ctx) ||
	    (protocol == IPPROTO_TCP && BYTE_AT(47) & (TCP_FIN | TCP_SYN | TCP_RST | TCP_URG)))
		return STEP_ANY;
	key = session_key(WORD_AT(30), HALF_AT(36), hint.vip);
	slot = look_up(key);
	if (!slot || !is_at_work(slot, key, vip, protocol == IPPROTO_TCP ? STATE_ESTABLISHED : STATE_UDP, now, &value) ||
	    value_server(value) != hint.server)
		return STEP_ANY;
	hop = known_hop(vip->key.address, WORD_AT(30), frame_ingress(ctx), now);
	if (!hop || bpf_ntohs(HALF_AT(16)) > hop->mtu)
		return STEP_ANY;
	*(__u32 *)frame = *(const __u32 *)hop->link;
	*(__u64 *)(frame + 4) = *(const __u64 *)(hop->link + 4);
	ifindex = hop->ifindex;
	put_word(&WORD_AT(26), vip->key.address, &change.pseudo);
	HALF_AT(24) = changed(HALF_AT(24), change.pseudo);
	decrement_ttl4(ip);
	change.body = (__u16)~HALF_AT(34) + vip->key.port;
	HALF_AT(34) = vip->key.port;
	frame_fix(ctx, ETH_HLEN + sizeof(*ip) + (protocol == IPPROTO_UDP ? 6 : 16), &change, protocol == IPPROTO_UDP);
	count_reason(REASON_ANSWERED);
	return go_out(ctx, ifindex);
}

/* Behind the headers: a constant protocol, so that each has a way of its own and nothing is
 * asked twice. */
static __always_inline int short_transport(context *ctx, void *frame, __u32 bytes, __u32 now, __u8 protocol)
{
	__u64 bits = vip_bits(WORD_AT(30), HALF_AT(36), protocol), value, key;
	struct vip *vip = vip_at(bits);
	struct session *slot;
	bool is_known;

	hide(vip);
	if (*(__u64 *)&vip->key != bits) {
		if (is_martian(WORD_AT(26)) || WORD_AT(26) == WORD_AT(30))
			return STEP_ANY;
		if (answering)
			return short_reply(ctx, frame, now, protocol);
		return settle_short(VERDICT_PASS, REASON_NOT_SERVICE);
	}
	if (protocol == IPPROTO_TCP && BYTE_AT(47) & (TCP_FIN | TCP_SYN | TCP_RST | TCP_URG))
		return STEP_ANY;
	key = session_key(WORD_AT(26), HALF_AT(34), vip->id);
	slot = look_up(key);
	if (!slot)
		/* A session that is moving is looked up on the slow path. */
		return vip->flags & VIP_STATELESS && !is_moving(TABLE_SESSIONS) ?
			       by_table(ctx, frame, bytes, protocol, key, vip) :
			       STEP_ANY;
	if (!is_at_work(slot, key, vip, protocol == IPPROTO_TCP ? STATE_ESTABLISHED : STATE_UDP, now, &value))
		return STEP_ANY;
	if (VIP_RULES & SELDOM)
		is_known = goes_by_session(frame, protocol, vip, value);
	else
		is_known = protocol == IPPROTO_UDP || keeps_mark(value, bpf_ntohl(WORD_AT(38)));
	if (!is_known)
		return STEP_ANY;
	return to_server(ctx, frame, bytes, protocol, value_server(value) % SERVER_SLOTS);
}

#define SHORT6_LEN (ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(struct tcphdr))

/* The slot of an IPv6 session in the bucket of this half, or NULL. */
static __always_inline struct session6 *look_up6(const struct key6 *key, __u64 hash, __u32 half)
{
	__u32 index, place = home_of(hash);
	void *bucket = bucket_now(TABLE_SESSIONS6, half, &index);

	return bucket ? (void *)look_in(TABLE_SESSIONS6, bucket, key, &place) : 0;
}

/*
 * The same for IPv6 without extension headers, by layer two alone. Not inlined: its key needs the
 * stack that the rest has registers for. core has no such way, since nothing is gained by it there.
 */
__attribute__((noinline)) int fast_path6(context *ctx, __u32 now)
{
	void *frame = bytes_at(ctx, 0, SHORT6_LEN);
	__u32 bytes = ctx->data_end - ctx->data, len, state, ifindex, server_slot;
	struct session6 *slot;
	struct server *server;
	struct key6 key;
	struct vip *vip;
	__u64 hash, value;
	__u8 protocol;

	if (!frame || BYTE_AT(14) >> 4 != 6)
		return STEP_ANY;
	len = bpf_ntohs(HALF_AT(18));
	protocol = BYTE_AT(20);
	if (len + ETH_HLEN + sizeof(struct ipv6hdr) > bytes)
		return STEP_ANY;
	if (protocol == IPPROTO_TCP) {
		if (BYTE_AT(66) < sizeof(struct tcphdr) << 2 || (BYTE_AT(66) >> 2 & 0x3c) > len ||
		    BYTE_AT(67) & (TCP_FIN | TCP_SYN | TCP_RST | TCP_URG))
			return STEP_ANY;
		state = STATE_ESTABLISHED;
	} else {
		if (protocol != IPPROTO_UDP || bpf_ntohs(HALF_AT(58)) < sizeof(struct udphdr) || bpf_ntohs(HALF_AT(58)) > len)
			return STEP_ANY;
		state = STATE_UDP;
	}
	vip = find_vip6(frame + 38, HALF_AT(56), protocol);
	if (!vip || VIP_RULES & SELDOM)
		return STEP_ANY;
	key.word[0] = bpf_be64_to_cpu(*(__u64 *)(frame + 22));
	key.word[1] = bpf_be64_to_cpu(*(__u64 *)(frame + 30));
	key.word[2] = (__u64)bpf_ntohs(HALF_AT(54)) << 16 | vip->id;
	hash = flow_hash6(&key);
	slot = look_up6(&key, hash, hash);
	if (!slot)
		slot = look_up6(&key, hash, hash >> 32);
	if (!slot)
		return STEP_ANY;
	value = READ_ONCE(slot->value);
	if (!has_key(TABLE_SESSIONS6, slot->key, &key) || value_state(value) != state ||
	    (__u32)(value_expires(value) - now - vip->idle[IDLE_LEAST]) > vip->idle[IDLE_STEP])
		return STEP_ANY;
	if (protocol == IPPROTO_TCP && !keeps_mark(value, bpf_ntohl(WORD_AT(58))))
		return STEP_ANY;
	server_slot = value_server(value) % SERVER_SLOTS;
	server = &servers[server_slot];
	hide(server);
	if (ways_of(server, protocol) != SERVER_PRESENT)
		return STEP_ANY;
	ifindex = server->ifindex;
	put_link(frame, server);
	count_server(server_slot, bytes, false);
	return go_out(ctx, ifindex);
}

/* A kernel's verdict, or STEP_ANY for the slow path. */
static __always_inline int fast_path(context *ctx)
{
	/* Called before anything must be kept from the call. */
	__u32 now = ticks_now();
	void *frame = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 ifindex = frame_ingress(ctx), bytes, len;
	struct interface *own = &interfaces[ifindex % INTERFACE_PLACES];

	if (frame + SHORT_LEN > end || own->ifindex != ifindex || !is_for(frame, own))
		return STEP_ANY;
	/* IPv4 without options. */
	if ((WORD_AT(12) & bpf_htonl(0xffffff00)) != bpf_htonl(ETH_P_IP << 16 | 0x4500))
		return HALF_AT(12) == bpf_htons(ETH_P_IPV6) ? fast_path6(ctx, now) : STEP_ANY;
	bytes = end - frame;
	len = bpf_ntohs(HALF_AT(16));
	if (len + ETH_HLEN > bytes)
		return STEP_ANY;
	/* Whole. */
	switch (WORD_AT(20) & bpf_htonl((IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET) << 16 | 0xff)) {
	case bpf_htonl(IPPROTO_TCP):
		if (BYTE_AT(46) < sizeof(struct tcphdr) << 2 || (BYTE_AT(46) >> 2 & 0x3c) + sizeof(struct iphdr) > len)
			return STEP_ANY;
		return short_transport(ctx, frame, bytes, now, IPPROTO_TCP);
	case bpf_htonl(IPPROTO_UDP):
		if (bpf_ntohs(HALF_AT(38)) < sizeof(struct udphdr) || bpf_ntohs(HALF_AT(38)) + sizeof(struct iphdr) > len)
			return STEP_ANY;
		return short_transport(ctx, frame, bytes, now, IPPROTO_UDP);
	default:
		return STEP_ANY;
	}
}

#endif
