//! Updates the state of a session by packets of its client and its server.
//!
//! A TCP session is *embryonic* until its client has answered. If the server's SYN-ACK passes this
//! host, the client must acknowledge the server's initial sequence number, of which 12 bits are in
//! the session's mark (12 bits whose meaning depends on the session's state). Only a client that
//! received the SYN-ACK knows the number. If the SYN-ACK doesn't pass this host, a second segment
//! must follow closely on the client's own initial sequence number. A blind attacker can send both
//! segments, but the shares of services bound the damage. A UDP flow is embryonic until its client
//! sends another packet two seconds or more after the first. If replies pass this host, the server
//! must also have replied before. So the flow of a query with its reply, or of two forged packets
//! in a row, stays embryonic.
//!
//! Windows aren't tracked, so a FIN or RST may be forged. A client's FIN or RST makes a session
//! half-closed, which doesn't end the session (RFC 9293, section 3.6). A segment whose sequence
//! number doesn't fit this FIN or RST shows that the client did not send the FIN or RST, and
//! reopens the session. A FIN or RST close to the client's last stored sequence number is
//! *plausible*. One in sixteen blind forgeries is plausible. An implausible FIN or RST doesn't
//! shorten the session's lifetime. Only after a plausible FIN or RST may the client's port open a
//! new connection to another server. If both directions pass this host, FINs of both sides end a
//! connection. An RST of the server also ends a connection, and so does a plausible RST of the
//! client after the server's FIN.
//!
//! If both directions pass this host, only the client's answer ends the embryonic state. FIN and
//! RST don't. Linux resets a half-open connection when another SYN in its window arrives. If the
//! reset closed the session, forged SYNs would hold slots and ports for as long as real clients do.
//!
//! A session that another director has told of becomes this director's own by its client's first
//! packet. A SYN changes nothing: it may be forged, and the connection may be open.

use super::Decide;
use super::flow::{Flow, NEAR, NEAR_MASK, has_moved_on};
use crate::net::wire::{TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};
use crate::path::parse::Segment;
use crate::path::sessions::{FoundSession, PLAUSIBLE, State, Value};

/// Minimum age at which another client's packet makes a UDP flow assured, in units of
/// [`time_mark`]. The first unit may be partial. It is two seconds, as for conntrack's streams.
const LASTING: u16 = 16;
const MARK_MASK: u16 = (1 << Value::MARK_BITS) - 1;

/// Returns a sequence number in units of 1024 bytes, modulo 2^11, for a session's mark.
const fn near_mark(sequence: u32) -> u16 {
    (sequence >> 10) as u16 & NEAR_MASK
}

/// Returns the lower twelve bits of a sequence number, for a session's mark.
const fn exact_mark(sequence: u32) -> u16 {
    sequence as u16 & MARK_MASK
}

/// Returns a tick in units of 134 ms, modulo 2^12 (nine minutes), for a session's mark.
const fn time_mark(now: u32) -> u16 {
    (now >> 7) as u16 & MARK_MASK
}

/// Side from which a packet of a session comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketSide {
    Client {
        /// True if replies pass this host. False if replies go straight to the client.
        sees_answers: bool,
    },
    Server,
}

/// Returns the mark of a session that this packet opens.
pub(super) fn first_mark(flow: &Flow<'_>) -> u16 {
    if flow.is_udp() { time_mark(flow.now) } else { near_mark(flow.segment.sequence) }
}

impl Decide<'_, '_> {
    /// True if a server's packet belongs to the connection of a session that has the packet's
    /// endpoints. A SYN-ACK belongs to a session that waits for one. A SYN-ACK that acknowledges
    /// the client's last segment also belongs: the client's ACK may be lost behind the director, or
    /// ignored by the server (`TCP_DEFER_ACCEPT`). Any other SYN-ACK answers a SYN that the client
    /// sent to the server directly. Such a SYN-ACK closes an ending session: the server has reused
    /// these endpoints for another connection (RFC 9293, section 3.6.1).
    pub(super) fn takes(&self, segment: &Segment, session: FoundSession<'_>) -> bool {
        const CONTROL: u8 = TCP_SYN | TCP_ACK | TCP_FIN | TCP_RST;
        let value = session.value;
        let takes = segment.flags & CONTROL != TCP_SYN | TCP_ACK
            || match value.state() {
                State::Established | State::HalfClosed => {
                    !has_moved_on(value.mark(), near_mark(segment.acknowledgment))
                }
                state => !state.is_ending(),
            };
        if !takes && value.state().is_ending() {
            self.memory.sessions.change(session, value.moved_to(State::Closing, self.now));
        }
        takes
    }

    /// Extends a session's lifetime and updates its state. Returns the session's new value.
    pub(super) fn follow(&self, flow: &Flow<'_>, side: PacketSide, session: FoundSession<'_>) -> Value {
        let Some(value) = next_value(flow, side, session.value) else { return session.value };
        if flow.is_stale(session.value, value) {
            self.memory.sessions.change(session, value);
        }
        value
    }
}

/// Change of a session by a packet.
#[derive(Clone, Copy)]
struct SessionUpdate {
    state: State,
    mark: u16,
    /// True if the packet must not shorten the session's lifetime.
    lasts: bool,
}

/// Returns the session's value after this packet. `None` if the packet changes nothing.
pub(super) fn next_value(flow: &Flow<'_>, side: PacketSide, was: Value) -> Option<Value> {
    let update = match side {
        PacketSide::Client { sees_answers } => update_by_client(flow, was, sees_answers),
        PacketSide::Server => update_by_server(flow, was),
    }?;
    let next = flow.value(was.server(), update.state).with_mark(update.mark);
    let gained = next.expires().wrapping_sub(was.expires()) as i32;
    Some(if update.lasts && gained < 0 { next.moved_to(update.state, was.expires()) } else { next })
}

