/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Reads TCP segments in plain IP packets. These have no IPv4 options or IPv6 extension headers, and
 * are not fragmented. Current TCP stacks send only such segments. TCP options are allowed. This is
 * a copy of core/src/server/segment.rs.
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

/* Returns the first bytes of a frame: at least `len`, or the whole frame if it is shorter. Some
 * drivers leave most bytes outside the linear part of the buffer; they are pulled into it here. */
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
	__u64 from; /* source MAC address of the frame: mac_bits() */
	__u32 l4; /* offset of the TCP header in the frame, in bytes */
	__u32 l4_end; /* offset of the end of the TCP header, options included */
	__u32 len; /* length of the IP payload by the IP header, in bytes */
	__be16 ip_len; /* length field of the IP header, unchanged */
	__u8 flags;
	bool v6;
};

/* Reads a frame. Returns false if the frame has no TCP segment in a plain IP packet. The frame must
 * contain the fixed fields of the TCP header. TCP options and data may lie beyond the end of
 * `cursor`. */
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

/* Returns the IPv6 address, or :: if it is IPv4-mapped. The maps hold IPv4 addresses in mapped
 * form, but a valid IPv6 packet never has a mapped address. If it matched, a packet could pass as
 * IPv4 although routers and firewalls on its path applied their rules for IPv6. No host has the
 * address ::. */
static __always_inline struct ip unmapped(const struct ip *ipv6)
{
	struct ip address = *ipv6;
	__u64 differs = address.word[0] | address.word[1] | (address.word[2] ^ bpf_htonl(0xffff));

	/* The code has no branch, since the verifier would check both paths for each address. */
	hide(differs);
	differs = -differs >> 63;
	address.word[2] &= -differs;
	address.word[3] &= -differs;
	return address;
}

/* Returns an address of a segment in the form that maps have as a key. */
static __always_inline struct ip known_by(const struct ip *address, bool v6)
{
	return v6 ? unmapped(address) : *address;
}

#endif
