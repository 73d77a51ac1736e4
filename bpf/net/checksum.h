/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The Internet checksum (RFC 1071; RFC 1624): core/src/net/checksum.rs. */
#ifndef EVENER_CHECKSUM_H
#define EVENER_CHECKSUM_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "net/cursor.h"

/* Maximum number of bytes that bpf_csum_diff() sums in one call. */
#define SUMMED_MAX 512
/* Number of such calls for the longest IP packet. */
#define SUMS_MAX (0x10000 / SUMMED_MAX)

/* Reduces a sum of 16-bit words to 16 bits: adds the carries in the upper bits to the lower 16. */
static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Updates a checksum after words that it covers have changed (RFC 1624, equation 3). `change` is
 * the sum of the complements of the old words and of the new words. */
static __always_inline __u16 changed(__u16 checksum, __u64 change)
{
	return ~fold((__u16)~checksum + change);
}

struct summing {
	context *ctx;
	__u8 *bytes; /* buffer in a map: 2 * SUMMED_MAX bytes or more */
	__u32 from, end; /* rest of the range, as offsets in the frame */
	__s64 sum; /* negative after an error */
};

/* Adds up to SUMMED_MAX further bytes of the frame to the sum. */
static long add_some(__u32 turn, void *arg)
{
	struct summing *summing = arg;
	__u8 *bytes = summing->bytes;
	__u32 from = summing->from, len = summing->end - from;

	if (len > SUMMED_MAX)
		len = SUMMED_MAX;
	if (!len)
		return 1;
	/* If the length is no multiple of 4, the last word is padded with zeros. */
	*(__u32 *)&bytes[len & ~3 & (2 * SUMMED_MAX - 1)] = 0;
	if (!frame_load_some(summing->ctx, from, bytes, len, SUMMED_MAX)) {
		summing->sum = -1;
		return 1;
	}
	summing->sum = bpf_csum_diff(0, 0, (__be32 *)bytes, (len + 3) & ~3, summing->sum);
	summing->from += len;
	return summing->sum < 0;
}

/* True if the checksum of the TCP segment or other transport data between the offsets `from` and
 * `end` in the frame is correct, or is left to the hardware to complete (CHECKSUM_PARTIAL). A TC
 * program can't tell which, so a checksum `field` that equals `pseudo`, the sum of the
 * pseudo-header alone, counts as left to the hardware. */
static __always_inline bool is_summed(context *ctx, __u32 from, __u32 end, __u64 pseudo, __u16 field, __u8 *bytes)
{
	struct summing summing = { .ctx = ctx, .bytes = bytes, .from = from, .end = end };

	if (MAY_BE_PARTIAL && field == fold(pseudo))
		return true;
	bpf_loop(SUMS_MAX, add_some, &summing, 0);
	return summing.sum >= 0 && summing.from == summing.end && fold(pseudo + (__u32)summing.sum) == 0xffff;
}

#endif
