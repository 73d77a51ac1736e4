//! Why a packet met its verdict: the names that counters, cases and people see.

reasons! {
    /// Why a packet met its verdict; every one is counted. `abi.h` has the same numbers.
    u8;

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
    /// Passed: the IP version in the header isn't the one of the frame's type.
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
    /// Beside the verdict: a new session found no room in the table and goes by the hash.
    TableFull = 17, "table_full";
    /// Beside the verdict: a TCP packet without a session goes by the hash.
    NoSession = 18, "no_session";
    /// A reply of a server, rewritten and sent to its client.
    Answered = 19, "answered";
    /// Rewritten; the host's own stack sends it, since it has to resolve a neighbour or to
    /// fragment.
    HostStack = 20, "host_stack";
    /// A neighbour solicitation for a service address, answered.
    NeighbourAnswered = 21, "neighbour_answered";
    /// An echo request to a service address, answered.
    EchoAnswered = 22, "echo_answered";
    /// Longer than the path takes; its sender got an ICMP error.
    TooBig = 23, "too_big";
    /// An ICMP error about a session, sent to the server or client that it is for.
    IcmpForwarded = 24, "icmp_forwarded";
    /// Dropped: an ICMP error about a packet that no service can have sent.
    IcmpUnknown = 25, "icmp_unknown";
    /// Dropped: an ICMP error that claims a smaller MTU than any link has.
    ForgedMtu = 26, "forged_mtu";
    /// A later fragment that came before its first one: it waits for that in user space, for half a
    /// second.
    FragmentHeld = 27, "fragment_held";
    /// Dropped: a later fragment whose first one did not come in half a second, or one of more than
    /// 256 that wait.
    FragmentLost = 28, "fragment_lost";
    /// Dropped: a first fragment too short for its transport header (RFC 1858, section 3.2).
    TinyFragment = 29, "tiny_fragment";
    /// Dropped: a fragment that overlaps another one.
    FragmentOverlap = 30, "fragment_overlap";
    /// Dropped: IPv6 extension headers out of order, too many, or forbidden (RFC 5095).
    ExtensionHeaders = 31, "extension_headers";
    /// Dropped: its time to live has expired.
    TtlExpired = 32, "ttl_expired";
    /// Dropped: no port of the director's own address is free for a new session (`source_nat`).
    NoPort = 33, "no_port";
    /// Dropped: no route leads to the client.
    NoRoute = 34, "no_route";
    /// Dropped: the frame has no room for a longer header.
    NoHeadroom = 35, "no_headroom";
    /// Beside the verdict: a packet without a session went to the host that the ring before the
    /// last change of hosts names.
    SecondChance = 36, "second_chance";
    /// A SYN for a service of method handoff, answered with a cookie.
    CookieSent = 37, "cookie_sent";
    /// Dropped: the client's handshake is complete, and its request is yet to come.
    CookieAcked = 38, "cookie_acked";
    /// Dropped: a segment without a session that follows no cookie of this farm.
    CookieBad = 39, "cookie_bad";
    /// Answered with a reset: an unmatched segment that was retransmitted.
    Reset = 40, "reset";
    /// Beside the verdict: the daemon reads the request.
    Punted = 41, "punted";
    /// Beside the verdict: a later request for other servers. The connection ends.
    RouteMismatch = 42, "route_mismatch";
    /// Held: a later request for other servers. Its connection moves.
    Rehandoff = 43, "rehandoff";
    /// Dropped: the first segment of a connection of method handoff, with a wrong checksum.
    BadChecksum = 44, "bad_checksum";
    /// Held: a segment of a connection that is moving to a server, and follows it. One that is
    /// longer than 2048 bytes, a fragment or damaged is dropped.
    RehandoffBuffered = 45, "rehandoff_buffered";
    /// Dropped: a link-local source address that a reply by `nat` couldn't reach: without
    /// `source_nat` on another link than the server's, or in a VLAN below the interface.
    LinkLocal = 46, "link_local";
    /// Dropped unchecked: a segment without session and timestamps, while too many of that kind had
    /// a wrong cookie.
    CookieUnchecked = 47, "cookie_unchecked";
    /// Dropped: a new session of a service whose servers all have as many as they may have
    /// (`max_connections`).
    ServersFull = 48, "servers_full";
    /// A keep-alive probe of a client whose request is yet to come (method handoff), acknowledged.
    KeepaliveAcked = 49, "keepalive_acked";
}
