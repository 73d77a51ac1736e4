//! Hosts of an every-host farm: their configuration, this host's status, and the known state of
//! hosts.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::event::PeerEvent;
use super::hosted::HostedServer;
use super::link::PeerState;
use crate::net::wire::Mac;
use crate::node::association::Refusal;
use crate::node::secret::Key;

/// Maximum number of services, and of addresses that hosts own, in a farm. A datagram has one bit
/// for each address, and room for a record of each service.
pub const BITS: usize = 64;

/// Settings of the farm that the exchange of reports needs.
#[derive(Clone, Debug)]
pub struct PeerSettings {
    /// Name of this host.
    pub name: String,
    /// All hosts, this one included.
    pub hosts: Vec<HostSetting>,
    /// Names of the services, at most [`BITS`]. Reports name them by their position.
    pub services: Vec<String>,
    /// Service addresses that hosts own, in the same order on every host; at most [`BITS`].
    pub addresses: Vec<Publishable>,
    /// Digest of all settings that hosts must have in common.
    pub generation: u64,
    /// Time between two datagrams to a host, in milliseconds.
    pub interval_ms: u64,
    /// Time without datagrams after which a host counts as down, in milliseconds. It is several
    /// intervals long.
    pub silence_ms: u64,
    /// Key derived from the farm's secret with [`super::LABEL`].
    pub key: Key,
}

/// A host, as listed in the farm file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSetting {
    /// Unique among the hosts.
    pub name: String,
    /// Destination address of datagrams to the host.
    pub address: IpAddr,
}

/// A service address, which one of the hosts owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publishable {
    pub address: IpAddr,
    /// Host that publishes the address; `None` if the hosts elect an owner.
    pub publisher: Option<String>,
}

/// Status of this host, which its reports contain.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct OwnStatus {
    /// Number of sessions that this host serves.
    pub load: u32,
    /// Source MAC addresses of this host's frames; at most [`super::wire::MACS_MAX`] are reported.
    pub macs: Vec<Mac>,
    /// This host's servers, by the position of their service.
    pub servers: BTreeMap<u8, HostedServer>,
}

impl OwnStatus {
    /// Returns the status without the loads, which change without pause.
    pub(super) fn without_loads(&self) -> OwnStatus {
        OwnStatus { load: 0, servers: without_loads(&self.servers), ..self.clone() }
    }
}

/// Known state of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHost {
    pub name: String,
    /// Own address of the host.
    pub address: IpAddr,
    /// True for this host.
    pub own: bool,
    /// True unless the host is silent.
    pub alive: bool,
    /// True if a report of the host was used. False if the host has always had another
    /// configuration.
    pub believed: bool,
    /// True if the host takes part in rings and in the ownership of addresses. Valid only while the
    /// host is alive.
    pub ready: bool,
    /// The host's servers, by the position of their service; empty while nothing is known of them.
    pub servers: BTreeMap<u8, HostedServer>,
    /// Number of sessions that the host serves.
    pub load: u32,
    /// True if the host has another configuration now. Then `ready`, `servers`, `load` and `owned`
    /// come from its last accepted report.
    pub generation_differs: bool,
    /// Reason why all datagrams of the host are refused. `None` if a datagram is accepted, or the
    /// reason is unknown.
    pub refused: Option<Refusal>,
    /// Source MAC addresses of the host's frames. They stay valid while the host is silent, since a
    /// host without a daemon still forwards packets.
    pub macs: Vec<Mac>,
    /// Addresses that the host owns according to its report.
    pub owned: Vec<IpAddr>,
    /// Time of the last datagram, in milliseconds.
    pub received_ms: Option<u64>,
    /// Time of the last change of `alive`, in milliseconds.
    pub since_ms: u64,
}

impl KnownHost {
    /// Returns the state without loads and times, which change without pause.
    pub(super) fn without_loads(&self) -> KnownHost {
        let servers = without_loads(&self.servers);
        KnownHost { load: 0, servers, received_ms: None, since_ms: 0, ..self.clone() }
    }

    /// Returns the state of another host. `generation` is that of this host.
    pub(super) fn of(link: &PeerState, generation: u64) -> KnownHost {
        let believed = link.content.is_some();
        let content = link.content.clone().unwrap_or_default();
        let received_ms = link.association.received_ms();
        KnownHost {
            name: link.name.clone(),
            address: link.address,
            own: false,
            alive: link.association.is_alive(),
            believed,
            ready: content.ready,
            servers: content.servers,
            load: content.load,
            generation_differs: received_ms.is_some() && !link.agrees(generation),
            refused: link.association.trouble(),
            macs: link.macs.clone(),
            owned: content.owned.into_iter().collect(),
            received_ms,
            since_ms: link.since_ms,
        }
    }
}

/// Returns the state of servers without their loads.
fn without_loads(servers: &BTreeMap<u8, HostedServer>) -> BTreeMap<u8, HostedServer> {
    servers.iter().map(|(at, server)| (*at, HostedServer { load: None, ..*server })).collect()
}

/// Effect of a datagram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatagramEffect {
    /// Events for the log.
    pub notices: Vec<PeerEvent>,
    /// Datagram to send to this address now.
    pub answer: Option<(IpAddr, Vec<u8>)>,
    /// True if [`super::Peers::hosts`] or [`super::Peers::owned`] changed. Loads and times don't
    /// count.
    pub changed: bool,
}

/// Effect of a tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// Datagrams to send, with their destinations.
    pub datagrams: Vec<(IpAddr, Vec<u8>)>,
    /// Addresses to probe by ARP or neighbour solicitation. The caller passes replies to
    /// [`super::Peers::answered`].
    pub probes: Vec<IpAddr>,
    /// Owned addresses to announce on all links.
    pub claimed: Vec<IpAddr>,
    /// Events for the log.
    pub notices: Vec<PeerEvent>,
    /// True if the state changed, as in [`DatagramEffect::changed`].
    pub changed: bool,
}
