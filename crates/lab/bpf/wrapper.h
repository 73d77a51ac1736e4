/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Wrapper around each measured program, equal for all. BPF_PROG_TEST_RUN repeats a program on one
 * frame and does not restore the frame. The wrapper varies the flow before each run and undoes the
 * rewrite afterwards. With SHOWN=1 it leaves the resulting frame, for a check of its contents. The
 * including file provides <linux/bpf.h> or a substitute, `__always_inline` and `bpf_htonl`. */
#ifndef EVENER_BENCH_WRAPPER_H
#define EVENER_BENCH_WRAPPER_H

#ifndef SHOWN
#define SHOWN 0
#endif

struct bench {
	__u32 flows; /* a power of two */
	__u32 first; /* added to each flow's number, so that a run can have flows of its own */
	__u32 turn;
	__u32 pad;
};

struct bench bench = { .flows = 1 };

/* Start of a frame as words that can be copied: Ethernet, IPv4, TCP. */
struct headers {
	__u16 link[7];
	__u32 ip[5];
	__u32 tcp[5];
} __attribute__((packed));

/* Ethernet addresses of every frame, as subject.rs writes them, so that they can be restored
 * without having been saved. */
#define LINKS_FIRST bpf_cpu_to_be64(0x0200000000010200)
#define LINKS_REST bpf_htonl(0x00000002)
/* TTL 64, TCP, and no checksum. */
#define TTL_WORD bpf_htonl(0x40060000)

/* No cursor, which would check the frame's bounds once more. */
static __always_inline bool has_headers(struct xdp_md *ctx, struct headers **headers)
{
	*headers = (void *)(long)ctx->data;
	return (void *)(*headers + 1) <= (void *)(long)ctx->data_end;
}

/* Writes a client's address and port to the packet's source or destination. The order of the flows
 * defeats prefetchers. */
static __always_inline bool vary(struct xdp_md *ctx, bool source)
{
	struct headers *headers;
	__u32 flow;

	if (!has_headers(ctx, &headers))
		return false;
	flow = ((bench.turn++ * 2654435761u) & (bench.flows - 1)) + bench.first;
	/* 10.x.x.x; the higher bits of the flow go into the port */
	*(__u32 *)((void *)headers + (source ? 26 : 30)) = 10 | flow << 8;
	*(__u16 *)((void *)headers + (source ? 34 : 36)) = 0x1001 | flow >> 24;
	return true;
}

static __always_inline void restore_link(struct headers *headers)
{
	if (SHOWN)
		return;
	*(__u64 *)headers = LINKS_FIRST;
	*(__u32 *)((void *)headers + 8) = LINKS_REST;
}

/* Restores a packet that has been decapsulated. */
static __always_inline void restore(struct xdp_md *ctx)
{
	struct headers *headers;

	if (!has_headers(ctx, &headers))
		return;
	restore_link(headers);
	*(__u16 *)((void *)headers + 12) = bpf_htons(ETH_P_IP);
	*(__u32 *)((void *)headers + 22) = TTL_WORD;
}

/* Decapsulates the packet and restores the changed fields. */
static __always_inline int unwrap(struct xdp_md *ctx, int verdict)
{
	if (SHOWN)
		return verdict;
	if (verdict == XDP_TX && bpf_xdp_adjust_head(ctx, sizeof(struct iphdr)))
		return XDP_ABORTED;
	restore(ctx);
	return verdict;
}

#endif
