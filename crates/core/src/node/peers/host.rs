//! Hosts: configuration, own report, and observed state.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::event::PeerEvent;
use super::link::PeerState;
use crate::net::wire::Mac;
use crate::node::association::Refusal;
use crate::node::secret::Key;

/// The most services and the most publishable addresses of a farm: a datagram has a bit for each.
pub const BITS: usize = 64;

/// A host's knowledge of the farm from its configuration.
#[derive(Clone, Debug)]
pub struct PeerSettings {
    /// Name of this host.
    pub name: String,
    /// All hosts, this one included.
    pub hosts: Vec<HostSetting>,
    /// The names of the services, in the order that bits of `up` and `draining` have; at most
    /// [`BITS`].
    pub services: Vec<String>,
    /// Service addresses that hosts own, in the same order on every host; at most [`BITS`].
    pub addresses: Vec<Publishable>,
    /// Digest of all in the configuration that hosts must agree on.
    pub generation: u64,
    /// Time between two datagrams to a host, in milliseconds.
    pub interval_ms: u64,
    /// Time without datagrams after which a host is down, in milliseconds. Several intervals.
    pub silence_ms: u64,
    /// Derived from the farm's secret with [`super::LABEL`].
    pub key: Key,
}

/// A host of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSetting {
    /// Unique among the hosts.
    pub name: String,
    /// Destination of its datagrams.
    pub address: IpAddr,
}

/// A service address that one of the hosts owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publishable {
    pub address: IpAddr,
    /// The host that publishes it; `None` has hosts elect one.
    pub publisher: Option<String>,
}

/// Status of this host.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct OwnStatus {
    /// Sessions being served here.
    pub load: u32,
    /// Bit `i`: its server of service `i` is healthy.
    pub up: u64,
    /// Bit `i`: it is drained there.
    pub draining: u64,
    /// Source MAC addresses of its frames; at most [`super::wire::MACS_MAX`] are reported.
    pub macs: Vec<Mac>,
}

/// A host, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHost {
    pub name: String,
    /// Own address of the host.
    pub address: IpAddr,
    /// True for this host.
    pub own: bool,
    /// True if the host is not silent.
    pub alive: bool,
    /// True if a report of the host was accepted; false for one that always had another
    /// configuration.
    pub believed: bool,
    /// True if the host takes part. Meaningful only while it is alive.
    pub ready: bool,
    /// Bit `i`: its server of service `i` is healthy.
    pub up: u64,
    /// Bit `i`: it is drained there.
    pub draining: u64,
    /// Sessions being served there.
    pub load: u32,
    /// True if the host has another configuration: `ready`, `up`, `draining`, `load` and `owned`
    /// are from before.
    pub generation_differs: bool,
    /// Reason why all of its datagrams are refused, as far as known; `None` while one is accepted.
    pub refused: Option<Refusal>,
    /// Source MAC addresses of its frames. They are kept during silence, since a host without
    /// daemon still forwards packets.
    pub macs: Vec<Mac>,
    /// Addresses that the host owns by its report.
    pub owned: Vec<IpAddr>,
    /// Time of the last datagram, in milliseconds.
    pub received_ms: Option<u64>,
    /// Time of the last change of `alive`, in milliseconds.
    pub since_ms: u64,
}

impl KnownHost {
    /// Another host, seen from one of this generation.
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
            up: content.up,
            draining: content.draining,
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

/// The effect of a datagram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatagramEffect {
    /// Events for the log.
    pub notices: Vec<PeerEvent>,
    /// To be sent to this host now.
    pub answer: Option<(IpAddr, Vec<u8>)>,
    /// True if [`super::Peers::hosts`], except loads and times, or [`super::Peers::owned`] changed.
    pub changed: bool,
}

/// The effect of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// To be sent to these hosts.
    pub datagrams: Vec<(IpAddr, Vec<u8>)>,
    /// Addresses to probe by ARP or neighbour solicitation; replies go to
    /// [`super::Peers::answered`].
    pub probes: Vec<IpAddr>,
    /// Addresses that are owned here, to be announced to everyone.
    pub claimed: Vec<IpAddr>,
    /// Events for the log.
    pub notices: Vec<PeerEvent>,
    /// See [`DatagramEffect::changed`] for its meaning.
    pub changed: bool,
}
