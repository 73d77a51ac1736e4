//! Inputs of a director. An input states a fact; the director draws the conclusions.

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

#[derive(Clone, Debug)]
pub enum Input {
    Time {
        /// Active sessions by slot, for the slots of [`super::Director::due_counts`].
        active: BTreeMap<u16, u64>,
    },
    /// An ARP or neighbour discovery frame was received.
    Frame {
        ifindex: u32,
        /// Frame from the Ethernet header on.
        bytes: Vec<u8>,
    },
    /// A datagram of another host was received, not authenticated yet.
    Datagram {
        /// Claimed address of the sender.
        from: SocketAddr,
        bytes: Vec<u8>,
    },
    Probed {
        server: ServerName,
        /// Latency in microseconds, or the failure.
        result: Result<u64, Failure>,
    },
    /// A report query ended: see [`super::Output::LoadQuery`].
    Reported {
        server: ServerName,
        /// The report, or the reason of its rejection.
        result: Result<Report, BadReport>,
    },
    /// Result of a group's order: see [`super::Output::Group`].
    Member {
        group: String,
        /// Number of the member in the group.
        member: usize,
        fact: MemberFact,
    },
    /// Result of a name's order: see [`super::Output::Name`].
    Name {
        /// The name at the time of the order.
        name: Arc<BalancedName>,
        fact: NameFact,
    },
    /// A path probe to a server ended.
    Path {
        /// Address of the server.
        address: IpAddr,
        /// Bandwidth of the path, or the failure.
        found: Result<MeasuredPath, String>,
    },
    /// The kernel's network configuration changed.
    Network(Box<Network>),
    /// A router reported a path MTU.
    PathMtu {
        /// Source of the packet: an address of this host.
        from: IpAddr,
        /// Destination of the packet.
        to: IpAddr,
        /// Path MTU in bytes.
        mtu: u16,
    },
    /// The operator reloads the farm file. The director switches to the new farm when the engine
    /// has applied its tables. If the farm has no valid plan or the engine refuses the tables,
    /// nothing changes. Later reloads are queued.
    Reload {
        farm: Box<Farm>,
        /// Network at the time of the reload.
        network: Box<Network>,
        /// Interfaces that the engine uses, with their MAC addresses.
        links: BTreeMap<u32, Mac>,
        /// Saved members of groups that the running farm doesn't have, by group: see
        /// [`crate::farm::group::MemberOrder::Save`].
        groups: BTreeMap<String, String>,
    },
    /// The farm file of a reload is invalid.
    ReloadRefused { error: String },
    /// The operator sets the state of a server. The farm need not have this server now.
    SetOperatorState { server: ServerName, state: OperatorState },
    /// The result of [`super::Output::Apply`].
    Applied(Box<Applied>),
    /// Answer to [`super::Output::Forget`] for one slot: no session refers to the slot, and its
    /// counters are cleared.
    Released { slot: u16 },
    /// A walk of all session tables ended.
    Walked(Box<SessionWalk>),
    /// The local host leaves the farm.
    Leave,
}
