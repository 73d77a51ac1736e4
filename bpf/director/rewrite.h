/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Rewriting of packets: core/src/path/rewrite. */
#ifndef EVENER_REWRITE_H
#define EVENER_REWRITE_H

#include "director/flow.h"
#include "director/parse.h"

/* Time to live and hop limit of packets that this host generates. */
#define TTL 64
/* Number of bytes of a packet that an ICMP error quotes. */
#define QUOTE_LEN 512

/* Copies the parsed headers of a packet to the scratch, for functions that aren't inlined. */
static __always_inline struct scratch *scratch_for(const struct packet *packet)
{
	struct scratch *at = packet->at ? packet->at : scratch_here();
	struct packet_context *pkt;

	if (!at)
		return 0;
	pkt = &at->pkt;
	pkt->hash = 0;
	pkt->session = 0;
	pkt->source = mac_bits(packet->ethernet->h_source);
	pkt->also_counted = 0;
	pkt->server = NO_SERVER;
	pkt->l3 = packet->l3;
	pkt->l4 = packet->l4;
	pkt->len = packet->len;
	pkt->bytes = 0;
	pkt->new_session = false;
	pkt->reason = 0;
	pkt->vip = 0;
	pkt->port = 0;
	pkt->arrival = ARRIVED_DIRECT;
	pkt->protocol = packet->protocol;
	pkt->v6 = packet->v6;
	pkt->flags = packet->flags;
	pkt->is_fragment = packet->is_fragment;
	pkt->src_port = packet->client_port;
	pkt->dst_port = packet->port;
	pkt->numbers = packet->numbers;
	return at;
}

/* Length of the link header with its VLAN tags. */
static __always_inline __u64 link_len(const struct packet_context *pkt)
{
	return clamp(pkt->l3, ETH_HLEN, LINK_LEN_MAX);
}

static __always_inline bool is_later(const struct packet_context *pkt)
{
	return pkt->is_fragment && pkt->fragment.offset != 0;
}

static __always_inline void rewrite_link(struct ethhdr *ethernet, const __u8 src[ETH_ALEN], const __u8 dst[ETH_ALEN])
{
	copy_mac(ethernet->h_dest, dst);
	copy_mac(ethernet->h_source, src);
}

/* Writes new MAC addresses. Removes the VLAN tags if the frame leaves on another interface. */
static __always_inline bool relink(context *ctx, __u32 l3, __u32 ifindex, bool v6, const __u8 src[ETH_ALEN],
				   const __u8 dst[ETH_ALEN])
{
	struct ethhdr *ethernet;

	if (ifindex != frame_ingress(ctx)) {
		if (l3 != ETH_HLEN && frame_untag(ctx, l3))
			return false;
		frame_leave(ctx);
	}
	ethernet = bytes_at(ctx, 0, sizeof(*ethernet));
	if (!ethernet)
		return false;
	rewrite_link(ethernet, src, dst);
	if (ifindex != frame_ingress(ctx))
		ethernet->h_proto = v6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	return true;
}

static __always_inline void rewrite_arp_answer(struct ethhdr *ethernet, struct arp *arp, const __u8 own[ETH_ALEN])
{
	__be32 asked = arp->target_ip;

	copy_mac(ethernet->h_dest, arp->sender_mac);
	copy_mac(ethernet->h_source, own);
	arp->operation = bpf_htons(2);
	copy_mac(arp->target_mac, arp->sender_mac);
	arp->target_ip = arp->sender_ip;
	copy_mac(arp->sender_mac, own);
	arp->sender_ip = asked;
}

static __always_inline void put_word(__be32 *at, __be32 new, __u64 *change)
{
	*change += (__u32)~*at;
	*change += new;
	*at = new;
}

/* Decrements the time to live of an IPv4 header and updates its checksum. */
static __always_inline void decrement_ttl4(struct iphdr *ip)
{
	__u64 change = (__u16)~*(__u16 *)&ip->ttl;

	ip->ttl--;
	ip->check = changed(ip->check, change + *(__u16 *)&ip->ttl);
}

