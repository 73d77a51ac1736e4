//! Why a packet met its verdict: the names that counters, cases and people see.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $text:literal;)*) => {
        /// Why a packet met its verdict; every one is counted. `abi.h` has the same numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason { $($(#[doc = $doc])+ $name = $number,)* }

        impl Reason {
            /// Every reason, in the order of their numbers.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)*];

            /// The stable name in metrics, JSON and cases.
            pub const fn name(self) -> &'static str {
                match self { $(Reason::$name => $text,)* }
            }

            /// Its meaning, in a sentence or two.
            pub const fn about(self) -> &'static str {
                match self { $(Reason::$name => concat!($($doc),+).trim_ascii_start(),)* }
            }
        }
    };
}

reasons! {
    /// Sent to a server.
    Forwarded = 0, "forwarded";
    /// For a server on this host: up its own stack.
    Local = 1, "local";
    /// An ARP request for a service address, answered.
    ArpAnswered = 2, "arp_answered";
    /// Passed: not for a service.
    NotService = 3, "not_service";
    /// Passed: neither IP nor an ARP request.
    NotIp = 4, "not_ip";
    /// Passed: more VLAN tags than two.
    Vlan = 5, "vlan";
    /// Passed: not sent to this host's MAC.
    OtherHost = 6, "other_host";
    /// Passed: too short to say what it is.
    Runt = 7, "runt";
    /// Passed: another IP version in the header than the frame's type says.
    BadVersion = 8, "bad_version";
    /// Dropped: the transport header is cut off.
    Truncated = 9, "truncated";
    /// Dropped: a length field contradicts another or the frame.
    BadLength = 10, "bad_length";
    /// Dropped: IPv4 options.
    IpOptions = 11, "ip_options";
    /// Dropped: a fragment of an ICMP message.
    Fragment = 12, "fragment";
    /// Dropped: a group address as source MAC.
    MulticastSource = 13, "multicast_source";
    /// Dropped: a source address that no client has.
    MartianSource = 14, "martian_source";
    /// Dropped: SYN together with FIN or RST; or urgent data where a connection is handed over.
    BadFlags = 15, "bad_flags";
    /// Dropped: the service has no server.
    NoServer = 16, "no_server";
    /// Counted with the verdict: a new session found no room and goes by the hash.
    TableFull = 17, "table_full";
    /// Counted with the verdict: a TCP packet that no session is known of goes by the hash.
    NoSession = 18, "no_session";
    /// An answer of a server, rewritten and sent on to its client.
    Answered = 19, "answered";
    /// Rewritten; the host's own stack sends it on, since it has yet to resolve a neighbour or to
    /// fragment.
    HostStack = 20, "host_stack";
    /// A neighbour solicitation for a service address, answered.
    NeighbourAnswered = 21, "neighbour_answered";
    /// An echo request to a service address, answered.
    EchoAnswered = 22, "echo_answered";
    /// Longer than the way takes; its sender was told so by ICMP.
    TooBig = 23, "too_big";
    /// An ICMP error about a session, sent on to who must know.
    IcmpForwarded = 24, "icmp_forwarded";
    /// Dropped: an ICMP error about nothing that was sent.
    IcmpUnknown = 25, "icmp_unknown";
    /// Dropped: an ICMP error that claims a smaller MTU than any link has.
    ForgedMtu = 26, "forged_mtu";
    /// A later fragment that came before its first: it waits in application space.
    FragmentHeld = 27, "fragment_held";
    /// Dropped: a fragment whose first never came, or that found no room to wait.
    FragmentLost = 28, "fragment_lost";
    /// Dropped: a first fragment too short for its transport header (RFC 1858, section 3.2).
    TinyFragment = 29, "tiny_fragment";
    /// Dropped: a fragment that would be written over another one.
    FragmentOverlap = 30, "fragment_overlap";
    /// Dropped: IPv6 extension headers out of order, too many, or forbidden (RFC 5095).
    ExtensionHeaders = 31, "extension_headers";
    /// Dropped: its time to live is over.
    TtlExpired = 32, "ttl_expired";
    /// Dropped: no port of the director's own address is free for a new session.
    NoPort = 33, "no_port";
    /// Dropped: no route leads to the client.
    NoRoute = 34, "no_route";
    /// Dropped: the frame has no room for a longer header.
    NoHeadroom = 35, "no_headroom";
    /// Counted with the verdict: a packet that no session is known of here went to the host that
    /// the ring before the last change of hosts names.
    SecondChance = 36, "second_chance";
    /// A SYN for a service with method handoff, answered with a cookie.
    CookieSent = 37, "cookie_sent";
    /// Dropped: the client's handshake is complete, and it has yet to say what it wants.
    CookieAcked = 38, "cookie_acked";
    /// Dropped: a segment that neither belongs to a session nor follows a cookie of ours.
    CookieBad = 39, "cookie_bad";
    /// Answered with a reset: it belongs to nothing.
    Reset = 40, "reset";
    /// Counted with the verdict: what the client wants is read in application space.
    Punted = 41, "punted";
    /// Counted with the verdict: a later request on a connection that other servers are for. The
    /// connection ends.
    RouteMismatch = 42, "route_mismatch";
    /// Held: a later request that other servers are for. Its connection moves.
    Rehandoff = 43, "rehandoff";
    /// Dropped: the first segment of a connection that is handed over, whose checksum is wrong.
    BadChecksum = 44, "bad_checksum";
    /// Held: a segment of a connection that is on its way to a server. It follows as soon as the
    /// connection is there. One that is longer than 2048 bytes, a fragment or damaged is dropped.
    RehandoffBuffered = 45, "rehandoff_buffered";
    /// Dropped: from a link-local address that an answer by `nat` couldn't find: without
    /// `source_nat` on another link than the server, or in a VLAN below the interface.
    LinkLocal = 46, "link_local";
    /// Dropped: a segment of no session and without timestamps, while too many of that kind
    /// followed no cookie of ours. Whether this one does wasn't looked at.
    CookieUnchecked = 47, "cookie_unchecked";
}
