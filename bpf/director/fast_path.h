/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The fast path: core/src/path/decide/fast_path.rs. It handles two kinds of whole, untagged
 * packets: packets of an established session that they don't change, and packets for no service.
 * Its results equal those of the slow path. It is short enough that the processor starts with the
 * next packet while it waits for the memory of this packet's session. It changes and counts nothing
 * until it is certain to handle the packet. A test limits the number of its instructions
 * (dataplane/tests/differential/budget.rs).
 */
#ifndef EVENER_FAST_PATH_H
#define EVENER_FAST_PATH_H

#include "director/reply.h"

/* Minimum number of contiguous bytes of a frame, which reach to the end of the TCP header. UDP
 * frames are rarely shorter. */
#define SHORT_LEN (ETH_HLEN + sizeof(struct iphdr) + sizeof(struct tcphdr))

/* Fields of a frame. Each is one load, while the compiler reads packed structs byte by byte. */
#define BYTE_AT(at) (*(__u8 *)(frame + (at)))
#define HALF_AT(at) (*(__be16 *)(frame + (at)))
#define WORD_AT(at) (*(__be32 *)(frame + (at)))

/* Counts the reason and returns the verdict. */
static __always_inline int settle_short(int verdict, __u32 reason)
{
	count_reason(reason);
	return (__s8)verdict;
}

/* True if the frame's destination is `own` and its source isn't a group address. One comparison on
 * little-endian machines. */
static __always_inline bool is_for(void *frame, const struct interface *own)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	/* Six bytes and the lowest bit of the seventh. The seventh byte of `own` is zero. */
	__u64 differs = (*(__u64 *)frame ^ *(const __u64 *)own) << 15;

	hide(differs);
	return !differs;
#else
	return same_mac(frame, own->mac) && !(BYTE_AT(ETH_ALEN) & 1);
#endif
}

/* Searches the rest of a bucket for a key that isn't in its home slot. */
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
	/* This is byte arithmetic, since with an index the compiler would keep both index and
	 * address on the stack. */
	slot = (void *)bucket + (hash * sizeof(*slot) & (sizeof(*bucket) - sizeof(*slot)));
	if (READ_ONCE(slot->key) == key)
		return slot;
	return look_round(bucket, key, home_of(hash));
}

/* Returns the session with a key, live or expired, or NULL. */
static __always_inline struct session *look_up(__u64 key)
{
	__u64 hash = flow_hash(key);
	__u32 index;
	struct session *slot = look_at(bucket_now(TABLE_SESSIONS, hash, &index), key, hash);

	return slot ? slot : look_at(bucket_now(TABLE_SESSIONS, hash >> 32, &index), key, hash);
}

/* Loads a session's value. True if the session is in `state` and its expiry is far enough after
 * `now` that the packet needn't refresh it. */
static __always_inline bool is_at_work(struct session *slot, __u64 key, const struct vip *vip, __u32 state, __u32 now,
				       __u64 *value)
{
	*value = READ_ONCE(slot->value);
	/* Another CPU may have replaced the session between the two loads. */
	return READ_ONCE(slot->key) == key && value_state(*value) == state &&
	       (__u32)(value_expires(*value) - now - vip->idle[IDLE_LEAST]) <= vip->idle[IDLE_STEP];
}

/* True if a segment doesn't advance the client's mark: its sequence number is just before the mark,
 * or outside the window. */
static __always_inline bool keeps_mark(__u64 value, __u32 sequence)
{
	__u32 ahead = (sequence >> 10) - (__u32)(value >> 20) + NEAR / 4;

	return (ahead & NEAR_MASK) <= NEAR / 2 || ((ahead + NEAR - NEAR / 4) & NEAR_MASK) > 2 * NEAR;
}

/* True if the session alone decides a packet of a service with handoff or of an every-host
 * service. */
static __always_inline bool goes_by_session(void *frame, __u8 protocol, const struct vip *vip, __u64 value)
{
	if (vip->own != NO_SERVER && arrival_from(mac_bits(frame + ETH_ALEN)) != ARRIVED_DIRECT)
		return false;
	if (!(vip->flags & VIP_HANDOFF))
		return protocol == IPPROTO_UDP || keeps_mark(value, bpf_ntohl(WORD_AT(38)));
	/* The payload may be a later request that belongs to another server. */
	if (vip->flags & VIP_LATER && (BYTE_AT(46) >> 2 & 0x3c) + sizeof(struct iphdr) < bpf_ntohs(HALF_AT(16)))
		return false;
	return !(value_mark(value) & MARK_SYN_SEEN);
}

