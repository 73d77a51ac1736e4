/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Encapsulation (RFC 2003; RFC 2473): core/src/path/rewrite/tunnel.rs. */
#ifndef EVENER_TUNNEL_H
#define EVENER_TUNNEL_H

#include "director/rewrite.h"

struct udp_gue {
	struct udphdr udp;
	struct gue gue;
};

static __always_inline __u32 outer_len(const struct server *server)
{
	__u32 flags = server->flags, len = sizeof(struct iphdr);

	/* The sum has no branches, so that the verifier has fewer paths to check. */
	hide(flags);
	len += (flags / SERVER_V6 & 1) * (sizeof(struct ipv6hdr) - sizeof(struct iphdr));
	len += (flags / SERVER_GUE & 1) * sizeof(struct udp_gue);
	return len + (flags / SERVER_MARKED & 1) * sizeof(struct mark);
}

/* Fields that the outer header copies from the inner header. */
struct inherited {
	__u8 class;
	__be16 id;
	__be16 fragment;
};

/* Reads these fields, and the inner addresses for a mark. Decrements the inner time to live. */
static __always_inline bool inherit(context *ctx, __u32 l3, bool v6, struct inherited *inherited,
				    struct mark_message *message)
{
	if (v6) {
		struct ipv6hdr *ip = bytes_at(ctx, l3, sizeof(*ip));

		if (!ip)
			return false;
		inherited->class = ((__u8 *)ip)[0] << 4 | ((__u8 *)ip)[1] >> 4;
		inherited->id = 0;
		inherited->fragment = bpf_htons(IPV4_DONT_FRAGMENT);
		message->inner_from = *(struct ip *)&ip->saddr;
		message->inner_to = *(struct ip *)&ip->daddr;
		ip->hop_limit--;
	} else {
		struct iphdr *ip = bytes_at(ctx, l3, sizeof(*ip));

		if (!ip)
			return false;
		inherited->class = ip->tos;
		inherited->fragment = ip->frag_off & bpf_htons(IPV4_DONT_FRAGMENT);
		/* Needed only if the packet may be fragmented (RFC 6864, section 4). */
		inherited->id = inherited->fragment ? 0 : ip->id;
		message->inner_from = mapped(ip->saddr);
		message->inner_to = mapped(ip->daddr);
		decrement_ttl4(ip);
	}
	return true;
}

static __always_inline void put_outer4(struct iphdr *ip, const struct server *server,
				       const struct inherited *inherited, __u32 rest_len, __u8 next)
{
	__u32 *word = (void *)ip;
	__u64 sum = 0;

	word[0] = bpf_htonl(0x45000000 | inherited->class << 16 | (rest_len + sizeof(*ip)));
	word[1] = inherited->id | (__u32)inherited->fragment << 16;
	word[2] = bpf_htonl(TTL << 24 | next << 16);
	word[3] = server->own.word[0];
	word[4] = server->to.word[0];
	for (int i = 0; i < 5; i++)
		sum += word[i];
	ip->check = ~fold(sum);
}

/* The flow label is a hash of the flow, for equal-cost multipath (RFC 6438). */
static __always_inline void put_outer6(struct ipv6hdr *ip, const struct server *server,
				       const struct inherited *inherited, __u64 hash, __u32 rest_len, __u8 next)
{
	__u32 *word = (void *)ip;

	word[0] = bpf_htonl(6 << 28 | inherited->class << 20 | (hash >> 44 & 0xfffff));
	word[1] = bpf_htonl(rest_len << 16 | next << 8 | TTL);
	*(struct ip *)&ip->saddr = server->own;
	*(struct ip *)&ip->daddr = server->to;
}

static __always_inline void put_gue(struct udp_gue *headers, __u64 hash, __u32 rest_len, __u8 next, __u16 flags)
{
	/* A dynamic port (RFC 6335, section 6) by the flow's hash, for equal-cost paths and
	 * receive queues. */
	headers->udp.source = bpf_htons(0xc000 | (hash >> 48 & 0x3fff));
	headers->udp.dest = bpf_htons(GUE_PORT);
	headers->udp.len = bpf_htons(rest_len);
	/* The UDP checksum is omitted, since the inner packet has a checksum (RFC 6935). */
	headers->udp.check = 0;
	headers->gue.first = flags & SERVER_MARKED ? sizeof(struct mark) / 4 : 0;
	headers->gue.protocol = next;
	headers->gue.flags = (flags & SERVER_LAST ? bpf_htons(GUE_LAST) : 0) | (flags & SERVER_MARKED ? bpf_htons(GUE_MARKED) : 0);
}

