/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* TCP segments that the director itself sends to clients, written over the client's packet:
 * core/src/path/rewrite/handshake.rs. */
#ifndef EVENER_HANDSHAKE_H
#define EVENER_HANDSHAKE_H

#include "director/rewrite.h"
#include "net/tcp.h"

/* Receive window of a SYN-ACK with a cookie, in bytes. It is never scaled (RFC 7323, section
 * 2.2). */
#define GREETING_WINDOW 65535

/* Length of the TCP options, in bytes. at->tcp has the header. */
static __always_inline __u32 options_len(const struct scratch *at)
{
	return (bpf_ntohl(at->tcp.rest[0]) >> 28) * 4 - TCP_LEN;
}

/* Reads the TCP options into at->offered. False if they are malformed. */
static __always_inline bool read_offered(context *ctx, struct scratch *at)
{
	return read_options(ctx, at->pkt.l4 + TCP_LEN, options_len(at), &at->offered);
}

/* Writes the options of a SYN-ACK. They are a subset of the SYN's options, so the answer isn't
 * longer than the SYN. */
static __always_inline void put_options(struct scratch *at, __u16 mss, __u32 clock, bool scaling)
{
	const struct tcp_options *offered = &at->offered;
	struct tcp_answer *answer = &at->answer;
	__be32 *option = &answer->tcp[TCP_LEN / 4];

	if (offered->has_mss)
		*option++ = bpf_htonl(OPTION_MSS << 24 | 4 << 16 | mss);
	if (offered->has_timestamp) {
		option[0] = bpf_htonl((scaling ? OPTION_SACK_PERMITTED << 8 | 2 : 0x0101) << 16 |
				      OPTION_TIMESTAMP << 8 | 10);
		option[1] = bpf_htonl(clock);
		option[2] = offered->timestamp;
		option += 3;
	} else if (scaling) {
		*option++ = bpf_htonl(0x0101 << 16 | OPTION_SACK_PERMITTED << 8 | 2);
	}
	if (scaling)
		*option++ = bpf_htonl(OPTION_NOTHING << 24 | OPTION_WINDOW_SCALE << 16 | 3 << 8 | COOKIE_RCV_WSCALE);
	answer->options_len = (void *)option - (void *)&answer->tcp[TCP_LEN / 4];
}

/* Writes the IP header of an answer. Returns the sum of the pseudo-header. */
static __always_inline __u64 put_answer_ip(struct scratch *at, __u32 tcp_len)
{
	__u64 pseudo = (__u64)bpf_htonl(tcp_len) + bpf_htonl(IPPROTO_TCP), sum = 0;
	__be32 *ip = at->answer.ip;

	for (int i = 0; i < 4; i++)
		pseudo += (__u64)at->src.word[i] + at->dst.word[i];
	if (at->pkt.v6) {
		ip[0] = bpf_htonl(6 << 28);
		ip[1] = bpf_htonl(tcp_len << 16 | IPPROTO_TCP << 8 | TTL);
		for (int i = 0; i < 4; i++) {
			ip[2 + i] = at->dst.word[i];
			ip[6 + i] = at->src.word[i];
		}
		return pseudo;
	}
	ip[0] = bpf_htonl(0x45000000 | (sizeof(struct iphdr) + tcp_len));
	ip[1] = bpf_htonl(IPV4_DONT_FRAGMENT);
	ip[2] = bpf_htonl(TTL << 24 | IPPROTO_TCP << 16);
	ip[3] = at->dst.word[0];
	ip[4] = at->src.word[0];
	for (int i = 0; i < 5; i++)
		sum += ip[i];
	((__u16 *)ip)[5] = ~fold(sum);
	return pseudo;
}

/*
 * Writes the TCP header from at->answer, with a partial checksum (the sum of the pseudo-header).
 * Returns the change that makes it a full checksum.
 */
static __always_inline __u64 put_answer_tcp(struct scratch *at, __u32 tcp_len, __u64 pseudo)
{
	struct tcp_answer *answer = &at->answer;
	__u64 sum = 0;

	answer->tcp[0] = at->tcp.ports << 16 | at->tcp.ports >> 16;
	answer->tcp[1] = answer->sequence;
	answer->tcp[2] = answer->acknowledgment;
	answer->tcp[3] = bpf_htonl(tcp_len / 4 << 28 | answer->flags << 16 | answer->window);
	answer->tcp[4] = 0;
	/* The bytes after the options are zero. */
	for (int i = 0; i < sizeof(answer->tcp) / 4; i++)
		sum += answer->tcp[i];
	*(__u16 *)&answer->tcp[4] = fold(pseudo);
	/* Adding this result to the field changes ~pseudo into ~(pseudo + sum), the full
	 * checksum. */
	return 2 * pseudo + sum;
}

