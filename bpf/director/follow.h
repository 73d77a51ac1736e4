/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* State machine of a session. core/src/path/decide/follow.rs has the same transitions, and explains
 * them. */
#ifndef EVENER_FOLLOW_H
#define EVENER_FOLLOW_H

#include "director/flow.h"
#include "net/tcp.h"

/* Minimum age of an assured UDP flow, in units of time_mark(). */
#define LASTING 16

/* Flags of a packet, above its control bits. */
#define OF_SERVER 0x200 /* sent by the server */
#define SEES_ANSWERS 0x400 /* the server replies through this host */
#define KEEPS_MARK 0x800 /* packets don't change the mark: the service has handoff */

/* Update of a session: bits 0 to 3 are the new state, bits 16 to 27 the new mark. */
#define UPDATE_MARK 16
#define UPDATE_LASTS (1u << 30) /* the expiry must not become earlier */
#define UPDATE_NONE (1u << 31) /* nothing changes */

static __always_inline __u16 near_mark(__u32 sequence)
{
	return sequence >> 10 & NEAR_MASK;
}

static __always_inline __u16 time_mark(__u32 now)
{
	return now >> 7 & MARK_MASK;
}

static __always_inline __u16 first_mark(const struct flow *flow)
{
	return flow->udp ? time_mark(flow->now) : near_mark(flow->numbers);
}

static __always_inline bool fits_mark(__u32 sequence, __u16 mark)
{
	return ((near_mark(sequence) - mark + NEAR) & NEAR_MASK) <= 2 * NEAR;
}

/* True if a sequence number is before the mark, within the precision of a mark. */
static __always_inline bool is_behind(__u32 sequence, __u16 mark)
{
	return ((mark - near_mark(sequence)) & NEAR_MASK) <= NEAR_MASK / 2;
}

/* True if a session has ended: it is closing, or half-closed by a plausible segment. */
static __always_inline bool has_ended(__u64 value)
{
	__u8 state = value_state(value);

	return state == STATE_CLOSING || (state == STATE_HALF_CLOSED && value_mark(value) & PLAUSIBLE);
}

static __always_inline __u32 update_to(__u8 state, __u16 mark)
{
	return state | (__u32)mark << UPDATE_MARK;
}

/* True if a client's segment is the first after the server's SYN-ACK. */
static __always_inline bool answers_syn_ack(__u32 flags, __u64 was, __u32 sequence, __u32 acknowledgment)
{
	if ((flags & (TCP_SYN | TCP_ACK)) != TCP_ACK)
		return false;
	if (flags & KEEPS_MARK)
		return true;
	if (value_state(was) == STATE_ANSWERED)
		return ((acknowledgment - 1) & MARK_MASK) == value_mark(was);
	return !(flags & SEES_ANSWERS) && fits_mark(sequence, value_mark(was));
}

