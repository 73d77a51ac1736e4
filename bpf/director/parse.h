/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Parser of frames: core/src/path/parse, with the same checks in the same order. */
#ifndef EVENER_PARSE_H
#define EVENER_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include "director/sessions.h"
#include "net/tcp.h"

/* RFC 792; RFC 4443; RFC 4861, section 4 */
#define ICMP_ECHO_REPLY 0
#define ICMP_UNREACHABLE 3
#define ICMP_FRAGMENTATION_NEEDED 4 /* a code */
#define ICMP_ECHO 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12
#define ICMPV6_TOO_BIG 2
#define ICMPV6_LAST_ERROR 4
#define ICMPV6_ECHO 128
#define ICMPV6_ECHO_REPLY 129
#define NEIGHBOUR_SOLICITATION 135
#define NEIGHBOUR_ADVERTISEMENT 136

/* ARP for IPv4 over Ethernet (RFC 826). */
struct arp {
	__be16 hardware_type;
	__be16 protocol_type;
	__u8 hardware_len;
	__u8 protocol_len;
	__be16 operation;
	__u8 sender_mac[ETH_ALEN];
	__be32 sender_ip;
	__u8 target_mac[ETH_ALEN];
	__be32 target_ip;
} __attribute__((packed));

enum parsed {
	PARSED_SEGMENT,
	PARSED_LATER_FRAGMENT,
	PARSED_ICMP,
	PARSED_ARP_REQUEST,
	PARSED_SOLICITATION,
	PARSED_PASS,
	PARSED_ODD,
};

/* Parsed headers of a packet. Larger values are in the scratch. */
struct packet {
	struct ethhdr *ethernet;
	struct arp *arp;
	struct scratch *at;
	__be32 src4, dst4; /* IPv4 addresses; IPv6 addresses are at->src and at->dst */
	__u64 numbers; /* TCP: upper half: acknowledgment number; lower half: sequence number */
	__be16 port;
	__be16 client_port;
	__u16 l3, l4; /* offsets of headers */
	__u32 len; /* length of the IP packet */
	__u8 protocol;
	__u8 v6;
	__u8 flags;
	__u8 is_fragment; /* then at->pkt.fragment has offset and end */
	__u8 reason; /* with PARSED_PASS and PARSED_ODD */
	__u8 has_data; /* a TCP segment has payload */
};

static __always_inline bool is_unicast(const __u8 mac[ETH_ALEN])
{
	return !(mac[0] & 1) && (mac[0] | mac[1] | mac[2] | mac[3] | mac[4] | mac[5]);
}

static __always_inline bool same_mac(const __u8 a[ETH_ALEN], const __u8 b[ETH_ALEN])
{
	return *(const __u32 *)a == *(const __u32 *)b && *(const __u16 *)(a + 4) == *(const __u16 *)(b + 4);
}

/* Copies four and two bytes. The compiler would copy an array byte by byte. */
static __always_inline void copy_mac(__u8 to[ETH_ALEN], const __u8 from[ETH_ALEN])
{
	*(__u32 *)to = *(const __u32 *)from;
	*(__u16 *)(to + 4) = *(const __u16 *)(from + 4);
}

static __always_inline bool is_broadcast(const __u8 mac[ETH_ALEN])
{
	return (mac[0] & mac[1] & mac[2] & mac[3] & mac[4] & mac[5]) == 0xff;
}

static __always_inline enum parsed pass(struct packet *packet, enum reason reason)
{
	packet->reason = reason;
	return PARSED_PASS;
}

static __always_inline enum parsed odd(struct packet *packet, enum reason reason)
{
	packet->reason = reason;
	return PARSED_ODD;
}

