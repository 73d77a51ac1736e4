/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* How a packet came to this host, where every host decides: core/src/path/arrival.rs. */
#ifndef EVENER_ARRIVAL_H
#define EVENER_ARRIVAL_H

#include <linux/if_ether.h>
#include "director/maps.h"
#include "net/forwarded.h"

/* The flags of which a server must have one that the packet may go on to; to any, if none. */
enum arrival {
	ARRIVED_DIRECT = 0,
	ARRIVED_PASSED = SERVER_LOCAL | SERVER_LAST,
	ARRIVED_PASSED_TWICE = SERVER_LOCAL,
};

/* By the frame's source, as mac_bits() has it. */
static __always_inline __u16 arrival_from(__u64 source)
{
	__u64 word = *(volatile __u64 *)&peers_in;
	__u32 place = (source * (word | 1)) / (~0ULL / PEER_PLACES + 1);

	if (source == PASSED_TWICE)
		return ARRIVED_PASSED_TWICE;
	if (source == PASSED)
		return ARRIVED_PASSED;
	if (!word || peers[(word & 1) * PEER_PLACES + place] != source)
		return ARRIVED_DIRECT;
	return ARRIVED_PASSED;
}

/* Always direct for a service that a director alone decides. */
static __always_inline __u16 arrival_of(const struct vip *vip, const struct ethhdr *ethernet)
{
	return vip->own == NO_SERVER ? ARRIVED_DIRECT : arrival_from(mac_bits(ethernet->h_source));
}

static __always_inline bool may_go_to(__u16 arrival, const struct server *server)
{
	return !arrival || server->flags & arrival;
}

#endif
