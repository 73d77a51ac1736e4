//! The orders of a director.

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

/// An order, to be carried out in turn.
#[derive(Clone, Debug)]
pub enum Output {
    /// Make the plan of this ([`Change::plan`]), have the engine put its tables in force, and say
    /// by [`super::Input::Applied`] what became of that. No other one comes before the answer.
    Apply(Box<Change>),
    /// Servers or service addresses are gone: end what is left of their sessions, add up the
    /// counters of these slots, clear them, and say so by [`super::Input::Released`]. It comes
    /// before the next [`Output::Apply`], so no tables change meanwhile.
    Forget {
        /// The tables that were in force before.
        before: Arc<Tables>,
        /// Slots whose servers are gone.
        retired: Vec<u16>,
    },
    /// Let the data plane answer for the addresses that this host owns for so long from now.
    Lease {
        /// In milliseconds; 0 ends it.
        ms: u64,
    },
    /// Send a datagram to another host.
    Send {
        /// Its address.
        to: IpAddr,
        /// The datagram.
        datagram: Vec<u8>,
    },
    /// Ask everyone on a link who has an address.
    Solicit {
        /// The link.
        ifindex: u32,
        /// For which address of this host's; `None` asks as who is about to take the address (RFC
        /// 5227, section 2.1.1; RFC 4862, section 5.4.2).
        sender: Option<IpAddr>,
        /// The address.
        target: IpAddr,
    },
    /// Tell everyone on all links that these addresses are here.
    Announce(BTreeSet<IpAddr>),
    /// Have the kernel find out the MAC of a next hop, or confirm it.
    Resolve {
        /// The link.
        ifindex: u32,
        /// The next hop.
        address: IpAddr,
    },
    /// Probe a server, and say by [`super::Input::Probed`] what came of it.
    Probe(Probe),
    /// Ask a server for its load, and say by [`super::Input::Reported`] what came of it.
    LoadQuery(LoadQuery),
    /// Give servers these scores, by slot: see [`crate::path::select::Counts::score`].
    Score(Vec<(u16, Score)>),
    /// Give servers these limits of active sessions, by slot, 0 for none: see
    /// [`crate::path::select::Counts::limit`].
    Limit(Vec<(u16, u32)>),
    /// Do this for a group.
    Group {
        /// Which.
        group: String,
        /// The order.
        order: group::MemberOrder,
    },
    /// Do this for names.
    Name(NameOrder),
    /// The director knows how servers are, or has waited for that long enough: whoever waits for
    /// this host may come.
    Ready {
        /// Whether each service has a server.
        serving: bool,
    },
    /// Something that people, or whoever watches, may want to know.
    Event(Event),
}

/// A probe that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The server.
    pub server: ServerName,
    /// Where to.
    pub target: Target,
    /// Whether connections are handed over: the handshake is then made by who probes.
    pub handed_over: bool,
    /// The kind of probe, and how long it may take.
    pub settings: HealthCheck,
}

/// The target of a probe, and the address it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The service address, and the port to probe.
    pub destination: SocketAddr,
    /// How the probe gets there.
    pub way: ProbePath,
}

/// How a probe gets to its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbePath {
    /// The server is this host: its own stack connects here.
    Local {
        /// The service address if this host has it, else its own.
        to: SocketAddr,
    },
    /// This host's own stack connects to the server's own address, as NAT would have it.
    Direct {
        /// That address, and the port to probe.
        to: SocketAddr,
    },
    /// By the server's MAC address.
    Link {
        /// The server itself.
        hop: Adjacency,
        /// This host's address towards it; of the family of what is asked for.
        source: IpAddr,
        /// The server's own address, which ARP probes ask for; unknown for a discovered one.
        server: Option<IpAddr>,
    },
    /// Inside another packet, as traffic by a tunnel comes. Answers come as they are, by any
    /// interface.
    Tunnel {
        /// The server, or the router before it.
        hop: Adjacency,
        /// The address of this host's that answers go to; of the service address's family.
        source: IpAddr,
        /// The outer protocol.
        encapsulation: Encapsulation,
        /// The outer source.
        from: IpAddr,
        /// The outer destination: the server's own address. Of the same family as `from`.
        to: IpAddr,
    },
}

/// The next station on the way, by its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adjacency {
    /// The interface that leads to it.
    pub ifindex: u32,
    /// Its MAC.
    pub mac: Mac,
    /// The interface's own MAC.
    pub own_mac: Mac,
}

/// A question that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadQuery {
    /// The server to query.
    pub server: ServerName,
    /// Where: the server's own address.
    pub to: SocketAddr,
    /// How, and how long it may take.
    pub settings: Reporting,
}