static __always_inline bool is_transport(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

static __always_inline enum parsed parse_arp(struct cursor *cursor, const struct interface *own,
					     struct packet *packet)
{
	struct arp *arp;

	if (!own || (!same_mac(packet->ethernet->h_dest, own->mac) && !is_broadcast(packet->ethernet->h_dest)))
		return pass(packet, REASON_OTHER_HOST);
	arp = take(cursor, sizeof(*arp));
	if (!arp)
		return pass(packet, REASON_RUNT);
	if (arp->hardware_type != bpf_htons(1) || arp->protocol_type != bpf_htons(ETH_P_IP) ||
	    arp->hardware_len != ETH_ALEN || arp->protocol_len != 4 || arp->operation != bpf_htons(1) ||
	    !is_unicast(arp->sender_mac))
		return pass(packet, REASON_NOT_IP);
	packet->arp = arp;
	return PARSED_ARP_REQUEST;
}

static __always_inline enum parsed parse_transport(struct cursor *cursor, __u32 len, struct packet *packet)
{
	enum reason cut = packet->is_fragment ? REASON_TINY_FRAGMENT : REASON_TRUNCATED;

	if (packet->is_fragment && packet->at && packet->at->pkt.fragment.offset != 0) {
		/* A later fragment that starts within the transport header would overwrite it (RFC
		 * 1858, section 4). */
		__u32 least = packet->protocol == IPPROTO_TCP ? sizeof(struct tcphdr) : sizeof(struct udphdr);

		if (packet->at->pkt.fragment.offset * 8 < least)
			return odd(packet, REASON_FRAGMENT_OVERLAP);
		return PARSED_LATER_FRAGMENT;
	}
	if (packet->protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = take(cursor, sizeof(*tcp));
		__u32 header_len;

		if (!tcp || len < sizeof(*tcp))
			return odd(packet, cut);
		header_len = tcp->doff * 4;
		if (header_len < sizeof(*tcp))
			return odd(packet, REASON_BAD_LENGTH);
		if (header_len > len)
			return odd(packet, packet->is_fragment ? REASON_TINY_FRAGMENT : REASON_BAD_LENGTH);
		packet->client_port = tcp->source;
		packet->port = tcp->dest;
		packet->flags = ((__u8 *)tcp)[13];
		packet->numbers = (__u64)bpf_ntohl(tcp->ack_seq) << 32 | bpf_ntohl(tcp->seq);
		packet->has_data = is_below(header_len, len);
	} else {
		struct udphdr *udp = take(cursor, sizeof(*udp));
		__u32 udp_len;

		if (!udp || len < sizeof(*udp))
			return odd(packet, cut);
		udp_len = bpf_ntohs(udp->len);
		/* The length in a first fragment is that of the whole datagram. */
		if (udp_len < sizeof(*udp) || (udp_len > len && !packet->is_fragment))
			return odd(packet, REASON_BAD_LENGTH);
		packet->client_port = udp->source;
		packet->port = udp->dest;
		packet->flags = 0;
	}
	return PARSED_SEGMENT;
}

static __always_inline enum parsed parse_ipv4(context *ctx, struct cursor *cursor, struct packet *packet)
{
	__u64 body_len = left(cursor);
	struct iphdr *ip = take(cursor, sizeof(*ip));
	__u32 total_len;

	if (!ip)
		return pass(packet, REASON_RUNT);
	if (ip->version != 4)
		return pass(packet, REASON_BAD_VERSION);
	if (!is_transport(ip->protocol) && ip->protocol != IPPROTO_ICMP)
		return pass(packet, REASON_NOT_SERVICE);
	packet->dst4 = ip->daddr;
	packet->protocol = ip->protocol;
	packet->src4 = ip->saddr;

	if (ip->ihl != 5)
		return odd(packet, ip->ihl < 5 ? REASON_BAD_LENGTH : REASON_IP_OPTIONS);
	total_len = bpf_ntohs(ip->tot_len);
	if (total_len < sizeof(*ip) || (total_len > body_len && total_len > frame_len(ctx) - packet->l3))
		return odd(packet, REASON_BAD_LENGTH);
	if (packet->ethernet->h_source[0] & 1)
		return odd(packet, REASON_MULTICAST_SOURCE);
	if (is_martian(ip->saddr) || ip->saddr == ip->daddr)
		return odd(packet, REASON_MARTIAN_SOURCE);
	packet->l4 = packet->l3 + sizeof(*ip);
	packet->len = total_len;
	if (ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET)) {
		__u32 word = bpf_ntohs(ip->frag_off);

		packet->is_fragment = true;
		if (!packet->at || !note_fragment(&packet->at->pkt.fragment, bpf_ntohs(ip->id), word & IPV4_FRAGMENT_OFFSET,
				   word & IPV4_MORE_FRAGMENTS, total_len - sizeof(*ip)))
			return odd(packet, REASON_BAD_LENGTH);
	}
	if (packet->protocol == IPPROTO_ICMP)
		return PARSED_ICMP;
	return parse_transport(cursor, total_len - sizeof(*ip), packet);
}

