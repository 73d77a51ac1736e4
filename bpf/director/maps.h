/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * All maps of the director. The control plane reads and writes mmapable maps as plain memory. It
 * sets the sizes that depend on the farm before it loads the programs.
 */
#ifndef EVENER_MAPS_H
#define EVENER_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "abi.h"
#include "director/scratch.h"
#include "net/cookie.h"
#include "net/cursor.h"
#include "net/mark.h"
#include "net/tcp.h"

/* Set before the programs are loaded. */
const volatile struct settings settings = { .abi_version = ABI_VERSION, .buckets = 2, .buckets6 = 2, .fib_parts = 1 };

/* Copy of the settings for a daemon that adopts a running data plane. Such a daemon can open a
 * pinned map, but can't read the programs' constants. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} about SEC(".maps");

/*
 * Tables of fixed size are arrays, each in a section of its own. libbpf creates a map for each
 * section. Programs read such a map without a map lookup, and the control plane maps and pins it
 * like any other map.
 */
#define TABLE(name) SEC(".bss." #name)

/* VIPs, in two halves of VIP_PLACES. Programs read the active half, and the control plane writes
 * the other half. */
struct vip vips[2 * VIP_PLACES] TABLE(vips);

/* Multiplier that maps each VIP to its index. It is odd. The bit VIP_PLACES selects the active
 * half. */
__u64 commit TABLE(commit);

/* Index: that of the VIP in `vips`. */
struct handoff handoffs[2 * VIP_PLACES] TABLE(handoffs);

/* Index of each VIP in its half of `vips`, by VIP id. This table has two halves, too. */
__u16 vip_places[2 * VIP_IDS] TABLE(vip_places);

/* Number of endpoints that reply through the director. If 0, no packet is looked up as a reply. */
__u64 answering TABLE(answering);

/* Index: hint_place() of an endpoint. */
struct hint returns[RETURN_PLACES] TABLE(returns);

/* Number of changes of routes and neighbours that the daemon has received from the kernel. */
__u64 fib_epoch TABLE(fib_epoch);

/*
 * Source MACs of the other hosts that forward packets, encoded by mac_bits(), in two halves like
 * `vips`. `peers_in` is their multiplier, like `commit`. It is 0 if there are no such hosts.
 */
__u64 peers[2 * PEER_PLACES] TABLE(peers);
__u64 peers_in TABLE(peers_in);

/* Lease for answering ARP for service addresses: core/src/path/lease.rs. */
__u64 lease TABLE(lease);

/* core/src/path/cookie.rs, SharedKeys */
struct cookie_keys cookies TABLE(cookies);

/* core/src/path/mark.rs, SharedMarker */
struct marker marker TABLE(marker);

/* core/src/path/unmatched.rs. Upper half: part of a flow's hash; lower half: tick of its first
 * segment. */
__u64 unmatched[STRAY_PLACES] TABLE(unmatched);

/* core/src/path/guesses.rs */
struct guesses guesses[VIP_IDS] TABLE(guesses);

/* Subscriptions to events: trace.h. */
struct watch watch TABLE(watch);

struct interface interfaces[INTERFACE_PLACES] TABLE(interfaces);

struct server servers[SERVER_SLOTS] TABLE(servers);

/* Rings whose requests a server serves, for services with VIP_LATER. Bit n stands for ring n.
 * Index: server slot. */
__u64 pools[SERVER_SLOTS] TABLE(pools);

/* Number of active sessions. Index: server slot. */
__u64 active[SERVER_SLOTS] TABLE(active);

/* Score of each server. The upper byte is the gain, the lower byte the load, where 0 is best.
 * Index: server slot. The control plane may write a score at any time. */
__u16 scores[SERVER_SLOTS] TABLE(scores);

/* Limit of active sessions of each server, or 0. A server that has reached its limit gets no new
 * session. Index: server slot. The control plane may write a limit at any time. */
__u32 limits[SERVER_SLOTS] TABLE(limits);

