/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Differences between XDP and TC. XDP receives the frame before the kernel allocates a socket
 * buffer, TC receives the socket buffer. TC is used if a driver has no native XDP. Then TC saves a
 * copy, and keeps merged segments (GRO) and partial checksums. All other code is common to both.
 */
#ifndef EVENER_FRAME_H
#define EVENER_FRAME_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <stdbool.h>
#include "net/checksum.h"
#include "net/cursor.h"

/* Maximum number of VLAN tags of a frame. */
#define TAGS_MAX 2
#define TAG_LEN 4
#define LINK_LEN_MAX (ETH_HLEN + TAGS_MAX * TAG_LEN)

/* Changes of the two parts that a transport checksum covers, as one's complement sums. */
struct change {
	__u64 pseudo; /* change of the pseudo-header */
	__u64 body; /* change of transport header and payload */
};

#ifdef EVENER_TC

/* The next TC program receives the packet. */
#define VERDICT_PASS ((__u8)TC_ACT_UNSPEC)
#define VERDICT_DROP TC_ACT_SHOT

static __always_inline __u32 frame_len(context *ctx)
{
	return ctx->len;
}

/* Payload bytes of each segment if the frame consists of several merged segments, else 0. */
static __always_inline __u32 segment_len(context *ctx)
{
	return ctx->gso_size;
}

/* Makes the headers directly accessible if they are outside the linear part of the buffer. */
static __always_inline void frame_begin(context *ctx)
{
	__u32 want = ctx->protocol == bpf_htons(ETH_P_IPV6) ? 74 : 54;

	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + want > end && end - data < ctx->len)
		bpf_skb_pull_data(ctx, ctx->len < 128 ? ctx->len : 128);
}

static __always_inline int frame_store(context *ctx, __u32 at, const void *from, __u32 len)
{
	return bpf_skb_store_bytes(ctx, at, from, len, 0);
}

/* Adds `len` bytes in front of the frame. The caller writes them. */
static __always_inline int frame_grow(context *ctx, __u32 len)
{
	return len ? bpf_skb_change_head(ctx, len, 0) : 0;
}

static __always_inline int frame_cut(context *ctx, __u32 len)
{
	return bpf_skb_change_tail(ctx, len, 0);
}

/* Removes the VLAN tags. */
static __always_inline int frame_untag(context *ctx, __u32 l3)
{
	for (int i = 0; i < TAGS_MAX; i++)
		if (l3 > ETH_HLEN + i * TAG_LEN && bpf_skb_vlan_pop(ctx))
			return -1;
	return 0;
}

/* Number of VLAN tags that the kernel has moved out of the frame into the buffer's metadata. */
static __always_inline __u32 frame_tags(context *ctx)
{
	return ctx->vlan_present ? 1 : 0;
}

/* Removes the VLAN tag in the metadata of a frame that is sent to another interface. */
static __always_inline void frame_leave(context *ctx)
{
	if (ctx->vlan_present)
		bpf_skb_vlan_pop(ctx);
}

/* Adds room for outer headers before the packet at `l3`, and for a link header of `link_len` bytes
 * in front of them. The caller writes both. */
static __always_inline int frame_wrap(context *ctx, __u32 l3, __u32 outer_len, __u32 link_len, bool v6, bool gue)
{
	/* The length of merged segments stays the same, since fits() has checked it against the
	 * MTU. */
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | (v6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4);

	if (l3 != ETH_HLEN)
		return link_len + outer_len < l3 ? -1 : frame_grow(ctx, link_len + outer_len - l3);
	if (gue)
		flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	return bpf_skb_adjust_room(ctx, outer_len, BPF_ADJ_ROOM_MAC, flags);
}

/* Applies a change to the transport checksum at `at`. */
static __always_inline void frame_fix(context *ctx, __u32 at, const struct change *change, bool udp)
{
	__u64 flags = udp ? BPF_F_MARK_MANGLED_0 : 0;

	if (change->pseudo)
		bpf_l4_csum_replace(ctx, at, 0, (__u16)fold(change->pseudo), flags | BPF_F_PSEUDO_HDR);
	if (change->body)
		bpf_l4_csum_replace(ctx, at, 0, (__u16)fold(change->body), flags);
}

