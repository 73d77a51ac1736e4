/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Checks of tunnel packets to this host and their inner packets: RFC 2003, RFC 2473, RFC 4213,
 * draft-ietf-intarea-gue. XDP and TC programs share this code. */
#ifndef EVENER_DECAPSULATE_H
#define EVENER_DECAPSULATE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include "net/checksum.h"
#include "net/cursor.h"
#include "net/ip.h"
#include "net/mark.h"
#include "server/segment.h"
#include "server/maps.h"

/* Maximum length of the optional fields of a GUE header, in words. */
#define GUE_WORDS_MAX 8

/* Power of two above the maximum length of all extension headers, in bytes. */
#define WALKED_MAX (1 << 14)

/* Power of two above the length of all outer headers without the Ethernet header, in bytes. */
#define OUTER_LEN_MAX 128

/* ECN field (RFC 3168, section 5). */
#define ECN_MASK 3
#define ECN_NOT_CAPABLE 0
#define ECN_ECT1 1
#define ECN_CE 3

/* The packet isn't a tunnel packet to this host. */
#define NOT_OURS (-1)

struct outer {
	struct ip from;
	struct ip to;
	__u32 len; /* unread length of the payload, in bytes */
	__u8 protocol;
	__u8 ecn;
	bool fragment;
	bool later_fragment;
	bool malformed;
};

/* The inner packet. */
struct inner {
	struct own_service service;
	__u32 outer_len; /* length of the outer headers without Ethernet's, in bytes */
	__be16 ethertype;
	__u8 passed; /* number of times forwarded; 0 if unknown */
};

static __always_inline bool carries(__u8 protocol)
{
	return protocol == IPPROTO_IPIP || protocol == IPPROTO_IPV6;
}

static __always_inline bool outer_ipv4(struct cursor *cursor, __u32 len, struct outer *outer)
{
	struct iphdr *ip = take(cursor, sizeof(*ip));
	__u32 total_len;
	__u16 fragment;

	if (!ip || ip->version != 4 || (!carries(ip->protocol) && ip->protocol != IPPROTO_UDP))
		return false;
	total_len = bpf_ntohs(ip->tot_len);
	fragment = bpf_ntohs(ip->frag_off);
	outer->protocol = ip->protocol;
	outer->ecn = ip->tos & ECN_MASK;
	outer->fragment = fragment & (IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET);
	outer->later_fragment = fragment & IPV4_FRAGMENT_OFFSET;
	outer->malformed = ip->ihl != 5 || total_len < sizeof(*ip) || total_len > len;
	outer->len = total_len - sizeof(*ip);
	outer->from = mapped(ip->saddr);
	outer->to = mapped(ip->daddr);
	return true;
}

static __always_inline bool outer_ipv6(struct cursor *cursor, __u32 len, struct outer *outer)
{
	struct ipv6hdr *ip = take(cursor, sizeof(*ip));

	if (!ip || ip->version != 6)
		return false;
	outer->protocol = ip->nexthdr;
	if (ip->nexthdr == IPPROTO_FRAGMENT) {
		struct extension *fragment = take(cursor, sizeof(*fragment));

		if (!fragment)
			return false;
		outer->protocol = fragment->next;
		outer->fragment = true;
		outer->later_fragment = fragment->kind || fragment->left & 0xf8;
	}
	if (!carries(outer->protocol) && outer->protocol != IPPROTO_UDP)
		return false;
	outer->ecn = ip->flow_lbl[0] >> 4 & ECN_MASK;
	outer->len = bpf_ntohs(ip->payload_len);
	outer->malformed = outer->len + sizeof(*ip) > len;
	outer->from = unmapped((const void *)&ip->saddr);
	outer->to = unmapped((const void *)&ip->daddr);
	return true;
}

/* Returns the next `len` bytes of the outer packet's payload, or NULL. The frame may be longer than
 * the packet. */
static __always_inline void *take_inside(struct cursor *cursor, struct outer *outer, __u32 len)
{
	if (len > outer->len)
		return 0;
	outer->len -= len;
	return take(cursor, len);
}

