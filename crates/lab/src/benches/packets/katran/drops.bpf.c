/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* For tests: a balancer with maps of the same names and sizes as Katran's, which drops every
 * packet. */
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/types.h>
#include <stdbool.h>

#define SEC(name) __attribute__((section(name), used))
#define bpf_htons(x) __builtin_bswap16(x)
#define bpf_htonl(x) __builtin_bswap32(x)

static long (*bpf_xdp_adjust_head)(struct xdp_md *ctx, int delta) = (void *)BPF_FUNC_xdp_adjust_head;

#define MAP(name, kind, key_len, value_len, entries)                                                                           \
	struct {                                                                                                               \
		int(*type)[kind];                                                                                              \
		int(*key_size)[key_len];                                                                                       \
		int(*value_size)[value_len];                                                                                   \
		int(*max_entries)[entries];                                                                                    \
	} name SEC(".maps")

MAP(vip_map, BPF_MAP_TYPE_HASH, 20, 8, 512);
MAP(ctl_array, BPF_MAP_TYPE_ARRAY, 4, 8, 16);
MAP(reals, BPF_MAP_TYPE_ARRAY, 4, 20, 4096);
MAP(ch_rings, BPF_MAP_TYPE_ARRAY, 4, 4, 65537);
MAP(fallback_cache, BPF_MAP_TYPE_LRU_HASH, 40, 16, 1000);
MAP(stats, BPF_MAP_TYPE_PERCPU_ARRAY, 4, 16, 1024);

struct flows {
	int(*type)[BPF_MAP_TYPE_LRU_HASH];
	int(*key_size)[40];
	int(*value_size)[16];
	int(*max_entries)[1000];
};

struct {
	int(*type)[BPF_MAP_TYPE_ARRAY_OF_MAPS];
	int(*key_size)[4];
	int(*max_entries)[128];
	struct flows *values[];
} lru_mapping SEC(".maps");

SEC("xdp")
int balancer_ingress(struct xdp_md *ctx)
{
	return XDP_DROP;
}

char _license[] SEC("license") = "GPL";