/*
 * Reads the extension headers from `at` to `end`. The caller sets walked->protocol to the type of
 * the first one. Not inlined: few packets have any, and the verifier checks this code only once.
 */
__attribute__((noinline)) int walk(context *ctx, __u32 at, __u32 end, struct walked *walked)
{
	struct extension header = {};
	__u32 len;

	if (!walked || end > 0x1ffff)
		return 0;
	walked->l4 = at;
	#pragma unroll
	for (__u32 i = 0; i <= EXTENSIONS_MAX; i++) {
		if (!begin_extension(walked, i))
			break;
		if (at + sizeof(header) > end || frame_load(ctx, at, &header, sizeof(header))) {
			walked->fault = FAULT_TRUNCATED;
			return 0;
		}
		len = step_over(walked, &header, end - at - sizeof(header));
		if (!len)
			return 0;
		at += len;
		walked->l4 = at;
	}
	return 0;
}

static __always_inline enum reason reason_of(enum fault fault)
{
	switch (fault) {
	case FAULT_TRUNCATED:
		return REASON_TRUNCATED;
	case FAULT_LENGTH:
		return REASON_BAD_LENGTH;
	default:
		return REASON_EXTENSION_HEADERS;
	}
}

/* True for a valid neighbour solicitation (RFC 4861, section 7.1.1). */
static __always_inline bool is_solicitation(const struct ipv6hdr *ip, struct cursor cursor, __u32 len)
{
	struct {
		struct icmp icmp;
		struct ip target;
	} *question = take(&cursor, 24);

	return question && len >= 24 && question->icmp.type == NEIGHBOUR_SOLICITATION && question->icmp.code == 0 &&
	       ip->hop_limit == 255 && (question->target.word[0] & bpf_htonl(0xff000000)) != bpf_htonl(0xff000000);
}

static __always_inline enum parsed parse_ipv6(context *ctx, struct cursor *cursor, struct packet *packet)
{
	__u64 body_len = left(cursor);
	struct ipv6hdr *ip = take(cursor, sizeof(*ip));
	__u32 payload_len, l4;
	bool later;

	if (!ip)
		return pass(packet, REASON_RUNT);
	if (ip->version != 6)
		return pass(packet, REASON_BAD_VERSION);
	packet->v6 = 1;
	if (!packet->at)
		return pass(packet, REASON_NOT_SERVICE);
	packet->at->src = *(struct ip *)&ip->saddr;
	packet->at->dst = *(struct ip *)&ip->daddr;
	payload_len = bpf_ntohs(ip->payload_len);
	packet->len = sizeof(*ip) + payload_len;
	if (packet->len > body_len && packet->len > frame_len(ctx) - packet->l3)
		return odd(packet, REASON_BAD_LENGTH);
	packet->l4 = packet->l3 + sizeof(*ip);
	packet->protocol = ip->nexthdr;
	if (packet->protocol == IPPROTO_ICMPV6 && is_solicitation(ip, *cursor, payload_len))
		return PARSED_SOLICITATION;
	if (is_extension(packet->protocol)) {
		struct walked walked = { .protocol = packet->protocol };

		walk(ctx, packet->l4, packet->l3 + packet->len, &walked);
		if (walked.fault == FAULT_FOREIGN)
			return pass(packet, REASON_NOT_SERVICE);
		if (walked.fault)
			return odd(packet, reason_of(walked.fault));
		l4 = walked.l4;
		/* No sender puts a transport header behind so many extension headers. */
		if (l4 > L4_MAX)
			return odd(packet, REASON_EXTENSION_HEADERS);
		packet->l4 = l4;
		packet->protocol = walked.protocol;
		packet->is_fragment = walked.is_fragment;
		packet->at->pkt.fragment = walked.fragment;
		packet->ethernet = bytes_at(ctx, 0, sizeof(struct ethhdr));
		if (!packet->ethernet)
			return odd(packet, REASON_TRUNCATED);
		*cursor = cursor_at(ctx, at_most(l4, L4_MAX));
	}
	/* The fragment header of a later fragment may name one of these headers, although only the
	 * first fragment contains it (RFC 8200, section 4.5). */
	later = packet->is_fragment && (packet->protocol == IPPROTO_DSTOPTS || packet->protocol == IPPROTO_AH);
	if (!is_transport(packet->protocol) && packet->protocol != IPPROTO_ICMPV6 && !later)
		return pass(packet, REASON_NOT_SERVICE);
	if (packet->ethernet->h_source[0] & 1)
		return odd(packet, REASON_MULTICAST_SOURCE);
	if (is_martian6(&packet->at->src) || same_ip(&packet->at->src, &packet->at->dst))
		return odd(packet, REASON_MARTIAN_SOURCE);
	if (packet->protocol == IPPROTO_ICMPV6)
		return PARSED_ICMP;
	if (later)
		return PARSED_LATER_FRAGMENT;
	if (packet->l4 > packet->l3 + packet->len)
		return odd(packet, REASON_BAD_LENGTH);
	return parse_transport(cursor, packet->l3 + packet->len - packet->l4, packet);
}

