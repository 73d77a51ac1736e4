/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* What a decision does to the bytes: core/src/rewrite.rs. */
#ifndef EVENER_REWRITE_H
#define EVENER_REWRITE_H

#include "parse.h"

static __always_inline void rewrite_l2(struct ethhdr *ethernet, const struct server *server)
{
	copy_mac(ethernet->h_dest, server->dst);
	copy_mac(ethernet->h_source, server->src);
}

static __always_inline void rewrite_arp_answer(struct ethhdr *ethernet, struct arp *arp, const __u8 own[ETH_ALEN])
{
	__be32 asked = arp->target_ip;

	copy_mac(ethernet->h_dest, arp->sender_mac);
	copy_mac(ethernet->h_source, own);
	arp->operation = bpf_htons(2);
	copy_mac(arp->target_mac, arp->sender_mac);
	arp->target_ip = arp->sender_ip;
	copy_mac(arp->sender_mac, own);
	arp->sender_ip = asked;
}

#endif
