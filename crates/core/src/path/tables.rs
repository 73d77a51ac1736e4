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

/// Where a table of all server slots has one: there are no others.
pub(crate) fn place(slot: u16) -> usize {
    usize::from(slot) % SERVER_SLOTS
}

/// The key by which a packet is recognised: one address, port and protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipKey {
    /// The service address.
    pub address: IpAddr,
    /// The service port.
    pub port: u16,
    /// The transport.
    pub protocol: Protocol,
}

/// How a server is picked for a new session; the one thing a policy asks of the data plane.
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
    /// UDP.
    pub udp: u32,
    /// Of a UDP flow only first packets were seen.
    pub udp_new: u32,
}

/// One address of a service, as a packet meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vip {
    /// Names this VIP in session keys; never 0.
    pub id: u16,
    /// The service whose rings it picks from; index into [`Tables::rings`].
    pub service: u16,
    /// Whether the director answers ARP for the address.
    pub announce: bool,
    /// How a server is picked.
    pub pick: Pick,
    /// When sessions end.
    pub idle: IdleTicks,
    /// This host's own slot among the service's servers, where every host decides; [`NO_SERVER`] on
    /// a director. A host serves what another one has passed on to it.
    pub own: u16,
    /// Whether what is passed on is not remembered: no session is noted for a server that isn't
    /// this host.
    pub stateless: bool,
    /// Whether connections are accepted here, and given away once the client has said what it
    /// wants.
    pub handoff: Option<Handoff>,
}

/// How a VIP's connections are accepted before they are given to a server.
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
    /// It goes to the connection's server like all before: nobody reads it on the way.
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

/// How a packet reaches its server.
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
        /// Whether `own` takes the client's place, with a port of [`crate::path::ports`].
        source_nat: bool,
        /// The longest packet that the way takes, in bytes.
        mtu: u16,
    },
    /// Inside another packet.
    Tunnel {
        /// Of which kind.
        encapsulation: Encapsulation,
        /// The outer packet's source: an address of the director's.
        from: IpAddr,
        /// Its destination: the server's own address. Of the same family.
        to: IpAddr,
        /// The longest packet that the way takes, outer headers included, in bytes.
        mtu: u16,
        /// Where every host decides, how often the packet will have been passed on, as the outer
        /// header says; passed on twice, it is not passed on again. Only of [`Encapsulation::Gue`].
        mark: Option<ForwardCount>,
    },
}

/// A server, as a packet meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerEntry {
    /// Names the server through restarts: a digest of service and server name.
    pub identity: u64,
    /// Where its frames go. Of the punt slot, [`PUNTED`]: the source by which the host's own
    /// stack tells what is for it.
    pub mac: Mac,
    /// The interface it is reached by; 0 if it stands for nobody.
    pub ifindex: u32,
    /// Its share; at least 1 while it takes new sessions, else 0.
    pub weight: u16,
    /// Whether its health is good. Its open sessions stay with it either way; one that has only
    /// begun is chosen anew. A draining server is up: it is in no ring, and that is all.
    pub up: bool,
    /// Whether it is this host itself: packets go up the host's own stack.
    pub local: bool,
    /// How packets get there.
    pub forwarding: Forwarding,
}

impl ServerEntry {
    /// Whether it is the punt slot: that of the process on this host that reads what isn't decided
    /// in the data plane.
    pub fn is_punt(&self) -> bool {
        self.local && self.mac == PUNTED
    }

    /// Whether it stands for nobody: what its connections say is kept back until they have another
    /// server.
    pub fn is_down(&self) -> bool {
        !self.local && self.ifindex == 0
    }
}

/// The origin of a packet from a server: a VIP, and which of its servers this endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplyOrigin {
    /// [`Vip::id`].
    pub vip: u16,
    /// The server's slot.
    pub server: u16,
}

/// A director's knowledge when a packet comes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Tables {
    /// By address, port and protocol.
    pub vips: BTreeMap<VipKey, Vip>,
    /// By service number.
    pub rings: BTreeMap<u16, Arc<Ring>>,
    /// By server slot.
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
    /// Whether any service has this address; for packets too odd to name a port.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.vip_of_address(address).is_some()
    }

    /// Whether the director answers ARP for this address: some service with it says so.
    pub fn announces(&self, address: IpAddr) -> bool {
        self.vips_of_address(address).any(|vip| vip.announce)
    }

    /// Whether a server that answers through the director has this address.
    pub fn has_endpoint(&self, address: IpAddr) -> bool {
        let from = VipKey { address, port: 0, protocol: Protocol::Tcp };
        let to = VipKey { address, port: u16::MAX, protocol: Protocol::Udp };
        self.endpoints.range(from..=to).next().is_some()
    }

    /// Whether a server answers the requests that a ring is for, of a service whose later requests
    /// are looked at.
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

    /// Whether there is nothing to carry out.
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
