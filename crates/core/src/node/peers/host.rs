//! Hosts as the configuration has them, as they tell of themselves, and as they are seen.

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
    /// This host's name.
    pub name: String,
    /// All hosts, this one included.
    pub hosts: Vec<HostSetting>,
    /// The names of the services, in the order that bits of `up` and `draining` have; at most
    /// [`BITS`].
    pub services: Vec<String>,
    /// The service addresses that hosts own, in the same order on every host; at most [`BITS`].
    pub addresses: Vec<Publishable>,
    /// Digest of all in the configuration that hosts must agree on.
    pub generation: u64,
    /// Time between two datagrams to a host, in milliseconds.
    pub interval_ms: u64,
    /// A host not heard for this long counts as down, in milliseconds. Several intervals.
    pub silence_ms: u64,
    /// Derived from the farm's secret with [`super::LABEL`].
    pub key: Key,
}

/// A host of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSetting {
    /// Unique among the hosts.
    pub name: String,
    /// Where its datagrams go.
    pub address: IpAddr,
}

/// A service address that one of the hosts owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publishable {
    /// The address.
    pub address: IpAddr,
    /// The host that publishes it; `None` has hosts elect one.
    pub publisher: Option<String>,
}

/// This host's status.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct OwnStatus {
    /// Sessions being served here.
    pub load: u32,
    /// Bit `i`: its server of service `i` is healthy.
    pub up: u64,
    /// Bit `i`: it is drained there.
    pub draining: u64,
    /// The MACs that its frames may have as source; [`super::wire::MACS_MAX`] of them are told.
    pub macs: Vec<Mac>,
}

/// A host, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHost {
    /// Its name.
    pub name: String,
    /// Its own address.
    pub address: IpAddr,
    /// Whether it is this host.
    pub own: bool,
    /// Whether it was heard lately.
    pub alive: bool,
    /// Whether anything was believed that it said of its part: not of one with another
    /// configuration from the beginning.
    pub believed: bool,
    /// Whether it takes part. Of use only while it is alive.
    pub ready: bool,
    /// Bit `i`: its server of service `i` is healthy.
    pub up: u64,
    /// Bit `i`: it is drained there.
    pub draining: u64,
    /// Sessions being served there.
    pub load: u32,
    /// Whether it runs another configuration: `ready`, `up`, `draining`, `load` and `owned` are
    /// from before.
    pub generation_differs: bool,
    /// Why nothing that it says is understood, as far as can be told; nothing while it is.
    pub refused: Option<Refusal>,
    /// The MACs that its frames may have as source. They outlive silence: a host whose daemon is
    /// dead still sends.
    pub macs: Vec<Mac>,
    /// The addresses it says it owns.
    pub owned: Vec<IpAddr>,
    /// When it was last heard, in milliseconds.
    pub received_ms: Option<u64>,
    /// When `alive` last changed, in milliseconds.
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
    /// For the log.
    pub notices: Vec<PeerEvent>,
    /// To be sent to this host now.
    pub answer: Option<(IpAddr, Vec<u8>)>,
    /// Whether [`super::Peers::hosts`], loads and times aside, or [`super::Peers::owned`] changed.
    pub changed: bool,
}

/// The effect of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// To be sent to these hosts.
    pub datagrams: Vec<(IpAddr, Vec<u8>)>,
    /// Addresses to ask everyone for, by ARP or neighbour solicitation; answers go to
    /// [`super::Peers::answered`].
    pub probes: Vec<IpAddr>,
    /// Addresses that are owned here, to be announced to everyone.
    pub claimed: Vec<IpAddr>,
    /// For the log.
    pub notices: Vec<PeerEvent>,
    /// As [`DatagramEffect::changed`].
    pub changed: bool,
}
