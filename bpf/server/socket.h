/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* State of a connection's socket. The reader decides whether the connection is idle:
 * dataplane/src/server/socket_snapshot.rs */
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

static __always_inline void read_socket(struct bpf_sock *found, struct socket_snapshot *snapshot)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(found);

	if (!tcp)
		return;
	snapshot->state = found->state;
	snapshot->receive_next = tcp->rcv_nxt;
	snapshot->copied = tcp->copied_seq;
	snapshot->send_next = tcp->snd_nxt;
	snapshot->write_next = tcp->write_seq;
	snapshot->send_update = tcp->snd_wl1;
	snapshot->send_window = tcp->snd_wnd;
	snapshot->send_window_max = tcp->max_window;
	snapshot->receive_window = tcp->rcv_wnd;
	snapshot->receive_update = tcp->rcv_wup;
	snapshot->mss = tcp->rx_opt.mss_clamp;
	snapshot->send_scale = BPF_CORE_READ_BITFIELD(tcp, rx_opt.snd_wscale);
	snapshot->receive_scale = BPF_CORE_READ_BITFIELD(tcp, rx_opt.rcv_wscale);
	snapshot->scaled = BPF_CORE_READ_BITFIELD(tcp, rx_opt.wscale_ok);
	snapshot->sack = BPF_CORE_READ_BITFIELD(tcp, rx_opt.sack_ok) != 0;
	snapshot->timestamps = BPF_CORE_READ_BITFIELD(tcp, rx_opt.tstamp_ok);
}

static __always_inline void read_exchange(struct socket_snapshot *snapshot)
{
	struct exchange *exchange = bpf_map_lookup_elem(&turns, &snapshot->connection);
	__u64 request, response;

	if (!exchange)
		return;
	request = load(&exchange->request);
	response = load(&exchange->response);
	snapshot->request_end = request;
	snapshot->answer_begin = request >> 32;
	snapshot->answered_begin = response >> 32;
	snapshot->answered_end = response;
	/* If a later segment of the response overtook its first one, the state is usable only once
	 * the first one has left too. */
	snapshot->plain = exchange->plain && (exchange->ahead != snapshot->answer_begin || snapshot->answered_begin == exchange->ahead);
}

static __always_inline bool look_at(struct __sk_buff *skb, struct socket_snapshot *snapshot)
{
	struct bpf_sock *found;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &snapshot->connection, sizeof(snapshot->connection)))
		return false;
	found = find_socket(skb, &snapshot->connection);
	if (found) {
		read_socket(found, snapshot);
		bpf_sk_release(found);
	}
	read_exchange(snapshot);
	return !bpf_skb_store_bytes(skb, ETH_HLEN, snapshot, sizeof(*snapshot), 0);
}

#endif
