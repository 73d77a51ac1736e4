// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Katran's balancer, wrapped as the director's programs are. Nothing of Katran's is here:
 * `evener-lab bench --katran` compiles this where the person's own copy of its source is found
 * (`crates/lab/src/bench/katran.rs`).
 */
#include "katran/lib/linux_includes/bpf.h"

/* Into the wrapper, as the director's code is, so that both are measured without a call. */
__attribute__((__always_inline__)) int balancer_ingress(struct xdp_md *ctx);

#include "katran/lib/bpf/balancer.bpf.c"

/* Its headers haven't these. */
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
