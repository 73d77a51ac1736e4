/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Answers that a TCP would give, in the place of the client's packet: core/src/path/rewrite/handshake.rs. */
#ifndef EVENER_HANDSHAKE_H
#define EVENER_HANDSHAKE_H

#include "director/rewrite.h"
#include "net/tcp.h"

/* The window that is offered with a cookie, in bytes: unscaled (RFC 7323, section 2.2). */
#define GREETING_WINDOW 65535
#define TCP_LEN sizeof(struct tcp_header)

static long read_option(__u32 turn, void *arg)
{
	struct scratch *at = *(struct scratch **)arg;
	struct tcp_options *found = &at->offered;
	const __u8 *option = &at->options[found->at & 63];
	__u32 left = found->len - found->at, len;

	if (found->at >= found->len || option[0] == OPTION_END)
		return 1;
	if (option[0] == OPTION_NOTHING) {
		found->at++;
		return 0;
	}
	len = left > 1 ? option[1] : 0;
	if (len < 2 || len > left)
		return 1;
	if (option[0] == OPTION_MSS && len == 4) {
		found->has_mss = true;
		found->mss = option[2] << 8 | option[3];
	} else if (option[0] == OPTION_WINDOW_SCALE && len == 3) {
		found->has_window_scale = true;
		found->window_scale = option[2];
	} else if (option[0] == OPTION_SACK_PERMITTED && len == 2) {
		found->has_sack = true;
	} else if (option[0] == OPTION_TIMESTAMP && len == 10) {
		found->has_timestamp = true;
		found->timestamp = bpf_htonl(option[2] << 24 | option[3] << 16 | option[4] << 8 | option[5]);
		found->echo = option[6] << 24 | option[7] << 16 | option[8] << 8 | option[9];
	}
	found->at += len;
	return 0;
}

/* Where the options of a client's header end, in bytes behind it; the header stands in at->tcp. */
static __always_inline __u32 options_len(const struct scratch *at)
{
	return (bpf_ntohl(at->tcp.rest[0]) >> 28) * 4 - TCP_LEN;
}

/* Reads the options to at->offered; one that is malformed ends the reading. */
static __always_inline bool read_options(context *ctx, struct scratch *at)
{
	__u32 len = options_len(at);

	at->offered = (struct tcp_options){ .len = len };
	if (!len)
		return true;
	hide(len);
	if (len < 1 || len > TCP_OPTIONS_MAX || frame_load(ctx, at->pkt.l4 + TCP_LEN, at->options, len))
		return false;
	bpf_loop(TCP_OPTIONS_MAX, read_option, &at, 0);
	return true;
}

/* What is offered is a subset of what the SYN does, so the answer is no longer. */
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

/* The IP header of an answer, and the sum of what of it the transport's checksum covers. */
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
 * The TCP header, by at->answer, its checksum being as hardware wants it that is to finish it: the sum of the
 * pseudo-header. Returns how that must change if there is no such hardware.
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
	/* Behind the options there are zeros. */
	for (int i = 0; i < sizeof(answer->tcp) / 4; i++)
		sum += answer->tcp[i];
	*(__u16 *)&answer->tcp[4] = fold(pseudo);
	/* Where the checksum is whole, ~(pseudo + sum) comes of ~pseudo by this. */
	return 2 * pseudo + sum;
}

/* Writes at->answer in the place of a packet, and sends it whence that came. */
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
	if (l3 > LINK_LEN_MAX || tcp_len > sizeof(at->answer.tcp) || !load_link(ctx, &at->link, l3))
		return count_and(VERDICT_DROP, REASON_NO_ROOM);
	turn_round(&at->link);
	change.body = put_answer_tcp(at, tcp_len, put_answer_ip(at, tcp_len));
	if (frame_len(ctx) != l3 + ip_len + tcp_len && frame_cut(ctx, l3 + ip_len + tcp_len))
		return count_and(VERDICT_DROP, REASON_NO_ROOM);
	if (at->pkt.v6)
		failed = frame_store(ctx, l3, at->answer.ip, sizeof(struct ipv6hdr));
	else
		failed = frame_store(ctx, l3, at->answer.ip, sizeof(struct iphdr));
	hide(tcp_len);
	if (failed || !store_link(ctx, &at->link, l3) || tcp_len < TCP_LEN || tcp_len > sizeof(at->answer.tcp) ||
	    frame_store(ctx, l3 + ip_len, at->answer.tcp, tcp_len))
		return count_and(VERDICT_DROP, REASON_NO_ROOM);
	frame_fix(ctx, l3 + ip_len + 16, &change, false);
	return count_and(frame_back(ctx), reason);
}

