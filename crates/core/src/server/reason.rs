//! The counted outcomes of a tunnel packet or a handed-off segment that reaches a server.

/// Why a tunnel packet was let out or dropped, a connection made or not; one for each of `enum
/// server_reason` in `bpf/server/server.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Reason {
    /// Let out, and given to the host.
    Decapsulated = 0,
    /// A segment size that was offered to a client, lowered.
    Clamped = 1,
    /// Not from one of the farm's directors.
    UnlistedSource = 2,
    /// The inner packet is for none of this host's services.
    NotOwnService = 3,
    /// The inner packet comes from an address that no client has (RFC 1812, section 5.3.7).
    InnerMartian = 4,
    /// A tunnel inside the tunnel.
    Nested = 5,
    /// Lengths or versions that contradict each other, in either packet.
    Malformed = 6,
    /// GUE of another version, a control message, or with fields that are not known.
    GueHeader = 7,
    /// A fragment of a tunnel packet.
    OuterFragment = 8,
    /// Marked as having met congestion, with something inside that can't say so (RFC 6040, section
    /// 4.2).
    Congestion = 9,
    /// The kernel would not shorten the frame.
    AdjustRoomFailed = 10,
    /// A handed-off segment of which a connection was made.
    Accepted = 11,
    /// Nothing listens where it goes.
    NoListener = 12,
    /// Its numbers are not those of a handshake that a director has made, or no longer.
    BadCookie = 13,
    /// The kernel makes no connection of it: the listener speaks MPTCP, or the host's settings
    /// don't allow what the director has agreed on.
    Refused = 14,
    /// A connection that was waiting for its stragglers has made way for a new one between the same
    /// ends.
    TimeWaitEvicted = 15,
    /// A connection whose end the server had missed has made way for a new one between the same
    /// ends.
    StaleEvicted = 16,
    /// One that should have made way has not.
    NotEvicted = 17,
    /// A reset that the host's stack would have answered a segment with that may have overtaken its
    /// connection's first.
    ResetDelayed = 18,
    /// Looks as if another host had passed it on, and none has said so: no mark or a wrong one, or
    /// a frame whose source only this host itself writes ([`crate::path::arrival`]).
    ForgedMark = 19,
}

impl Reason {
    /// Every one, in the order of their numbers.
    pub const ALL: [Reason; 20] = [
        Reason::Decapsulated,
        Reason::Clamped,
        Reason::UnlistedSource,
        Reason::NotOwnService,
        Reason::InnerMartian,
        Reason::Nested,
        Reason::Malformed,
        Reason::GueHeader,
        Reason::OuterFragment,
        Reason::Congestion,
        Reason::AdjustRoomFailed,
        Reason::Accepted,
        Reason::NoListener,
        Reason::BadCookie,
        Reason::Refused,
        Reason::TimeWaitEvicted,
        Reason::StaleEvicted,
        Reason::NotEvicted,
        Reason::ResetDelayed,
        Reason::ForgedMark,
    ];

    /// The name shown to people, stable.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Decapsulated => "decapsulated",
            Reason::Clamped => "clamped",
            Reason::UnlistedSource => "unlisted_source",
            Reason::NotOwnService => "not_own_service",
            Reason::InnerMartian => "inner_martian",
            Reason::Nested => "nested",
            Reason::Malformed => "malformed",
            Reason::GueHeader => "gue_header",
            Reason::OuterFragment => "outer_fragment",
            Reason::Congestion => "congestion",
            Reason::AdjustRoomFailed => "adjust_room_failed",
            Reason::Accepted => "accepted",
            Reason::NoListener => "no_listener",
            Reason::BadCookie => "bad_cookie",
            Reason::Refused => "refused",
            Reason::TimeWaitEvicted => "time_wait_evicted",
            Reason::StaleEvicted => "stale_evicted",
            Reason::NotEvicted => "not_evicted",
            Reason::ResetDelayed => "reset_delayed",
            Reason::ForgedMark => "forged_mark",
        }
    }

    /// Its meaning, in a sentence.
    pub const fn about(self) -> &'static str {
        match self {
            Reason::Decapsulated => "Let out, and given to the host.",
            Reason::Clamped => "A segment size that was offered to a client, lowered.",
            Reason::UnlistedSource => "Not from one of the farm's directors.",
            Reason::NotOwnService => "What is inside is for none of this host's services.",
            Reason::InnerMartian => {
                "What is inside comes from an address that no client has (RFC 1812, section 5.3.7)."
            }
            Reason::Nested => "A tunnel inside the tunnel.",
            Reason::Malformed => "Lengths or versions that contradict each other, in either packet.",
            Reason::GueHeader => {
                "GUE of another version, a control message, or with fields that are not known."
            }
            Reason::OuterFragment => "A fragment of a tunnel packet.",
            Reason::Congestion => {
                "Marked as having met congestion, with something inside that can't say so (RFC 6040, section 4.2)."
            }
            Reason::AdjustRoomFailed => "The kernel would not shorten the frame.",
            Reason::Accepted => "A handed-off segment of which a connection was made.",
            Reason::NoListener => "Nothing listens where it goes.",
            Reason::BadCookie => {
                "Its numbers are not those of a handshake that a director has made, or no longer."
            }
            Reason::Refused => {
                "The kernel makes no connection of it: the listener speaks MPTCP, or the host's settings don't allow what the director has agreed on."
            }
            Reason::TimeWaitEvicted => {
                "A connection that was waiting for its stragglers has made way for a new one between the same ends."
            }
            Reason::StaleEvicted => {
                "A connection whose end the server had missed has made way for a new one between the same ends."
            }
            Reason::NotEvicted => "One that should have made way has not.",
            Reason::ResetDelayed => {
                "A reset that the host's stack would have answered a segment with that may have overtaken its connection's first."
            }
            Reason::ForgedMark => {
                "Looks as if another host had passed it on, and none has said so: no mark or a wrong one, or a frame whose source only this host itself writes."
            }
        }
    }

    /// Whether the packet was dropped, or a client was left without the connection that it was to
    /// get.
    pub const fn is_refusal(self) -> bool {
        !matches!(
            self,
            Reason::Decapsulated
                | Reason::Clamped
                | Reason::Accepted
                | Reason::TimeWaitEvicted
                | Reason::StaleEvicted
                | Reason::ResetDelayed
        )
    }
}
