//! A director's knowledge when a packet comes: immutable tables, made by [`crate::farm::plan`],
//! carried to an engine as a [`Delta`].
//!
//! Identifiers are small numbers because sessions hold them. A number keeps its meaning for as long
//! as any session may name it, through reloads and restarts; [`crate::farm::plan::Slots`] sees to
//! that.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use crate::net::wire::Mac;
use crate::net::{Encapsulation, Protocol};
use crate::path::content::RouteIndex;
use crate::path::mark::{ForwardCount, PUNTED};

/// Slots of a service's hash table. Prime, as Maglev needs (Eisenbud et al. 2016, section 3.4), and
/// a hundred times the servers of a large service.
pub const HASH_SLOTS: usize = 65_537;
/// The most entries of a service's ring.
pub const ORDER_MAX: usize = 4_096;
/// VIP numbers are less than this, and never 0. There are more of them than VIPs, so that one that
/// was freed is the last to be given out again.
pub const VIP_IDS: usize = 256;
/// The most servers one service can have.
pub const SERVICE_SERVERS_MAX: usize = 256;
/// The most VIPs that one address and port of a server may stand behind with [`Forwarding::Nat`].
pub const BEHIND_MAX: usize = 8;
/// The most MACs of other hosts: [`Tables::peers`].
pub const PEERS_MAX: usize = 1_024;
/// The most server slots of a farm; slot 0 is never used, so that 0 can mean "none".
pub const SERVER_SLOTS: usize = 4_096;
/// Slot number that names no server.
pub const NO_SERVER: u16 = 0;

/// Slot number that stands for servers of which each has as many sessions as it may have.
pub const ALL_FULL: u16 = SERVER_SLOTS as u16;

/// Returns the index of a server slot in a table of all slots; there are no other slots.
pub(crate) fn place(slot: u16) -> usize {
    usize::from(slot) % SERVER_SLOTS
}

/// The key by which a packet is recognised: one address, port and protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipKey {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: Protocol,
}

/// Way to select a server for a new session: the one thing that a policy asks of the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Pick {
    /// By the flow's keyed hash, from the hash table.
    Hash = 0,
    /// The next entry of the ring.
    Cursor = 1,
    /// The server in the ring with the fewest active sessions for its weight.
    Least = 2,
    /// The better of two that the flow's keyed hash names: by active sessions for their weight,
    /// times their load.
    Two = 3,
}

/// Idle times after which a session is gone, in ticks (see [`crate::path::sessions::ticks`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleTicks {
    /// Of a TCP connection only first packets were seen.
    pub syn: u32,
    /// An open TCP connection.
    pub tcp: u32,
    /// After FIN or RST of one side.
    pub half_closed: u32,
    /// After those of both.
    pub closing: u32,
    pub udp: u32,
    /// Of a UDP flow only first packets were seen.
    pub udp_new: u32,
}

/// Address of a service, as packets see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vip {
    /// Names this VIP in session keys; never 0.
    pub id: u16,
    /// The service whose rings it picks from; index into [`Tables::rings`].
    pub service: u16,
    /// True if the director answers ARP for the address.
    pub announce: bool,
    pub pick: Pick,
    /// Idle times of sessions.
    pub idle: IdleTicks,
    /// Slot of this host among the service's servers, where every host decides; [`NO_SERVER`] on a
    /// director. A host serves the packets that another host passes on to it.
    pub own: u16,
    /// True if no session is stored for packets that are passed on to another host.
    pub stateless: bool,
    /// Settings of `handoff`, if connections are accepted here and handed over once the client has
    /// sent a request.
    pub handoff: Option<Handoff>,
}

/// Settings by which a VIP's connections are accepted before they are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handoff {
    /// The largest segment that clients may send, in bytes: it fits into every way to a server.
    pub mss: u16,
    /// The slot that stands for this host's own process, which reads what isn't decided here;
    /// [`NO_SERVER`] if there is none.
    pub punt: u16,
    /// The slot that stands for nobody, where packets are kept back while their connection moves;
    /// [`NO_SERVER`] if there is none.
    pub held: u16,
    /// The treatment of later requests on a connection that is kept open.
    pub later: RehandoffMode,
}

/// The treatment of a request for other servers than the one whose connection it comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum RehandoffMode {
    /// Later requests go to the connection's server like the first one; nobody reads them on the
    /// way.
    #[default]
    Stay = 0,
    /// The connection is reset, and the client asks again by another (RFC 9112, section 9.3.1).
    Close = 1,
    /// The connection is taken from its server, read here, and given to another one; the client
    /// notices nothing.
    Rehandoff = 2,
}

