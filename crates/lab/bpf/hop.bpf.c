// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Bare hop: the minimum that a host in a director's position does with a packet for a server. It
 * has no sessions and no counters. The client's port selects the server. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define SERVERS_MAX 16

struct target {
	__be32 address;
	__u8 mac[6];
	__u8 pad[2];
};

/* Layout as in hop.rs. */
struct settings {
	__be32 vip;
	__be32 from; /* where tunnels begin */
	__u32 servers;
	__be16 port;
	__u8 own[6];
	struct target targets[SERVERS_MAX];
};

const volatile struct settings settings;

/* Pointers to the headers of a packet. */
struct headers {
	struct ethhdr *link;
	struct iphdr *ip;
	struct tcphdr *tcp;
};

#define HEADERS_LEN (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct tcphdr))

static __always_inline bool has_headers(struct __sk_buff *ctx, struct headers *headers)
{
	void *at = (void *)(long)ctx->data;

	/* Prevents the compiler from reusing an earlier bounds check. */
	asm volatile("" : "+r"(at));
	headers->link = at;
	headers->ip = at + sizeof(struct ethhdr);
	headers->tcp = at + sizeof(struct ethhdr) + sizeof(struct iphdr);
	return at + HEADERS_LEN <= (void *)(long)ctx->data_end;
}

/* Returns the server of a packet, or NULL if the packet is not for the service. */
static __always_inline const volatile struct target *target_of(struct headers *headers)
{
	if (headers->link->h_proto != bpf_htons(ETH_P_IP) || headers->ip->daddr != settings.vip ||
	    headers->ip->protocol != IPPROTO_TCP || headers->tcp->dest != settings.port || !settings.servers)
		return 0;
	return &settings.targets[bpf_ntohs(headers->tcp->source) % settings.servers & (SERVERS_MAX - 1)];
}

static __always_inline bool begin(struct __sk_buff *ctx, struct headers *headers)
{
	if (has_headers(ctx, headers))
		return true;
	return !bpf_skb_pull_data(ctx, HEADERS_LEN) && has_headers(ctx, headers);
}

static __always_inline void put_links(struct ethhdr *link, const volatile struct target *target)
{
	for (int i = 0; i < ETH_ALEN; i++) {
		link->h_dest[i] = target->mac[i];
		link->h_source[i] = settings.own[i];
	}
}

SEC("tc")
int hop_link(struct __sk_buff *ctx)
{
	const volatile struct target *target;
	struct headers headers;

	if (!begin(ctx, &headers))
		return TC_ACT_UNSPEC;
	target = target_of(&headers);
	if (!target)
		return TC_ACT_UNSPEC;
	put_links(headers.link, target);
	return bpf_redirect(ctx->ifindex, 0);
}

SEC("tc")
int hop_tunnel(struct __sk_buff *ctx)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	const volatile struct target *target;
	struct headers headers;
	__u32 sum;
	__u16 len;

	if (!begin(ctx, &headers))
		return TC_ACT_UNSPEC;
	target = target_of(&headers);
	if (!target)
		return TC_ACT_UNSPEC;
	len = bpf_ntohs(headers.ip->tot_len) + sizeof(struct iphdr);
	if (bpf_skb_adjust_room(ctx, sizeof(struct iphdr), BPF_ADJ_ROOM_MAC, flags) || !has_headers(ctx, &headers))
		return TC_ACT_SHOT;
	put_links(headers.link, target);
	headers.link->h_proto = bpf_htons(ETH_P_IP);
	*headers.ip = (struct iphdr){ .version = 4,
				      .ihl = 5,
				      .tot_len = bpf_htons(len),
				      .frag_off = bpf_htons(0x4000),
				      .ttl = 64,
				      .protocol = IPPROTO_IPIP,
				      .saddr = settings.from,
				      .daddr = target->address };
	sum = bpf_csum_diff(0, 0, (void *)headers.ip, sizeof(*headers.ip), 0);
	sum = (sum & 0xffff) + (sum >> 16);
	headers.ip->check = ~(sum + (sum >> 16));
	return bpf_redirect(ctx->ifindex, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
