// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Measures the cost of a packet: the director's programs and a yardstick, in the wrapper of
 * wrapper.h. `empty` is the wrapper alone. */
#include "director/decide.h"
#include "wrapper.h"

/* Original values of the fields that `nat` changes. Only one CPU runs these programs at a time. */
struct {
	__u32 addresses[2];
	__u32 ports;
	__u32 checksum_word;
} saved;

/* The wrapper alone, which all programs contain: at most 35 instructions. */
SEC("xdp.frags")
int empty(struct xdp_md *ctx)
{
	struct headers *headers;

	if (!vary(ctx, true))
		return XDP_ABORTED;
	if (has_headers(ctx, &headers))
		restore_link(headers);
	return XDP_PASS;
}

SEC("xdp.frags")
int l2(struct xdp_md *ctx)
{
	struct headers *headers;
	int verdict;

	if (!vary(ctx, true))
		return XDP_ABORTED;
	verdict = decide(ctx);
	if (has_headers(ctx, &headers))
		restore_link(headers);
	return verdict;
}

static __always_inline int translated(struct xdp_md *ctx, bool source)
{
	struct headers *headers;
	int verdict;

	if (!vary(ctx, source) || !has_headers(ctx, &headers))
		return XDP_ABORTED;
	saved.addresses[0] = headers->ip[3];
	saved.addresses[1] = headers->ip[4];
	saved.ports = headers->tcp[0];
	saved.checksum_word = headers->tcp[4];
	verdict = decide(ctx);
	if (!SHOWN && has_headers(ctx, &headers)) {
		restore_link(headers);
		headers->ip[2] = TTL_WORD;
		headers->ip[3] = saved.addresses[0];
		headers->ip[4] = saved.addresses[1];
		headers->tcp[0] = saved.ports;
		headers->tcp[4] = saved.checksum_word;
	}
	return verdict;
}

SEC("xdp.frags")
int nat_in(struct xdp_md *ctx)
{
	return translated(ctx, true);
}

/* Replies to the clients of `nat_in`. */
SEC("xdp.frags")
int nat_out(struct xdp_md *ctx)
{
	return translated(ctx, false);
}

SEC("xdp.frags")
int tunnel(struct xdp_md *ctx)
{
	if (!vary(ctx, true))
		return XDP_ABORTED;
	return unwrap(ctx, decide(ctx));
}

/* Yardstick: a kernel balancer of the usual design, written for this comparison. It has VIPs in a
 * hash map, flows in an LRU hash map, servers in an array, two per-CPU counters, and IPIP
 * encapsulation with an outer checksum. An unknown flow is hashed to a ring and stored. */
struct tuple {
	__be32 src;
	__be32 dst;
	__u32 ports;
	__u8 protocol;
	__u8 pad[3];
};

struct real {
	__be32 address;
	__u32 flags;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct vip_key);
	__type(value, __u64);
} yardstick_vips SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 21);
	__type(key, struct tuple);
	__type(value, __u64[2]);
} yardstick_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 512);
	__type(key, __u32);
	__type(value, struct real);
} yardstick_reals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65537);
	__type(key, __u32);
	__type(value, __u32);
} yardstick_ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 512);
	__type(key, __u32);
	__type(value, __u64[2]);
} yardstick_stats SEC(".maps");

static __always_inline void yardstick_count(__u32 index, __u64 bytes)
{
	__u64 *stats = bpf_map_lookup_elem(&yardstick_stats, &index);

	if (stats) {
		stats[0] += 1;
		stats[1] += bytes;
	}
}

static __always_inline __u32 yardstick_hash(const struct tuple *tuple)
{
	__u32 hash = tuple->src * 2654435761u ^ tuple->ports;

	hash ^= hash >> 16;
	hash *= 0x85ebca6b;
	hash ^= hash >> 13;
	return hash;
}

static __always_inline int yardstick_encapsulate(struct xdp_md *ctx, __be32 src, __be32 dst, __u16 inner_len)
{
	struct cursor cursor;
	struct ethhdr *outer, *inner;
	struct iphdr *ip;
	__u32 sum = 0;

	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*ip)))
		return XDP_DROP;
	cursor = cursor_of(ctx);
	outer = take(&cursor, sizeof(*outer));
	ip = take(&cursor, sizeof(*ip));
	if (!outer || !ip)
		return XDP_DROP;
	inner = (void *)outer + sizeof(*ip);
	if ((void *)(inner + 1) > cursor.end)
		return XDP_DROP;
	/* The MACs move first: the outer IP header will overwrite the inner Ethernet header. */
	copy_mac(outer->h_dest, inner->h_source);
	copy_mac(outer->h_source, inner->h_dest);
	outer->h_proto = bpf_htons(ETH_P_IP);
	ip->version = 4;
	ip->ihl = 5;
	ip->tos = 0;
	ip->tot_len = bpf_htons(inner_len + sizeof(*ip));
	ip->id = 0;
	ip->frag_off = 0;
	ip->ttl = 64;
	ip->protocol = IPPROTO_IPIP;
	ip->check = 0;
	ip->saddr = src;
	ip->daddr = dst;
	for (int i = 0; i < 10; i++)
		sum += ((__u16 *)ip)[i];
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~((sum & 0xffff) + (sum >> 16));
	return XDP_TX;
}

static __always_inline int yardstick_decide(struct xdp_md *ctx)
{
	struct cursor cursor = cursor_of(ctx);
	struct ethhdr *ethernet = take(&cursor, sizeof(*ethernet));
	struct iphdr *ip = take(&cursor, sizeof(*ip));
	struct tcphdr *tcp = take(&cursor, sizeof(*tcp));
	struct tuple tuple = {};
	struct vip_key key = {};
	__u32 real_index, ring_index, *ring;
	struct real *real;
	__u64 *flow, note[2] = {};

	if (!ethernet || !ip || !tcp || ethernet->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 ||
	    ip->protocol != IPPROTO_TCP || ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET))
		return XDP_PASS;
	key.address = ip->daddr;
	key.port = tcp->dest;
	key.protocol = ip->protocol;
	if (!bpf_map_lookup_elem(&yardstick_vips, &key))
		return XDP_PASS;
	tuple.src = ip->saddr;
	tuple.dst = ip->daddr;
	tuple.ports = (__u32)tcp->source << 16 | tcp->dest;
	tuple.protocol = ip->protocol;
	flow = bpf_map_lookup_elem(&yardstick_flows, &tuple);
	if (flow) {
		real_index = flow[0];
	} else {
		ring_index = yardstick_hash(&tuple) % 65537;
		ring = bpf_map_lookup_elem(&yardstick_ring, &ring_index);
		if (!ring)
			return XDP_DROP;
		real_index = *ring;
		note[0] = real_index;
		bpf_map_update_elem(&yardstick_flows, &tuple, note, BPF_ANY);
	}
	real = bpf_map_lookup_elem(&yardstick_reals, &real_index);
	if (!real)
		return XDP_DROP;
	yardstick_count(0, cursor.end - (void *)ethernet);
	yardstick_count(1, cursor.end - (void *)ethernet);
	return yardstick_encapsulate(ctx, tuple.src ^ bpf_htonl(0xac100000), real->address, bpf_ntohs(ip->tot_len));
}

SEC("xdp.frags")
int yardstick(struct xdp_md *ctx)
{
	if (!vary(ctx, true))
		return XDP_ABORTED;
	return unwrap(ctx, yardstick_decide(ctx));
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