/// The weighted tables that a service's servers are picked from. All entries are server slots.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Ring {
    /// For [`Pick::Cursor`] and [`Pick::Least`], and with each for flows whose server is full; at
    /// most [`ORDER_MAX`] entries.
    pub order: Vec<u16>,
    /// For [`Pick::Hash`], and for flows that neither a session nor `previous` is known of;
    /// [`HASH_SLOTS`] entries, or none while the service has no server.
    pub hash: Arc<[u16]>,
    /// For [`Pick::Two`]: for each slot of the hash table the second candidate, which is another
    /// server than the first. Empty with other ways to pick, and while there is one server alone.
    pub second: Arc<[u16]>,
    /// For flows that no session is known of, as they may be older than `hash`. May be empty.
    ///
    /// On a director: for each slot of the hash table the server that works and would have it if
    /// nobody were drained and nobody slowly started, where that is another one. Where every host
    /// decides: the host that may know a flow that this one doesn't, as hosts may have another
    /// table, or had. Its entries are ways to other hosts that are a packet's last
    /// ([`ForwardCount::Twice`]), or none.
    pub previous: Arc<[u16]>,
}

/// Way of a packet to its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// By its MAC address alone; nothing above layer two changes.
    Link,
    /// By rewriting addresses and ports.
    Nat {
        /// The server's own address and port.
        to: SocketAddr,
        /// The director's address towards the server: where it speaks of itself.
        own: IpAddr,
        /// True if `own` replaces the client's address, with a port of [`crate::path::ports`].
        source_nat: bool,
        /// The longest packet that the way takes, in bytes.
        mtu: u16,
    },
    /// Encapsulated in another packet.
    Tunnel {
        encapsulation: Encapsulation,
        /// The outer packet's source: an address of the director's.
        from: IpAddr,
        /// Destination of the tunnel: the server's own address, of the same family.
        to: IpAddr,
        /// The longest packet that the way takes, outer headers included, in bytes.
        mtu: u16,
        /// Number of times that the packet will have been passed on, for the outer header; where
        /// every host decides. A packet passed on twice is not passed on again. Only with
        /// [`Encapsulation::Gue`].
        mark: Option<ForwardCount>,
    },
}

/// A server, as a packet meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerEntry {
    /// Names the server through restarts: a digest of service and server name.
    pub identity: u64,
    /// Destination MAC of frames. The punt slot has [`PUNTED`] here: the source by which the host's
    /// own stack recognises punted packets.
    pub mac: Mac,
    /// The interface it is reached by; 0 if it stands for nobody.
    pub ifindex: u32,
    /// Weight; at least 1 while the server takes new sessions, else 0.
    pub weight: u16,
    /// True if the server is healthy. Open sessions stay either way; an embryonic session selects
    /// anew. A draining server is up, and only missing in the rings.
    pub up: bool,
    /// True if the server is this host: packets go up the host's own stack.
    pub local: bool,
    /// Way of packets to the server.
    pub forwarding: Forwarding,
}

impl ServerEntry {
    /// True for the punt slot: the process on this host that reads what the data plane doesn't
    /// decide.
    pub fn is_punt(&self) -> bool {
        self.local && self.mac == PUNTED
    }

    /// True if the slot has no server: packets of its connections are dropped until they have
    /// another server.
    pub fn is_down(&self) -> bool {
        !self.local && self.ifindex == 0
    }
}

/// The origin of a packet from a server: a VIP, and which of its servers this endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplyOrigin {
    pub vip: u16,
    pub server: u16,
}

/// A director's knowledge when a packet comes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Tables {
    /// By address, port and protocol.
    pub vips: BTreeMap<VipKey, Vip>,
    /// Rings by service number.
    pub rings: BTreeMap<u16, Arc<Ring>>,
    /// Servers, by their slots.
    pub servers: BTreeMap<u16, ServerEntry>,
    /// The interfaces that packets are taken from, with their own MAC.
    pub interfaces: BTreeMap<u32, Mac>,
    /// Servers' own addresses and ports with [`Forwarding::Nat`]: answers come from there. At most
    /// [`BEHIND_MAX`] entries each, in order.
    pub endpoints: BTreeMap<VipKey, Vec<ReplyOrigin>>,
    /// The MACs that other hosts pass packets on with; see [`crate::path::arrival`].
    pub peers: BTreeSet<Mac>,
    /// By service number: which ring a connection's server is picked from, by what the client asks
    /// for. Services that hand connections over have one.
    pub routes: BTreeMap<u16, Arc<RouteIndex>>,
    /// By server slot, bit by bit, the rings whose requests it answers, whether it takes new ones
    /// at present or not. Of services whose later requests are looked at ([`RehandoffMode`]).
    pub pools: BTreeMap<u16, u64>,
}

