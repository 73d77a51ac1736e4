// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Tracks requests and responses at the host's sockets, whatever interface, tunnel or method their
 * packets use. The state of a connection's last request is in the socket's storage. sock_diag(7)
 * returns it together with the number of acknowledged bytes.
 *
 * The programs track sockets of one network namespace and of the agent's ports. They change and
 * drop no packet.
 */
#define EVENER_TC
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include "net/tcp.h"
#include "server/pending.h"

#define PASS 1
#define LISTEN 10

/* Cookie of the network namespace (SO_NETNS_COOKIE). 0: any, if the kernel doesn't support it. */
const volatile __u64 namespace_cookie = 0;

static __always_inline bool is_ours(struct __sk_buff *skb)
{
	return !namespace_cookie || bpf_get_netns_cookie(skb) == namespace_cookie;
}

/* Reads a packet. False if it has neither payload nor FIN. */
static __always_inline bool read_data(struct __sk_buff *skb, struct data *data, struct early_key *ends)
{
	struct cursor cursor = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	struct tcphdr *tcp;
	__u32 len;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = take(&cursor, sizeof(*ip));

		if (!ip || *(__u8 *)ip != 0x45 || ip->protocol != IPPROTO_TCP)
			return false;
		ends->client = mapped(ip->saddr);
		ends->server = mapped(ip->daddr);
		data->from = sizeof(*ip);
	} else {
		struct ipv6hdr *ip = take(&cursor, sizeof(*ip));

		if (!ip || ip->nexthdr != IPPROTO_TCP)
			return false;
		ends->client = *(struct ip *)&ip->saddr;
		ends->server = *(struct ip *)&ip->daddr;
		data->from = sizeof(*ip);
	}
	tcp = take(&cursor, sizeof(*tcp));
	if (!tcp || tcp->doff < TCP_LEN / 4 || tcp->syn || tcp->rst)
		return false;
	ends->client_port = tcp->source;
	ends->server_port = tcp->dest;
	data->sequence = bpf_ntohl(tcp->seq);
	data->acknowledgment = bpf_ntohl(tcp->ack_seq);
	data->from += tcp->doff * 4;
	data->is_last = tcp->fin;
	len = skb->len;
	data->len = len > data->from ? len - data->from : 0;
	return data->len || data->is_last;
}

/* Swaps client and server, for packets that leave. */
static __always_inline void turn_round(struct early_key *ends)
{
	struct ip client = ends->server;
	__be16 port = ends->server_port;

	ends->server = ends->client;
	ends->server_port = ends->client_port;
	ends->client = client;
	ends->client_port = port;
}

/* Counts a connection's first data. False if it isn't a request. */
static __always_inline bool read_first(struct __sk_buff *skb, const struct data *data, struct pending *found)
{
	bool is_request = read_request(skb, data, found);

	count(is_request && found->answer == PENDING_WAITING ? COUNT_REQUESTS : COUNT_UNREAD, 1);
	return is_request;
}

/* Handles further data of a connection. */
static __always_inline void read_further(struct __sk_buff *skb, const struct data *data, struct pending *known)
{
	if (is_open(known, data)) {
		__u8 behind = known->behind;

		note_behind(known, data->sequence + data->len);
		if (known->behind != behind)
			count(COUNT_REQUESTS, 1);
	} else if (read_request(skb, data, known) && known->answer == PENDING_WAITING) {
		count(COUNT_REQUESTS, 1);
	}
}

SEC("cgroup_skb/ingress")
int request_comes(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct early_key ends = {};
	struct pending *known, found = {};
	struct bpf_tcp_sock *tcp;
	struct data data = {};

	if (!sk || !(sk = bpf_sk_fullsock(sk)) || !is_followed(sk->src_port) || !is_ours(skb))
		return PASS;
	if (!read_data(skb, &data, &ends) || !data.len)
		return PASS;
	/* The kernel creates the connection's socket from this segment. */
	if (sk->state == LISTEN) {
		if (read_first(skb, &data, &found))
			bpf_map_update_elem(&early, &ends, &found, BPF_ANY);
		return PASS;
	}
	tcp = bpf_tcp_sock(sk);
	if (!tcp || tcp->rcv_nxt != data.sequence)
		return PASS;
	known = bpf_sk_storage_get(&pending, sk, 0, 0);
	if (known) {
		read_further(skb, &data, known);
		return PASS;
	}
	found.sent_to = data.acknowledgment;
	if (read_first(skb, &data, &found) && !bpf_sk_storage_get(&pending, sk, &found, BPF_SK_STORAGE_GET_F_CREATE))
		count(COUNT_UNFOLLOWED, 1);
	return PASS;
}

SEC("cgroup_skb/egress")
int answer_leaves(struct __sk_buff *skb)
{
	struct pending *known, *first, unknown = { .answer = PENDING_UNKNOWN };
	struct bpf_sock *sk = skb->sk;
	struct early_key ends = {};
	struct bpf_tcp_sock *tcp;
	struct data data = {};

	if (!sk || !(sk = bpf_sk_fullsock(sk)) || !is_followed(sk->src_port) || !is_ours(skb))
		return PASS;
	if (!read_data(skb, &data, &ends))
		return PASS;
	tcp = bpf_tcp_sock(sk);
	if (!tcp)
		return PASS;
	known = bpf_sk_storage_get(&pending, sk, 0, 0);
	if (!known) {
		turn_round(&ends);
		first = bpf_map_lookup_elem(&early, &ends);
		known = bpf_sk_storage_get(&pending, sk, first ?: &unknown, BPF_SK_STORAGE_GET_F_CREATE);
		if (first && !known)
			count(COUNT_UNFOLLOWED, 1);
		if (first)
			bpf_map_delete_elem(&early, &ends);
		if (!known)
			return PASS;
		known->sent_to = data.sequence;
	}
	count_sent(known, &data);
	follow(skb, sk, known, &data, tcp->bytes_acked + (__u32)(data.sequence - tcp->snd_una));
	return PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
