/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Handoff: core/src/path/decide/handoff.rs. The director accepts a connection statelessly with a
 * SYN cookie, and selects its server when the client's request arrives. The fast path forwards most
 * packets of established sessions.
 */
#ifndef EVENER_HANDOFF_H
#define EVENER_HANDOFF_H

#include "director/choose.h"
#include "director/content.h"
#include "director/handshake.h"
#include "director/fragment.h"

/* Fills `flow` from the packet context. False if the VIP no longer exists. */
static __always_inline bool flow_of(struct scratch *at, struct flow *flow)
{
	const struct packet_context *pkt = &at->pkt;
	const struct vip *vip = find_vip_by_id(pkt->vip);

	if (!vip)
		return false;
	flow->vip = vip;
	flow->key = &at->key6;
	flow->hash = pkt->hash;
	flow->now = ticks_now();
	flow->v6 = pkt->v6;
	flow->flags = pkt->flags;
	flow->numbers = pkt->numbers;
	return true;
}

/* Writes the connection's addresses and ports into the input of a cookie's hash. */
static __always_inline void put_ends(struct scratch *at)
{
	__be32 *word = at->message.word;

	if (at->pkt.v6) {
		for (int i = 0; i < 4; i++) {
			word[i] = at->src.word[i];
			word[4 + i] = at->dst.word[i];
		}
		word[COOKIE_ENDS6 - 1] = at->tcp.ports;
	} else {
		word[0] = at->src.word[0];
		word[1] = at->dst.word[0];
		word[COOKIE_ENDS4 - 1] = at->tcp.ports;
	}
}

/* True if a segment may echo a cookie. Reads its options in that case. */
static __always_inline bool may_answer(context *ctx, struct scratch *at)
{
	return (at->pkt.flags & (TCP_SYN | TCP_RST | TCP_ACK)) == TCP_ACK && !at->pkt.is_fragment &&
	       read_offered(ctx, at);
}

/* True if a segment echoes a valid cookie. `late` is COOKIE_FIRST or COOKIE_REPLAYED. `before` is 1
 * for a keep-alive probe, whose sequence number is one below that of the first segment. */
static __noinline bool has_cookie(struct scratch *at, __u32 late, __u32 before)
{
	struct echoed_numbers echo = {
		.sequence = bpf_ntohl(at->tcp.sequence) + before,
		.acknowledgment = bpf_ntohl(at->tcp.acknowledgment),
		.echo = at->offered.echo,
		.has_echo = at->offered.has_timestamp,
	};

	put_ends(at);
	return cookie_is_good(&cookies, ticks_now(), &at->message, &echo, late, at->pkt.v6);
}

/* True if a segment, whose options aren't read yet, echoes a valid cookie. */
__attribute__((noinline)) int is_answer(context *ctx, struct scratch *at, __u32 late)
{
	return at && may_answer(ctx, at) && has_cookie(at, late, 0);
}

/* Returns the session's mark for the cookie that a segment echoes. */
static __always_inline __u16 answered_mark(const struct scratch *at)
{
	return cookie_mark(bpf_ntohl(at->tcp.acknowledgment) - 1);
}

/* Sends a segment to the server of its session. */
static __always_inline int keep_server(struct packet_context *pkt, const struct flow *flow, struct found *found)
{
	pkt->session = follow(flow, 0, found);
	pkt->server = value_server(found->value);
	return STEP_SEND_TO_SERVER;
}

/* Offset of the payload in the frame. */
static __always_inline __u32 payload_at(const struct scratch *at)
{
	return at->pkt.l4 + TCP_LEN + options_len(at);
}

static __always_inline __u32 payload_len(const struct scratch *at)
{
	return at->pkt.l3 + at->pkt.len - payload_at(at);
}

/* Reads the request that starts `behind` bytes after the start of the payload. True if it is
 * complete and unambiguous. */
static __always_inline bool read_for(context *ctx, struct scratch *at, const struct handoff *handoff, __u32 behind)
{
	at->reading.multiplier[0] = handoff->multiplier[0];
	at->reading.multiplier[1] = handoff->multiplier[1];
	return read_payload(ctx, at, payload_at(at) + behind, payload_len(at) - behind);
}

/* Result of the check of a client's handshake. */
enum proof {
	PROOF_MISSING,
	PROOF_FIRST, /* first segment after a cookie */
	PROOF_PROBE, /* keep-alive probe before the first segment */
	PROOF_UNCHECKED, /* not checked: too many such segments were guesses */
};

/* True for a keep-alive probe of a client that has sent no data: its sequence number is one below
 * that of the first segment (RFC 9293, section 3.8.4). */
