//! A session's second word: server, state, mark and the tick at which it expires.

use crate::net::Protocol;
use crate::path::tables::IdleTicks;

/// State of a session. The lower three bits name its idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    Free = 0,
    /// Being written; no reader may use it.
    Claimed = 1,
    /// A SYN was seen, and nothing else that counts.
    New = 2,
    /// A TCP connection whose client has answered.
    Established = 3,
    /// Both sides have sent FIN, or the server RST.
    Closing = 4,
    /// A UDP flow that has lasted, in both directions where both are seen.
    Udp = 5,
    /// A UDP flow that has only begun.
    UdpNew = 6,
    /// The client has sent FIN or RST, or somebody in its name: half a close (RFC 9293, section
    /// 3.6).
    HalfClosed = 7,
    /// [`State::New`], and the server's SYN and ACK were seen.
    Answered = 10,
    /// [`State::UdpNew`], and an answer was seen.
    UdpAnswered = 14,
    /// The server has sent FIN.
    ServerClosed = 15,
}

/// The worth of a session where room is short, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// First packets only, which anybody can send in anybody's name.
    Embryonic,
    /// Over, or half of it.
    Ending,
    /// The client has answered something that only the client could see.
    Assured,
}

impl State {
    /// States that sessions have.
    pub const ALL: [State; 9] = [
        State::New,
        State::Answered,
        State::UdpNew,
        State::UdpAnswered,
        State::Established,
        State::Udp,
        State::HalfClosed,
        State::ServerClosed,
        State::Closing,
    ];

    /// The worth of a session in this state; `None` where there is none.
    pub const fn class(self) -> Option<Class> {
        match self {
            State::Free | State::Claimed => None,
            State::New | State::Answered | State::UdpNew | State::UdpAnswered => Some(Class::Embryonic),
            State::Closing | State::HalfClosed | State::ServerClosed => Some(Class::Ending),
            State::Established | State::Udp => Some(Class::Assured),
        }
    }

    /// True if a session in this state counts as an active one of its server.
    pub const fn is_active(self) -> bool {
        matches!(self.class(), Some(Class::Embryonic | Class::Assured))
    }

    /// True if a session in this state counts towards its VIP's share.
    pub const fn is_assured(self) -> bool {
        matches!(self.class(), Some(Class::Assured))
    }

    /// True if a session in this state is over, or half closed.
    pub const fn is_ending(self) -> bool {
        matches!(self.class(), Some(Class::Ending))
    }

    /// Lifetime of a session in this state without a packet, in ticks.
    pub const fn idle(self, idle: &IdleTicks) -> u32 {
        match self {
            State::Free | State::Claimed => 0,
            State::New | State::Answered => idle.syn,
            State::Established => idle.tcp,
            State::Closing => idle.closing,
            State::Udp => idle.udp,
            State::UdpNew | State::UdpAnswered => idle.udp_new,
            State::HalfClosed | State::ServerClosed => idle.half_closed,
        }
    }

    /// Least extension of a session's expiry that is stored, in ticks. A cache line written for
    /// every packet would travel between CPUs: every few seconds is enough, a 64th of the idle time
    /// at most.
    pub const fn step(self, idle: &IdleTicks) -> u32 {
        let part = self.idle(idle) >> 6;
        if part > 1 << 12 { 1 << 12 } else { part }
    }

    /// The state of sessions whose packets change nothing.
    pub const fn at_work(protocol: Protocol) -> State {
        match protocol {
            Protocol::Tcp => State::Established,
            Protocol::Udp => State::Udp,
        }
    }

    /// The name shown to people.
    pub const fn name(self) -> &'static str {
        match self {
            State::Free => "free",
            State::Claimed => "claimed",
            State::New => "new",
            State::Answered => "answered",
            State::Established => "established",
            State::HalfClosed => "half-closed",
            State::ServerClosed => "server-closed",
            State::Closing => "closing",
            State::Udp => "udp",
            State::UdpNew => "udp-new",
            State::UdpAnswered => "udp-answered",
        }
    }

    const fn from_bits(bits: u8) -> State {
        match bits {
            1 => State::Claimed,
            2 => State::New,
            3 => State::Established,
            4 => State::Closing,
            5 => State::Udp,
            6 => State::UdpNew,
            7 => State::HalfClosed,
            10 => State::Answered,
            14 => State::UdpAnswered,
            15 => State::ServerClosed,
            _ => State::Free,
        }
    }
}

