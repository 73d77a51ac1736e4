/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Creates a connection from the first data segment that a director hands off. The director made the
 * handshake without state, so the segment's numbers contain the negotiated terms. The kernel
 * creates the socket by the kfunc bpf_sk_assign_tcp_reqsk (Linux 6.9 and later).
 */
#ifndef EVENER_ACCEPT_H
#define EVENER_ACCEPT_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include "net/checksum.h"
#include "net/cookie.h"
#include "net/cursor.h"
#include "net/mark.h"
#include "net/tcp.h"
#include "server/arrived.h"
#include "server/clear.h"
#include "server/exchange.h"
#include "server/maps.h"

/* The segment goes unchanged to the host's stack. */
#define GO_ON (-1)

/* The argument of bpf_sk_assign_tcp_reqsk (include/net/tcp.h of Linux). */
struct bpf_tcp_req_attrs {
	__u32 rcv_tsval;
	__u32 rcv_tsecr;
	__u16 mss;
	__u8 rcv_wscale;
	__u8 snd_wscale;
	__u8 ecn_ok;
	__u8 wscale_ok;
	__u8 sack_ok;
	__u8 tstamp_ok;
	__u8 usec_ts_ok;
	__u8 reserved[3];
};

/* Fields of the kernel's sockets that this program reads. The loader relocates their offsets
 * (CO-RE). */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sock_common {
	__u32 skc_tw_rcv_nxt;
	unsigned short skc_family;
};

struct sock {
	struct sock_common __sk_common;
	__u32 sk_ack_backlog;
	__u32 sk_max_ack_backlog;
};

struct inet_timewait_sock {
	struct sock_common __tw_common;
};

struct tcp_timewait_sock {
	struct inet_timewait_sock tw_sk;
	__u32 tw_ts_recent;
};

struct tcp_options_received {
	__u32 ts_recent;
	__u16 tstamp_ok : 1, wscale_ok : 1, sack_ok : 3, snd_wscale : 4, rcv_wscale : 4;
	__u16 mss_clamp;
};

struct tcp_sock {
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 rcv_wup;
	__u32 rcv_wnd;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 write_seq;
	__u32 snd_wl1;
	__u32 snd_wnd;
	__u32 max_window;
	__u64 bytes_acked;
	struct tcp_options_received rx_opt;
};
#pragma clang attribute pop

extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk, struct bpf_tcp_req_attrs *attrs,
				   int attrs__sz) __ksym __weak;

/* True if the segment echoes a valid cookie. A director may have buffered the segment and sent it
 * later. */
static __always_inline bool has_good_cookie(struct arrived *arrived)
{
	struct echoed_numbers echo = { arrived->sequence, arrived->acknowledgment, arrived->timestamps.echo,
				    arrived->timestamps.present };
	__u32 first = 0, now = bpf_ktime_get_ns() >> 20;
	struct cookie_keys *keys = bpf_map_lookup_elem(&cookie_keys, &first);

	return keys && cookie_is_good(keys, now, &arrived->message, &echo, COOKIE_REPLAYED, arrived->v6);
}

/* Returns the expectation if this is exactly the expected segment, else NULL. The expectation stays
 * in the map until it expires. The accept queue may be full at first, and later retransmissions
 * must not create a second socket. */
static __always_inline struct expectation *expectation_of(const struct arrived *arrived)
{
	struct expectation *found;
	struct connection connection;

	connection_of(arrived, &connection);
	found = bpf_map_lookup_elem(&expected, &connection);
	if (!found || found->sequence != arrived->sequence || found->acknowledgment != arrived->acknowledgment ||
	    found->until < bpf_ktime_get_ns())
		return 0;
	return found;
}

/* True if a socket was made from exactly this segment before. The server may have answered and
 * closed the connection, and must not execute the request twice. */
static __always_inline bool was_made(const struct arrived *arrived)
{
	struct connection connection;
	struct made *found;

	connection_of(arrived, &connection);
	found = bpf_map_lookup_elem(&made, &connection);
	return found && found->sequence == arrived->sequence && found->acknowledgment == arrived->acknowledgment &&
	       found->listener == arrived->listener;
}

static __always_inline void note_made(const struct arrived *arrived)
{
	struct made made_of = { arrived->sequence, arrived->acknowledgment, arrived->listener };
	struct connection connection;

	connection_of(arrived, &connection);
	bpf_map_update_elem(&made, &connection, &made_of, BPF_ANY);
}