static __always_inline bool is_probe(struct scratch *at)
{
	return !(at->pkt.flags & TCP_FIN) && has_cookie(at, COOKIE_FIRST, 1);
}

/* Checks the cookie of a segment that has no session, or whose session may belong to an older
 * connection. Only segments with data count as guesses, since an attacker gains nothing by a
 * segment without data. */
__attribute__((noinline)) int prove(context *ctx, struct scratch *at, __u32 at_work)
{
	struct guesses *of;
	__u32 says_something;
	bool is_guess;

	if (!at || !may_answer(ctx, at))
		return PROOF_MISSING;
	of = &guesses[at->pkt.vip % VIP_IDS];
	says_something = payload_len(at);
	/* A probe opens no connection, so it needn't count as a guess. */
	if (says_something == 1 && is_probe(at))
		return PROOF_PROBE;
	is_guess = says_something && !at->offered.has_timestamp;
	if (is_guess && !may_try(of, ticks_now(), at_work)) {
		if (!at_work)
			__sync_fetch_and_add(&of->unchecked, 1);
		return PROOF_UNCHECKED;
	}
	if (has_cookie(at, COOKIE_FIRST, 0))
		return PROOF_FIRST;
	if (!says_something && is_probe(at))
		return PROOF_PROBE;
	if (is_guess)
		guess_failed(of, ticks_now());
	if (says_something && !at_work)
		__sync_fetch_and_add(&of->bad, 1);
	return PROOF_MISSING;
}

/* Decides a segment that another host has forwarded. That host accepted the connection and has
 * selected this host as the server. A first segment creates a session, so that later segments are
 * recognised. */
static __always_inline int accept_forwarded(context *ctx, struct scratch *at, const struct flow *flow, struct found *found,
				     bool known)
{
	struct packet_context *pkt = &at->pkt;
	bool noted = known && value_server(found->value) == flow->vip->own;
	__u64 value;

	pkt->server = flow->vip->own;
	/* An ending session may be of an earlier connection with the same port. The SYN of the new
	 * one didn't pass this host. */
	if ((!noted || is_ending(found->value)) && payload_len(at) && is_answer(ctx, at, COOKIE_REPLAYED)) {
		value = with_mark(value_in(flow, flow->vip->own, STATE_ESTABLISHED), answered_mark(at));
		pkt->new_session = true;
		pkt->also_counted = put_session(flow, found, known, value);
	} else if (noted) {
		pkt->session = follow(flow, 0, found);
	}
	return STEP_SEND_TO_SERVER;
}

/* Decides a TCP packet for a service with handoff. */
__attribute__((noinline)) int hand_off(context *ctx, struct scratch *at)
{
	struct found found = {};
	struct flow flow = {};
	struct packet_context *pkt;
	struct server *server;
	bool known, alive, at_work, moves;
	int proof = PROOF_MISSING;

	if (!at)
		return VERDICT_DROP;
	pkt = &at->pkt;
	/* Some receivers remove urgent data from the stream and others don't (RFC 6093, section
	 * 3.4). They would read different requests. */
	if (pkt->flags & TCP_URG)
		return with_reason(VERDICT_DROP, REASON_BAD_FLAGS);
	if (!load_ends(ctx, pkt->l3, pkt->v6, &at->src, &at->dst) ||
	    frame_load(ctx, pkt->l4, &at->tcp, sizeof(at->tcp)))
		return with_reason(VERDICT_DROP, REASON_BAD_LENGTH);
	if (!flow_of(at, &flow))
		return with_reason(VERDICT_DROP, REASON_NO_SERVER);
	known = find_flow(&flow, &found);
	pkt->slot = known ? found.slot : NOT_FOUND;
	pkt->found = found.value;
	if (pkt->arrival != ARRIVED_DIRECT)
		return accept_forwarded(ctx, at, &flow, &found, known);
	if (opens(&flow)) {
		/* The SYN may be forged. The known connection continues until the client echoes
		 * the new cookie. */
		if (known) {
			change_session(&found, with_mark(found.value, value_mark(found.value) | MARK_SYN_SEEN));
			pkt->session = found.value;
		}
		return STEP_SYN_ACK;
	}
	server = known ? present_server(value_server(found.value)) : 0;
	alive = server;
	at_work = alive && !is_ending(found.value);
	moves = alive && server->flags & SERVER_BLACKHOLE;
	/* A segment belongs to the session, unless a SYN has arrived since the first segment and
	 * this segment has another cookie than the session. */
	if (!alive || (value_mark(found.value) & MARK_SYN_SEEN &&
		       (value_mark(found.value) & ~MARK_SYN_SEEN) != answered_mark(at))) {
		proof = prove(ctx, at, at_work);
		/* Only a first segment with a good checksum opens a session. The server would drop
		 * a damaged one, and the client's retransmission might select another server. */
		if (proof == PROOF_PROBE)
			return STEP_ACKNOWLEDGE;
		if (proof == PROOF_FIRST)
			return !payload_len(at) || is_sound(ctx, at) ? STEP_BEGIN :
								       with_reason(VERDICT_DROP, REASON_BAD_CHECKSUM);
	}
	/* The segment belongs to a new connection, since a side that has closed sends no more
	 * data. */
	if (proof == PROOF_UNCHECKED && !at_work)
		return unmatched_segment(pkt, REASON_COOKIE_UNCHECKED);
	if (!alive)
		return unmatched_segment(pkt, REASON_COOKIE_BAD);
	/* The connection is moving. The task that moves the connection decides the segment. */
	if (moves)
		return hold(ctx, at, REASON_REHANDOFF_BUFFERED);
	if (flow.vip->flags & VIP_LATER && !(pkt->flags & TCP_RST) && !pkt->is_fragment &&
	    payload_len(at)) {
		pkt->server = value_server(found.value);
		return STEP_LATER_SEGMENT;
	}
	return keep_server(pkt, &flow, &found);
}

