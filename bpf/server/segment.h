/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * A TCP segment in an IP packet without options, extension headers or fragments: what stacks of
 * today send and nothing else, as far as a server's programs look at it:
 * core/src/server/segment.rs.
 */
#ifndef EVENER_SEGMENT_H
#define EVENER_SEGMENT_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include "net/cursor.h"
#include "net/ip.h"
#include "net/mark.h"
#include "net/tcp.h"
#include "server/maps.h"

/* A frame's first bytes, as many as `len` if it has them. Some drivers leave all but a few in
 * pages that are not looked at here. */
static __always_inline struct cursor beginning(struct __sk_buff *skb, __u32 len)
{
	struct cursor cursor = { (void *)(long)skb->data, (void *)(long)skb->data_end };

	if (cursor.at + len > cursor.end && cursor.end - cursor.at < skb->len) {
		bpf_skb_pull_data(skb, skb->len < len ? skb->len : len);
		cursor.at = (void *)(long)skb->data;
		cursor.end = (void *)(long)skb->data_end;
	}
	return cursor;
}

struct segment {
	struct ip src, dst; /* IPv4 addresses are mapped */
	struct tcphdr *tcp;
	__u64 from; /* the frame's source: mac_bits() */
	__u32 l4; /* offset of the TCP header in the frame, in bytes */
	__u32 l4_end; /* offset of its end */
	__u32 len; /* of the IP packet behind its header, as that says */
	__be16 ip_len; /* as the IP header has it */
	__u8 flags;
	bool v6;
};

/* The header is there as far as its fields go; options and data need not be. */
static __always_inline bool read_segment(struct cursor cursor, struct segment *segment)
{
	struct ethhdr *ethernet = take(&cursor, sizeof(*ethernet));
	struct tcphdr *tcp;

	if (!ethernet)
		return false;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = take(&cursor, sizeof(*ip));

		if (!ip || *(__u8 *)ip != 0x45 || ip->protocol != IPPROTO_TCP ||
		    ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET))
			return false;
		segment->src = mapped(ip->saddr);
		segment->dst = mapped(ip->daddr);
		segment->l4 = ETH_HLEN + sizeof(*ip);
		segment->len = bpf_ntohs(ip->tot_len) - sizeof(*ip);
		segment->ip_len = ip->tot_len;
		segment->v6 = false;
	} else if (ethernet->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = take(&cursor, sizeof(*ip));

		if (!ip || ip->version != 6 || ip->nexthdr != IPPROTO_TCP)
			return false;
		segment->src = *(struct ip *)&ip->saddr;
		segment->dst = *(struct ip *)&ip->daddr;
		segment->l4 = ETH_HLEN + sizeof(*ip);
		segment->len = bpf_ntohs(ip->payload_len);
		segment->ip_len = ip->payload_len;
		segment->v6 = true;
	} else {
		return false;
	}
	tcp = take(&cursor, sizeof(*tcp));
	if (!tcp || tcp->doff < TCP_LEN / 4)
		return false;
	segment->from = mac_bits(ethernet->h_source);
	segment->tcp = tcp;
	segment->l4_end = segment->l4 + tcp->doff * 4;
	segment->flags = ((__u8 *)tcp)[13];
	return true;
}

/* No packet is rightly from or to an IPv4-mapped address: it isn't to be taken for the IPv4
 * address, by whose rules routers on the way have not judged it. Nobody has the address that
 * stands here for it. */
static __always_inline struct ip unmapped(const struct ip *ipv6)
{
	struct ip address = *ipv6;
	__u64 differs = address.word[0] | address.word[1] | (address.word[2] ^ bpf_htonl(0xffff));

	/* Without a branch, which the verifier would follow both ways of for each address. */
	hide(differs);
	differs = -differs >> 63;
	address.word[2] &= -differs;
	address.word[3] &= -differs;
	return address;
}

/* An address of a segment, as it is looked up. */
static __always_inline struct ip known_by(const struct ip *address, bool v6)
{
	return v6 ? unmapped(address) : *address;
}

#endif
