//! Protocol of a service, and encapsulation of its packets on their way to a server.

use core::fmt;

/// Transport protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    /// IANA protocol number, as in the IPv4 header.
    pub const fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        }
    }

    /// Returns the protocol with this number.
    pub const fn of_number(number: u8) -> Option<Protocol> {
        match number {
            6 => Some(Protocol::Tcp),
            17 => Some(Protocol::Udp),
            _ => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        })
    }
}

/// Encapsulation of packets on their way to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Encapsulation {
    /// IP in IP, with IPv4 or IPv6 for either header (RFC 2003, RFC 2473, RFC 4213).
    Ipip,
    /// Generic UDP Encapsulation (draft-ietf-intarea-gue). Its source port depends on the flow, so
    /// that receive queues and equal-cost paths share the load.
    Gue,
}

impl fmt::Display for Encapsulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Encapsulation::Ipip => "ipip",
            Encapsulation::Gue => "gue",
        })
    }
}