/* True if a connection's server may answer the segment. A segment without a request line continues
 * the current request, or no server can parse it. False for a request that this program can't
 * parse. */
static __always_inline bool answers(context *ctx, struct scratch *at, const struct handoff *handoff)
{
	__u64 rings = pools[at->pkt.server % SERVER_SLOTS];
	__u32 ring = NO_RING;
	int begins;

	if (rings == ~0ULL)
		return true;
	begins = find_request(ctx, at, payload_at(at), payload_len(at));
	if (begins < 0)
		return true;
	if (read_for(ctx, at, handoff, begins))
		ring = find_ring(at, handoff->generation, handoff->complex_from, handoff->default_ring);
	return ring < SERVICES_MAX && rings >> ring & 1;
}

/* Queues a later request for the task that moves its connection. The following segments are held.
 * If several CPUs have segments of the connection, only one of them queues the request. */
static __always_inline int hold_request(context *ctx, struct scratch *at, const struct handoff *handoff,
				     const struct flow *flow, struct found *found)
{
	__u64 before = found->value;
	__u64 held = with_mark(value_in(flow, handoff->held, STATE_ESTABLISHED), value_mark(before));
	int verdict;

	if (frame_len(ctx) > HELD_FRAME_MAX)
		return with_reason(VERDICT_DROP, REASON_REHANDOFF);
	if (handoff->held == NO_SERVER)
		return hold(ctx, at, REASON_REHANDOFF);
	if (!change_session(found, held))
		return with_reason(VERDICT_DROP, REASON_REHANDOFF);
	verdict = hold(ctx, at, REASON_REHANDOFF);
	if (!at->trace.is_held) {
		found->value = held;
		change_session(found, before);
	}
	return verdict;
}

/* Decides a segment of a connection with a server. If another server has to answer the request, the
 * connection is moved or reset. After a reset the client retries on a new connection (RFC 9112,
 * section 9.3.1). The server does not learn of the reset. */
__attribute__((noinline)) int later_segment(context *ctx, struct scratch *at)
{
	struct found found = {};
	struct flow flow = {};
	struct handoff *handoff;

	if (!at)
		return VERDICT_DROP;
	handoff = find_handoff(at->pkt.vip);
	if (!handoff || !flow_of(at, &flow) || !find_again(&flow, at->pkt.slot, at->pkt.found, &found))
		return with_reason(VERDICT_DROP, REASON_NO_SERVER);
	/* The segment may be that of the first request, if the client or the move of a connection
	 * has retransmitted it. */
	if (answers(ctx, at, handoff) || is_answer(ctx, at, COOKIE_REPLAYED))
		return keep_server(&at->pkt, &flow, &found);
	if (handoff->later == LATER_REHANDOFF)
		return hold_request(ctx, at, handoff, &flow, &found);
	change_session(&found, with_mark(value_in(&flow, at->pkt.server, STATE_CLOSING), value_mark(found.value)));
	at->pkt.also_counted = REASON_ROUTE_MISMATCH;
	return STEP_RESET;
}

