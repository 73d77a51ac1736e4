//! The counted outcomes of a tunnel packet or a handed-off segment that reaches a server.

reasons! {
    /// Why a tunnel packet was decapsulated or dropped, a connection made or not; one for each of
    /// `enum server_reason` in `bpf/server/server.h`.
    u32;

    /// Decapsulated, and delivered to the host.
    Decapsulated = 0, "decapsulated";
    /// The segment size in a SYN or SYN-ACK to a client was lowered. The packet passes.
    Clamped = 1, "clamped";
    /// The source is none of the farm's directors.
    UnlistedSource = 2, "unlisted_source";
    /// The inner packet is for none of this host's services, or would be forwarded.
    NotOwnService = 3, "not_own_service";
    /// The inner packet has a source address that no client has (RFC 1812, section 5.3.7).
    InnerMartian = 4, "inner_martian";
    /// A tunnel inside the tunnel.
    Nested = 5, "nested";
    /// Lengths or versions contradict each other, in either packet.
    Malformed = 6, "malformed";
    /// GUE of another version, a control message, or with unknown fields.
    GueHeader = 7, "gue_header";
    /// A fragment of a tunnel packet.
    OuterFragment = 8, "outer_fragment";
    /// A congestion mark outside, and an inner packet that can't carry one (RFC 6040, section 4.2).
    Congestion = 9, "congestion";
    /// The kernel could not remove the outer headers.
    AdjustRoomFailed = 10, "adjust_room_failed";
    /// A handed-over segment became a connection.
    Accepted = 11, "accepted";
    /// No socket listens at the destination.
    NoListener = 12, "no_listener";
    /// The numbers are those of no handshake of a director, or of one that has expired.
    BadCookie = 13, "bad_cookie";
    /// The kernel makes no connection of it: the listener speaks MPTCP, or the host's settings
    /// exclude what the director agreed on.
    Refused = 14, "refused";
    /// A connection in TIME-WAIT made way for a new one between the same addresses and ports.
    TimeWaitEvicted = 15, "time_wait_evicted";
    /// A connection whose end the server had missed made way for a new one between the same
    /// addresses and ports.
    StaleEvicted = 16, "stale_evicted";
    /// An old connection did not make way for a new one.
    NotEvicted = 17, "not_evicted";
    /// A reset by the host's stack was held, since its segment may have overtaken the first one of
    /// its connection.
    ResetDelayed = 18, "reset_delayed";
    /// The packet looks as if another host had passed it on, and has no mark or a wrong one, or a
    /// source MAC address that only this host writes.
    ForgedMark = 19, "forged_mark";
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
