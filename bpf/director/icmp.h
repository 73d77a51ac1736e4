/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* ICMP of both versions: core/src/path/parse/icmp.rs, core/src/path/decide/error.rs,
 * core/src/path/rewrite/local_reply.rs. */
#ifndef EVENER_ICMP_H
#define EVENER_ICMP_H

#include "director/reply.h"

/* Minimum MTUs (RFC 791, section 3.2; RFC 8200, section 5). */
#define IPV4_MTU_MIN 68
#define IPV6_MTU_MIN 1280

/* Drops a malformed packet for a service. Malformed packets for other addresses go to the host. */
static __always_inline int odd_verdict(const struct ip *dst, bool v6, __u32 reason)
{
	if (address_flags(dst, v6) & ADDRESS_SERVICE)
		return with_reason(VERDICT_DROP, reason);
	return with_reason(VERDICT_PASS, REASON_NOT_SERVICE);
}

/* Rewrites an echo request into its reply and sends it back. */
__attribute__((noinline)) int answer_echo(context *ctx, struct scratch *at)
{
	const struct packet_context *pkt;
	__u16 field[2], checksum, ttl = bpf_htons(TTL << 8 | IPPROTO_ICMP);
	struct ip pair[2];
	struct icmp icmp;
	__u32 l3, l4;

	if (!at)
		return VERDICT_DROP;
	pkt = &at->pkt;
	l3 = pkt->l3;
	l4 = pkt->l4;
	if (!load_link(ctx, at) || !load_ends(ctx, l3, pkt->v6, &pair[1], &pair[0]) ||
	    frame_load(ctx, l4, &icmp, sizeof(icmp)))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	field[0] = *(__u16 *)&icmp.type;
	icmp.type = pkt->v6 ? ICMPV6_ECHO_REPLY : ICMP_ECHO_REPLY;
	icmp.checksum = changed(icmp.checksum, (__u64)(__u16)~field[0] + *(__u16 *)&icmp.type);
	turn_round(&at->link);
	if (frame_store(ctx, l4, &icmp, sizeof(icmp)) || !store_link(ctx, at))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	if (pkt->v6) {
		if (frame_store(ctx, l3 + 8, pair, 32) || frame_store(ctx, l3 + 7, &ttl, 1))
			return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	} else {
		__be32 addresses[2] = { pair[0].word[0], pair[1].word[0] };

		if (frame_load(ctx, l3 + 8, field, 4))
			return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
		checksum = changed(field[1], (__u64)(__u16)~field[0] + ttl);
		field[0] = ttl;
		field[1] = checksum;
		if (frame_store(ctx, l3 + 8, field, 4) || frame_store(ctx, l3 + 12, addresses, 8))
			return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	}
	return with_reason(frame_back(ctx), REASON_ECHO_ANSWERED);
}