/* Bytes that bpf_csum_diff() sums at a time. */
#define SUMMED_MAX 512
/* Of the longest IP packet, in as many steps. */
#define SUMS_MAX (0x10000 / SUMMED_MAX)

struct summing {
	context *ctx;
	struct scratch *at;
	__u32 from, end;
	__s64 sum;
};

static long add_some(__u32 turn, void *arg)
{
	struct summing *summing = arg;
	struct scratch *at = summing->at;
	__u8 *bytes = at->reading.payload;
	__u32 from = summing->from, len = summing->end - from;

	if (len > SUMMED_MAX)
		len = SUMMED_MAX;
	hide(len);
	if (len < 1 || len > SUMMED_MAX)
		return 1;
	/* Zeros behind an end that is no whole word. */
	*(__u32 *)&bytes[len & ~3 & (READ_MAX - 1)] = 0;
	if (frame_load(summing->ctx, from, bytes, len)) {
		summing->sum = -1;
		return 1;
	}
	summing->sum = bpf_csum_diff(0, 0, (__be32 *)bytes, (len + 3) & ~3, summing->sum);
	summing->from += len;
	return summing->sum < 0;
}

/* Whether a segment's checksum is right, or left to the hardware. Traffic control isn't told which: where the field has the
 * pseudo-header's sum, it is taken for that. */
__attribute__((noinline)) int is_sound(context *ctx, struct scratch *at)
{
	struct summing summing = { .ctx = ctx, .at = at };
	__u32 len;
	__u64 pseudo;

	if (!at)
		return false;
	summing.from = at->pkt.l4;
	summing.end = at->pkt.l3 + at->pkt.len;
	len = summing.end - summing.from;
	pseudo = (__u64)bpf_htonl(len) + bpf_htonl(IPPROTO_TCP);
	for (int i = 0; i < 4; i++)
		pseudo += (__u64)at->src.word[i] + at->dst.word[i];
	if (MAY_BE_PARTIAL && (__u16)at->tcp.rest[1] == fold(pseudo))
		return true;
	bpf_loop(SUMS_MAX, add_some, &summing, 0);
	return summing.sum >= 0 && summing.from == summing.end && fold(pseudo + (__u32)summing.sum) == 0xffff;
}

/* Whether the packet is whole, and nothing stands between the headers: what can be answered in its place. */
static __always_inline bool is_plain(const struct packet_context *pkt)
{
	__u32 ip_len = pkt->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);

	return !pkt->is_fragment && pkt->l4 == pkt->l3 + ip_len;
}

/* Tells the sender that there is no such connection (RFC 9293, section 3.5.2). */
__attribute__((noinline)) int reset(context *ctx, struct scratch *at)
{
	struct tcp_answer *answer;
	struct packet_context *pkt;
	__u32 said;

	if (!at)
		return VERDICT_DROP;
	pkt = &at->pkt;
	answer = &at->answer;
	if (pkt->beside)
		count_reason(pkt->beside);
	if (!is_plain(pkt))
		return count_and(VERDICT_DROP, REASON_COOKIE_BAD);
	*answer = (struct tcp_answer){ .flags = TCP_RST };
	if (pkt->flags & TCP_ACK) {
		answer->sequence = at->tcp.acknowledgment;
	} else {
		/* FIN takes a number of its own; a SYN is never answered so. */
		said = pkt->l3 + pkt->len - (pkt->l4 + TCP_LEN + options_len(at));
		said += !!(pkt->flags & TCP_FIN);
		answer->acknowledgment = bpf_htonl(bpf_ntohl(at->tcp.sequence) + said);
		answer->flags = TCP_RST | TCP_ACK;
	}
	return answer_tcp(ctx, at, REASON_RESET);
}

#endif