/* The time in tests, which set `jiffy_ns` to 0. */
__u64 given_now TABLE(given_now);

/* Extents of `sessions` and `sessions6`: core/src/path/sessions/extent.rs. */
__u64 extents[2] TABLE(extents);

/* Shares of the session table. Index: VIP id. */
struct share shares[VIP_IDS] TABLE(shares);

/* Affinity of clients, for VIPs with VIP_AFFINITY. Index: VIP id. */
struct affinity clients[VIP_IDS] TABLE(clients);

/* Index: service. */
struct affinity_count affinities[SERVICES_MAX] TABLE(affinities);

/* Position in each service's ring (PICK_CURSOR). Index: service. */
__u64 cursors[SERVICES_MAX] TABLE(cursors);

/* Service and server addresses, for packets without a port: ICMP, ARP, neighbour discovery. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, VIP_PLACES + SERVER_SLOTS);
	__type(key, struct address_key);
	__type(value, struct address);
} addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVER_SLOTS);
	__type(key, struct endpoint_key);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

/* Routes of services with method handoff. Not preallocated: most farms have few routes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, ROUTE_ENTRIES);
	__type(key, struct route_key);
	__type(value, struct route_entry);
} routes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct ring);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct previous);
} previous SEC(".maps");

/* A mmapable map starts at a page boundary, so a bucket is exactly two cache lines. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct bucket);
} sessions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct bucket6);
} sessions6 SEC(".maps");

/* Source ports of the director's addresses, allocated to sessions of servers with source NAT. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PORT_POOLS * POOL_BUCKETS);
	__type(key, __u32);
	__type(value, struct bucket6);
} ports SEC(".maps");

/* First fragments. The least recently used ones are evicted. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FRAGMENTS_MAX);
	__type(key, struct fragment_key);
	__type(value, struct track);
} fragments SEC(".maps");

/* Frames for the daemon: fragments that arrived before the first fragment, and segments of
 * connections that are being moved. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} held SEC(".maps");

/* Events of packets and connections for the daemon's subscribers. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SERVER_SLOTS);
	__type(key, __u32);
	__type(value, struct server_stats);
} server_stats SEC(".maps");

/*
 * Counters of user space, which decides held frames and punted connections but can't write the
 * per-CPU counters. The index of `user_stats` is the server slot. The entry NO_SERVER has the
 * counters of removed servers.
 */
struct server_stats user_stats[SERVER_SLOTS] TABLE(user_stats);
__u64 user_count[REASON_MAX] TABLE(user_count);

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASON_MAX);
	__type(key, __u32);
	__type(value, __u64);
} reasons SEC(".maps");

/* Variables of the slow path: scratch.h. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

static __always_inline struct scratch *scratch_here(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&scratch, &first);
}

/* Returns the struct vip_key of an IPv4 VIP as one word. */
static __always_inline __u64 vip_bits(__be32 address, __be16 port, __u8 protocol)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return address | (__u64)port << 32 | (__u64)protocol << 48;
#else
	return (__u64)address << 32 | (__u64)port << 16 | (__u64)protocol << 8;
#endif
}

/* Returns the index of `bits` in a table of two halves with `places` entries each. `word` is the
 * multiplier, and its bit `places` selects the half. */
static __always_inline __u64 place_by(__u64 word, __u64 bits, const __u64 places)
{
	return sum(bits * word / (~0ULL / places + 1), word & places);
}

static __always_inline struct vip *vip_at(__u64 bits)
{
	__u64 word = *(volatile __u64 *)&commit;

	return &vips[place_by(word, bits, VIP_PLACES)];
}

static __always_inline struct vip *find_vip(__u64 bits)
{
	struct vip *vip = vip_at(bits);

	if (*(__u64 *)&vip->key != bits)
		vip = 0;
	hide(vip);
	return vip;
}