/* Fills in the negotiated terms from the cookie or the expectation. False if the segment has
 * neither, or a socket was made from it before. A cookie doesn't encode timestamps. They were
 * negotiated if the segment has them (RFC 7323, section 3.2). Not static, like the following
 * functions, since the verifier checks a global function only once. */
__noinline int agreed(struct arrived *arrived, struct bpf_tcp_req_attrs *attrs)
{
	struct expectation *expectation;
	bool scaled;
	__u8 terms;

	if (!arrived || !attrs)
		return false;
	terms = arrived->acknowledgment - 1;
	scaled = cookie_scale(terms) != COOKIE_NO_SCALE;
	expectation = expectation_of(arrived);
	if (was_made(arrived) || (expectation && expectation->made))
		return false;
	if (has_good_cookie(arrived)) {
		attrs->mss = cookie_mss(terms, arrived->v6);
		attrs->wscale_ok = scaled;
		attrs->sack_ok = scaled;
		attrs->snd_wscale = scaled ? cookie_scale(terms) : 0;
		attrs->rcv_wscale = scaled ? COOKIE_RCV_WSCALE : 0;
		attrs->tstamp_ok = true;
		return true;
	}
	if (!expectation)
		return false;
	attrs->mss = expectation->mss;
	attrs->wscale_ok = expectation->scaled;
	attrs->sack_ok = expectation->sack;
	attrs->snd_wscale = expectation->send_scale;
	attrs->rcv_wscale = expectation->receive_scale;
	attrs->tstamp_ok = expectation->timestamps;
	return true;
}

/* True if the stack will accept a segment's checksum. It drops other segments, and the client
 * retransmits them. A sender on this machine leaves a partial checksum for hardware. */
__noinline int is_sound(struct __sk_buff *skb, struct arrived *arrived)
{
	struct message *m = message_here(MESSAGE_IN);
	__u64 pseudo;
	__u32 end;

	if (!arrived)
		return false;
	end = arrived->l4_end + arrived->len;
	pseudo = (__u64)bpf_htonl(end - arrived->l4) + bpf_htonl(IPPROTO_TCP);
	pseudo += (__u64)arrived->message.word[0] + arrived->message.word[1];
	if (arrived->v6)
		for (int i = 2; i < 8; i++)
			pseudo += arrived->message.word[i];
	return m && is_summed(skb, arrived->l4, end, pseudo, arrived->checksum, m->byte);
}

/* Makes the listener create a connection from the segment. */
static __always_inline int create_connection(struct __sk_buff *skb, struct bpf_sock *listener, struct arrived *arrived)
{
	struct bpf_tcp_req_attrs attrs = {};
	struct expectation *expectation;
	struct sock *sk;
	bool has_room;

	look_for_timestamps(skb, arrived);
	if (!agreed(arrived, &attrs))
		return SERVER_BAD_COOKIE;
	if (!arrived->timestamps.present)
		attrs.tstamp_ok = false;
	/* The stack continues this connection's timestamps from the echoed one. */
	attrs.rcv_tsval = arrived->timestamps.value;
	attrs.rcv_tsecr = arrived->timestamps.echo;
	sk = (struct sock *)bpf_skc_to_tcp_sock(listener);
	/* The access to a field makes the compiler emit the BTF of the whole type, which the kfunc
	 * requires. */
	if (!sk || !sk->__sk_common.skc_family)
		return SERVER_REFUSED;
	/* If the accept queue is full, the stack drops the segment, and the client retransmits it
	 * (sk_acceptq_is_full of Linux). */
	has_room = sk->sk_ack_backlog <= sk->sk_max_ack_backlog;
	if (bpf_sk_assign_tcp_reqsk(skb, sk, &attrs, sizeof(attrs)))
		return SERVER_REFUSED;
	if (!has_room || !is_sound(skb, arrived))
		return SERVER_ACCEPTED;
	note_made(arrived);
	expectation = expectation_of(arrived);
	if (expectation)
		expectation->made = true;
	return SERVER_ACCEPTED;
}

/* Decides a segment for which the host has a connected socket. The segment belongs to a new
 * connection only if it acknowledges data that the socket hasn't sent. Otherwise it may be a
 * retransmission of the socket's own first segment. */
