//! Tables by which the data plane handles packets. [`crate::farm::plan`] computes them. They are
//! immutable, and reach an engine as a [`Delta`].
//!
//! Identifiers are small numbers, since sessions store them. A number keeps its meaning while any
//! session may refer to it, through reloads and restarts: see [`crate::farm::plan::Slots`].

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use crate::net::wire::Mac;
use crate::net::{Encapsulation, Protocol};
use crate::path::content::RouteIndex;
use crate::path::mark::{ForwardCount, PUNTED};

/// Number of entries of a service's hash table. It is prime, as Maglev requires (Eisenbud et al.
/// 2016, section 3.4), and a hundred times the number of servers of a large service.
pub const HASH_SLOTS: usize = 65_537;
/// Maximum number of entries of a service's ring.
pub const ORDER_MAX: usize = 4_096;
/// VIP numbers are below this limit and never 0. There are more numbers than VIPs, so that a freed
/// number stays unused for a while.
pub const VIP_IDS: usize = 256;
/// Maximum number of services and rings of a farm. All numbers of services are below this limit.
pub const SERVICES_MAX: usize = 64;
/// Maximum number of servers of a service.
pub const SERVICE_SERVERS_MAX: usize = 256;
/// Maximum number of VIPs that one address and port of a server may serve with [`Forwarding::Nat`].
pub const BEHIND_MAX: usize = 8;
/// Maximum number of other hosts' MACs in [`Tables::peers`].
pub const PEERS_MAX: usize = 1_024;
/// Number of server slots of a farm. Slot 0 is never used: 0 means no server.
pub const SERVER_SLOTS: usize = 4_096;
/// Slot number that names no server.
pub const NO_SERVER: u16 = 0;

/// Slot number that stands for no server, because all servers have reached their session limits.
pub const ALL_FULL: u16 = SERVER_SLOTS as u16;

/// Returns the index of a server slot in a table of all slots. Wraps an invalid slot.
pub(crate) fn place(slot: u16) -> usize {
    usize::from(slot) % SERVER_SLOTS
}

/// Key by which packets match a VIP: address, port and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipKey {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: Protocol,
}

/// Selection of a server for a new session by the data plane, as the policy requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Pick {
    /// The server at the flow's hash in the hash table.
    Hash = 0,
    /// The server at the cursor of the ring.
    Cursor = 1,
    /// The server of the ring with the fewest active sessions for its weight.
    Least = 2,
    /// The better one of the two candidates at the flow's hash in the hash tables. Their active
    /// sessions for their weight, times their load, are compared.
    Two = 3,
}

/// Idle timeouts of sessions in ticks (see [`crate::path::sessions::ticks`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleTicks {
    /// TCP connection of which only first packets were seen.
    pub syn: u32,
    /// TCP connection that is open.
    pub tcp: u32,
    /// TCP connection after the client's FIN or RST, or the server's FIN.
    pub half_closed: u32,
    /// TCP connection after FIN of both sides or the server's RST.
    pub closing: u32,
    pub udp: u32,
    /// UDP flow of which only first packets were seen.
    pub udp_new: u32,
}

/// Address, port and protocol of a service, with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vip {
    /// Number of this VIP in session keys. Never 0.
    pub id: u16,
    /// Number of the service, which is the key in [`Tables::rings`].
    pub service: u16,
    /// True if the director answers ARP for the address.
    pub announce: bool,
    pub pick: Pick,
    /// Idle timeouts of the VIP's sessions.
    pub idle: IdleTicks,
    /// Slot of this host among the service's servers, in an every-host farm. This host serves
    /// packets that other hosts forward to it. [`NO_SERVER`] on a director.
    pub own: u16,
    /// True if packets that this host forwards to another host open no session on this host.
    pub stateless: bool,
    /// Affinity of clients to servers, if the service has it.
    pub affinity: Option<Affinity>,
    /// Settings of method `handoff`; `None` for other methods. With it this host accepts
    /// connections and hands them off once the client has sent a request.
    pub handoff: Option<Handoff>,
}

