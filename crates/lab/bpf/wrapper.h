/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The wrapper around each program whose packets are measured, the same around all.
 * BPF_PROG_TEST_RUN repeats a program on one frame and does not restore it: this varies the flow
 * before each run and undoes the rewrite after it. Compiled with SHOWN=1 it leaves the frame as the
 * program made it, for who looks whether that is right.
 *
 * The file that includes this has <linux/bpf.h> or a substitute, `__always_inline` and `bpf_htonl`.
 */
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

/* The beginning of a frame, as words that can be copied: links, IPv4, TCP. */
struct headers {
	__u16 link[7];
	__u32 ip[5];
	__u32 tcp[5];
} __attribute__((packed));

/* The links that every frame begins with, as subject.rs writes them: what a run changes is set
 * again without having been saved. */
#define LINKS_FIRST bpf_cpu_to_be64(0x0200000000010200)
#define LINKS_REST bpf_htonl(0x00000002)
/* TTL 64, TCP, and no checksum. */
#define TTL_WORD bpf_htonl(0x40060000)

/* Not by a cursor: that asks once more whether there is a frame at all. */
static __always_inline bool has_headers(struct xdp_md *ctx, struct headers **headers)
{
	*headers = (void *)(long)ctx->data;
	return (void *)(*headers + 1) <= (void *)(long)ctx->data_end;
}

/* A client's address and port, in place of those at the packet's source or destination; the
 * flows in an order that no prefetcher guesses. */
static __always_inline bool vary(struct xdp_md *ctx, bool source)
{
	struct headers *headers;
	__u32 flow;

	if (!has_headers(ctx, &headers))
		return false;
	flow = ((bench.turn++ * 2654435761u) & (bench.flows - 1)) + bench.first;
	/* 10.x.x.x, and the bits above in the port */
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

/* The same of what was in a tunnel. */
static __always_inline void restore(struct xdp_md *ctx)
{
	struct headers *headers;

	if (!has_headers(ctx, &headers))
		return;
	restore_link(headers);
	*(__u16 *)((void *)headers + 12) = bpf_htons(ETH_P_IP);
	*(__u32 *)((void *)headers + 22) = TTL_WORD;
}

/* Takes a packet out of the tunnel that it was put into, and sets again what is changed besides. */
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