/// Returns the change by a client's packet. `None` if the packet changes nothing.
fn update_by_client(flow: &Flow<'_>, was: Value, sees_answers: bool) -> Option<SessionUpdate> {
    let has = |flag| flow.segment.flags & flag != 0;
    let (state, mark) = (was.state(), was.mark());
    let to = |state| Some(SessionUpdate { state, mark, lasts: false });
    let near = if flow.keeps_mark() { mark } else { near_mark(flow.segment.sequence) };
    let is_near = flow.keeps_mark() || fits_mark(flow.segment.sequence, mark);
    let ended = |plausible: bool| {
        let mark = if plausible && !flow.keeps_mark() { near | PLAUSIBLE } else { near };
        Some(SessionUpdate { state: State::HalfClosed, mark, lasts: !plausible })
    };
    match state {
        State::New if flow.opens() => Some(SessionUpdate { state, mark: near, lasts: false }),
        State::New if has(TCP_RST) && is_near && !sees_answers => ended(true),
        State::New | State::Answered if has(TCP_RST) => None,
        State::New | State::Answered if answers_syn_ack(flow, was, sees_answers) => match has(TCP_FIN) {
            true => ended(true),
            false => Some(SessionUpdate { state: State::Established, mark: near, lasts: false }),
        },
        State::Replicated if has(TCP_SYN) => None,
        State::Established | State::Replicated if has(TCP_FIN | TCP_RST) => ended(is_near),
        // The mark is as old as what the other director has told.
        State::Replicated => Some(SessionUpdate { state: State::Established, mark: near, lasts: false }),
        State::UdpReplicated => to(State::Udp),
        // An attacker's sequence number must not make the attacker's FIN or RST plausible later.
        State::Established if is_near => Some(SessionUpdate { state, mark: near, lasts: false }),
        State::HalfClosed if has(TCP_SYN) => None,
        State::HalfClosed if is_near => Some(SessionUpdate { state, mark, lasts: true }),
        // A segment before the plausible FIN or RST was late or retransmitted.
        State::HalfClosed if mark & PLAUSIBLE != 0 && is_behind(flow.segment.sequence, mark) => {
            Some(SessionUpdate { state, mark, lasts: true })
        }
        // The earlier, plausible FIN or RST stands.
        State::HalfClosed if has(TCP_FIN | TCP_RST) && mark & PLAUSIBLE != 0 => None,
        State::HalfClosed if has(TCP_FIN | TCP_RST) => ended(false),
        State::HalfClosed => Some(SessionUpdate { state: State::Established, mark: near, lasts: true }),
        State::ServerClosed if has(TCP_RST) => {
            is_near.then_some(SessionUpdate { state: State::Closing, mark, lasts: false })
        }
        State::ServerClosed if has(TCP_FIN) => to(State::Closing),
        State::ServerClosed if is_near => Some(SessionUpdate { state, mark: near, lasts: false }),
        State::Closing if has(TCP_RST) => None,
        State::UdpNew if !sees_answers && has_lasted(flow, mark) => to(State::Udp),
        State::UdpAnswered if has_lasted(flow, mark) => to(State::Udp),
        same => to(same),
    }
}

/// Returns the change by a server's packet. `None` if the packet changes nothing.
fn update_by_server(flow: &Flow<'_>, was: Value) -> Option<SessionUpdate> {
    let has = |flag| flow.segment.flags & flag != 0;
    let (state, mark) = (was.state(), was.mark());
    let to = |state| Some(SessionUpdate { state, mark, lasts: false });
    match state {
        State::UdpNew => to(State::UdpAnswered),
        State::Closing => to(state),
        // An RST doesn't end an embryonic session, so its slot and port are still the first to be
        // evicted.
        State::New | State::Answered => match flow.segment.flags & (TCP_SYN | TCP_ACK) == TCP_SYN | TCP_ACK {
            true => Some(SessionUpdate {
                state: State::Answered,
                mark: exact_mark(flow.segment.sequence),
                lasts: false,
            }),
            false => None,
        },
        _ if has(TCP_RST) => to(State::Closing),
        State::HalfClosed if has(TCP_FIN) => to(State::Closing),
        State::HalfClosed => Some(SessionUpdate { state, mark, lasts: true }),
        State::Established | State::Replicated if has(TCP_FIN) => to(State::ServerClosed),
        same => to(same),
    }
}

/// True if a client's segment answers the server's SYN-ACK.
fn answers_syn_ack(flow: &Flow<'_>, was: Value, sees_answers: bool) -> bool {
    let is_answer = flow.segment.flags & (TCP_SYN | TCP_ACK) == TCP_ACK;
    is_answer
        && match was.state() {
            // With handoff, the client's answer was checked by its cookie.
            _ if flow.keeps_mark() => true,
            State::Answered => exact_mark(flow.segment.acknowledgment.wrapping_sub(1)) == was.mark(),
            _ => !sees_answers && fits_mark(flow.segment.sequence, was.mark()),
        }
}

/// True if a sequence number is at most [`NEAR`] before or after the one in the mark.
fn fits_mark(sequence: u32, mark: u16) -> bool {
    near_mark(sequence).wrapping_sub(mark).wrapping_add(NEAR) & NEAR_MASK <= 2 * NEAR
}

/// True if a sequence number is before the one in the mark. The mark shows this modulo two
/// megabytes.
fn is_behind(sequence: u32, mark: u16) -> bool {
    mark.wrapping_sub(near_mark(sequence)) & NEAR_MASK <= NEAR_MASK / 2
}

fn has_lasted(flow: &Flow<'_>, since: u16) -> bool {
    time_mark(flow.now).wrapping_sub(since) & MARK_MASK >= LASTING
}
