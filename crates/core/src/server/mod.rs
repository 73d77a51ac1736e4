//! Decisions of the BPF programs on a server. They are the specification of
//! `bpf/server/server.bpf.c`.
//!
//! Packets are decapsulated ([`open()`]). Segments that a director hands off become connections
//! ([`Arrived`]), whose requests and responses are tracked ([`Exchange`]). Outgoing segments are
//! checked ([`Leaving`]). The bytes left to send are computed for each request ([`Pending`]).
//! `crates/dataplane/tests/differential` compares the C code with this module.

mod accept;
mod clear;
mod exchange;
mod leave;
mod message;
mod open;
mod pending;
mod reason;
mod segment;

pub use accept::{Arrived, Expectation, Host, Made, OldConnection, Outcome, Socket, Terms};
pub use clear::{CLEARING_NS, ClearedConnection};
pub use exchange::{Exchange, ExchangeSpan, Payload};
pub use leave::Leaving;
pub use message::Head;
pub use open::open;
pub use pending::{Behind, Pending, Received, ResponseProgress, Sent};
pub use reason::Reason;

use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;

use crate::path::seed::Seed;
use crate::path::tables::VipKey;

/// Tables of a server's programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Addresses of this host that are tunnel endpoints.
    pub addresses: BTreeSet<IpAddr>,
    /// Addresses from which tunnels are accepted.
    pub directors: BTreeSet<IpAddr>,
    /// Services of this host. Tunnels may contain their packets, and their connections may be
    /// handed off.
    pub services: BTreeMap<VipKey, Offer>,
    /// Key of marks ([`crate::path::mark`]); `None` unless this host also forwards packets. Then
    /// the source MAC address of decapsulated packets shows how often they were forwarded
    /// ([`crate::path::arrival`]).
    pub marks: Option<Seed>,
}

/// Settings of a service for a server's programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Maximum segment size that the server may offer, in bytes; `None` for no limit.
    pub mss: Option<u16>,
    /// Port of the socket that accepts handed off connections, if enabled. It is the service's own
    /// port or the port of a proxy. In either case connections have the service's port.
    pub listener: Option<u16>,
    /// Port of the socket that accepts punted connections, whose requests this host reads before a
    /// server is selected. The source MAC address of their frames is [`crate::path::mark::PUNTED`].
    pub punt_listener: Option<u16>,
    /// True if requests and responses are tracked, to know when a connection is idle.
    pub turns: bool,
    /// True if decapsulated packets need the mark of a host that forwarded them.
    pub is_marked: bool,
}

impl Tables {
    /// Returns the settings for packets without a port to this address. Only `is_marked` differs
    /// from the default: it is true if any service of the address needs marks. `None` if the
    /// address has no service.
    pub fn portless(&self, address: IpAddr) -> Option<Offer> {
        let mut offers =
            self.services.iter().filter(|(vip, _)| vip.address == address).map(|(_, offer)| offer);
        let first = offers.next()?;
        let is_marked = first.is_marked || offers.any(|offer| offer.is_marked);
        Some(Offer { is_marked, ..Offer::default() })
    }
}