/* Reads the addresses of the inner packet. False if it is too short. */
static __always_inline bool inner_ends(struct cursor cursor, struct outer outer, struct mark_message *message)
{
	if (outer.protocol == IPPROTO_IPIP) {
		struct iphdr *ip = take_inside(&cursor, &outer, sizeof(*ip));

		if (!ip)
			return false;
		message->inner_from = mapped(ip->saddr);
		message->inner_to = mapped(ip->daddr);
	} else {
		struct ipv6hdr *ip = take_inside(&cursor, &outer, sizeof(*ip));

		if (!ip)
			return false;
		message->inner_from = *(struct ip *)&ip->saddr;
		message->inner_to = *(struct ip *)&ip->daddr;
	}
	return true;
}

/* Verifies the mark, and stores the number of times that the packet was forwarded. Returns
 * SERVER_DECAPSULATED, or the reason to drop the packet. */
static __always_inline int open_mark(struct cursor *cursor, __u8 last, struct outer *outer, struct inner *inner)
{
	struct mark *mark = take_inside(cursor, outer, sizeof(*mark));
	struct mark_message message;
	__u32 first = 0, *are_on = bpf_map_lookup_elem(&marks, &first);
	struct sip_key *key = bpf_map_lookup_elem(&mark_key, &first);

	if (!mark || !inner_ends(*cursor, *outer, &message))
		return SERVER_MALFORMED;
	inner->passed = PASSED_ONCE + last;
	message.outer_from = outer->from;
	message.outer_to = outer->to;
	message.passed = bpf_htonl(inner->passed);
	if (!are_on || !*are_on || !key || !mark_is_good(key, mark, &message))
		return SERVER_FORGED_MARK;
	return SERVER_DECAPSULATED;
}

/* Reads the UDP and GUE headers. The payload must be an IP packet. Returns SERVER_DECAPSULATED, or
 * the reason to drop the packet. */
static __always_inline int open_gue(struct cursor *cursor, const struct udphdr *udp, struct outer *outer,
				    struct inner *inner)
{
	__u32 words, udp_len = bpf_ntohs(udp->len);
	struct gue *gue;

	if (udp_len > outer->len || udp_len < sizeof(*udp))
		return SERVER_MALFORMED;
	outer->len = udp_len - sizeof(*udp);
	gue = take_inside(cursor, outer, sizeof(*gue));
	if (!gue)
		return SERVER_MALFORMED;
	words = gue->first & 0x1f;
	/* Requires version 0 and no control message. Unknown flags are rejected, since their fields
	 * may change the meaning of the payload. */
	if (gue->first & 0xe0 || gue->flags & ~bpf_htons(GUE_LAST | GUE_MARKED) || words > GUE_WORDS_MAX || !carries(gue->protocol))
		return SERVER_GUE_HEADER;
	outer->protocol = gue->protocol;
	if (gue->flags & bpf_htons(GUE_MARKED) && words == sizeof(struct mark) / 4)
		return open_mark(cursor, bpf_ntohs(gue->flags) & GUE_LAST, outer, inner);
	if (!take_inside(cursor, outer, words * 4))
		return SERVER_MALFORMED;
	/* GUE_LAST is valid only with a mark. */
	return gue->flags ? SERVER_FORGED_MARK : SERVER_DECAPSULATED;
}

/* Returns SERVER_DECAPSULATED if this host serves the packet's service, else the reason. */
static __always_inline int for_service(const struct inner *inner)
{
	struct offer *offer = bpf_map_lookup_elem(&own_services, &inner->service);

	if (!offer)
		return SERVER_NOT_OWN_SERVICE;
	return offer->is_marked && !inner->passed ? SERVER_FORGED_MARK : SERVER_DECAPSULATED;
}

/* Fills in port and protocol of the inner packet's service. A packet without a port is looked up by
 * address alone. */
static __always_inline int name_service(struct cursor *cursor, struct outer *outer, __u8 protocol, bool portless,
					struct inner *inner)
{
	__be16 *ports;

	if (carries(protocol) || protocol == IPPROTO_GRE)
		return SERVER_NESTED;
	if (portless)
		return SERVER_DECAPSULATED;
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return SERVER_NOT_OWN_SERVICE;
	ports = take_inside(cursor, outer, 2 * sizeof(*ports));
	if (!ports)
		return SERVER_MALFORMED;
	inner->service.port = ports[1];
	inner->service.protocol = protocol;
	return SERVER_DECAPSULATED;
}

/* Returns the new ECN field (RFC 6040, section 4.2), or -1 if the packet must be dropped. */
static __always_inline int merged_ecn(__u8 outer, __u8 inner)
{
	if (outer == ECN_CE)
		return inner == ECN_NOT_CAPABLE ? -1 : ECN_CE;
	if (outer == ECN_ECT1 && inner == 2)
		return ECN_ECT1;
	return inner;
}

