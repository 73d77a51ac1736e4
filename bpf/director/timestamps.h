/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The timestamps of a segment, read where it comes in to a server: core/src/path/parse/tcp.rs, TcpOptions. */
#ifndef EVENER_TIMESTAMPS_H
#define EVENER_TIMESTAMPS_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "net/tcp.h"

/* Of a TCP header (RFC 9293, section 3.2). */
#define OPTIONS_MAX 40
/* RFC 7323, section 3.2. */
#define OPTION_TIMESTAMP_LEN 10

/* The timestamps option (RFC 7323, section 3.2). */
struct timestamps {
	__u32 value;
	__u32 echo;
	__u32 present;
};

/* Finds the timestamps among the options from `at` to `end`, offsets from the beginning of the frame, as the stack does: an
 * option of another length is none, and of two the last one counts. Global, so that it is verified once, and on its own. */
__noinline int find_timestamps(struct __sk_buff *skb, __u32 at, __u32 end, struct timestamps *found)
{
	if (!found)
		return 0;
	for (int i = 0; i < OPTIONS_MAX; i++) {
		__u8 option[2];
		__be32 stamps[2];

		if (at >= end || bpf_skb_load_bytes(skb, at, option, 1) || option[0] == OPTION_END)
			return 0;
		if (option[0] == OPTION_NOTHING) {
			at += 1;
			continue;
		}
		if (at + sizeof(option) > end || bpf_skb_load_bytes(skb, at, option, sizeof(option)) || option[1] < 2)
			return 0;
		if (option[0] == OPTION_TIMESTAMP && option[1] == OPTION_TIMESTAMP_LEN) {
			if (at + OPTION_TIMESTAMP_LEN > end ||
			    bpf_skb_load_bytes(skb, at + sizeof(option), stamps, sizeof(stamps)))
				return 0;
			found->value = bpf_ntohl(stamps[0]);
			found->echo = bpf_ntohl(stamps[1]);
			found->present = 1;
		}
		at += option[1];
	}
	return 0;
}

#endif
