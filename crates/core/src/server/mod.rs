//! The decisions of a server's programs: the specification of `bpf/server/server.bpf.c`.
//!
//! Packets come out of tunnels ([`open`]); segments that a director hands off become connections
//! ([`Arrived`]), whose requests and answers are followed ([`Exchange`]); what leaves is looked at
//! ([`Leaving`]); and of any request it is known what is left to send ([`Pending`]).
//! `crates/dataplane/tests/differential` holds the C against it.

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

/// The tables of a server's programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// This host's addresses that tunnels end at.
    pub addresses: BTreeSet<IpAddr>,
    /// From whom tunnels are accepted.
    pub directors: BTreeSet<IpAddr>,
    /// The services that may come out of tunnels, and may be handed off: this host's own.
    pub services: BTreeMap<VipKey, Offer>,
    /// Where this host decides too, and passes packets on, the key of marks
    /// ([`crate::path::mark`]): the source of what comes out then says how often that was done
    /// already ([`crate::path::arrival`]).
    pub marks: Option<Seed>,
}

/// The treatment of a service by a server's programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// The largest segment that the server may offer, in bytes, where it is not free to choose.
    pub mss: Option<u16>,
    /// The port of the socket that accepts the connections that are handed off, where any are: the
    /// service's own, or another one for who asks on its behalf. The connections have the service's
    /// port all the same.
    pub listener: Option<u16>,
    /// The same of the connections that are to be read here before it is known who serves them,
    /// where this host may serve others itself: their frames' source says so
    /// ([`crate::path::mark::PUNTED`]).
    pub punt_listener: Option<u16>,
    /// Whether the turns of request and answer are followed, by which it is known when a connection
    /// is at rest.
    pub turns: bool,
    /// Whether it comes out of tunnels only with the mark of a host that has passed it on.
    pub is_marked: bool,
}

impl Tables {
    /// The offer for packets to an address that have no port: that of none of its services, but
    /// that they need marks if any of them does. `None` where there is none.
    pub fn portless(&self, address: IpAddr) -> Option<Offer> {
        let mut offers =
            self.services.iter().filter(|(vip, _)| vip.address == address).map(|(_, offer)| offer);
        let first = offers.next()?;
        let is_marked = first.is_marked || offers.any(|offer| offer.is_marked);
        Some(Offer { is_marked, ..Offer::default() })
    }
}