/* Writes the ECN field and updates the header checksum. */
static __always_inline void set_ecn_ipv4(struct iphdr *ip, __u8 ecn)
{
	__u8 tos = (ip->tos & ~ECN_MASK) | ecn;

	ip->check = changed(ip->check, (__u64)(__u16)~bpf_htons(ip->tos) + bpf_htons(tos));
	ip->tos = tos;
}

static __always_inline int inner_ipv4(struct cursor *cursor, struct outer *outer, struct inner *inner)
{
	struct iphdr *ip = take_inside(cursor, outer, sizeof(*ip));
	__u32 total_len, header_len, word;
	struct fragment fragment;
	int verdict, ecn;
	bool is_fragment;

	if (!ip || ip->version != 4)
		return SERVER_MALFORMED;
	total_len = bpf_ntohs(ip->tot_len);
	header_len = ip->ihl * 4;
	if (header_len < sizeof(*ip) || total_len < header_len || total_len - sizeof(*ip) > outer->len)
		return SERVER_MALFORMED;
	outer->len = total_len - sizeof(*ip);
	if (is_martian(ip->saddr) || ip->saddr == ip->daddr)
		return SERVER_INNER_MARTIAN;
	if (!take_inside(cursor, outer, header_len - sizeof(*ip)))
		return SERVER_MALFORMED;
	inner->service.address = mapped(ip->daddr);
	word = bpf_ntohs(ip->frag_off);
	is_fragment = word & (IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET);
	if (is_fragment && !note_fragment(&fragment, bpf_ntohs(ip->id), word & IPV4_FRAGMENT_OFFSET,
					  word & IPV4_MORE_FRAGMENTS, outer->len))
		return SERVER_MALFORMED;
	verdict = name_service(cursor, outer, ip->protocol, is_fragment || ip->protocol == IPPROTO_ICMP, inner);
	if (verdict == SERVER_DECAPSULATED)
		verdict = for_service(inner);
	if (verdict != SERVER_DECAPSULATED)
		return verdict;
	ecn = merged_ecn(outer->ecn, ip->tos & ECN_MASK);
	if (ecn < 0)
		return SERVER_CONGESTION;
	if (ecn != (ip->tos & ECN_MASK))
		set_ecn_ipv4(ip, ecn);
	inner->ethertype = bpf_htons(ETH_P_IP);
	return SERVER_DECAPSULATED;
}

/* Reads one extension header. Not inlined, so that the verifier checks this code only once, and not
 * for each sequence of headers. */
__attribute__((noinline)) __u32 step_over_bytes(struct walked *walked, __u64 bytes, __u32 behind)
{
	struct extension header;

	__builtin_memcpy(&header, &bytes, sizeof(header));
	return walked ? step_over(walked, &header, behind) : 0;
}

/* Reads the extension headers. False if they are invalid. */
static __always_inline bool walk(struct cursor *cursor, struct outer *outer, struct walked *walked)
{
	void *first = cursor->at;
	__u64 walked_len;

	#pragma unroll
	for (__u32 i = 0; i <= EXTENSIONS_MAX; i++) {
		__u64 *header;
		__u32 len;

		if (!begin_extension(walked, i))
			break;
		header = take_inside(cursor, outer, sizeof(struct extension));
		len = header ? step_over_bytes(walked, *header, outer->len) : 0;
		if (walked->fault)
			return false;
		if (len < sizeof(*header) || len > EXTENSION_LEN_MAX ||
		    !take_inside(cursor, outer, at_most(len - sizeof(*header), EXTENSION_LEN_MAX))) {
			walked->fault = FAULT_TRUNCATED;
			return false;
		}
	}
	if (walked->fault)
		return false;
	/* Hides the length, so that the verifier checks the following code only once. */
	walked_len = (cursor->at - first) & (WALKED_MAX - 1);
	hide(walked_len);
	cursor->at = first + walked_len;
	forget(walked->protocol, walked_len);
	forget(walked->is_fragment, walked_len);
	return true;
}