static __always_inline int frame_back(context *ctx)
{
	return bpf_redirect(ctx->ifindex, 0);
}

/* True if frame_to_neighbour() works: the kernel resolves the neighbour and sends the frame, with
 * any source address. */
#define FRAME_FINDS_NEIGHBOURS true

static __always_inline int frame_to_neighbour(context *ctx, __u32 ifindex, struct bpf_redir_neigh *next)
{
	return bpf_redirect_neigh(ifindex, next, sizeof(*next), 0);
}

static __always_inline __u32 frame_ingress(context *ctx)
{
	return ctx->ifindex;
}

#else

#define VERDICT_PASS XDP_PASS
#define VERDICT_DROP XDP_DROP

/* Length of the frame in all its buffers. */
static __always_inline __u32 frame_len(context *ctx)
{
	return bpf_xdp_get_buff_len(ctx);
}

static __always_inline __u32 segment_len(context *ctx)
{
	return 0;
}

static __always_inline void frame_begin(context *ctx)
{
}

static __always_inline int frame_store(context *ctx, __u32 at, void *from, __u32 len)
{
	return bpf_xdp_store_bytes(ctx, at, from, len);
}

static __always_inline int frame_grow(context *ctx, __u32 len)
{
	return len ? bpf_xdp_adjust_head(ctx, -(int)len) : 0;
}

static __always_inline int frame_cut(context *ctx, __u32 len)
{
	__u32 whole = bpf_xdp_get_buff_len(ctx);

	return whole > len ? bpf_xdp_adjust_tail(ctx, -(int)(whole - len)) : 0;
}

static __always_inline int frame_untag(context *ctx, __u32 l3)
{
	return bpf_xdp_adjust_head(ctx, l3 - ETH_HLEN);
}

static __always_inline __u32 frame_tags(context *ctx)
{
	return 0;
}

static __always_inline void frame_leave(context *ctx)
{
}

static __always_inline int frame_wrap(context *ctx, __u32 l3, __u32 outer_len, __u32 link_len, bool v6, bool gue)
{
	return bpf_xdp_adjust_head(ctx, (int)l3 - (int)(outer_len + link_len));
}

/*
 * A frame that was sent on this machine may have a partial checksum (the pseudo-header's sum),
 * which hardware completes. XDP can't detect that. It occurs only in generic mode, and interfaces
 * without native XDP get the TC program instead if the kernel supports it.
 */
static __always_inline void frame_fix(context *ctx, __u32 at, const struct change *change, bool udp)
{
	__u16 *field = (void *)(long)ctx->data + (at & 0x1ff);
	__u16 checksum;

	if ((void *)(field + 1) > (void *)(long)ctx->data_end)
		return;
	checksum = *field;
	if (udp && !checksum)
		return;
	checksum = changed(checksum, change->pseudo + change->body);
	*field = udp && !checksum ? 0xffff : checksum;
}

static __always_inline int frame_back(context *ctx)
{
	return XDP_TX;
}

#define FRAME_FINDS_NEIGHBOURS false

static __always_inline int frame_to_neighbour(context *ctx, __u32 ifindex, struct bpf_redir_neigh *next)
{
	return XDP_PASS;
}

static __always_inline __u32 frame_ingress(context *ctx)
{
	return ctx->ingress_ifindex;
}

#endif

static __always_inline int frame_send(context *ctx, __u32 ifindex)
{
	if (ifindex == frame_ingress(ctx))
		return frame_back(ctx);
	return bpf_redirect(ifindex, 0);
}

static __always_inline struct cursor cursor_of(context *ctx)
{
	struct cursor cursor = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
	return cursor;
}

/* Returns the `len` bytes at `offset`, or NULL if the frame is shorter. */
static __always_inline void *bytes_at(context *ctx, __u32 offset, __u32 len)
{
	void *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	hide(at); /* so that the compiler uses the checked pointer */
	at += offset;
	hide(at);
	return at + len > end ? 0 : at;
}

/* Returns a cursor at `offset`. It may be behind the end of the frame: reads fail then. */
static __always_inline struct cursor cursor_at(context *ctx, __u64 offset)
{
	struct cursor cursor = cursor_of(ctx);

	hide(cursor.at);
	cursor.at += offset;
	hide(cursor.at);
	return cursor;
}

#endif