/* Overwrites a packet with at->answer and sends it back to the packet's sender. */
__attribute__((noinline)) int answer_tcp(context *ctx, struct scratch *at, __u32 reason)
{
	__u32 l3, ip_len, tcp_len;
	struct change change = {};
	int failed;

	if (!at)
		return VERDICT_DROP;
	l3 = at->pkt.l3;
	ip_len = at->pkt.v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	tcp_len = TCP_LEN + at->answer.options_len;
	if (tcp_len > sizeof(at->answer.tcp) || !load_link(ctx, at))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	turn_round(&at->link);
	change.body = put_answer_tcp(at, tcp_len, put_answer_ip(at, tcp_len));
	if (frame_len(ctx) != l3 + ip_len + tcp_len && frame_cut(ctx, l3 + ip_len + tcp_len))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	if (at->pkt.v6)
		failed = frame_store(ctx, l3, at->answer.ip, sizeof(struct ipv6hdr));
	else
		failed = frame_store(ctx, l3, at->answer.ip, sizeof(struct iphdr));
	if (failed || !store_link(ctx, at) ||
	    frame_store(ctx, l3 + ip_len, at->answer.tcp, clamp(tcp_len, TCP_LEN, sizeof(at->answer.tcp))))
		return with_reason(VERDICT_DROP, REASON_NO_HEADROOM);
	frame_fix(ctx, l3 + ip_len + 16, &change, false);
	return with_reason(frame_back(ctx), reason);
}

/* True if a segment's checksum is valid, or partial (for hardware to complete). */
__attribute__((noinline)) int is_sound(context *ctx, struct scratch *at)
{
	__u32 from, end;
	__u64 pseudo;

	if (!at)
		return false;
	from = at->pkt.l4;
	end = at->pkt.l3 + at->pkt.len;
	pseudo = (__u64)bpf_htonl(end - from) + bpf_htonl(IPPROTO_TCP);
	for (int i = 0; i < 4; i++)
		pseudo += (__u64)at->src.word[i] + at->dst.word[i];
	return is_summed(ctx, from, end, pseudo, at->tcp.rest[1], at->reading.payload);
}

/* True if the packet is no fragment and has no IP options or extension headers, so that an answer
 * can overwrite it. */
static __always_inline bool is_plain(const struct packet_context *pkt)
{
	__u32 ip_len = pkt->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);

	return !pkt->is_fragment && pkt->l4 == pkt->l3 + ip_len;
}

/* Decides a segment of an unknown connection. The segment may have overtaken the connection's first
 * segment, so it is dropped. If the client still retransmits it after STRAY_PATIENCE_TICKS, the
 * answer is a reset. */
static __always_inline int unmatched_segment(const struct packet_context *pkt, __u32 reason)
{
	if (pkt->flags & TCP_RST || !is_plain(pkt) ||
	    !is_retransmission(unmatched, pkt->hash, pkt->numbers >> 32, ticks_now()))
		return with_reason(VERDICT_DROP, reason);
	return STEP_RESET;
}

/* Answers a client's keep-alive probe (RFC 9293, section 3.10.7.4). */
__attribute__((noinline)) int acknowledge(context *ctx, struct scratch *at)
{
	struct tcp_answer *answer;
	__u8 terms;

	if (!at)
		return VERDICT_DROP;
	answer = &at->answer;
	if (!is_plain(&at->pkt))
		return with_reason(VERDICT_DROP, REASON_COOKIE_BAD);
	terms = bpf_ntohl(at->tcp.acknowledgment) - 1;
	*answer = (struct tcp_answer){
		.sequence = at->tcp.acknowledgment,
		.acknowledgment = bpf_htonl(bpf_ntohl(at->tcp.sequence) + 1),
		.flags = TCP_ACK,
		.window = GREETING_WINDOW >> (cookie_scale(terms) == COOKIE_NO_SCALE ? 0 : COOKIE_RCV_WSCALE),
	};
	if (at->offered.has_timestamp) {
		answer->tcp[TCP_LEN / 4] = bpf_htonl(0x0101 << 16 | OPTION_TIMESTAMP << 8 | 10);
		answer->tcp[TCP_LEN / 4 + 1] = bpf_htonl(at->offered.echo);
		answer->tcp[TCP_LEN / 4 + 2] = at->offered.timestamp;
		answer->options_len = 12;
	}
	return answer_tcp(ctx, at, REASON_KEEPALIVE_ACKED);
}

/* Answers a segment of an unknown connection with a reset (RFC 9293, section 3.5.2). */
__attribute__((noinline)) int reset(context *ctx, struct scratch *at)
{
	struct tcp_answer *answer;
	struct packet_context *pkt;
	__u32 said;

	if (!at)
		return VERDICT_DROP;
	pkt = &at->pkt;
	answer = &at->answer;
	if (!is_plain(pkt))
		return with_reason(VERDICT_DROP, REASON_COOKIE_BAD);
	*answer = (struct tcp_answer){ .flags = TCP_RST };
	if (pkt->flags & TCP_ACK) {
		answer->sequence = at->tcp.acknowledgment;
	} else {
		/* A FIN counts as one byte. SYNs are never reset. */
		said = pkt->l3 + pkt->len - (pkt->l4 + TCP_LEN + options_len(at));
		said += !!(pkt->flags & TCP_FIN);
		answer->acknowledgment = bpf_htonl(bpf_ntohl(at->tcp.sequence) + said);
		answer->flags = TCP_RST | TCP_ACK;
	}
	return answer_tcp(ctx, at, REASON_RESET);
}

#endif