static __always_inline int inner_ipv6(struct cursor *cursor, struct outer *outer, struct inner *inner)
{
	struct ipv6hdr *ip = take_inside(cursor, outer, sizeof(*ip));
	struct walked walked = {};
	const struct ip *from;
	int verdict, ecn, was;

	if (!ip || ip->version != 6 || bpf_ntohs(ip->payload_len) > outer->len)
		return SERVER_MALFORMED;
	outer->len = bpf_ntohs(ip->payload_len);
	from = (const void *)&ip->saddr;
	/* Packets from link-local addresses must not leave their link. */
	if (is_martian6(from) || is_link_local(from) || same_ip(from, (const void *)&ip->daddr))
		return SERVER_INNER_MARTIAN;
	inner->service.address = unmapped((const void *)&ip->daddr);
	walked.protocol = ip->nexthdr;
	if (is_extension(walked.protocol) && !walk(cursor, outer, &walked))
		return walked.fault == FAULT_FOREIGN ? SERVER_NOT_OWN_SERVICE : SERVER_MALFORMED;
	verdict = name_service(cursor, outer, walked.protocol, walked.is_fragment || walked.protocol == IPPROTO_ICMPV6,
			       inner);
	if (verdict == SERVER_DECAPSULATED)
		verdict = for_service(inner);
	if (verdict != SERVER_DECAPSULATED)
		return verdict;
	was = ip->flow_lbl[0] >> 4 & ECN_MASK;
	ecn = merged_ecn(outer->ecn, was);
	if (ecn < 0)
		return SERVER_CONGESTION;
	if (ecn != was)
		ip->flow_lbl[0] = (ip->flow_lbl[0] & ~(ECN_MASK << 4)) | ecn << 4;
	inner->ethertype = bpf_htons(ETH_P_IPV6);
	return SERVER_DECAPSULATED;
}

/* True if the frame has a source MAC that only this host writes, on decapsulated packets. A frame
 * from the network must not have it. */
static __always_inline bool is_forged(struct cursor cursor)
{
	__u8 *ethernet = take(&cursor, sizeof(struct ethhdr));
	__u32 first = 0, *are_on;
	__u64 source;

	if (!ethernet)
		return false;
	source = mac_bits(ethernet + ETH_ALEN);
	if (source != PASSED && source != PASSED_TWICE)
		return false;
	are_on = bpf_map_lookup_elem(&marks, &first);
	return are_on && *are_on;
}

/*
 * Checks a frame. Returns NOT_OURS, SERVER_DECAPSULATED, or the reason to drop the frame. `len` is
 * the length of the whole frame; `cursor` may end earlier.
 */
static __always_inline int decapsulate(struct cursor cursor, __u32 len, struct inner *inner)
{
	struct ethhdr *ethernet = take(&cursor, sizeof(*ethernet));
	struct udphdr *udp = 0;
	struct outer outer = {};
	bool known;

	if (!ethernet)
		return NOT_OURS;
	len -= sizeof(*ethernet);
	switch (ethernet->h_proto) {
	case bpf_htons(ETH_P_IP):
		known = outer_ipv4(&cursor, len, &outer);
		break;
	case bpf_htons(ETH_P_IPV6):
		known = outer_ipv6(&cursor, len, &outer);
		break;
	default:
		return NOT_OURS;
	}
	if (!known)
		return NOT_OURS;
	if (outer.protocol == IPPROTO_UDP) {
		udp = take(&cursor, sizeof(*udp));
		if (!udp || outer.later_fragment || udp->dest != bpf_htons(GUE_PORT))
			return NOT_OURS;
	}
	if (!bpf_map_lookup_elem(&own_addresses, &outer.to))
		return NOT_OURS;
	if (!bpf_map_lookup_elem(&directors, &outer.from))
		return SERVER_UNLISTED_SOURCE;
	if (outer.fragment)
		return SERVER_OUTER_FRAGMENT;
	if (outer.malformed)
		return SERVER_MALFORMED;
	if (udp) {
		int opened = open_gue(&cursor, udp, &outer, inner);

		if (opened != SERVER_DECAPSULATED)
			return opened;
	}
	/* Hides the length of the outer headers, so that the verifier checks the inner packet's
	 * code only once. */
	inner->outer_len = cursor.at - (void *)(ethernet + 1);
	hide(inner->outer_len);
	cursor.at = (void *)(ethernet + 1) + (inner->outer_len & (OUTER_LEN_MAX - 1));
	return outer.protocol == IPPROTO_IPIP ? inner_ipv4(&cursor, &outer, inner) :
						inner_ipv6(&cursor, &outer, inner);
}

#endif
