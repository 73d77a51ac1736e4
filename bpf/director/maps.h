/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Every map of the director. Those marked mmapable are read and written by the control plane as
 * plain memory; sizes that depend on the farm are set before loading.
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

/* Filled before loading. */
const volatile struct settings settings = { .abi_version = ABI_VERSION, .buckets = 2, .buckets6 = 2, .fib_parts = 1 };

/* The settings again, for who adopts a running data plane: a pinned map can be opened, a
 * constant can't. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} about SEC(".maps");

/*
 * Tables of fixed size are plain arrays, each in a section of its own, which libbpf makes a map of:
 * the program reads them without a look-up, and the control plane maps and pins them like any
 * other.
 */
#define TABLE(name) SEC(".bss." #name)

/* Two halves of VIP_PLACES: one in force, one to be written. */
struct vip vips[2 * VIP_PLACES] TABLE(vips);

/* The multiplier that gives each VIP its place: odd, and with a bit of its own for the half in
 * force. */
__u64 commit TABLE(commit);

/* At the same places, and switched with them. */
struct handoff handoffs[2 * VIP_PLACES] TABLE(handoffs);

/* Index of each VIP in its half of `vips`, by VIP id; in two halves as well. */
__u16 vip_places[2 * VIP_IDS] TABLE(vip_places);

/* Number of endpoints that reply through the director: without any, none is looked up. */
__u64 answering TABLE(answering);

/* By hint_place() of an endpoint. */
struct hint returns[RETURN_PLACES] TABLE(returns);

/* Number of changes of the host's routes or neighbours that a daemon has learned of. */
__u64 fib_epoch TABLE(fib_epoch);

/*
 * The MACs that other hosts pass packets on with, as mac_bits() makes words of them; in two halves
 * like the VIPs. The multiplier that gives each its place, as for VIPs; 0 if there are none.
 */
__u64 peers[2 * PEER_PLACES] TABLE(peers);
__u64 peers_in TABLE(peers_in);

/* Lease on answering for service addresses: core/src/path/lease.rs. */
__u64 lease TABLE(lease);

/* core/src/path/cookie.rs, SharedKeys */
struct cookie_keys cookies TABLE(cookies);

/* core/src/path/mark.rs, SharedMarker */
struct marker marker TABLE(marker);

/* core/src/path/unmatched.rs: part of a flow's hash, above the tick it was first met at. */
__u64 unmatched[STRAY_PLACES] TABLE(unmatched);

/* core/src/path/guesses.rs */
struct guesses guesses[VIP_IDS] TABLE(guesses);

/* The subscriptions to events: see trace.h. */
struct watch watch TABLE(watch);

struct interface interfaces[INTERFACE_PLACES] TABLE(interfaces);

struct server servers[SERVER_SLOTS] TABLE(servers);

/* By server slot, bit by bit, the rings whose requests it answers, of services with VIP_LATER. */
__u64 pools[SERVER_SLOTS] TABLE(pools);

/* Active sessions by server slot. */
__u64 active[SERVER_SLOTS] TABLE(active);

/* Policies' scores of each server's load, by server slot: the load, of which 0 is best, below
 * its gain. Written at any time. */
__u16 scores[SERVER_SLOTS] TABLE(scores);

/* The most active sessions with which a server is given a new one, by server slot; 0 for any
 * number. Written at any time. */
__u32 limits[SERVER_SLOTS] TABLE(limits);

/* The time, where it is given. */
__u64 given_now TABLE(given_now);

/* Extents of `sessions` and of `sessions6` in use: core/src/path/sessions/extent.rs. */
__u64 extents[2] TABLE(extents);

/* The shares of the session table. */
struct share shares[VIP_IDS] TABLE(shares);

/* Position in each service's ring. */
__u64 cursors[SERVICES_MAX] TABLE(cursors);

/* Only for packets that have no port, and for who asks for the address. */
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

/* Clients' requests to services with method handoff. Most farms have few routes. */
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

/* Mmapable puts it at the start of a page, so a bucket is two cache lines and in one page. */
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

/* Ports of the director's own addresses that stand for clients, in pools. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PORT_POOLS * POOL_BUCKETS);
	__type(key, __u32);
	__type(value, struct bucket6);
} ports SEC(".maps");

/* First fragments. Bounded: the ones unused for longest go. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FRAGMENTS_MAX);
	__type(key, struct fragment_key);
	__type(value, struct track);
} fragments SEC(".maps");

/* Frames that are held: later fragments that came before their first, on their way to where they
 * can wait, and later requests on theirs to who moves connections. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} held SEC(".maps");

/* Events of packets and connections, on their way to subscribers. */
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
 * The same by user space, which decides held frames and punted connections: the counts above are
 * each CPU's alone to write. By server slot; at that of no server, the counts of all servers that
 * are gone. And by reason.
 */
struct server_stats user_stats[SERVER_SLOTS] TABLE(user_stats);
__u64 user_count[REASON_MAX] TABLE(user_count);

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASON_MAX);
	__type(key, __u32);
	__type(value, __u64);
} reasons SEC(".maps");

/* The scratch of a packet's rarer ways: scratch.h. */
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

/* A struct vip_key as one word. */
static __always_inline __u64 vip_bits(__be32 address, __be16 port, __u8 protocol)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return address | (__u64)port << 32 | (__u64)protocol << 48;
#else
	return (__u64)address << 32 | (__u64)port << 16 | (__u64)protocol << 8;
#endif
}

/* Index that a switching word gives these bits, in the one of two halves of `places` that it
 * names. */
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

/* The digest of an IPv6 address in a VIP's key. */
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

/* Returns the index in `returns` of an endpoint, by its address, port and protocol as in
 * vip_bits(). */
static __always_inline __u32 hint_place(__u64 bits)
{
	return bits * 0x9e3779b97f4a7c15ULL / (~0ULL / RETURN_PLACES + 1);
}

/* Returns the index in `vips` and `handoffs` of the VIP with this id, if any. */
static __always_inline __u64 place_by_id(__u16 id)
{
	__u64 half = *(volatile __u64 *)&commit & VIP_PLACES;

	return sum(half, vip_places[sum(half / VIP_PLACES * VIP_IDS, id % VIP_IDS)] % VIP_PLACES);
}

/* The VIP of this id, or NULL. */
static __always_inline struct vip *find_vip_by_id(__u16 id)
{
	struct vip *vip = &vips[place_by_id(id)];

	if (vip->id != id)
		vip = 0;
	hide(vip);
	return vip;
}

/* Returns the handoff settings of that VIP, or NULL. */
static __always_inline struct handoff *find_handoff(__u16 id)
{
	__u64 place = place_by_id(id);
	struct handoff *handoff = &handoffs[place];

	if (vips[place].id != id || !(vips[place].flags & VIP_HANDOFF))
		handoff = 0;
	hide(handoff);
	return handoff;
}

/* The longest lease, in ticks. */
#define LEASE_LONGEST (1u << 22)
#define LEASE_ENDED (2ULL << 32)

/* True while addresses may be answered for. An expired lease is recorded as such, since ticks
 * wrap. */
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

/* A verdict, and above it why: it is counted when nothing is left to do, in settle(). A packet
 * sent to a server is counted to that one alone. */
static __always_inline int with_reason(int verdict, __u32 reason)
{
	return (__u8)verdict | reason << REASON_SHIFT;
}

#endif