/* Returns the digest of an IPv6 address for a VIP's key. */
static __always_inline __u32 address_digest(const struct ip *address)
{
	const __u64 *half = (const void *)address;
	__u64 digest = (half[0] * 0x9e3779b97f4a7c15ULL ^ half[1]) * 0xc2b2ae3d27d4eb4fULL;

	return digest ^ digest >> 32;
}

static __always_inline struct vip *find_vip6(const struct ip *address, __be16 port, __u8 protocol)
{
	struct vip_key key = { address_digest(address), port, protocol, 1 };
	struct vip *vip = vip_at(*(__u64 *)&key);

	if (*(__u64 *)&vip->key != *(__u64 *)&key || !same_ip(&vip->address6, address))
		vip = 0;
	hide(vip);
	return vip;
}

/* Returns the index of an endpoint in `returns`. `bits` are its address, port and protocol, encoded
 * by vip_bits(). */
static __always_inline __u32 hint_place(__u64 bits)
{
	return bits * 0x9e3779b97f4a7c15ULL / (~0ULL / RETURN_PLACES + 1);
}

/* Returns the index in `vips` and `handoffs` of the VIP with an id. The caller checks the id
 * there. */
static __always_inline __u64 place_by_id(__u16 id)
{
	__u64 half = *(volatile __u64 *)&commit & VIP_PLACES;

	return sum(half, vip_places[sum(half / VIP_PLACES * VIP_IDS, id % VIP_IDS)] % VIP_PLACES);
}

/* Returns the VIP with an id, or NULL. */
static __always_inline struct vip *find_vip_by_id(__u16 id)
{
	struct vip *vip = &vips[place_by_id(id)];

	if (vip->id != id)
		vip = 0;
	hide(vip);
	return vip;
}

/* Returns the handoff settings of the VIP with an id, or NULL. */
static __always_inline struct handoff *find_handoff(__u16 id)
{
	__u64 place = place_by_id(id);
	struct handoff *handoff = &handoffs[place];

	if (vips[place].id != id || !(vips[place].flags & VIP_HANDOFF))
		handoff = 0;
	hide(handoff);
	return handoff;
}

/* Maximum duration of a lease, in ticks. */
#define LEASE_LONGEST (1u << 22)
#define LEASE_ENDED (2ULL << 32)

/* True while this host may answer ARP and neighbour discovery for service addresses. An expired
 * lease is stored as ended, because ticks wrap around. */
static __always_inline bool lease_holds(__u32 now)
{
	__u64 word = *(volatile __u64 *)&lease;

	if (!(word >> 32))
		return true;
	if (word >> 32 != 1)
		return false;
	if ((__u32)word - now - 1 < LEASE_LONGEST)
		return true;
	__sync_val_compare_and_swap(&lease, word, LEASE_ENDED);
	return false;
}

static __always_inline __u32 address_flags(const struct ip *ip, bool v6)
{
	struct address_key key = { *ip, v6 };
	struct address *address = bpf_map_lookup_elem(&addresses, &key);

	return address ? address->flags : 0;
}

static __always_inline struct interface *find_interface(__u32 ifindex)
{
	struct interface *interface = &interfaces[ifindex % INTERFACE_PLACES];

	if (interface->ifindex != ifindex)
		interface = 0;
	hide(interface);
	return interface;
}

static __always_inline struct server *present_server(__u32 slot)
{
	struct server *server = &servers[slot % SERVER_SLOTS];

	if (!(server->flags & SERVER_PRESENT))
		server = 0;
	hide(server);
	return server;
}

#define REASON_SHIFT 16

static __always_inline void count_reason(__u32 reason)
{
	__u64 *count = bpf_map_lookup_elem(&reasons, &reason);

	if (count)
		*count += 1;
}

/* Returns a verdict with its reason in the upper bits. slow_path() counts the reason. A packet that
 * is sent to a server has no reason, since the server's counter includes it. */
static __always_inline int with_reason(int verdict, __u32 reason)
{
	return (__u8)verdict | reason << REASON_SHIFT;
}

#endif