/// The furthest that a session's expiry is ahead, in ticks: 13 days, as [`super::ticks`] gives at
/// most.
///
/// An end that seems to be further ahead is long past: ticks wrap. So an entry that is never swept,
/// while there is no daemon, counts as expired for 39 days, and for much longer where anything new
/// wants its place.
pub const LIFE_MAX: u32 = 1 << 30;

/// A session's second word: from the top the tick at which it expires (32 bits), a mark (12), its
/// state (4) and its server (16).
///
/// The meaning of the mark belongs to the state: see `decide/follow.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value(pub u64);

impl Value {
    pub(super) const CLAIMED: Value = Value((State::Claimed as u64) << 16);
    pub(super) const FREE: Value = Value(0);
    const MARK: u64 = (1 << Self::MARK_BITS) - 1;
    /// Bits of a mark.
    pub const MARK_BITS: u32 = 12;

    /// Packs server slot, state and expiry.
    pub const fn new(server: u16, state: State, expires: u32) -> Self {
        Value((expires as u64) << 32 | (state as u64) << 16 | server as u64)
    }
    /// The same with a mark, of which the lower [`Value::MARK_BITS`] are kept.
    pub const fn with_mark(self, mark: u16) -> Self {
        Value(self.0 & !(Self::MARK << 20) | (mark as u64 & Self::MARK) << 20)
    }
    /// The same in another state, until another time.
    pub const fn moved_to(self, state: State, expires: u32) -> Self {
        Value::new(self.server(), state, expires).with_mark(self.mark())
    }
    pub const fn server(self) -> u16 {
        self.0 as u16
    }
    pub const fn state(self) -> State {
        State::from_bits((self.0 >> 16) as u8 & 0xf)
    }
    /// The mark beside the state; 0 where there is none.
    pub const fn mark(self) -> u16 {
        (self.0 >> 20 & Self::MARK) as u16
    }
    /// The tick at which it is gone unless a packet comes.
    pub const fn expires(self) -> u32 {
        (self.0 >> 32) as u32
    }
    /// True for a session that has not expired.
    pub const fn is_live(self, now: u32) -> bool {
        self.state() as u8 >= State::New as u8 && self.expires().wrapping_sub(now).wrapping_sub(1) < LIFE_MAX
    }
    /// True if a new session may take the slot.
    pub(super) const fn is_vacant(self, now: u32) -> bool {
        self.state() as u8 != State::Claimed as u8 && !self.is_live(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::sessions::ticks;

    #[test]
    fn a_word_keeps_its_parts_apart() {
        let all = Value::new(0xffff, State::Udp, u32::MAX).with_mark(0xffff);
        assert_eq!(
            (all.server(), all.state(), all.expires(), all.mark()),
            (0xffff, State::Udp, u32::MAX, 0xfff)
        );
        let none = all.with_mark(0);
        assert_eq!(none, Value::new(0xffff, State::Udp, u32::MAX));
        let moved = all.moved_to(State::New, 7);
        assert_eq!(
            (moved.server(), moved.state(), moved.expires(), moved.mark()),
            (0xffff, State::New, 7, 0xfff)
        );
    }

    #[test]
    fn every_state_round_trips() {
        for state in State::ALL {
            assert_eq!(Value::new(1, state, 5).state(), state);
            assert!(Value::new(1, state, 5).is_live(4) && !Value::new(1, state, 5).is_live(5));
        }
        assert!((0..16u64).filter(|bits| Value(bits << 16).is_live(u32::MAX)).all(|bits| bits >= 2));
    }

    /// Half the range would be 26 days, after which what nobody swept came back to life.
    #[test]
    fn long_expired_session_stays_expired_after_wrap() {
        let value = Value::new(1, State::Established, 1_000);
        let days = |days: u64| 1_000u32.wrapping_add(((days * 86_400_000_000_000) >> 20) as u32);
        for day in [1, 7, 25, 26, 27, 30, 38] {
            assert!(!value.is_live(days(day)), "{day} days later");
        }
        let furthest = Value::new(1, State::Established, 1_000 + ticks(u64::MAX));
        assert!(furthest.is_live(1_000));
    }
}