/* Adds the outer addresses and the count to the mark's message, and writes the mark. */
static __always_inline void put_mark_to(struct mark *mark, const struct server *server, struct mark_message *message)
{
	if (server->flags & SERVER_V6) {
		message->outer_from = server->own;
		message->outer_to = server->to;
	} else {
		message->outer_from = mapped(server->own.word[0]);
		message->outer_to = mapped(server->to.word[0]);
	}
	message->passed = bpf_htonl(server->flags & SERVER_LAST ? PASSED_ON_TWICE : PASSED_ONCE);
	put_mark(mark, &marker, message);
}

/* Writes the outer headers from the IP header on. */
static __always_inline bool put_outer(context *ctx, __u32 at, const struct server *server,
				      const struct inherited *inherited, __u64 hash, __u32 len, bool v6,
				      struct mark_message *message)
{
	__u32 ip_len = server->flags & SERVER_V6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	__u8 next = v6 ? IPPROTO_IPV6 : IPPROTO_IPIP;

	len += outer_len(server) - ip_len;
	if (server->flags & SERVER_V6) {
		struct ipv6hdr *ip = bytes_at(ctx, at, sizeof(*ip));

		if (!ip)
			return false;
		put_outer6(ip, server, inherited, hash, len, server->flags & SERVER_GUE ? IPPROTO_UDP : next);
	} else {
		struct iphdr *ip = bytes_at(ctx, at, sizeof(*ip));

		if (!ip)
			return false;
		put_outer4(ip, server, inherited, len, server->flags & SERVER_GUE ? IPPROTO_UDP : next);
	}
	if (server->flags & SERVER_GUE) {
		struct udp_gue *headers = bytes_at(ctx, at + ip_len, sizeof(*headers));

		if (!headers)
			return false;
		put_gue(headers, hash, len, next, server->flags);
	}
	if (server->flags & SERVER_MARKED) {
		struct mark *mark = bytes_at(ctx, at + ip_len + sizeof(struct udp_gue), sizeof(*mark));

		if (!mark)
			return false;
		put_mark_to(mark, server, message);
	}
	return true;
}

/* Encapsulates a packet for the tunnel to its server. */
static __always_inline bool wrap(context *ctx, const struct packet_context *pkt, const struct server *server,
				 struct mark_message *message)
{
	bool same = server->ifindex == frame_ingress(ctx), outer6 = server->flags & SERVER_V6;
	__u64 l3 = link_len(pkt), new_l3 = same ? l3 : ETH_HLEN;
	struct inherited inherited;
	struct ethhdr *ethernet;
	__u32 tags[2] = {};

	if (!inherit(ctx, l3, pkt->v6, &inherited, message))
		return false;
	/* The VLAN tags to restore: EtherType and tag of each. */
	if (same && l3 != ETH_HLEN && frame_load(ctx, 12, tags, l3 == LINK_LEN_MAX ? 8 : 4))
		return false;
	if (frame_wrap(ctx, l3, outer_len(server), new_l3, outer6, server->flags & SERVER_GUE))
		return false;
	if (!same)
		frame_leave(ctx);
	if (!put_outer(ctx, new_l3, server, &inherited, pkt->hash, pkt->len, pkt->v6, message))
		return false;
	ethernet = bytes_at(ctx, 0, LINK_LEN_MAX);
	if (!ethernet)
		return false;
	rewrite_link(ethernet, server->src, server->dst);
	if (new_l3 == ETH_HLEN) {
		ethernet->h_proto = outer6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	} else {
		__u32 *tag = (void *)ethernet + 12;

		tag[0] = tags[0];
		if (new_l3 == LINK_LEN_MAX)
			tag[1] = tags[1];
		*(__be16 *)((void *)ethernet + (new_l3 == LINK_LEN_MAX ? 20 : 16)) =
			outer6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	}
	return true;
}

#endif
