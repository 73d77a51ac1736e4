//! The protocol of a service, and the encapsulation of its packets on their way to a server.

use core::fmt;

/// A transport protocol a service can be reached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    /// The IANA protocol number, as in the IPv4 header.
    pub const fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        }
    }

    /// The one with this number.
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

/// The encapsulation of a packet on its way to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Encapsulation {
    /// IP in IP, of either version in either (RFC 2003, RFC 2473, RFC 4213).
    Ipip,
    /// Generic UDP Encapsulation (draft-ietf-intarea-gue): its source port is the flow's own, so
    /// that receive queues and equal-cost paths spread.
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
