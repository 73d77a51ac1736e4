//! Second word of a session: server, state, mark and expiry.

use crate::net::Protocol;
use crate::path::tables::IdleTicks;

/// State of a session. The lower three bits select its idle timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    Free = 0,
    /// A writer is filling the slot. Readers ignore it.
    Claimed = 1,
    /// TCP connection whose client has not shown yet that it receives the server's packets.
    New = 2,
    /// TCP connection whose client has answered the server's SYN-ACK.
    Established = 3,
    /// Both sides have sent FIN, or the server has sent RST.
    Closing = 4,
    /// UDP flow past its first packets. If both directions pass the director, the server has
    /// answered.
    Udp = 5,
    /// UDP flow of which only first packets were seen.
    UdpNew = 6,
    /// The client has sent FIN or RST, or an attacker has forged it. This closes only one direction
    /// (RFC 9293, section 3.6).
    HalfClosed = 7,
    /// No session but the affinity entry of a client: see [`crate::path::affinity`].
    Affinity = 8,
    /// As [`State::New`], but the server's SYN-ACK was seen.
    Answered = 10,
    /// TCP connection that another director has told of, and of which no packet was seen here.
    Replicated = 11,
    /// As [`State::Replicated`], for a UDP flow.
    UdpReplicated = 13,
    /// As [`State::UdpNew`], but a packet of the server was seen.
    UdpAnswered = 14,
    /// The server has sent FIN, and the client has not.
    ServerClosed = 15,
}

/// Classes of sessions in the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Only first packets were seen, which an attacker can send with a forged source address.
    Embryonic,
    /// Only another director has seen packets.
    Replicated,
    /// Affinity entry, not a session.
    Affinity,
    /// The session is closed or half-closed.
    Ending,
    /// The client has answered a packet that only the client could see, as far as this host knows.
    Assured,
}

impl State {
    /// All states that a live session may have. An affinity entry is not a session.
    pub const ALL: [State; 11] = [
        State::New,
        State::Answered,
        State::UdpNew,
        State::UdpAnswered,
        State::Established,
        State::Udp,
        State::HalfClosed,
        State::ServerClosed,
        State::Closing,
        State::Replicated,
        State::UdpReplicated,
    ];