/// Affinity of the clients of a VIP to servers: [`crate::path::affinity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// Part of a digest of the service's name, since the service's number may become another's.
    pub tag: u16,
    /// Prefix length of the network that counts as one client, in bits.
    pub prefix_len: u8,
    /// Lifetime of an entry after a refresh, in ticks.
    pub lifetime: u32,
}

/// Settings for accepting connections before their handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handoff {
    /// Maximum segment size that is offered to clients, in bytes. It fits the paths to all servers.
    pub mss: u16,
    /// Slot of this host's own process, which reads punted packets. [`NO_SERVER`] if there is none.
    pub punt: u16,
    /// Slot without a server, which buffers packets while their connection moves. [`NO_SERVER`] if
    /// there is none.
    pub held: u16,
    /// Treatment of later requests on a persistent connection.
    pub later: RehandoffMode,
}

/// Treatment of a later request on a persistent connection, if another server than the connection's
/// has to serve the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum RehandoffMode {
    /// Later requests go to the connection's server. No host on the path reads them.
    #[default]
    Stay = 0,
    /// The connection is reset, and the client retries on a new one (RFC 9112, section 9.3.1).
    Close = 1,
    /// The server releases the connection. This host reads the request and hands the connection off
    /// to another server. The client doesn't notice.
    Rehandoff = 2,
}

/// Weighted tables from which a service's servers are selected. All entries are server slots.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Ring {
    /// Ring for [`Pick::Cursor`] and [`Pick::Least`], and with every [`Pick`] for flows whose
    /// server is full. At most [`ORDER_MAX`] entries.
    pub order: Vec<u16>,
    /// Hash table for [`Pick::Hash`], and for flows that have neither a session nor an entry in
    /// `previous`. [`HASH_SLOTS`] entries. Empty while the service has no server.
    pub hash: Arc<[u16]>,
    /// Hash table for [`Pick::Two`]: the second candidate of each slot, a different server from the
    /// first. Empty with other values of [`Pick`], and if there is only one server.
    pub second: Arc<[u16]>,
    /// Hash table for flows without a session. Such flows may have begun before `hash` last
    /// changed. May be empty.
    ///
    /// On a director, this is the hash table of the working servers as if none of them drained or
    /// started slowly. It is empty if it equals `hash`. In an every-host farm, an entry names the
    /// host that may know the flow, since hosts' tables may differ for a while. A packet that goes
    /// by such an entry must not be forwarded again ([`ForwardCount::Twice`]), or [`NO_SERVER`].
    pub previous: Arc<[u16]>,
}

/// Method by which packets reach one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// By the destination MAC alone. Nothing above layer two changes.
    Link,
    /// By rewriting addresses and ports (NAT).
    Nat {
        /// Address and port of the server itself.
        to: SocketAddr,
        /// Address of the director towards the server. It is also the source of the director's own
        /// ICMP errors.
        own: IpAddr,
        /// True if `own`, with a port of [`crate::path::ports`], replaces the client's address and
        /// port.
        source_nat: bool,
        /// Maximum packet size of the path, in bytes.
        mtu: u16,
    },
    /// By encapsulation in another packet.
    Tunnel {
        encapsulation: Encapsulation,
        /// Source of the outer packet: an address of the director.
        from: IpAddr,
        /// Destination of the outer packet: the server's own address, of the family of `from`.
        to: IpAddr,
        /// Maximum packet size of the path, including outer headers, in bytes.
        mtu: u16,
        /// Forward count for the mark of the GUE header, in an every-host farm. `None` for other
        /// encapsulations than [`Encapsulation::Gue`].
        mark: Option<ForwardCount>,
    },
}

/// Server in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerEntry {
    /// Digest of service and server name, which identifies the server through restarts.
    pub identity: u64,
    /// Destination MAC of frames. For the punt slot this is [`PUNTED`], the source MAC by which the
    /// host's own stack recognises punted packets.
    pub mac: Mac,
    /// Interface that leads to the server. 0 for a slot without a server.
    pub ifindex: u32,
    /// Weight: at least 1 while the server accepts new sessions, else 0.
    pub weight: u16,
    /// True if the server is healthy. Open sessions stay on a server that is down, but a first
    /// packet of an embryonic session selects a server again. A draining server is up, but not in
    /// the rings.
    pub up: bool,
    /// True if the server is this host, so that packets go to its own stack.
    pub local: bool,
    pub forwarding: Forwarding,
}