/* Answers a SYN with a cookie. All state is in the answer, and the client echoes it. */
__attribute__((noinline)) int answer_syn(context *ctx, struct scratch *at)
{
	const struct sip_key *key = &cookies.key;
	__u32 now = ticks_now(), epoch, terms;
	struct handoff *handoff;
	__u8 scale = COOKIE_NO_SCALE;
	__u64 cookie;
	bool scaling;

	if (!at)
		return VERDICT_DROP;
	if (!is_plain(&at->pkt) || !read_offered(ctx, at))
		return with_reason(VERDICT_DROP, REASON_BAD_LENGTH);
	handoff = find_handoff(at->pkt.vip);
	if (!handoff || !(key->word[0] | key->word[1]))
		return with_reason(VERDICT_DROP, REASON_NO_SERVER);
	scaling = at->offered.has_window_scale && at->offered.has_sack;
	/* A larger scale counts as the maximum (RFC 7323, section 2.3). */
	if (scaling)
		scale = at->offered.window_scale > COOKIE_WSCALE_MAX ? COOKIE_WSCALE_MAX : at->offered.window_scale;
	epoch = cookie_epoch(&cookies, now);
	terms = cookie_sealed(cookie_terms(at->offered.mss, scale, epoch, at->pkt.v6), epoch);
	put_ends(at);
	at->answer = (struct tcp_answer){ .flags = TCP_SYN | TCP_ACK, .window = GREETING_WINDOW };
	cookie = cookie_of(key, &at->message, bpf_ntohl(at->tcp.sequence), terms, at->pkt.v6);
	/* The cookie's mark distinguishes a connection from the previous one with the same
	 * ports. */
	if (at->pkt.session && (value_mark(at->pkt.session) & ~MARK_SYN_SEEN) == cookie_mark(cookie)) {
		terms = cookie_sealed(cookie_shorter(cookie), epoch);
		cookie = cookie_of(key, &at->message, bpf_ntohl(at->tcp.sequence), terms, at->pkt.v6);
	}
	at->answer.sequence = bpf_htonl(cookie);
	at->answer.acknowledgment = bpf_htonl(bpf_ntohl(at->tcp.sequence) + 1);
	put_options(at, handoff->mss, cookie >> 32, scaling);
	return answer_tcp(ctx, at, REASON_COOKIE_SENT);
}

/* Selects the server for a client's request. NO_SERVER if this program can't parse the request, or
 * no server serves it. */
static __always_inline __u16 choose_by_content(context *ctx, struct scratch *at, const struct handoff *handoff,
					       const struct flow *flow)
{
	__u32 ring;

	if (!read_for(ctx, at, handoff, 0))
		return NO_SERVER;
	ring = find_ring(at, handoff->generation, handoff->complex_from, handoff->default_ring);
	if (ring >= SERVICES_MAX)
		return NO_SERVER;
	return select_server(ring, handoff->ring_halves >> ring, flow->vip->pick, ring_hash_of(flow));
}

/* Opens the session of a client that has echoed a cookie, if the segment has a request. */
__attribute__((noinline)) int begin(context *ctx, struct scratch *at)
{
	struct found found = {};
	struct flow flow = {};
	struct handoff *handoff;
	struct packet_context *pkt;
	__u64 value;
	__u8 also_counted = 0;
	__u32 reason;
	__u16 server;
	bool known;

	if (!at)
		return VERDICT_DROP;
	pkt = &at->pkt;
	/* A client that closes without a request is reset. */
	if (!payload_len(at))
		return pkt->flags & TCP_FIN ? STEP_RESET : with_reason(VERDICT_DROP, REASON_COOKIE_ACKED);
	handoff = find_handoff(pkt->vip);
	if (!handoff || !flow_of(at, &flow))
		return with_reason(VERDICT_DROP, REASON_NO_SERVER);
	server = choose_by_content(ctx, at, handoff, &flow);
	if (server == NO_SERVER) {
		server = handoff->punt;
		also_counted = REASON_PUNTED;
	}
	if (server == NO_SERVER)
		return with_reason(VERDICT_DROP, REASON_NO_SERVER);
	if (server == ALL_FULL)
		return with_reason(VERDICT_DROP, REASON_SERVERS_FULL);
	value = with_mark(value_in(&flow, server, STATE_ESTABLISHED), answered_mark(at));
	known = find_again(&flow, pkt->slot, pkt->found, &found);
	reason = put_session(&flow, &found, known, value);
	/* Another CPU has changed the session. The client retransmits the segment. */
	if (reason == REASON_NO_SESSION)
		return with_reason(VERDICT_DROP, reason);
	/* There is no room for a session, so later segments would find no server. */
	pkt->also_counted = reason;
	if (reason)
		return STEP_RESET;
	pkt->session = value;
	pkt->also_counted = also_counted;
	pkt->server = server;
	pkt->new_session = true;
	return STEP_SEND_TO_SERVER;
}

#endif