static __always_inline int resolve_conflict(struct bpf_sock *found, const struct arrived *arrived, struct old *old)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(found);
	__u32 first;

	if (!tcp)
		return GO_ON;
	first = tcp->snd_una - (__u32)tcp->bytes_acked;
	/* `write_seq` is used and not `snd_nxt`, since an acknowledgment may arrive before the
	 * stack has updated `snd_nxt`. */
	if (arrived->acknowledgment - first <= tcp->write_seq - first)
		return GO_ON;
	old->next = tcp->rcv_nxt;
	old->timestamp = tcp->rx_opt.ts_recent;
	return SERVER_STALE_EVICTED;
}

/* Decides a segment for which the host has a socket. */
static __always_inline int decide_by_socket(struct __sk_buff *skb, struct bpf_sock *found, struct arrived *arrived,
				struct old *old)
{
	struct tcp_timewait_sock *waiting;

	switch (found->state) {
	case BPF_TCP_LISTEN:
		return arrived->listener == arrived->port ? create_connection(skb, found, arrived) : SERVER_NO_LISTENER;
	case BPF_TCP_NEW_SYN_RECV:
		return GO_ON;
	case BPF_TCP_TIME_WAIT:
		waiting = bpf_skc_to_tcp_timewait_sock(found);
		if (!waiting)
			return GO_ON;
		old->next = waiting->tw_sk.__tw_common.skc_tw_rcv_nxt;
		old->timestamp = waiting->tw_ts_recent;
		return SERVER_TIME_WAIT_EVICTED;
	default:
		return resolve_conflict(found, arrived, old);
	}
}

/* Gives the segment to a listener on another port. The connection keeps the service's port. */
static __always_inline int create_at_other_listener(struct __sk_buff *skb, struct arrived *arrived)
{
	int verdict = SERVER_NO_LISTENER;
	struct bpf_sock *found;

	set_ports(arrived, arrived->listener);
	found = look_up(skb, arrived);
	set_ports(arrived, arrived->port);
	if (!found)
		return verdict;
	if (found->state == BPF_TCP_LISTEN)
		verdict = create_connection(skb, found, arrived);
	bpf_sk_release(found);
	return verdict;
}

/* Tracks the exchanges of a connection. `first` is true for the segment that creates it. */
static __always_inline void follow(struct __sk_buff *skb, const struct arrived *arrived, bool first)
{
	struct payload payload = {
		.sequence = arrived->sequence,
		.acknowledgment = arrived->acknowledgment,
		.from = arrived->l4_end,
		.len = arrived->len,
		.urgent = arrived->urgent,
	};
	struct connection connection;

	connection_of(arrived, &connection);
	if (first)
		begin_exchange(skb, &connection, &payload);
	else
		follow_request(skb, &connection, &payload);
}

/* True if a connection may be created from this segment. */
__noinline int may_begin(struct arrived *arrived)
{
	struct expectation *expectation;

	if (!arrived || was_made(arrived))
		return false;
	expectation = expectation_of(arrived);
	return expectation ? !expectation->made : has_good_cookie(arrived);
}

static __always_inline int answer(struct __sk_buff *skb, struct arrived *arrived)
{
	struct bpf_sock *found = look_up(skb, arrived);
	int reason = SERVER_NO_LISTENER;
	struct old old = {};

	if (found) {
		reason = decide_by_socket(skb, found, arrived, &old);
		bpf_sk_release(found);
	}
	if (reason == SERVER_NO_LISTENER && arrived->listener != arrived->port)
		reason = create_at_other_listener(skb, arrived);
	if (reason == SERVER_TIME_WAIT_EVICTED || reason == SERVER_STALE_EVICTED) {
		look_for_timestamps(skb, arrived);
		if (may_begin(arrived) && is_newer(arrived, &old))
			return clear(skb, arrived, &old, reason);
		return TC_ACT_UNSPEC;
	}
	if (skb->tc_index == CLEARED)
		note_copy(arrived, reason == SERVER_ACCEPTED);
	if (arrived->turns && (reason == GO_ON || reason == SERVER_ACCEPTED))
		follow(skb, arrived, reason == SERVER_ACCEPTED);
	if (reason != GO_ON)
		count_server(reason);
	return TC_ACT_UNSPEC;
}

#endif