/* Writes new addresses, and decrements the time to live if `hop`. Adds the change of the
 * pseudo-header to `change`. */
static __always_inline bool put_addresses(context *ctx, __u32 l3, bool v6, const struct ends *ends, bool hop,
					  __u64 *change)
{
	if (v6) {
		struct ipv6hdr *ip = bytes_at(ctx, l3, sizeof(*ip));

		if (!ip)
			return false;
		if (ends->has_src)
			for (int i = 0; i < 4; i++)
				put_word(&ip->saddr.in6_u.u6_addr32[i], ends->src.word[i], change);
		if (ends->has_dst)
			for (int i = 0; i < 4; i++)
				put_word(&ip->daddr.in6_u.u6_addr32[i], ends->dst.word[i], change);
		if (hop)
			ip->hop_limit--;
	} else {
		struct iphdr *ip = bytes_at(ctx, l3, sizeof(*ip));

		if (!ip)
			return false;
		if (ends->has_src)
			put_word(&ip->saddr, ends->src.word[0], change);
		if (ends->has_dst)
			put_word(&ip->daddr, ends->dst.word[0], change);
		ip->check = changed(ip->check, *change);
		if (hop)
			decrement_ttl4(ip);
	}
	return true;
}

static __always_inline bool put_ports(context *ctx, __u32 l4, const struct ends *ends, __u64 *change)
{
	__be16 *ports = bytes_at(ctx, l4, 2 * sizeof(*ports));

	if (!ports)
		return false;
	if (ends->src_port) {
		*change += (__u16)~ports[0] + ends->src_port;
		ports[0] = ends->src_port;
	}
	if (ends->dst_port) {
		*change += (__u16)~ports[1] + ends->dst_port;
		ports[1] = ends->dst_port;
	}
	return true;
}

/* Writes new addresses and ports into a TCP or UDP packet, or a fragment of one. Decrements the
 * time to live if `hop`. */
static __always_inline bool translate(context *ctx, const struct packet_context *pkt, const struct ends *ends, bool hop)
{
	__u64 l3 = link_len(pkt), l4 = at_most(pkt->l4, L4_MAX);
	bool udp = pkt->protocol == IPPROTO_UDP;
	struct change change = {};

	if (!put_addresses(ctx, l3, pkt->v6, ends, hop, &change.pseudo))
		return false;
	if (is_later(pkt))
		return true;
	if (!put_ports(ctx, l4, ends, &change.body))
		return false;
	frame_fix(ctx, l4 + (udp ? 6 : 16), &change, udp);
	return true;
}

/* Reads source and destination address of the packet at `l3`. */
static __always_inline bool load_ends(context *ctx, __u32 l3, bool v6, struct ip *src, struct ip *dst)
{
	struct ip pair[2] = {};

	if (v6) {
		if (frame_load(ctx, l3 + 8, pair, 32))
			return false;
		*src = pair[0];
		*dst = pair[1];
		return true;
	}
	if (frame_load(ctx, l3 + 12, pair, 8))
		return false;
	*src = (struct ip){ { pair[0].word[0] } };
	*dst = (struct ip){ { pair[0].word[1] } };
	return true;
}

static __always_inline __u8 load_ttl(context *ctx, __u32 l3, bool v6)
{
	__u8 ttl = 0;

	frame_load(ctx, l3 + (v6 ? 7 : 8), &ttl, 1);
	return ttl;
}

/* Length of the IP packet, or of the longest segment if the frame consists of merged segments. */
static __always_inline __u32 longest(context *ctx, const struct packet_context *pkt)
{
	__u32 payload_len = segment_len(ctx), header_len = sizeof(struct udphdr);
	__u8 offset = 0x50;

	if (!payload_len)
		return pkt->len;
	if (pkt->protocol != IPPROTO_UDP) {
		frame_load(ctx, pkt->l4 + 12, &offset, 1);
		header_len = (offset >> 4) * 4;
	}
	return pkt->l4 - pkt->l3 + header_len + payload_len;
}

