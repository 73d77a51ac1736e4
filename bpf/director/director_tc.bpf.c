// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* The director's TC program, for interfaces without native XDP (frame.h). It uses the maps of
 * director.bpf.c. */
#define EVENER_TC
#include "director/decide.h"

SEC("tc")
int director_tc(struct __sk_buff *ctx)
{
	return decide(ctx);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