/* Reads the packet that an ICMP error quotes. Returns 0, or the reason if it is malformed. */
static __always_inline __u32 read_quoted4(context *ctx, __u32 at, __u32 end, struct quoted *quoted)
{
	struct iphdr ip = {};

	if (at + sizeof(ip) > end || frame_load(ctx, at, &ip, sizeof(ip)))
		return REASON_TRUNCATED;
	if (!is_transport(ip.protocol) || ip.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
		return REASON_ICMP_UNKNOWN;
	if (ip.version != 4 || ip.ihl < 5)
		return REASON_ICMP_UNKNOWN;
	quoted->src.word[0] = ip.saddr;
	quoted->dst.word[0] = ip.daddr;
	quoted->protocol = ip.protocol;
	quoted->l4 = at + ip.ihl * 4;
	return 0;
}

static __always_inline __u32 read_quoted6(context *ctx, __u32 at, __u32 end, struct quoted *quoted)
{
	struct ipv6hdr ip = {};
	struct walked walked = {};

	if (at + sizeof(ip) > end || frame_load(ctx, at, &ip, sizeof(ip)))
		return REASON_TRUNCATED;
	walked.protocol = ip.nexthdr;
	walk(ctx, at + sizeof(ip), end, &walked);
	if (walked.fault || !is_transport(walked.protocol))
		return REASON_ICMP_UNKNOWN;
	if (walked.is_fragment && walked.fragment.offset != 0)
		return REASON_ICMP_UNKNOWN;
	if (ip.version != 6)
		return REASON_ICMP_UNKNOWN;
	quoted->src = *(struct ip *)&ip.saddr;
	quoted->dst = *(struct ip *)&ip.daddr;
	quoted->protocol = walked.protocol;
	quoted->l4 = walked.l4;
	return 0;
}

__attribute__((noinline)) int read_quoted(context *ctx, __u32 at, __u32 end, struct quoted *quoted)
{
	__be16 port[4] = {};
	__u32 reason;

	if (!quoted || at > 0x3fff || end > 0x1ffff)
		return REASON_TRUNCATED;
	quoted->l3 = at;
	reason = quoted->v6 ? read_quoted6(ctx, at, end, quoted) : read_quoted4(ctx, at, end, quoted);
	if (reason)
		return reason;
	if (quoted->l4 + sizeof(port) > end || frame_load(ctx, quoted->l4, port, sizeof(port)))
		return REASON_TRUNCATED;
	quoted->src_port = port[0];
	quoted->dst_port = port[1];
	return 0;
}

/* Overwrites four bytes of the frame. Adds the change of their sum to `change`. */
static __always_inline bool put_word_at(context *ctx, __u32 at, __be32 new, __u64 *change)
{
	__be32 word;

	if (frame_load(ctx, at, &word, 4))
		return false;
	put_word(&word, new, change);
	return !frame_store(ctx, at, &word, 4);
}

static __always_inline bool put_ip_at(context *ctx, __u32 at, bool v6, const struct ip *new, __u64 *change)
{
	if (!put_word_at(ctx, at, new->word[0], change))
		return false;
	return !v6 || (put_word_at(ctx, at + 4, new->word[1], change) &&
		       put_word_at(ctx, at + 8, new->word[2], change) &&
		       put_word_at(ctx, at + 12, new->word[3], change));
}

/* Overwrites the addresses of the packet at `l3`, and updates the header checksum of IPv4. */
static __always_inline bool put_addresses_at(context *ctx, __u32 l3, bool v6, const struct ends *ends,
					     __u64 *change, __u64 *header)
{
	__u16 checksum, old;

	if (ends->has_src && !put_ip_at(ctx, l3 + (v6 ? 8 : 12), v6, &ends->src, change))
		return false;
	if (ends->has_dst && !put_ip_at(ctx, l3 + (v6 ? 24 : 16), v6, &ends->dst, change))
		return false;
	if (v6)
		return true;
	if (frame_load(ctx, l3 + 10, &old, 2))
		return false;
	checksum = changed(old, *change);
	*header = (__u64)(__u16)~old + checksum;
	return !frame_store(ctx, l3 + 10, &checksum, 2);
}

/* Translates the addresses of an ICMP error and the ends of the quoted packet (RFC 5508, section
 * 4.2). */
__attribute__((noinline)) int translate_error(context *ctx, struct scratch *at)
{
	__u64 outer = 0, header = 0, change = 0;
	__u16 port[2], checksum;
	const struct ends *ends;
	__u32 l4;

	if (!at)
		return false;
	if (!put_addresses_at(ctx, at->pkt.l3, at->pkt.v6, &at->ends, &outer, &header))
		return false;
	header = 0;
	ends = &at->quoted_ends;
	if (!put_addresses_at(ctx, at->quoted.l3, at->pkt.v6, ends, &change, &header))
		return false;
	change += header;
	if (frame_load(ctx, at->quoted.l4, port, sizeof(port)))
		return false;
	if (ends->src_port) {
		change += (__u16)~port[0] + ends->src_port;
		port[0] = ends->src_port;
	}
	if (ends->dst_port) {
		change += (__u16)~port[1] + ends->dst_port;
		port[1] = ends->dst_port;
	}
	/* ICMPv6 has a pseudo-header (RFC 4443, section 2.3). */
	if (at->pkt.v6)
		change += outer;
	l4 = at->pkt.l4;
	if (frame_store(ctx, at->quoted.l4, port, sizeof(port)) || frame_load(ctx, l4 + 2, &checksum, 2))
		return false;
	checksum = changed(checksum, change);
	return !frame_store(ctx, l4 + 2, &checksum, 2);
}

static __always_inline bool decrement_ttl(context *ctx, const struct packet_context *pkt)
{
	__u64 l3 = link_len(pkt);

	if (pkt->v6) {
		struct ipv6hdr *ip = bytes_at(ctx, l3, sizeof(*ip));

		if (!ip)
			return false;
		ip->hop_limit--;
	} else {
		struct iphdr *ip = bytes_at(ctx, l3, sizeof(*ip));

		if (!ip)
			return false;
		decrement_ttl4(ip);
	}
	return true;
}

/* Sends an ICMP error about a server's packet to that server. */
__attribute__((noinline)) int error_to_server(context *ctx, struct scratch *at)
{
	struct found found = {}, port = {};
	struct packet_context *pkt;
	struct quoted *quoted;
	__u32 now = ticks_now();
	struct server *server;
	struct key6 *key;
	struct vip *vip;
	__u8 also_counted = 0;
	int verdict;

	if (!at)
		return VERDICT_DROP;
	pkt = &at->pkt;
	quoted = &at->quoted;
	key = &at->key6;
	if (pkt->v6)
		vip = find_vip6(&quoted->src, quoted->src_port, quoted->protocol);
	else
		vip = find_vip(vip_bits(quoted->src.word[0], quoted->src_port, quoted->protocol));
	if (!vip)
		return with_reason(VERDICT_DROP, REASON_ICMP_UNKNOWN);
	*key = session_key6(&quoted->dst, pkt->v6, quoted->dst_port, vip->id);
	pkt->hash = session_hash(key, pkt->v6);
	if (vip->own != NO_SERVER)
		pkt->arrival = arrival_from(pkt->source);
	if (find_session(key, pkt->v6, pkt->hash, now, &found) && session_applies(pkt->arrival, vip, found.value)) {
		pkt->server = value_server(found.value);
	} else if (vip->flags & VIP_HANDOFF) {
		/* Only the host with the session knows the server of a connection. If another host
		 * forwarded the error, that host has the session, and this host is the server. */
		if (pkt->arrival == ARRIVED_DIRECT)
			return with_reason(VERDICT_DROP, REASON_ICMP_UNKNOWN);
		pkt->server = vip->own;
	} else {
		/* Routers hash an error by its own source, so another director or host may have the
		 * session. The error goes where the flow's packets go. */
		int chosen = select_without_session(vip->service, vip->flags, vip_ring_hash(vip, key, pkt->v6), vip->own,
				     pkt->arrival);

		pkt->server = chosen & 0xffff;
		also_counted = chosen >> 16;
	}
	server = present_server(pkt->server);
	if (!server)
		return with_reason(VERDICT_DROP, REASON_ICMP_UNKNOWN);
	if (!(server->flags & SERVER_NAT)) {
		pkt->also_counted = also_counted;
		pkt->reason = REASON_ICMP_FORWARDED;
		return deliver(ctx, at, server);
	}
	at->quoted_ends = (struct ends){ .has_src = true, .src = server->to, .src_port = server->port };
	if (server->flags & SERVER_SOURCE_NAT) {
		/* An error from a link-local address must come from the client itself. */
		if (!to_port_key(ctx, pkt, server, key))
			return with_reason(VERDICT_DROP, REASON_ICMP_UNKNOWN);
		pkt->port = find_port(pkt->server, key, pkt->hash, now, &port);
		if (!pkt->port)
			return with_reason(VERDICT_DROP, REASON_ICMP_UNKNOWN);
		at->quoted_ends.has_dst = true;
		at->quoted_ends.dst = server->own;
		at->quoted_ends.dst_port = bpf_htons(pkt->port);
	}
	if (!fits(ctx, at, server->mtu, &verdict))
		return verdict;
	at->ends = (struct ends){ .has_dst = true, .dst = server->to };
	/* With source NAT the server knows only the director's address, so the director becomes the
	 * error's sender. */
	if (server->flags & SERVER_SOURCE_NAT) {
		at->ends.has_src = true;
		at->ends.src = server->own;
	}
	if (!translate_error(ctx, at) || !decrement_ttl(ctx, pkt) ||
	    !relink(ctx, pkt->l3, server->ifindex, pkt->v6, server->src, server->dst))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	return with_reason(frame_send(ctx, server->ifindex), REASON_ICMP_FORWARDED);
}

/* Sends an ICMP error about a client's packet to that client. Its sender is the server or a router
 * on the path to the server. */
__attribute__((noinline)) int error_to_client(context *ctx, struct scratch *at)
{
	struct packet_context *pkt;
	struct quoted *quoted;
	struct reply *reply;
	struct hop *hop;

	if (!at)
		return VERDICT_DROP;
	pkt = &at->pkt;
	quoted = &at->quoted;
	reply = &at->reply;
	hop = &at->hop;
	at->back.from.address = quoted->dst;
	at->back.from.port = quoted->dst_port;
	at->back.from.protocol = quoted->protocol;
	at->back.from.v6 = pkt->v6;
	at->back.to = quoted->src;
	at->back.to_port = quoted->src_port;
	at->back.now = ticks_now();
	if (!find_reply_session(at, FOLLOW_NOT))
		return with_reason(VERDICT_PASS, REASON_NOT_SERVICE);
	/* Hides the servers' network: the service's address becomes the sender (RFC 5508, section
	 * 4.2). */
	at->ends = (struct ends){ .has_src = true, .src = reply->service, .has_dst = true, .dst = reply->client };
	at->quoted_ends = (struct ends){ .has_dst = true, .dst = reply->service, .dst_port = reply->service_port };
	if (reply->port) {
		at->quoted_ends.has_src = true;
		at->quoted_ends.src = reply->client;
		at->quoted_ends.src_port = reply->client_port;
	}
	if (!find_hop(ctx, at, &reply->service, pkt->len))
		return with_reason(VERDICT_DROP, REASON_NO_ROUTE);
	if (load_ttl(ctx, pkt->l3, pkt->v6) <= 1)
		return with_reason(VERDICT_DROP, REASON_TTL_EXPIRED);
	if (hop->mtu) {
		at->mtu = hop->mtu;
		at->from = reply->own;
		return STEP_TOO_BIG;
	}
	if (!translate_error(ctx, at))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	if (!hop->ifindex)
		return send_by_host(ctx, at);
	if (!decrement_ttl(ctx, pkt) ||
	    !relink(ctx, pkt->l3, hop->lan, pkt->v6, hop->src, hop->dst))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	return with_reason(frame_send(ctx, hop->ifindex), REASON_ICMP_FORWARDED);
}

static __always_inline bool is_error(__u8 type, bool v6)
{
	if (v6)
		return type >= 1 && type <= ICMPV6_LAST_ERROR;
	return type == ICMP_UNREACHABLE || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETER_PROBLEM;
}

/* Decides an ICMP message to this host's MAC address. */
__attribute__((noinline)) int decide_icmp(context *ctx, struct scratch *at)
{
	struct packet_context *pkt;
	struct icmp icmp = {};
	__u32 end, reason;
	bool v6, service;

	if (!at)
		return VERDICT_DROP;
	pkt = &at->pkt;
	v6 = pkt->v6;
	end = pkt->l3 + pkt->len;
	if (!load_ends(ctx, pkt->l3, v6, &at->src, &at->dst))
		return with_reason(VERDICT_PASS, REASON_NOT_SERVICE);
	if (pkt->is_fragment)
		return odd_verdict(&at->dst, v6, REASON_FRAGMENT);
	if (pkt->l4 + sizeof(icmp) > end || frame_load(ctx, pkt->l4, &icmp, sizeof(icmp)))
		return odd_verdict(&at->dst, v6, REASON_TRUNCATED);
	service = address_flags(&at->dst, v6) & ADDRESS_SERVICE;
	if (icmp.type == (v6 ? ICMPV6_ECHO : ICMP_ECHO) && icmp.code == 0)
		return service ? answer_echo(ctx, at) : with_reason(VERDICT_PASS, REASON_NOT_SERVICE);
	if (!is_error(icmp.type, v6))
		return with_reason(VERDICT_PASS, REASON_NOT_SERVICE);
	if (v6 && icmp.type == ICMPV6_TOO_BIG && bpf_ntohl(icmp.rest) < IPV6_MTU_MIN)
		return odd_verdict(&at->dst, v6, REASON_FORGED_MTU);
	if (!v6 && icmp.type == ICMP_UNREACHABLE && icmp.code == ICMP_FRAGMENTATION_NEEDED) {
		/* Old routers send 0 (RFC 1191, section 5). */
		__u32 mtu = bpf_ntohl(icmp.rest) & 0xffff;

		if (mtu != 0 && mtu < IPV4_MTU_MIN)
			return odd_verdict(&at->dst, v6, REASON_FORGED_MTU);
	}
	at->quoted.v6 = v6;
	at->quoted.src = (struct ip){};
	at->quoted.dst = (struct ip){};
	reason = read_quoted(ctx, pkt->l4 + sizeof(icmp), end, &at->quoted);
	if (reason)
		return odd_verdict(&at->dst, v6, reason);
	if (!service)
		return answering ? STEP_ERROR_TO_CLIENT : with_reason(VERDICT_PASS, REASON_NOT_SERVICE);
	if (!same_ip(&at->quoted.src, &at->dst))
		return with_reason(VERDICT_DROP, REASON_ICMP_UNKNOWN);
	return STEP_ERROR_TO_SERVER;
}

/* Answers a neighbour solicitation for an address that the director announces (RFC 4861, section
 * 7.2.4). */
__attribute__((noinline)) int answer_solicitation(context *ctx, struct scratch *at)
{
	struct interface *own = find_interface(frame_ingress(ctx));
	struct advertisement *answer;
	__u32 len = frame_len(ctx), l3;
	__u64 sum = 0;
	bool probe;

	if (!at)
		return VERDICT_DROP;
	answer = &at->advertisement;
	l3 = at->pkt.l3;
	if (!load_link(ctx, at) ||
	    frame_load(ctx, l3, &at->question, sizeof(at->question)))
		return with_reason(VERDICT_PASS, REASON_NOT_SERVICE);
	answer->target = at->question.target;
	answer->ip.from = answer->target;
	answer->ip.to = at->question.ip.from;
	if (!own || !(address_flags(&answer->target, true) & ADDRESS_ANNOUNCED) || !lease_holds(ticks_now()) ||
	    same_ip(&answer->ip.to, &answer->target))
		return with_reason(VERDICT_PASS, REASON_NOT_SERVICE);
	probe = !(answer->ip.to.word[0] | answer->ip.to.word[1] | answer->ip.to.word[2] | answer->ip.to.word[3]);
	/* Duplicate address detection has no source address, so the answer goes to all nodes (RFC
	 * 4861, section 7.2.4). */
	if (probe)
		answer->ip.to = (struct ip){ { bpf_htonl(0xff020000), 0, 0, bpf_htonl(1) } };
	answer->ip.word = bpf_htonl(6 << 28);
	answer->ip.payload_len = bpf_htons(32);
	answer->ip.next = IPPROTO_ICMPV6;
	answer->ip.hop_limit = 255;
	answer->icmp = (struct icmp){ .type = NEIGHBOUR_ADVERTISEMENT, .rest = bpf_htonl(probe ? 1u << 29 : 3u << 29) };
	answer->option[0] = 2;
	answer->option[1] = 1;
	for (int i = 0; i < ETH_ALEN / 2; i++)
		answer->mac[i] = ((__u16 *)own->mac)[i];
	sum = (__u64)bpf_htonl(32) + bpf_htonl(IPPROTO_ICMPV6);
	for (int i = 2; i < sizeof(*answer) / 4; i++)
		sum += ((__u32 *)answer)[i];
	answer->icmp.checksum = ~fold(sum);

	if (len < l3 + sizeof(*answer) ? frame_grow(ctx, l3 + sizeof(*answer) - len) :
					 frame_cut(ctx, l3 + sizeof(*answer)))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	turn_round(&at->link);
	if (probe) {
		at->link.half[0] = bpf_htons(0x3333);
		at->link.half[1] = 0;
		at->link.half[2] = bpf_htons(1);
	}
	for (int i = 0; i < ETH_ALEN / 2; i++)
		at->link.half[ETH_ALEN / 2 + i] = answer->mac[i];
	if (!store_link(ctx, at) || frame_store(ctx, l3, answer, sizeof(*answer)))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	return with_reason(frame_back(ctx), REASON_NEIGHBOUR_ANSWERED);
}

#endif
