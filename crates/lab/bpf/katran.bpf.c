// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Katran's balancer in the same wrapper as the director's programs. This file contains no code of
 * Katran. `evener-lab bench packets --katran` compiles it with the user's own copy of Katran's
 * source (`crates/lab/src/benches/packets/katran.rs`). */
#include "katran/lib/linux_includes/bpf.h"

/* Inlined into the wrapper like the director's code, so that both are measured without a call. */
__attribute__((__always_inline__)) int balancer_ingress(struct xdp_md *ctx);

#include "katran/lib/bpf/balancer.bpf.c"

/* Missing in Katran's headers. */
#define bpf_cpu_to_be64(x) __builtin_bswap64(x)
#ifndef __always_inline
#define __always_inline inline __attribute__((__always_inline__))
#endif

#include "wrapper.h"

SEC("xdp")
int katran(struct xdp_md *ctx)
{
	if (!vary(ctx, true))
		return XDP_ABORTED;
	return unwrap(ctx, balancer_ingress(ctx));
}
