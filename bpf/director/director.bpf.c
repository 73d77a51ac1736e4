// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Runs where decisions are made, on every interface that service traffic comes in by. */
#include "director/decide.h"

SEC("xdp.frags")
int director(struct xdp_md *ctx)
{
	return decide(ctx);
}

/* For the other end of a veth pair: a frame sent out of a veth by XDP arrives only where the
 * peer has an XDP program too. */
SEC("xdp")
int pass_all(struct xdp_md *ctx)
{
	return XDP_PASS;
}

/* The clock that sessions go by, for the control plane, which can't read jiffies. */
SEC("xdp")
int clock(struct xdp_md *ctx)
{
	return ticks_now();
}

/* Never run: keeps in the object a map that only the control plane uses. */
SEC("xdp")
int describe(struct xdp_md *ctx)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&about, &first) ? XDP_PASS : XDP_ABORTED;
}

/* Names every type of abi.h that no map or constant names, so that BTF has them. */
const volatile enum reason abi_reason = REASON_FORWARDED;
const volatile enum pick abi_pick = PICK_HASH;
const volatile enum later abi_later = LATER_STAY;
const volatile enum session_state abi_state = STATE_FREE;
const volatile struct held abi_held = {};
const volatile struct event abi_event = {};
const volatile enum event_kind abi_kind = EVENT_PACKET;
const volatile enum told_verdict abi_told = TRACED_FORWARD;

char LICENSE[] SEC("license") = "Dual MIT/GPL";