impl Tables {
    /// True if any service has this address; for packets too odd to have a port.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.vip_of_address(address).is_some()
    }

    /// True if the director answers ARP for this address: a service with the address wants it.
    pub fn announces(&self, address: IpAddr) -> bool {
        self.vips_of_address(address).any(|vip| vip.announce)
    }

    /// True if a server whose replies pass the director has this address.
    pub fn has_endpoint(&self, address: IpAddr) -> bool {
        let from = VipKey { address, port: 0, protocol: Protocol::Tcp };
        let to = VipKey { address, port: u16::MAX, protocol: Protocol::Udp };
        self.endpoints.range(from..=to).next().is_some()
    }

    /// True if a server serves the requests of a ring, in a service whose later requests are read.
    pub fn answers(&self, server: u16, ring: u16) -> bool {
        let rings = self.pools.get(&server).copied().unwrap_or_default();
        rings.checked_shr(ring.into()).unwrap_or_default() & 1 == 1
    }

    /// A VIP by its number.
    pub fn vip_by_id(&self, id: u16) -> Option<(&VipKey, &Vip)> {
        self.vips.iter().find(|(_, vip)| vip.id == id)
    }

    fn vip_of_address(&self, address: IpAddr) -> Option<&Vip> {
        self.vips_of_address(address).next()
    }

    fn vips_of_address(&self, address: IpAddr) -> impl Iterator<Item = &Vip> {
        let from = VipKey { address, port: 0, protocol: Protocol::Tcp };
        let to = VipKey { address, port: u16::MAX, protocol: Protocol::Udp };
        self.vips.range(from..=to).map(|(_, vip)| vip)
    }
}

/// The changes between two [`Tables`], in the order in which an engine must carry them out:
/// referenced entries come before those that refer to them, removals come last.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Delta {
    /// New or changed interfaces.
    pub interfaces: Vec<(u32, Mac)>,
    /// New or changed servers.
    pub servers: Vec<(u16, ServerEntry)>,
    /// New or changed rings.
    pub rings: Vec<(u16, Arc<Ring>)>,
    /// New or changed VIPs.
    pub vips: Vec<(VipKey, Vip)>,
    /// VIPs that are gone.
    pub vips_removed: Vec<VipKey>,
    /// Rings that are gone.
    pub rings_removed: Vec<u16>,
    /// Servers that are gone; their sessions go with them.
    pub servers_removed: Vec<u16>,
    /// Interfaces that are gone.
    pub interfaces_removed: Vec<u32>,
    /// New or changed endpoints.
    pub endpoints: Vec<(VipKey, Vec<ReplyOrigin>)>,
    /// Endpoints that are gone.
    pub endpoints_removed: Vec<VipKey>,
    /// All peers as they now are, if that changed.
    pub peers: Option<BTreeSet<Mac>>,
    /// New or changed routes.
    pub routes: Vec<(u16, Arc<RouteIndex>)>,
    /// Routes that are gone.
    pub routes_removed: Vec<u16>,
    /// All pools as they now are, if that changed.
    pub pools: Option<BTreeMap<u16, u64>>,
}

impl Delta {
    /// The changes that make `old` into `new`.
    pub fn between(old: &Tables, new: &Tables) -> Delta {
        Delta {
            interfaces: changed(&old.interfaces, &new.interfaces),
            servers: changed(&old.servers, &new.servers),
            rings: changed(&old.rings, &new.rings),
            vips: changed(&old.vips, &new.vips),
            vips_removed: gone(&old.vips, &new.vips),
            rings_removed: gone(&old.rings, &new.rings),
            servers_removed: gone(&old.servers, &new.servers),
            interfaces_removed: gone(&old.interfaces, &new.interfaces),
            endpoints: changed(&old.endpoints, &new.endpoints),
            endpoints_removed: gone(&old.endpoints, &new.endpoints),
            peers: (old.peers != new.peers).then(|| new.peers.clone()),
            routes: changed(&old.routes, &new.routes),
            routes_removed: gone(&old.routes, &new.routes),
            pools: (old.pools != new.pools).then(|| new.pools.clone()),
        }
    }

    /// True if there is nothing to apply.
    pub fn is_empty(&self) -> bool {
        *self == Delta::default()
    }
}

fn changed<K: Ord + Clone, V: PartialEq + Clone>(old: &BTreeMap<K, V>, new: &BTreeMap<K, V>) -> Vec<(K, V)> {
    new.iter().filter(|(k, v)| old.get(k) != Some(v)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn gone<K: Ord + Clone, V>(old: &BTreeMap<K, V>, new: &BTreeMap<K, V>) -> Vec<K> {
    old.keys().filter(|k| !new.contains_key(k)).cloned().collect()
}
