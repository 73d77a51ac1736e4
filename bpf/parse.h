/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* From bytes to the little that a decision needs: core/src/parse.rs, check by check in the same order. */
#ifndef EVENER_PARSE_H
#define EVENER_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include "cursor.h"
#include "maps.h"

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define IPV4_FRAGMENT_MASK 0x3fff

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
	PARSED_ARP_REQUEST,
	PARSED_PASS,
	PARSED_ODD,
};

struct packet {
	struct ethhdr *ethernet;
	struct arp *arp;
	__be32 address; /* the destination, also of an odd packet */
	__be32 client;
	__be16 port;
	__be16 client_port;
	__u8 protocol;
	__u8 flags;
	__u8 reason; /* of PARSED_PASS and PARSED_ODD */
};

static __always_inline bool is_unicast(const __u8 mac[ETH_ALEN])
{
	return !(mac[0] & 1) && (mac[0] | mac[1] | mac[2] | mac[3] | mac[4] | mac[5]);
}

static __always_inline bool same_mac(const __u8 a[ETH_ALEN], const __u8 b[ETH_ALEN])
{
	return *(const __u32 *)a == *(const __u32 *)b && *(const __u16 *)(a + 4) == *(const __u16 *)(b + 4);
}

/* In two moves; for arrays of bytes the compiler makes six. */
static __always_inline void copy_mac(__u8 to[ETH_ALEN], const __u8 from[ETH_ALEN])
{
	*(__u32 *)to = *(const __u32 *)from;
	*(__u16 *)(to + 4) = *(const __u16 *)(from + 4);
}

static __always_inline bool is_broadcast(const __u8 mac[ETH_ALEN])
{
	return (mac[0] & mac[1] & mac[2] & mac[3] & mac[4] & mac[5]) == 0xff;
}

/* Sources that no client has (RFC 1812, section 5.3.7). */
static __always_inline bool is_martian(__be32 address)
{
	__u8 first = bpf_ntohl(address) >> 24;

	return first == 0 || first == 127 || first >= 224;
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
	if (packet->protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = take(cursor, sizeof(*tcp));
		__u32 header_len;

		if (!tcp || len < sizeof(*tcp))
			return odd(packet, REASON_TRUNCATED);
		header_len = tcp->doff * 4;
		if (header_len < sizeof(*tcp) || header_len > len)
			return odd(packet, REASON_BAD_LENGTH);
		packet->client_port = tcp->source;
		packet->port = tcp->dest;
		packet->flags = ((__u8 *)tcp)[13];
	} else {
		struct udphdr *udp = take(cursor, sizeof(*udp));
		__u32 udp_len;

		if (!udp || len < sizeof(*udp))
			return odd(packet, REASON_TRUNCATED);
		udp_len = bpf_ntohs(udp->len);
		if (udp_len < sizeof(*udp) || udp_len > len)
			return odd(packet, REASON_BAD_LENGTH);
		packet->client_port = udp->source;
		packet->port = udp->dest;
		packet->flags = 0;
	}
	return PARSED_SEGMENT;
}

static __always_inline enum parsed parse_ipv4(struct cursor *cursor, struct packet *packet)
{
	__u64 body_len = left(cursor);
	struct iphdr *ip = take(cursor, sizeof(*ip));
	__u32 total_len;

	if (!ip)
		return pass(packet, REASON_RUNT);
	if (ip->version != 4)
		return pass(packet, REASON_BAD_VERSION);
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
		return pass(packet, REASON_NOT_SERVICE);
	packet->address = ip->daddr;
	packet->protocol = ip->protocol;
	packet->client = ip->saddr;

	if (ip->ihl != 5)
		return odd(packet, ip->ihl < 5 ? REASON_BAD_LENGTH : REASON_IP_OPTIONS);
	if (ip->frag_off & bpf_htons(IPV4_FRAGMENT_MASK))
		return odd(packet, REASON_FRAGMENT);
	total_len = bpf_ntohs(ip->tot_len);
	if (total_len < sizeof(*ip) || total_len > body_len)
		return odd(packet, REASON_BAD_LENGTH);
	if (packet->ethernet->h_source[0] & 1)
		return odd(packet, REASON_MULTICAST_SOURCE);
	if (is_martian(ip->saddr) || ip->saddr == ip->daddr)
		return odd(packet, REASON_MARTIAN_SOURCE);
	return parse_transport(cursor, total_len - sizeof(*ip), packet);
}

static __always_inline enum parsed parse(struct xdp_md *ctx, const struct interface *own, struct packet *packet)
{
	struct cursor cursor = cursor_of(ctx);

	packet->ethernet = take(&cursor, sizeof(struct ethhdr));
	if (!packet->ethernet)
		return pass(packet, REASON_RUNT);
	/* In one load; the header is packed, so the compiler makes two. */
	switch (*(__be16 *)&packet->ethernet->h_proto) {
	case bpf_htons(ETH_P_IP):
		break;
	case bpf_htons(ETH_P_ARP):
		return parse_arp(&cursor, own, packet);
	case bpf_htons(ETH_P_8021Q):
	case bpf_htons(ETH_P_8021AD):
		return pass(packet, REASON_VLAN);
	default:
		return pass(packet, REASON_NOT_IP);
	}
	/* A frame for another station was not sent to the director; taking it would rewrite what
	 * was already rewritten. */
	if (!own || !same_mac(packet->ethernet->h_dest, own->mac))
		return pass(packet, REASON_OTHER_HOST);
	return parse_ipv4(&cursor, packet);
}

#endif
