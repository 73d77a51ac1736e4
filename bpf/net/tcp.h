/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* TCP headers (RFC 9293, sections 3.1 and 3.2) and options (RFC 7323; RFC 2018):
 * core/src/net/tcp.rs. */
#ifndef EVENER_TCP_H
#define EVENER_TCP_H

#include <linux/tcp.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "net/cursor.h"

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_URG 0x20

/* Length of a header without options, and maximum length of the options, in bytes. */
#define TCP_LEN sizeof(struct tcphdr)
#define TCP_OPTIONS_MAX 40

#define OPTION_END 0
#define OPTION_NOTHING 1
#define OPTION_MSS 2
#define OPTION_WINDOW_SCALE 3
#define OPTION_SACK_PERMITTED 4
#define OPTION_TIMESTAMP 8

/* TCP options of a segment, and the state of their parser. The struct must be in a map. The
 * verifier doesn't track values in maps, so it checks the parser's loop once. */
struct tcp_options {
	__u16 mss;
	__u8 window_scale;
	__u8 has_mss, has_window_scale, has_sack, has_timestamp;
	__u8 mss_at; /* offset of the MSS option */
	__u8 at, len; /* offset of the next option, and length of all */
	__be32 timestamp;
	__u32 echo; /* in host byte order */
	__u8 byte[80]; /* TCP_OPTIONS_MAX, enlarged for reads behind a mask */
};

static long read_option(__u32 turn, void *arg)
{
	struct tcp_options *found = *(struct tcp_options **)arg;
	const __u8 *option = &found->byte[found->at & 63];
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
		found->mss_at = found->at;
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

/* Reads `len` bytes of options at offset `at`, up to the first malformed one. False if the frame is
 * shorter. */
static __always_inline bool read_options(context *ctx, __u32 at, __u32 len, struct tcp_options *found)
{
	__builtin_memset(found, 0, __builtin_offsetof(struct tcp_options, byte));
	found->len = len;
	if (!len)
		return true;
	if (!frame_load_some(ctx, at, found->byte, len, TCP_OPTIONS_MAX))
		return false;
	bpf_loop(TCP_OPTIONS_MAX, read_option, &found, 0);
	return true;
}

/* Number of remembered segments of unknown connections: core/src/path/unmatched.rs. */
#define STRAY_PLACES 1024
/* Ticks are 2^20 ns. */
#define STRAY_PATIENCE_TICKS (3000ULL * 1000000 >> 20)
#define STRAY_FORGOTTEN_TICKS (300000ULL * 1000000 >> 20)

/* True if a segment with the same acknowledgment number was received on the same flow at least
 * STRAY_PATIENCE_TICKS ago. */
static __always_inline bool is_retransmission(__u64 places[STRAY_PLACES], __u64 flow, __u32 acknowledgment, __u32 now)
{
	__u64 *place = &places[flow % STRAY_PLACES], was = *place;
	__u32 name = (flow >> 32) ^ acknowledgment, age = now - (__u32)was;

	if (was && was >> 32 == name && age < STRAY_FORGOTTEN_TICKS) {
		if (age < STRAY_PATIENCE_TICKS)
			return false;
		*place = 0;
		return true;
	}
	*place = (__u64)name << 32 | now;
	return false;
}

#endif
