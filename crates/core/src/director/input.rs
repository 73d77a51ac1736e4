//! The inputs of a director: facts, and none of its own conclusions.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::groups::MemberFact;
use super::handshakes::SessionWalk;
use super::names::NameFact;
use super::order::Applied;
use crate::dns::{BalancedName, MeasuredPath};
use crate::farm::Farm;
use crate::farm::network::Network;
use crate::farm::plan::ServerName;
use crate::net::wire::Mac;
use crate::pool::OperatorState;
use crate::pool::health::Failure;
use crate::pool::report::{BadReport, Report};

/// A fact.
#[derive(Clone, Debug)]
pub enum Input {
    /// Time has passed.
    Time {
        /// Active sessions by slot, of those that [`super::Director::due_counts`] has named.
        active: BTreeMap<u16, u64>,
    },
    /// A frame came in that may answer ARP or neighbour discovery.
    Frame {
        /// The interface.
        ifindex: u32,
        /// From the Ethernet header on.
        bytes: Vec<u8>,
    },
    /// Another host says something, or somebody in its name.
    Datagram {
        /// Where it is said to be from.
        from: SocketAddr,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// A probe has ended: its latency in microseconds, or why there is none.
    Probed {
        /// The server.
        server: ServerName,
        /// Its result.
        result: Result<u64, Failure>,
    },
    /// A server has said its load, or hasn't: see [`super::Output::LoadQuery`].
    Reported {
        /// Which.
        server: ServerName,
        /// Its report, or why that isn't believed.
        result: Result<Report, BadReport>,
    },
    /// An order of a group has come to its end.
    Member {
        /// The group.
        group: String,
        /// Its number there.
        member: usize,
        /// Its result.
        fact: MemberFact,
    },
    /// An order of a name has come to its end.
    Name {
        /// As it was then.
        name: Arc<BalancedName>,
        /// Its result.
        fact: NameFact,
    },
    /// The path to a server was probed.
    Path {
        /// The server.
        address: IpAddr,
        /// The path's bandwidth, or why that isn't known.
        found: Result<MeasuredPath, String>,
    },
    /// The network around this host, as its kernel knows it now.
    Network(Box<Network>),
    /// A router can't pass on packets longer than this.
    PathMtu {
        /// This host's address that the packet came from.
        from: IpAddr,
        /// Where it was to go.
        to: IpAddr,
        /// In bytes.
        mtu: u16,
    },
    /// The operator describes the farm anew, in this network. Followed once it is in force; until
    /// then, and if it can't be, all stays as it was. One that comes meanwhile waits for its turn.
    Reload {
        /// The farm.
        farm: Box<Farm>,
        /// The network.
        network: Box<Network>,
        /// The interfaces of it that packets are taken from, with their MACs.
        links: BTreeMap<u32, Mac>,
        /// The kept members of groups that aren't served yet: see
        /// [`crate::farm::group::MemberOrder::Save`].
        groups: BTreeMap<String, String>,
    },
    /// The operator describes a farm anew that can't be, for a reason that shows before anything is
    /// tried.
    ReloadRefused {
        /// In words.
        error: String,
    },
    /// The operator says something of a server, present or not.
    SetOperatorState {
        /// Which.
        server: ServerName,
        /// The operator's word.
        state: OperatorState,
    },
    /// The result of [`super::Output::Apply`].
    Applied(Box<Applied>),
    /// No session names this slot any more, and its counters are cleared: see
    /// [`super::Output::Forget`].
    Released {
        /// The slot.
        slot: u16,
    },
    /// All session tables were walked.
    Walked(Box<SessionWalk>),
    /// The host takes part in the farm no longer.
    Leave,
}
