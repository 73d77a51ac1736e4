//! Why a packet met its verdict: the names that counters, cases and people see.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// Why a packet met its verdict; every one is counted. `abi.h` has the same numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason { $($(#[$doc])* $name = $number,)* }

        impl Reason {
            /// Every reason, in the order of their numbers.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)*];

            /// The stable name in metrics, JSON and cases.
            pub const fn name(self) -> &'static str {
                match self { $(Reason::$name => $text,)* }
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
    /// Passed: neither IPv4 nor an ARP request.
    NotIp = 4, "not_ip";
    /// Passed: VLAN-tagged.
    Vlan = 5, "vlan";
    /// Passed: not sent to this host's MAC.
    OtherHost = 6, "other_host";
    /// Passed: too short to say what it is.
    Runt = 7, "runt";
    /// Passed: an IPv4 frame with another version in its header.
    BadVersion = 8, "bad_version";
    /// Dropped: the transport header is cut off.
    Truncated = 9, "truncated";
    /// Dropped: a length field contradicts another or the frame.
    BadLength = 10, "bad_length";
    /// Dropped: IP options.
    IpOptions = 11, "ip_options";
    /// Dropped: a fragment.
    Fragment = 12, "fragment";
    /// Dropped: a group address as source MAC.
    MulticastSource = 13, "multicast_source";
    /// Dropped: a source address that no client has.
    MartianSource = 14, "martian_source";
    /// Dropped: SYN together with FIN or RST.
    BadFlags = 15, "bad_flags";
    /// Dropped: the service has no server.
    NoServer = 16, "no_server";
    /// Beside the verdict: a new session found no room and goes by the hash.
    TableFull = 17, "table_full";
    /// Beside the verdict: a TCP packet that no session is known of goes by the hash.
    NoSession = 18, "no_session";
}
