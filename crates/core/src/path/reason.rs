//! Reasons of verdicts: the names that counters, cases and views show.

/// The numbers, of the C header. A reason that is missing below fails the build.
#[deny(dead_code)]
mod c {
    include!(concat!(env!("OUT_DIR"), "/path_reasons.rs"));
}

reasons! {
    /// Reason of a packet's verdict; each is counted. `bpf/abi.h` has the numbers.
    u8;

    /// Sent to a server.
    Forwarded = c::FORWARDED, "forwarded";
    /// For a server on this host: up its own stack.
    Local = c::LOCAL, "local";
    /// An ARP request for a service address, answered.
    ArpAnswered = c::ARP_ANSWERED, "arp_answered";
    /// Passed: not for a service.
    NotService = c::NOT_SERVICE, "not_service";
    /// Passed: neither IP nor an ARP request.
    NotIp = c::NOT_IP, "not_ip";
    /// Passed: more VLAN tags than two.
    Vlan = c::VLAN, "vlan";
    /// Passed: not sent to this host's MAC.
    OtherHost = c::OTHER_HOST, "other_host";
    /// Passed: too short to say what it is.
    Runt = c::RUNT, "runt";
    /// Passed: the IP version in the header isn't the one of the frame's type.
    BadVersion = c::BAD_VERSION, "bad_version";
    /// Dropped: the transport header is cut off.
    Truncated = c::TRUNCATED, "truncated";
    /// Dropped: a length field contradicts another or the frame.
    BadLength = c::BAD_LENGTH, "bad_length";
    /// Dropped: IPv4 options.
    IpOptions = c::IP_OPTIONS, "ip_options";
    /// Dropped: a fragment of an ICMP message.
    Fragment = c::FRAGMENT, "fragment";
    /// Dropped: a group address as source MAC.
    MulticastSource = c::MULTICAST_SOURCE, "multicast_source";
    /// Dropped: a source address that no client has.
    MartianSource = c::MARTIAN_SOURCE, "martian_source";
    /// Dropped: SYN together with FIN or RST; or urgent data where a connection is handed over.
    BadFlags = c::BAD_FLAGS, "bad_flags";
    /// Dropped: the service has no server.
    NoServer = c::NO_SERVER, "no_server";
    /// Beside the verdict: a new session found no room in the table and goes by the hash.
    TableFull = c::TABLE_FULL, "table_full";
    /// Beside the verdict: a TCP packet without a session goes by the hash.
    NoSession = c::NO_SESSION, "no_session";
    /// A reply of a server, rewritten and sent to its client.
    Answered = c::ANSWERED, "answered";
    /// Rewritten; the host's own stack sends it, since it has to resolve a neighbour or to
    /// fragment.
    HostStack = c::HOST_STACK, "host_stack";
    /// A neighbour solicitation for a service address, answered.
    NeighbourAnswered = c::NEIGHBOUR_ANSWERED, "neighbour_answered";
    /// An echo request to a service address, answered.
    EchoAnswered = c::ECHO_ANSWERED, "echo_answered";
    /// Longer than the path takes; its sender got an ICMP error.
    TooBig = c::TOO_BIG, "too_big";
    /// An ICMP error about a session, sent to the server or client that it is for.
    IcmpForwarded = c::ICMP_FORWARDED, "icmp_forwarded";
    /// Dropped: an ICMP error about a packet that no service can have sent.
    IcmpUnknown = c::ICMP_UNKNOWN, "icmp_unknown";
    /// Dropped: an ICMP error that claims a smaller MTU than any link has.
    ForgedMtu = c::FORGED_MTU, "forged_mtu";
    /// A later fragment that came before its first one: it waits for that in user space, for half a
    /// second.
    FragmentHeld = c::FRAGMENT_HELD, "fragment_held";
    /// Dropped: a later fragment whose first one did not come in half a second, or one of more than
    /// 256 that wait.
    FragmentLost = c::FRAGMENT_LOST, "fragment_lost";
    /// Dropped: a first fragment too short for its transport header (RFC 1858, section 3.2).
    TinyFragment = c::TINY_FRAGMENT, "tiny_fragment";
    /// Dropped: a fragment that overlaps another one.
    FragmentOverlap = c::FRAGMENT_OVERLAP, "fragment_overlap";
    /// Dropped: IPv6 extension headers out of order, too many, or forbidden (RFC 5095).
    ExtensionHeaders = c::EXTENSION_HEADERS, "extension_headers";
    /// Dropped: its time to live has expired.
    TtlExpired = c::TTL_EXPIRED, "ttl_expired";
    /// Dropped: no port of the director's own address is free for a new session (`source_nat`).
    NoPort = c::NO_PORT, "no_port";
    /// Dropped: no route leads to the client.
    NoRoute = c::NO_ROUTE, "no_route";
    /// Dropped: the frame has no room for a longer header.
    NoHeadroom = c::NO_HEADROOM, "no_headroom";
    /// Beside the verdict: a packet without a session went to the host that the ring before the
    /// last change of hosts names.
    SecondChance = c::SECOND_CHANCE, "second_chance";
    /// A SYN for a service of method handoff, answered with a cookie.
    CookieSent = c::COOKIE_SENT, "cookie_sent";
    /// Dropped: the client's handshake is complete, and its request is yet to come.
    CookieAcked = c::COOKIE_ACKED, "cookie_acked";
    /// Dropped: a segment without a session that follows no cookie of this farm.
    CookieBad = c::COOKIE_BAD, "cookie_bad";
    /// Answered with a reset: an unmatched segment that was retransmitted.
    Reset = c::RESET, "reset";
    /// Beside the verdict: the daemon reads the request.
    Punted = c::PUNTED, "punted";
    /// Beside the verdict: a later request for other servers. The connection ends.
    RouteMismatch = c::ROUTE_MISMATCH, "route_mismatch";
    /// Held: a later request for other servers. Its connection moves.
    Rehandoff = c::REHANDOFF, "rehandoff";
    /// Dropped: the first segment of a connection of method handoff, with a wrong checksum.
    BadChecksum = c::BAD_CHECKSUM, "bad_checksum";
    /// Held: a segment of a connection that is moving to a server, and follows it. One that is
    /// longer than 2048 bytes, a fragment or damaged is dropped.
    RehandoffBuffered = c::REHANDOFF_BUFFERED, "rehandoff_buffered";
    /// Dropped: a link-local source address that a reply by `nat` couldn't reach: without
    /// `source_nat` on another link than the server's, or in a VLAN below the interface.
    LinkLocal = c::LINK_LOCAL, "link_local";
    /// Dropped unchecked: a segment without session and timestamps, while too many of that kind had
    /// a wrong cookie.
    CookieUnchecked = c::COOKIE_UNCHECKED, "cookie_unchecked";
    /// Dropped: a new session of a service whose servers all have as many as they may have
    /// (`max_connections`).
    ServersFull = c::SERVERS_FULL, "servers_full";
    /// A keep-alive probe of a client whose request is yet to come (method handoff), acknowledged.
    KeepaliveAcked = c::KEEPALIVE_ACKED, "keepalive_acked";
}