static __always_inline __u32 update_by_client(__u32 flags, __u64 was, __u32 sequence, __u32 acknowledgment, __u32 now)
{
	__u16 mark = value_mark(was), near = flags & KEEPS_MARK ? mark : near_mark(sequence);
	__u16 plausible = flags & KEEPS_MARK ? mark : near | PLAUSIBLE;
	bool fits = flags & KEEPS_MARK || fits_mark(sequence, mark);
	__u8 state = value_state(was);

	switch (state) {
	case STATE_NEW:
		if ((flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
			return update_to(state, near);
		if (flags & TCP_RST && fits && !(flags & SEES_ANSWERS))
			return update_to(STATE_HALF_CLOSED, plausible);
		/* fallthrough */
	case STATE_ANSWERED:
		if (flags & TCP_RST)
			return UPDATE_NONE;
		if (!answers_syn_ack(flags, was, sequence, acknowledgment))
			break;
		return flags & TCP_FIN ? update_to(STATE_HALF_CLOSED, plausible) : update_to(STATE_ESTABLISHED, near);
	case STATE_REPLICATED:
		if (flags & TCP_SYN)
			return UPDATE_NONE;
		if (!(flags & (TCP_FIN | TCP_RST)))
			return update_to(STATE_ESTABLISHED, near);
		/* fallthrough */
	case STATE_ESTABLISHED:
		if (flags & (TCP_FIN | TCP_RST))
			return fits ? update_to(STATE_HALF_CLOSED, plausible) :
				      update_to(STATE_HALF_CLOSED, near) | UPDATE_LASTS;
		return update_to(state, fits ? near : mark);
	case STATE_HALF_CLOSED:
		if (flags & TCP_SYN)
			return UPDATE_NONE;
		/* Includes segments that were delayed or retransmitted. */
		if (fits || (mark & PLAUSIBLE && is_behind(sequence, mark)))
			return update_to(state, mark) | UPDATE_LASTS;
		/* An earlier plausible FIN or RST takes precedence over this one. */
		if (flags & (TCP_FIN | TCP_RST))
			return mark & PLAUSIBLE ? UPDATE_NONE : update_to(state, near) | UPDATE_LASTS;
		return update_to(STATE_ESTABLISHED, near) | UPDATE_LASTS;
	case STATE_SERVER_CLOSED:
		if (flags & TCP_RST)
			return fits ? update_to(STATE_CLOSING, mark) : UPDATE_NONE;
		if (flags & TCP_FIN)
			return update_to(STATE_CLOSING, mark);
		return update_to(state, fits ? near : mark);
	case STATE_CLOSING:
		if (flags & TCP_RST)
			return UPDATE_NONE;
		break;
	case STATE_UDP_REPLICATED:
		return update_to(STATE_UDP, mark);
	case STATE_UDP_NEW:
		if (flags & SEES_ANSWERS)
			break;
		/* fallthrough */
	case STATE_UDP_ANSWERED:
		if (((time_mark(now) - mark) & MARK_MASK) >= LASTING)
			return update_to(STATE_UDP, mark);
		break;
	}
	return update_to(state, mark);
}

static __always_inline __u32 update_by_server(__u32 flags, __u64 was, __u32 sequence)
{
	__u16 mark = value_mark(was);
	__u8 state = value_state(was);

	if (state == STATE_UDP_NEW)
		return update_to(STATE_UDP_ANSWERED, mark);
	if (state == STATE_CLOSING)
		return update_to(state, mark);
	if (state == STATE_NEW || state == STATE_ANSWERED) {
		if ((flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK))
			return update_to(STATE_ANSWERED, sequence & MARK_MASK);
		return UPDATE_NONE;
	}
	if (flags & TCP_RST)
		return update_to(STATE_CLOSING, mark);
	if (state == STATE_HALF_CLOSED)
		return flags & TCP_FIN ? update_to(STATE_CLOSING, mark) : update_to(state, mark) | UPDATE_LASTS;
	if ((state == STATE_ESTABLISHED || state == STATE_REPLICATED) && flags & TCP_FIN)
		return update_to(STATE_SERVER_CLOSED, mark);
	return update_to(state, mark);
}

/* True if a server's packet belongs to a session with the same endpoints. */
static __always_inline bool takes(struct found *session, __u32 flags, __u32 acknowledgment, __u32 now)
{
	__u64 value = session->value;
	__u8 state = value_state(value);

	if ((flags & (TCP_SYN | TCP_ACK | TCP_FIN | TCP_RST)) != (TCP_SYN | TCP_ACK))
		return true;
	if (state == STATE_ESTABLISHED || state == STATE_HALF_CLOSED) {
		if (!has_moved_on(value_mark(value), near_mark(acknowledgment)))
			return true;
	} else if (!is_ending(value)) {
		return true;
	}
	if (is_ending(value))
		change_session(session, moved_to(value, STATE_CLOSING, now));
	return false;
}

/* Not inlined: most packets change nothing, and the verifier checks this code only once. */
__attribute__((noinline)) __u32 next_update(__u64 was, __u32 flags, __u64 numbers, __u32 now)
{
	__u32 sequence = numbers, acknowledgment = numbers >> 32;

	if (flags & OF_SERVER)
		return update_by_server(flags, was, sequence);
	return update_by_client(flags, was, sequence, acknowledgment, now);
}

/* Refreshes a session and updates its state. `side` is OF_SERVER, SEES_ANSWERS, or 0 for a client's
 * packet if the server replies directly to the client. */
static __always_inline __u64 follow(const struct flow *flow, __u32 side, struct found *found)
{
	__u32 flags = flow->flags | side, step;
	__u64 was = found->value, value;
	__u8 state = value_state(was);

	if (flow->vip->flags & VIP_HANDOFF)
		flags |= KEEPS_MARK;
	/* Most packets take this branch. */
	if (state == STATE_ESTABLISHED && !(flags & (TCP_FIN | TCP_RST | KEEPS_MARK | OF_SERVER)))
		step = update_to(state, fits_mark(flow->numbers, value_mark(was)) ?
						near_mark(flow->numbers) : value_mark(was));
	else if (state == STATE_UDP || (state == STATE_ESTABLISHED && !(flags & (TCP_FIN | TCP_RST))))
		step = update_to(state, value_mark(was));
	else
		step = next_update(was, flags, flow->numbers, flow->now);
	if (step & UPDATE_NONE)
		return was;
	value = with_mark(value_in(flow, value_server(was), step & 0xf), step >> UPDATE_MARK & MARK_MASK);
	if (step & UPDATE_LASTS && (__s32)(value_expires(value) - value_expires(was)) < 0)
		value = (__u32)value | was >> 32 << 32;
	if (is_stale(flow->vip, was, value))
		change_session(found, value);
	return value;
}

#endif
