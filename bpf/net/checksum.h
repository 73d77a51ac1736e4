/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Checksums of the Internet (RFC 1071; RFC 1624): core/src/net/checksum.rs. */
#ifndef EVENER_CHECKSUM_H
#define EVENER_CHECKSUM_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "net/cursor.h"

/* Bytes that bpf_csum_diff() sums at a time. */
#define SUMMED_MAX 512
/* Of the longest IP packet, in as many steps. */
#define SUMS_MAX (0x10000 / SUMMED_MAX)

/* The sum of 16-bit words whose carries are above them yet. */
static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* A checksum after what it covers has changed (RFC 1624, equation 3). */
static __always_inline __u16 changed(__u16 checksum, __u64 change)
{
	return ~fold((__u16)~checksum + change);
}

struct summing {
	context *ctx;
	__u8 *bytes; /* room for SUMMED_MAX in a map, and more behind */
	__u32 from, end;
	__s64 sum;
};

static long add_some(__u32 turn, void *arg)
{
	struct summing *summing = arg;
	__u8 *bytes = summing->bytes;
	__u32 from = summing->from, len = summing->end - from;

	if (len > SUMMED_MAX)
		len = SUMMED_MAX;
	if (!len)
		return 1;
	/* Zeros behind an end that is no whole word. */
	*(__u32 *)&bytes[len & ~3 & (2 * SUMMED_MAX - 1)] = 0;
	if (!frame_load_some(summing->ctx, from, bytes, len, SUMMED_MAX)) {
		summing->sum = -1;
		return 1;
	}
	summing->sum = bpf_csum_diff(0, 0, (__be32 *)bytes, (len + 3) & ~3, summing->sum);
	summing->from += len;
	return summing->sum < 0;
}

/* True if the checksum of a transport from `from` to `end` in the frame is right, or left to
 * the hardware. Traffic control doesn't say which: a `field` with the sum of the pseudo-header
 * is taken for the latter. */
static __always_inline bool is_summed(context *ctx, __u32 from, __u32 end, __u64 pseudo, __u16 field, __u8 *bytes)
{
	struct summing summing = { .ctx = ctx, .bytes = bytes, .from = from, .end = end };

	if (MAY_BE_PARTIAL && field == fold(pseudo))
		return true;
	bpf_loop(SUMS_MAX, add_some, &summing, 0);
	return summing.sum >= 0 && summing.from == summing.end && fold(pseudo + (__u32)summing.sum) == 0xffff;
}

#endif