static __always_inline bool load_link(context *ctx, struct scratch *at)
{
	return !frame_load(ctx, 0, &at->link, link_len(&at->pkt));
}

static __always_inline bool store_link(context *ctx, struct scratch *at)
{
	return !frame_store(ctx, 0, &at->link, link_len(&at->pkt));
}

/* Swaps source and destination MAC. */
static __always_inline void turn_round(struct link *link)
{
	for (int i = 0; i < ETH_ALEN / 2; i++) {
		__u16 half = link->half[i];

		link->half[i] = link->half[i + ETH_ALEN / 2];
		link->half[i + ETH_ALEN / 2] = half;
	}
}

/*
 * Replaces a packet by an ICMP error to its sender: packet too big (RFC 1191, section 4; RFC 4443,
 * section 3.2). The error is sent from at->from and reports the MTU at->mtu.
 */
__attribute__((noinline)) int too_big(context *ctx, struct scratch *at)
{
	__u32 l3, header_len, sum = 0;
	struct v4_error *error4;
	struct v6_error *error6;
	__u64 pseudo;
	__u8 part[32];
	int failed;

	if (!at)
		return VERDICT_DROP;
	l3 = at->pkt.l3;
	header_len = at->pkt.v6 ? sizeof(*error6) : sizeof(*error4);
	error4 = &at->error4;
	error6 = &at->error6;
	if (!load_link(ctx, at) || !load_ends(ctx, l3, at->pkt.v6, &at->src, &error6->ip.from))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	for (__u32 offset = 0; offset < QUOTE_LEN; offset += sizeof(part)) {
		if (frame_load(ctx, l3 + offset, part, sizeof(part)))
			return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
		sum = bpf_csum_diff(0, 0, (void *)part, sizeof(part), sum);
	}
	turn_round(&at->link);
	if (frame_cut(ctx, l3 + QUOTE_LEN) || frame_grow(ctx, header_len) || !store_link(ctx, at))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	if (at->pkt.v6) {
		error6->ip.word = bpf_htonl(6 << 28);
		error6->ip.payload_len = bpf_htons(sizeof(struct icmp) + QUOTE_LEN);
		error6->ip.next = IPPROTO_ICMPV6;
		error6->ip.hop_limit = TTL;
		error6->ip.from = at->from;
		error6->ip.to = at->src;
		error6->icmp = (struct icmp){ .type = ICMPV6_TOO_BIG, .rest = bpf_htonl(at->mtu) };
		pseudo = (__u64)sum + bpf_htonl(sizeof(struct icmp) + QUOTE_LEN) + bpf_htonl(IPPROTO_ICMPV6);
		for (int i = 2; i < sizeof(*error6) / 4; i++)
			pseudo += ((__u32 *)error6)[i];
		error6->icmp.checksum = ~fold(pseudo);
		failed = frame_store(ctx, l3, error6, sizeof(*error6));
	} else {
		*error4 = (struct v4_error){
			.ip = { .version = 4,
				.ihl = 5,
				.tot_len = bpf_htons(sizeof(*error4) + QUOTE_LEN),
				.ttl = TTL,
				.protocol = IPPROTO_ICMP,
				.saddr = at->from.word[0],
				.daddr = at->src.word[0] },
			.icmp = { .type = ICMP_UNREACHABLE,
				  .code = ICMP_FRAGMENTATION_NEEDED,
				  .rest = bpf_htonl(at->mtu) },
		};
		pseudo = 0;
		for (int i = 0; i < 5; i++)
			pseudo += ((__u32 *)&error4->ip)[i];
		error4->ip.check = ~fold(pseudo);
		error4->icmp.checksum =
			~fold((__u64)sum + ((__u32 *)&error4->icmp)[0] + ((__u32 *)&error4->icmp)[1]);
		failed = frame_store(ctx, l3, error4, sizeof(*error4));
	}
	if (failed)
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	return with_reason(frame_back(ctx), REASON_TOO_BIG);
}

#endif