    /// Returns the eviction class of a state. `None` for slots without a session.
    pub const fn class(self) -> Option<Class> {
        match self {
            State::Free | State::Claimed => None,
            State::New | State::Answered | State::UdpNew | State::UdpAnswered => Some(Class::Embryonic),
            State::Replicated | State::UdpReplicated => Some(Class::Replicated),
            State::Affinity => Some(Class::Affinity),
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

    /// True if a session in this state is closed or half-closed.
    pub const fn is_ending(self) -> bool {
        matches!(self.class(), Some(Class::Ending))
    }

    /// Returns the idle timeout of a session in this state, in ticks.
    pub const fn idle(self, idle: &IdleTicks) -> u32 {
        match self {
            State::Free | State::Claimed | State::Affinity => 0,
            State::New | State::Answered => idle.syn,
            State::Established | State::Replicated => idle.tcp,
            State::Closing => idle.closing,
            State::Udp | State::UdpReplicated => idle.udp,
            State::UdpNew | State::UdpAnswered => idle.udp_new,
            State::HalfClosed | State::ServerClosed => idle.half_closed,
        }
    }

    /// Returns the minimum extension of a session's expiry that is stored, in ticks. It is a 64th
    /// of the idle timeout, and at most some seconds. If every packet stored a new expiry, the
    /// cache line would travel between CPUs.
    pub const fn step(self, idle: &IdleTicks) -> u32 {
        let part = self.idle(idle) >> 6;
        if part > 1 << 12 { 1 << 12 } else { part }
    }

    /// Returns the steady state, in which further packets change nothing.
    pub const fn at_work(protocol: Protocol) -> State {
        match protocol {
            Protocol::Tcp => State::Established,
            Protocol::Udp => State::Udp,
        }
    }

    /// Returns the name for status output and logs.
    pub const fn name(self) -> &'static str {
        match self {
            State::Free => "free",
            State::Claimed => "claimed",
            State::New => "new",
            State::Answered => "answered",
            State::Established => "established",
            State::HalfClosed => "half-closed",
            State::Affinity => "affinity",
            State::Replicated | State::UdpReplicated => "replicated",
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
            8 => State::Affinity,
            10 => State::Answered,
            11 => State::Replicated,
            13 => State::UdpReplicated,
            14 => State::UdpAnswered,
            15 => State::ServerClosed,
            _ => State::Free,
        }
    }
}

/// Maximum distance of a session's expiry from now, in ticks: 13 days, the maximum of
/// [`super::ticks`].
///
/// Ticks wrap, so an expiry that seems further ahead is long past. If no daemon sweeps the table,
/// an expired entry counts as expired for 39 days. An insert that needs the slot of an expired
/// entry reuses the slot earlier.
pub const LIFE_MAX: u32 = 1 << 30;

/// Bit in the mark of a half-closed session, which is set if the session's FIN or RST is plausible.
pub const PLAUSIBLE: u16 = 1 << (Value::MARK_BITS - 1);
/// Mark of an affinity entry of which only another director has told. The client's next connection
/// makes the entry the director's own.
pub const REPLICATED_ENTRY: u16 = 1;

/// Second word of a session. From the top: the tick of expiry (32 bits), a mark (12), the state (4)
/// and the server slot (16).
///
/// The meaning of the mark depends on the state: see `decide/follow.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value(pub u64);

impl Value {
    pub(super) const CLAIMED: Value = Value((State::Claimed as u64) << 16);
    pub(super) const FREE: Value = Value(0);
    const MARK: u64 = (1 << Self::MARK_BITS) - 1;
    /// Number of bits of a mark.
    pub const MARK_BITS: u32 = 12;

    /// Packs server slot, state and expiry. The mark is 0.
    pub const fn new(server: u16, state: State, expires: u32) -> Self {
        Value((expires as u64) << 32 | (state as u64) << 16 | server as u64)
    }
    /// Returns the value with the lower [`Value::MARK_BITS`] of `mark`.
    pub const fn with_mark(self, mark: u16) -> Self {
        Value(self.0 & !(Self::MARK << 20) | (mark as u64 & Self::MARK) << 20)
    }
    /// Returns the value with another state and expiry.
    pub const fn moved_to(self, state: State, expires: u32) -> Self {
        Value::new(self.server(), state, expires).with_mark(self.mark())
    }
    pub const fn server(self) -> u16 {
        self.0 as u16
    }
    pub const fn state(self) -> State {
        State::from_bits((self.0 >> 16) as u8 & 0xf)
    }
    /// Returns the mark; 0 if the session has none.
    pub const fn mark(self) -> u16 {
        (self.0 >> 20 & Self::MARK) as u16
    }
    /// Returns the tick of expiry, unless another packet extends it.
    pub const fn expires(self) -> u32 {
        (self.0 >> 32) as u32
    }
    /// True if the session has ended as far as this host can see, so that the client may reuse its
    /// port.
    pub const fn has_ended(self) -> bool {
        match self.state() {
            State::Closing => true,
            State::HalfClosed => self.mark() & PLAUSIBLE != 0,
            _ => false,
        }
    }
    /// True if the value belongs to a session that has not expired.
    pub const fn is_live(self, now: u32) -> bool {
        self.state() as u8 >= State::New as u8 && self.expires().wrapping_sub(now).wrapping_sub(1) < LIFE_MAX
    }
    /// True if a new session may claim the slot: it is free or its session has expired.
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

    /// If ticks were compared over half their range, entries that nobody sweeps would be live again
    /// after 26 days.
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
