// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* The director's XDP program, attached to every interface that receives service traffic. */
#include "director/decide.h"

SEC("xdp.frags")
int director(struct xdp_md *ctx)
{
	return decide(ctx);
}

/* For the peer of a veth interface: a frame that XDP sends out of a veth is received only if the
 * peer has an XDP program too. */
SEC("xdp")
int pass_all(struct xdp_md *ctx)
{
	return XDP_PASS;
}

/* Returns the current time, in the ticks of session expiry. The control plane runs this program,
 * since it can't read jiffies. */
SEC("xdp")
int clock(struct xdp_md *ctx)
{
	return ticks_now();
}

/* Never runs. The program refers to a map that only the control plane uses, so that the map stays
 * in the object file. */
SEC("xdp")
int describe(struct xdp_md *ctx)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&about, &first) ? XDP_PASS : XDP_ABORTED;
}

/* Types of abi.h that no map uses. The variables make the compiler emit their BTF. */
const volatile enum reason abi_reason = REASON_FORWARDED;
const volatile enum pick abi_pick = PICK_HASH;
const volatile enum later abi_later = LATER_STAY;
const volatile enum session_state abi_state = STATE_FREE;
const volatile struct held abi_held = {};
const volatile struct event abi_event = {};
const volatile enum event_kind abi_kind = EVENT_PACKET;
const volatile enum told_verdict abi_told = TRACED_FORWARD;

char LICENSE[] SEC("license") = "Dual MIT/GPL";
