/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* What the stack knows of a connection. Whether it rests is for who looks to say: dataplane/src/server/looked.rs */
#ifndef EVENER_SOCKET_H
#define EVENER_SOCKET_H

#include <bpf/bpf_core_read.h>
#include "server/accept.h"

static __always_inline struct bpf_sock *find_socket(struct __sk_buff *skb, const struct connection *connection)
{
	const struct ip *client = &connection->client, *service = &connection->service;
	bool v4 = !client->word[0] && !client->word[1] && client->word[2] == bpf_htonl(0xffff);
	struct bpf_sock_tuple tuple = {};

	if (v4) {
		tuple.ipv4.saddr = client->word[3];
		tuple.ipv4.daddr = service->word[3];
		tuple.ipv4.sport = connection->client_port;
		tuple.ipv4.dport = connection->service_port;
		return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	__builtin_memcpy(tuple.ipv6.saddr, client, sizeof(*client));
	__builtin_memcpy(tuple.ipv6.daddr, service, sizeof(*service));
	tuple.ipv6.sport = connection->client_port;
	tuple.ipv6.dport = connection->service_port;
	return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
}

static __always_inline void look_at_socket(struct bpf_sock *found, struct looked *looked)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(found);

	if (!tcp)
		return;
	looked->state = found->state;
	looked->receive_next = tcp->rcv_nxt;
	looked->copied = tcp->copied_seq;
	looked->send_next = tcp->snd_nxt;
	looked->write_next = tcp->write_seq;
	looked->send_update = tcp->snd_wl1;
	looked->send_window = tcp->snd_wnd;
	looked->send_window_max = tcp->max_window;
	looked->receive_window = tcp->rcv_wnd;
	looked->receive_update = tcp->rcv_wup;
	looked->mss = tcp->rx_opt.mss_clamp;
	looked->send_scale = BPF_CORE_READ_BITFIELD(tcp, rx_opt.snd_wscale);
	looked->receive_scale = BPF_CORE_READ_BITFIELD(tcp, rx_opt.rcv_wscale);
	looked->scaled = BPF_CORE_READ_BITFIELD(tcp, rx_opt.wscale_ok);
	looked->sack = BPF_CORE_READ_BITFIELD(tcp, rx_opt.sack_ok) != 0;
	looked->timestamps = BPF_CORE_READ_BITFIELD(tcp, rx_opt.tstamp_ok);
}

static __always_inline void look_at_turn(struct looked *looked)
{
	struct turn *turn = bpf_map_lookup_elem(&turns, &looked->connection);
	__u64 asked, answered;

	if (!turn)
		return;
	asked = load(&turn->asked);
	answered = load(&turn->answered);
	looked->request_end = asked;
	looked->answer_begin = asked >> 32;
	looked->answered_begin = answered >> 32;
	looked->answered_end = answered;
	/* Where more of an answer has left than its first, nothing is known to compare it with. */
	looked->plain = turn->plain && (turn->ahead != looked->answer_begin || looked->answered_begin == turn->ahead);
}

static __always_inline bool look_at(struct __sk_buff *skb, struct looked *looked)
{
	struct bpf_sock *found;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &looked->connection, sizeof(looked->connection)))
		return false;
	found = find_socket(skb, &looked->connection);
	if (found) {
		look_at_socket(found, looked);
		bpf_sk_release(found);
	}
	look_at_turn(looked);
	return !bpf_skb_store_bytes(skb, ETH_HLEN, looked, sizeof(*looked), 0);
}

#endif