static __always_inline enum parsed parse(context *ctx, const struct interface *own, struct packet *packet)
{
	struct cursor cursor = cursor_of(ctx);
	__be16 ethertype;
	__u32 tags = 0;

	packet->ethernet = take(&cursor, sizeof(struct ethhdr));
	if (!packet->ethernet)
		return pass(packet, REASON_RUNT);
	/* The cast makes this one load. The compiler would use two, since the header is packed. */
	ethertype = *(__be16 *)&packet->ethernet->h_proto;
	for (int i = 0; i < TAGS_MAX; i++) {
		struct {
			__be16 tag;
			__be16 ethertype;
		} *tag;

		if (ethertype != bpf_htons(ETH_P_8021Q) && ethertype != bpf_htons(ETH_P_8021AD))
			break;
		tag = take(&cursor, TAG_LEN);
		if (!tag)
			return pass(packet, REASON_RUNT);
		ethertype = tag->ethertype;
		tags += TAG_LEN;
	}
	packet->l3 = ETH_HLEN + tags;
	if (tags == TAGS_MAX * TAG_LEN && frame_tags(ctx))
		return pass(packet, REASON_VLAN);
	switch (ethertype) {
	case bpf_htons(ETH_P_IP):
		/* In promiscuous mode, a frame for another station may be a frame that this
		 * director has sent, which must not be rewritten twice. */
		if (!own || !same_mac(packet->ethernet->h_dest, own->mac))
			return pass(packet, REASON_OTHER_HOST);
		return parse_ipv4(ctx, &cursor, packet);
	case bpf_htons(ETH_P_IPV6): {
		enum parsed parsed;
		bool group;

		if (!own)
			return pass(packet, REASON_OTHER_HOST);
		/* Solicitations are sent to the solicited-node multicast group of the address (RFC
		 * 4291, section 2.7.1). */
		group = !same_mac(packet->ethernet->h_dest, own->mac);
		if (group && (*(__u16 *)packet->ethernet->h_dest != 0x3333 || packet->ethernet->h_dest[2] != 0xff))
			return pass(packet, REASON_OTHER_HOST);
		parsed = parse_ipv6(ctx, &cursor, packet);
		return group && parsed != PARSED_SOLICITATION ? pass(packet, REASON_OTHER_HOST) : parsed;
	}
	case bpf_htons(ETH_P_ARP):
		return parse_arp(&cursor, own, packet);
	case bpf_htons(ETH_P_8021Q):
	case bpf_htons(ETH_P_8021AD):
		return pass(packet, REASON_VLAN);
	default:
		return pass(packet, REASON_NOT_IP);
	}
}

#endif
