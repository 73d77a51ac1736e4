//! Outputs of a director: orders that the caller carries out.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::event::Event;
use super::names::NameOrder;
use super::order::Change;
use crate::farm::group;
use crate::farm::plan::ServerName;
use crate::net::Encapsulation;
use crate::net::wire::Mac;
use crate::path::select::Score;
use crate::path::tables::Tables;
use crate::pool::{HealthCheck, Reporting};

/// An order. The caller carries orders out in sequence.
#[derive(Clone, Debug)]
pub enum Output {
    /// Compute the plan ([`Change::plan`]), apply its tables to the engine, and return the result
    /// as [`super::Input::Applied`]. No other `Apply` follows before the answer.
    Apply(Box<Change>),
    /// Servers or service addresses are gone. End their remaining sessions. For each slot of a
    /// removed server, add up the counters of all processors, clear them, and return the sums as
    /// [`super::Input::Released`]. This order comes before the next [`Output::Apply`], so the
    /// tables stay the same until it is carried out.
    Forget {
        /// Tables that were in force before the servers or addresses were removed.
        before: Arc<Tables>,
        /// Slots of removed servers.
        retired: Vec<u16>,
    },
    /// Let the data plane answer ARP and neighbour discovery for owned addresses, for this time
    /// from now.
    Lease {
        /// Duration in milliseconds; 0 ends the lease.
        ms: u64,
    },
    /// Send a datagram to another host.
    Send {
        to: IpAddr,
        datagram: Vec<u8>,
    },
    /// Send an ARP request or neighbour solicitation on a link.
    Solicit {
        /// Index of the interface.
        ifindex: u32,
        /// Address of this host as the sender; `None` for the conflict probe before an address is
        /// claimed (RFC 5227, section 2.1.1; RFC 4862, section 5.4.2).
        sender: Option<IpAddr>,
        /// Address whose MAC address is requested.
        target: IpAddr,
    },
    /// Announce these addresses on all links, by ARP or neighbour discovery.
    Announce(BTreeSet<IpAddr>),
    /// Let the kernel resolve or confirm the MAC address of a next hop.
    Resolve {
        /// Index of the interface.
        ifindex: u32,
        address: IpAddr,
    },
    /// Probe a server, and return the result as [`super::Input::Probed`].
    Probe(Probe),
    /// Query a server's load, and return the result as [`super::Input::Reported`].
    LoadQuery(LoadQuery),
    /// Set the scores of servers. The number is the slot. See
    /// [`crate::path::select::Counts::score`].
    Score(Vec<(u16, Score)>),
    /// Set the limits of active sessions of servers. The first number is the slot, the second the
    /// limit, where 0 is no limit. See [`crate::path::select::Counts::limit`].
    Limit(Vec<(u16, u32)>),
    /// Carry out an order of a group.
    Group {
        group: String,
        order: group::MemberOrder,
    },
    /// Carry out an order of a balanced DNS name.
    Name(NameOrder),
    /// All servers were probed, or the maximum time has passed: report this host as ready.
    Ready {
        /// True if each service has a working server.
        serving: bool,
    },
    Event(Event),
}

/// A probe that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub server: ServerName,
    pub target: Target,
    /// True if the service's connections are handed off. Its servers expect open connections, so
    /// the prober does the TCP handshake as the director would.
    pub handed_over: bool,
    /// Kind and timeout of the probe.
    pub settings: HealthCheck,
}

/// Target of a probe and the path to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Service address, with the port that is probed.
    pub destination: SocketAddr,
    pub way: ProbePath,
}

/// Path of a probe to its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbePath {
    /// The server is this host: connect through this host's own stack.
    Local {
        /// Service address if this host's stack has it, else this host's own address.
        to: SocketAddr,
    },
    /// Connect through this host's own stack to the server itself, since the service uses NAT.
    Direct {
        /// The server's `health_address` if configured, else its own address, with the port that is
        /// probed.
        to: SocketAddr,
    },
    /// Send to the server's MAC address.
    Link {
        /// Link and MAC address of the server.
        hop: Adjacency,
        /// Source address of the probe: an address of this host, of the target's family or, for ARP
        /// probes, of the server's family.
        source: IpAddr,
        /// The server's own address, for ARP probes. `None` for a server discovered by its MAC
        /// address.
        server: Option<IpAddr>,
    },
    /// Send through a tunnel, encapsulated like clients' packets. Replies arrive without
    /// encapsulation and on any interface.
    Tunnel {
        /// Link and MAC address of the server or the next router.
        hop: Adjacency,
        /// Inner source address: an address of this host, of the service address's family. Replies
        /// go to this address.
        source: IpAddr,
        encapsulation: Encapsulation,
        /// Source address of the outer header.
        from: IpAddr,
        /// Destination address of the outer header: the server's own address, of the family of
        /// `from`.
        to: IpAddr,
    },
}

/// Next hop on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adjacency {
    /// Index of the interface.
    pub ifindex: u32,
    /// MAC address of the next hop.
    pub mac: Mac,
    /// MAC address of the interface.
    pub own_mac: Mac,
}

/// A report query that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadQuery {
    pub server: ServerName,
    /// The server's own address and report port.
    pub to: SocketAddr,
    /// Kind and timeout of the query.
    pub settings: Reporting,
}