/* Writes both MAC addresses of a server's entry into a frame. */
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

/* Sends a packet through an IPIP tunnel over IPv4. */
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

/* Sends a packet to a server by NAT that keeps the client's address and port. */
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

/* Returns a server's flags; SERVER_UP is clear if the server may receive the packet. TCP
 * connections stay on a server that is down, so SERVER_UP is ignored. UDP needs a server that is
 * up. */
static __always_inline __u32 ways_of(const struct server *server, __u8 protocol)
{
	return protocol == IPPROTO_UDP ? server->flags ^ SERVER_UP : server->flags & ~SERVER_UP & 0xffff;
}

/* True if fast_path_send() can send a whole, untagged IPv4 packet to a server by tunnel or NAT: the
 * tunnel is IPIP over IPv4, or NAT keeps the client's port. */
static __always_inline bool fast_path_may_send(context *ctx, void *frame, const struct server *server, __u32 flags)
{
	__u32 outer = flags & SERVER_TUNNEL ? sizeof(struct iphdr) : 0;

	return (flags == (SERVER_PRESENT | SERVER_TUNNEL) || flags == (SERVER_PRESENT | SERVER_NAT)) && BYTE_AT(22) > 1 &&
	       bpf_ntohs(HALF_AT(16)) + outer <= server->mtu && !segment_len(ctx);
}

static __always_inline int fast_path_send(context *ctx, void *frame, __u32 flags, __u8 protocol, const struct server *server)
{
	if (flags & SERVER_TUNNEL)
		return wrap_short(ctx, frame, bpf_ntohs(HALF_AT(16)), server);
	return translate_short(ctx, frame, server, protocol == IPPROTO_UDP);
}

/* Sends a packet to the server of its session. Returns STEP_ANY if the slow path has to send it. */
static __always_inline int to_server(context *ctx, void *frame, __u32 bytes, __u8 protocol, __u32 slot)
{
	struct server *server = &servers[slot];
	__u32 flags;

	/* Keeps the address in a register. The compiler would compute it at each use. */
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

/* Sends a packet of a stateless every-host service to the host that the hash table selects. */
static __always_inline int by_table(context *ctx, void *frame, __u32 bytes, __u8 protocol, __u64 key, const struct vip *vip)
{
	int chosen;

	if (vip->flags & (VIP_HANDOFF | VIP_AFFINITY)) {
		if (vip->flags & VIP_HANDOFF)
			return STEP_ANY;
		key &= clients[vip->id % VIP_IDS].mask[1] << 32;
	}
	if (protocol == IPPROTO_UDP || arrival_from(mac_bits(frame + ETH_ALEN)) != ARRIVED_DIRECT)
		return STEP_ANY;
	chosen = select_without_session(vip->service, vip->flags, ring_hash(key), vip->own, ARRIVED_DIRECT);
	/* The slow path counts a second reason, or the lack of a server. */
	if (chosen >> 16 || chosen == NO_SERVER)
		return STEP_ANY;
	return to_server(ctx, frame, bytes, protocol, chosen % SERVER_SLOTS);
}

/* Word of `struct vip` from `pick` on. SELDOM masks the fields that are zero in most services. */
#define VIP_RULES (*(const __u32 *)&vip->pick)
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define SELDOM (VIP_HANDOFF << 8 | 0xffff0000)
#else
#define SELDOM (VIP_HANDOFF << 16 | 0xffff)
#endif

/* Sends a reply of a server by NAT to its client, if the next hop is cached. */
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

/* Handles a packet whose headers are checked. `protocol` is a constant in each call, so that the
 * compiler makes separate code for TCP and UDP. */
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

/* Returns the session with a key in the bucket that `half` of the hash selects, or NULL. */
static __always_inline struct session6 *look_up6(const struct key6 *key, __u64 hash, __u32 half)
{
	__u32 index, place = home_of(hash);
	void *bucket = bucket_now(TABLE_SESSIONS6, half, &index);

	return bucket ? (void *)look_in(TABLE_SESSIONS6, bucket, key, &place) : 0;
}

/*
 * The fast path of IPv6 packets without extension headers to servers by layer 2. Not inlined: the
 * 24-byte key would move variables of the IPv4 path from registers to the stack. core has no
 * counterpart, since the slow path there has the same result.
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

/* Returns the kernel's verdict, or STEP_ANY for the slow path. */
static __always_inline int fast_path(context *ctx)
{
	/* The time is read first, since a call clobbers registers. */
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
	/* The packet is no fragment. */
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
