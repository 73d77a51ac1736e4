//! How a session's state moves with the packets of its flow, whichever side they are from.
//!
//! A TCP session is *embryonic* until its client has answered. Where the server's SYN and ACK come
//! by here, the client must acknowledge the server's initial sequence number, of which the mark
//! keeps 12 bits: only who has seen it knows it. Elsewhere a second segment has to follow the
//! client's own initial sequence number closely; a blind sender of both can do that, and the shares
//! of services bound what it gains. A UDP flow is embryonic until its client sends again two
//! seconds or more after its first packet, and after an answer where those come by here: a question
//! and its answer, or a stranger's two packets in a row, are no more than that.
//!
//! Windows aren't tracked, so a FIN or RST may be anybody's. One in the client's name makes a
//! session half-closed, which puts an end to nothing: it lives on (RFC 9293, section 3.6), and a
//! segment that doesn't belong before that end shows that the client knows nothing of it, and
//! revives the session. An end that is close to what was last noted of the client's numbers is
//! *plausible*, as one forged blindly is once in sixteen times. Any other takes none of the
//! session's time away, and only behind a plausible one may the port begin a new connection to
//! another server. Where both sides are seen, FINs of both end a connection, and so does an RST of
//! the server, which answers for itself, and behind the server's FIN a plausible one of the client.
//!
//! Where both sides are seen, nothing but the client's answer makes an embryonic session more than
//! that, no end either. Linux resets a half-open connection that gets another SYN within its
//! window; if that closed a session, strangers' SYNs would come to hold places and ports for as
//! long as clients do that were served.

use super::Decide;
use super::flow::{Flow, NEAR, NEAR_MASK, PLAUSIBLE, has_moved_on};
use crate::net::wire::{TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};
use crate::path::parse::Segment;
use crate::path::sessions::{FoundSession, State, Value};

/// How long a UDP flow must have lasted when its client sends again, in units of [`time_mark`], the
/// first of which may have just ended: two seconds, as conntrack has it of streams.
const LASTING: u16 = 16;
const MARK_MASK: u16 = (1 << Value::MARK_BITS) - 1;

/// A sequence number to the kilobyte, in eleven bits.
const fn near_mark(sequence: u32) -> u16 {
    (sequence >> 10) as u16 & NEAR_MASK
}

/// A sequence number's lower bits.
const fn exact_mark(sequence: u32) -> u16 {
    sequence as u16 & MARK_MASK
}

/// A tick in units of 134 ms, of the last nine minutes.
const fn time_mark(now: u32) -> u16 {
    (now >> 7) as u16 & MARK_MASK
}

/// The sender of a packet, and the flow's further state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketSide {
    /// The client; whether answers come by here too.
    Client {
        /// Else they go straight to the client.
        sees_answers: bool,
    },
    /// The server.
    Server,
}

/// The mark of a session that this packet begins.
pub(super) fn first_mark(flow: &Flow<'_>) -> u16 {
    if flow.is_udp() { time_mark(flow.now) } else { near_mark(flow.segment.sequence) }
}

/// Whether a session is over, as far as can be told: its client's port may be used again.
pub(super) fn has_ended(value: Value) -> bool {
    match value.state() {
        State::Closing => true,
        State::HalfClosed => value.mark() & PLAUSIBLE != 0,
        _ => false,
    }
}

impl Decide<'_, '_> {
    /// Whether a server's packet belongs to a session that has its ends. A SYN-ACK does if the
    /// session waits for one, or if it acknowledges what the client has last sent: the client's ACK
    /// may be lost behind the director, or put off by the server (`TCP_DEFER_ACCEPT`). Any other
    /// answers a SYN that the client has sent to the server itself. It ends a session that was
    /// about to end: the server has given these ends to another connection (RFC 9293, section
    /// 3.6.1).
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

    /// Keeps a session alive and moves its state on. Returns its new value.
    pub(super) fn follow(&self, flow: &Flow<'_>, side: PacketSide, session: FoundSession<'_>) -> Value {
        let Some(value) = next_value(flow, side, session.value) else { return session.value };
        if flow.is_stale(session.value, value) {
            self.memory.sessions.change(session, value);
        }
        value
    }
}

/// The change of a session by a packet.
#[derive(Clone, Copy)]
struct SessionUpdate {
    state: State,
    mark: u16,
    /// Whether it lives at least as long as before.
    lasts: bool,
}

/// The session's value after this packet; `None` where the packet changes nothing.
pub(super) fn next_value(flow: &Flow<'_>, side: PacketSide, was: Value) -> Option<Value> {
    let update = match side {
        PacketSide::Client { sees_answers } => update_by_client(flow, was, sees_answers),
        PacketSide::Server => update_by_server(flow, was),
    }?;
    let next = flow.value(was.server(), update.state).with_mark(update.mark);
    let gained = next.expires().wrapping_sub(was.expires()) as i32;
    Some(if update.lasts && gained < 0 { next.moved_to(update.state, was.expires()) } else { next })
}

/// The change by a client's packet; `None` where it changes nothing.
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
        State::Established if has(TCP_FIN | TCP_RST) => ended(is_near),
        // A stranger's numbers here must not make his end plausible.
        State::Established if is_near => Some(SessionUpdate { state, mark: near, lasts: false }),
        State::HalfClosed if has(TCP_SYN) => None,
        State::HalfClosed if is_near => Some(SessionUpdate { state, mark, lasts: true }),
        // A segment that was late, or was sent again although it had come.
        State::HalfClosed if mark & PLAUSIBLE != 0 && is_behind(flow.segment.sequence, mark) => {
            Some(SessionUpdate { state, mark, lasts: true })
        }
        // The plausible one stands.
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

/// The change by a server's packet; `None` where it changes nothing.
fn update_by_server(flow: &Flow<'_>, was: Value) -> Option<SessionUpdate> {
    let has = |flag| flow.segment.flags & flag != 0;
    let (state, mark) = (was.state(), was.mark());
    let to = |state| Some(SessionUpdate { state, mark, lasts: false });
    match state {
        State::UdpNew => to(State::UdpAnswered),
        State::Closing => to(state),
        // An RST to who has not answered ends nothing that was assured, so its place and port stay
        // anybody's.
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
        State::Established if has(TCP_FIN) => to(State::ServerClosed),
        same => to(same),
    }
}

/// Whether a client's segment is what follows its SYN.
fn answers_syn_ack(flow: &Flow<'_>, was: Value, sees_answers: bool) -> bool {
    let is_answer = flow.segment.flags & (TCP_SYN | TCP_ACK) == TCP_ACK;
    is_answer
        && match was.state() {
            // Its cookie was looked at.
            _ if flow.keeps_mark() => true,
            State::Answered => exact_mark(flow.segment.acknowledgment.wrapping_sub(1)) == was.mark(),
            _ => !sees_answers && fits_mark(flow.segment.sequence, was.mark()),
        }
}

/// Whether a sequence number is close to the marked one.
fn fits_mark(sequence: u32, mark: u16) -> bool {
    near_mark(sequence).wrapping_sub(mark).wrapping_add(NEAR) & NEAR_MASK <= 2 * NEAR
}

/// Whether a sequence number is before the marked one, as far as a mark tells.
fn is_behind(sequence: u32, mark: u16) -> bool {
    mark.wrapping_sub(near_mark(sequence)) & NEAR_MASK <= NEAR_MASK / 2
}

fn has_lasted(flow: &Flow<'_>, since: u16) -> bool {
    time_mark(flow.now).wrapping_sub(since) & MARK_MASK >= LASTING
}