impl ServerEntry {
    /// True for the punt slot, which stands for the process on this host that reads punted packets.
    pub fn is_punt(&self) -> bool {
        self.local && self.mac == PUNTED
    }

    /// True if the slot belongs to no server. Its packets are held or dropped until their
    /// connection has a server.
    pub fn is_down(&self) -> bool {
        !self.local && self.ifindex == 0
    }
}

/// VIP and server to which replies from a server's endpoint belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplyOrigin {
    pub vip: u16,
    pub server: u16,
}

/// Tables of one generation.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Tables {
    pub vips: BTreeMap<VipKey, Vip>,
    /// Rings by service number.
    pub rings: BTreeMap<u16, Arc<Ring>>,
    /// Servers by their slot.
    pub servers: BTreeMap<u16, ServerEntry>,
    /// Interfaces on which packets are accepted, with their own MACs.
    pub interfaces: BTreeMap<u32, Mac>,
    /// VIPs and servers by the address and port from which replies come, for servers with
    /// [`Forwarding::Nat`]. Each list is sorted and has at most [`BEHIND_MAX`] entries.
    pub endpoints: BTreeMap<VipKey, Vec<ReplyOrigin>>,
    /// MACs from which other hosts forward packets: see [`crate::path::arrival`].
    pub peers: BTreeSet<Mac>,
    /// Route index by service number. It selects the ring for a connection by the client's request.
    /// Only services with handoff have a route index.
    pub routes: BTreeMap<u16, Arc<RouteIndex>>,
    /// Rings by server slot, as a bit set. The server serves requests for these rings, even while
    /// it accepts no new sessions. Only services that read later requests ([`RehandoffMode`]) have
    /// entries.
    pub pools: BTreeMap<u16, u64>,
}

impl Tables {
    /// True if any service has this address. This is used for packets that are too malformed to
    /// have a port.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.vip_of_address(address).is_some()
    }

    /// True if the director answers ARP for this address, since a service with this address
    /// announces its addresses.
    pub fn announces(&self, address: IpAddr) -> bool {
        self.vips_of_address(address).any(|vip| vip.announce)
    }

    /// True if a server whose replies pass the director has this address.
    pub fn has_endpoint(&self, address: IpAddr) -> bool {
        let from = VipKey { address, port: 0, protocol: Protocol::Tcp };
        let to = VipKey { address, port: u16::MAX, protocol: Protocol::Udp };
        self.endpoints.range(from..=to).next().is_some()
    }

    /// True if a server serves the requests of a ring, in a service that reads later requests.
    pub fn answers(&self, server: u16, ring: u16) -> bool {
        let rings = self.pools.get(&server).copied().unwrap_or_default();
        rings.checked_shr(ring.into()).unwrap_or_default() & 1 == 1
    }

    /// Returns a VIP by its number.
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

/// Changes between two [`Tables`]. An engine applies an entry before other entries that refer to
/// it, and removals last.
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
    pub vips_removed: Vec<VipKey>,
    pub rings_removed: Vec<u16>,
    /// Slots of removed servers, whose sessions must be removed, too.
    pub servers_removed: Vec<u16>,
    pub interfaces_removed: Vec<u32>,
    /// New or changed endpoints.
    pub endpoints: Vec<(VipKey, Vec<ReplyOrigin>)>,
    pub endpoints_removed: Vec<VipKey>,
    /// All peers; `None` if they are unchanged.
    pub peers: Option<BTreeSet<Mac>>,
    /// New or changed routes.
    pub routes: Vec<(u16, Arc<RouteIndex>)>,
    pub routes_removed: Vec<u16>,
    /// All pools; `None` if they are unchanged.
    pub pools: Option<BTreeMap<u16, u64>>,
}

impl Delta {
    /// Returns the changes from `old` to `new`.
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
