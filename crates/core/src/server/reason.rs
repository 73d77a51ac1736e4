//! The counted outcomes of a tunnel packet or a handed-off segment that reaches a server.

/// The numbers, of the C header. A reason that is missing below fails the build.
#[deny(dead_code)]
mod c {
    include!(concat!(env!("OUT_DIR"), "/server_reasons.rs"));
}

reasons! {
    /// Why a tunnel packet was decapsulated or dropped, a connection made or not; one for each of
    /// `enum server_reason` in `bpf/server/server.h`.
    u32;

    /// Decapsulated, and delivered to the host.
    Decapsulated = c::DECAPSULATED, "decapsulated";
    /// The segment size in a SYN or SYN-ACK to a client was lowered. The packet passes.
    Clamped = c::CLAMPED, "clamped";
    /// The source is none of the farm's directors.
    UnlistedSource = c::UNLISTED_SOURCE, "unlisted_source";
    /// The inner packet is for none of this host's services, or would be forwarded.
    NotOwnService = c::NOT_OWN_SERVICE, "not_own_service";
    /// The inner packet has a source address that no client has (RFC 1812, section 5.3.7).
    InnerMartian = c::INNER_MARTIAN, "inner_martian";
    /// A tunnel inside the tunnel.
    Nested = c::NESTED, "nested";
    /// Lengths or versions contradict each other, in either packet.
    Malformed = c::MALFORMED, "malformed";
    /// GUE of another version, a control message, or with unknown fields.
    GueHeader = c::GUE_HEADER, "gue_header";
    /// A fragment of a tunnel packet.
    OuterFragment = c::OUTER_FRAGMENT, "outer_fragment";
    /// A congestion mark outside, and an inner packet that can't carry one (RFC 6040, section 4.2).
    Congestion = c::CONGESTION, "congestion";
    /// The kernel could not remove the outer headers.
    AdjustRoomFailed = c::ADJUST_ROOM_FAILED, "adjust_room_failed";
    /// A handed-over segment became a connection.
    Accepted = c::ACCEPTED, "accepted";
    /// No socket listens at the destination.
    NoListener = c::NO_LISTENER, "no_listener";
    /// The numbers are those of no handshake of a director, or of one that has expired.
    BadCookie = c::BAD_COOKIE, "bad_cookie";
    /// The kernel makes no connection of it: the listener speaks MPTCP, or the host's settings
    /// exclude what the director agreed on.
    Refused = c::REFUSED, "refused";
    /// A connection in TIME-WAIT made way for a new one between the same addresses and ports.
    TimeWaitEvicted = c::TIME_WAIT_EVICTED, "time_wait_evicted";
    /// A connection whose end the server had missed made way for a new one between the same
    /// addresses and ports.
    StaleEvicted = c::STALE_EVICTED, "stale_evicted";
    /// An old connection did not make way for a new one.
    NotEvicted = c::NOT_EVICTED, "not_evicted";
    /// A reset by the host's stack was held, since its segment may have overtaken the first one of
    /// its connection.
    ResetDelayed = c::RESET_DELAYED, "reset_delayed";
    /// The packet looks as if another host had passed it on, and has no mark or a wrong one, or a
    /// source MAC address that only this host writes.
    ForgedMark = c::FORGED_MARK, "forged_mark";
}

impl Reason {
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
