/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What a frame's source tells the program behind: of what came out of a tunnel that it was passed on, and of what goes
 * up the host's stack that it is to be read there. core/src/path/arrival.rs. What comes by a wire has none of them: decapsulate.h.
 */
#ifndef EVENER_FORWARDED_H
#define EVENER_FORWARDED_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define MAC_WORD(a, b, c, d, e, f) \
	((__u64)(f) << 56 | (__u64)(e) << 48 | (__u64)(d) << 40 | (__u64)(c) << 32 | (__u64)(b) << 24 | (a) << 16 | 1)
#else
#define MAC_WORD(a, b, c, d, e, f) \
	((__u64)(a) << 56 | (__u64)(b) << 48 | (__u64)(c) << 40 | (__u64)(d) << 32 | (__u64)(e) << 24 | (f) << 16 | 1)
#endif

/* The sources of frames that came out of a tunnel from another host, as words; never on a wire. */
#define PASSED MAC_WORD(2, 'e', 'v', 'n', 'r', 1)
#define PASSED_TWICE MAC_WORD(2, 'e', 'v', 'n', 'r', 2)
/* That of frames for who reads what isn't decided here. */
#define PUNTED MAC_WORD(2, 'e', 'v', 'n', 'r', 3)

static __always_inline void mark_source(__u8 source[6], __u8 mark)
{
	source[0] = 2;
	source[1] = 'e';
	source[2] = 'v';
	source[3] = 'n';
	source[4] = 'r';
	source[5] = mark;
}

static __always_inline void mark_passed(__u8 source[6], bool last)
{
	mark_source(source, last ? 2 : 1);
}

static __always_inline void mark_asked(__u8 source[6])
{
	mark_source(source, 3);
}

/* A MAC address as a word that is never 0; the two bytes behind it are read as well. */
static __always_inline __u64 mac_bits(const __u8 mac[6])
{
	__u64 word = *(const __u64 *)mac;

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return word << 16 | 1;
#else
	return (word & ~0xffffULL) | 1;
#endif
}

#endif
