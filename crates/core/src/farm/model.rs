//! The farm as its operator describes it: services, their servers, and the four choices.
//!
//! These types are what a valid configuration means. They hold no file positions and no defaults;
//! the product's `config` module makes them from TOML, tests and the lab make them by hand.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, SocketAddr};

use super::group::Group;
use super::method::Method;
use super::routes::RouteList;
use crate::dns::BalancedName;
use crate::net::wire::Mac;
use crate::net::{Encapsulation, Protocol};
use crate::path::tables::{RehandoffMode, VipKey};
use crate::pool::policy::Consumer;
use crate::pool::{HealthCheck, Reporting};

/// Where the decision is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placement {
    /// On dedicated hosts.
    Director,
    /// On every server too: who gets a packet passes it on or serves it (Distributed Packet
    /// Rewriting).
    EveryHost,
}

impl Placement {
    /// The part of the program that chooses where packets are sent on.
    pub const fn consumer(self) -> Consumer {
        match self {
            Placement::Director => Consumer::Director,
            Placement::EveryHost => Consumer::EveryHost,
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Placement::Director => "director",
            Placement::EveryHost => "every-host",
        })
    }
}

/// How servers that nobody listed are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discover {
    /// Ask by ARP (or neighbour discovery) for the service address; every MAC that answers is a
    /// server (LSMAC, section 3.1).
    Arp,
}

/// The hosts that may become a server by discovery: discovery is not identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allow {
    /// This MAC address.
    Mac(Mac),
    /// The host that answers ARP for this address.
    Address(IpAddr),
}

/// A farm: all that its director goes by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Farm {
    /// Names of the interfaces that packets are taken from; none: those that lead to services and
    /// servers.
    pub interfaces: Vec<String>,
    /// The addresses that servers accept tunnels from: the directors' own.
    pub directors: Vec<IpAddr>,
    /// How hosts of placement `every-host` hear of each other.
    pub peers: PeerOptions,
    /// Its services that packets are sent on for, in the order of the file.
    pub services: Vec<Service>,
    /// Those whose clients are sent on by HTTP, likewise.
    pub groups: Vec<Arc<Group>>,
    /// Names that are answered for, likewise.
    pub names: Vec<Arc<BalancedName>>,
}

impl Farm {
    /// For how long a host may answer for addresses that hosts share without having been told so
    /// again, in milliseconds: less than it takes until others think that it is gone.
    pub fn lease_ms(&self) -> u64 {
        self.peers.silence_ms * 2 / 3
    }

    /// The service of this name.
    pub fn service(&self, name: &str) -> Option<&Service> {
        self.services.iter().find(|service| service.name == name)
    }

    /// The services that every host decides.
    pub fn every_host(&self) -> impl Iterator<Item = &Service> + Clone {
        self.services.iter().filter(|service| service.is_on_every_host())
    }

    /// Whether connections of any service are handed over.
    pub fn hands_over(&self) -> bool {
        self.services.iter().any(|service| service.method.hands_over())
    }

    /// From whom servers accept tunnels: directors, and every host that is one.
    pub fn tunnel_sources(&self) -> BTreeSet<IpAddr> {
        let hosts = self.every_host().flat_map(|service| &service.servers).map(|server| server.address);
        self.directors.iter().copied().chain(hosts).collect()
    }

    /// Whether neighbour discovery matters: for service addresses, or servers on the link.
    pub fn has_ipv6(&self) -> bool {
        let addresses = self.services.iter().flat_map(|service| &service.addresses).map(SocketAddr::ip);
        let servers = self.services.iter().flat_map(|service| &service.servers).map(|server| server.address);
        addresses.chain(servers).any(|address| address.is_ipv6())
    }
}

/// How hosts of placement `every-host` hear of each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerOptions {
    /// The UDP port that all of them listen on.
    pub port: u16,
    /// Time between two reports of a host, in milliseconds.
    pub interval_ms: u64,
    /// A host that is silent for this long is down, in milliseconds.
    pub silence_ms: u64,
}

/// One address in front of several servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Unique among the services of a farm.
    pub name: String,
    /// The service addresses (the paper's cluster address), with port. At least one.
    pub addresses: Vec<SocketAddr>,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// How a connection reaches its server.
    pub method: Method,
    /// [`Method::Nat`]: packets to servers carry an address of the director's own, so that servers
    /// need no route back through it.
    pub source_nat: bool,
    /// [`Method::Tunnel`]: what packets are put into.
    pub encapsulation: Encapsulation,
    /// [`Method::Tunnel`]: the longest packet on the way to the servers, outer headers included, in
    /// bytes;
    /// `None` goes by the interface and by what routers on the way say.
    pub tunnel_mtu: Option<u16>,
    /// [`Method::Tunnel`]: agents lower the segment size that servers offer, so that clients'
    /// packets fit.
    pub clamp_mss: bool,
    /// With [`Method::Handoff`]: what becomes of later requests on a connection.
    pub later_requests: RehandoffMode,
    /// With [`Method::Handoff`]: the servers' port that takes the PROXY protocol, for connections
    /// that can't be handed over and are carried; `None` carries them to the service's own, without
    /// a word about the client.
    pub proxy_protocol_port: Option<u16>,
    /// Where the decision is made.
    pub placement: Placement,
    /// [`Placement::EveryHost`]: what a host passes on is not remembered there, and every packet of
    /// it goes by the hash (the paper's stateless variant).
    pub stateless: bool,
    /// Name of a policy in [`crate::pool::policy::POLICIES`].
    pub policy: &'static str,
    /// How long a server that works again, or is new, takes to its whole weight, in milliseconds; 0
    /// for at once.
    pub slow_start_ms: u64,
    /// How unlisted servers are found, if at all.
    pub discover: Option<Discover>,
    /// Time between two rounds of discovery, in milliseconds.
    pub discover_interval_ms: u64,
    /// Rounds of silence after which a discovered server is drained, then removed.
    pub discover_rounds: u32,
    /// Whether the director answers ARP for the addresses.
    pub announce: bool,
    /// If not empty, only these may become servers by discovery.
    pub allow: Vec<Allow>,
    /// The most servers discovery may add to.
    pub servers_max: usize,
    /// Servers the operator listed.
    pub servers: Vec<Server>,
    /// [`Method::Handoff`]: which of them serve what. The first that fits counts; what none fits
    /// goes to all.
    pub routes: RouteList,
    /// How servers are probed.
    pub health: HealthCheck,
    /// [`Method::Nat`]: whether servers that give new connections no answer, unlike the others, are
    /// taken out of service for a time.
    pub passive_checks: bool,
    /// How servers are asked for their load, if they are.
    pub report: Option<Reporting>,
    /// The most that a server gains by its report, in percent of its fair share.
    pub report_gain_percent: u64,
    /// How long sessions live.
    pub timeouts: Timeouts,
    /// When every server fails at once, keep the last set: an empty farm helps nobody.
    pub keep_last: bool,
    /// Where a smaller share of its servers works, in percent, probes aren't believed; 0 for never.
    pub panic_percent: u8,
}

impl Service {
    /// Whether its servers are known by the routes to them, and not asked for on the link.
    pub fn is_routed(&self) -> bool {
        !self.method.needs_link_layer() || self.is_on_every_host()
    }

    /// Whether a server is reached by its MAC address where it is on the link, and by a tunnel
    /// elsewhere.
    pub fn goes_by_link(&self) -> bool {
        self.method.hands_over() || self.method.needs_link_layer() && self.is_on_every_host()
    }

    /// Where clients' packets come.
    pub fn vip_keys(&self) -> impl Iterator<Item = VipKey> + '_ {
        let protocol = self.protocol;
        self.addresses.iter().map(move |at| VipKey { address: at.ip(), port: at.port(), protocol })
    }

    /// Where a server that has this service address is probed, but for methods that translate.
    pub fn probe_address(&self, address: SocketAddr) -> SocketAddr {
        SocketAddr::new(address.ip(), self.health.port.unwrap_or(address.port()))
    }

    /// The port that a server of [`Method::Nat`] serves on: its own, or else that of the service's
    /// first address.
    pub fn server_port(&self, server: &str) -> Option<u16> {
        let listed = self.servers.iter().find(|listed| listed.name == server);
        let own = listed.and_then(|listed| listed.port);
        own.or_else(|| self.addresses.first().map(SocketAddr::port))
    }

    /// Whether a server serves on the service's own ports, so that its packets need no other.
    pub fn keeps_ports(&self, server: &str) -> bool {
        let port = self.server_port(server);
        self.addresses.iter().all(|address| Some(address.port()) == port)
    }

    /// Whether every host decides.
    pub fn is_on_every_host(&self) -> bool {
        self.placement == Placement::EveryHost
    }
}

/// A server the operator listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Unique within its service.
    pub name: String,
    /// The server's own address, by which its MAC or the way to it is learned.
    pub address: IpAddr,
    /// [`Method::Nat`]: the port it serves on; `None` is the service's own.
    pub port: Option<u16>,
    /// Its MAC address, where the operator fixes it; else it is learned by ARP.
    pub mac: Option<Mac>,
    /// Share of new sessions relative to the others; 0 drains.
    pub weight: u16,
    /// Whether it takes new sessions only while no server without this can serve.
    pub backup: bool,
    /// The most active sessions with which it is given a new one; 0 for any number.
    pub max_connections: u32,
    /// [`Method::Nat`]: where it is probed, if not at its own address.
    pub health_address: Option<IpAddr>,
    /// [`Placement::EveryHost`]: the service addresses that this host owns and answers for.
    pub publish: Vec<IpAddr>,
}

/// How long sessions live without a packet, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// After a SYN, before anything else was seen.
    pub syn_ms: u64,
    /// An open TCP connection.
    pub tcp_ms: u64,
    /// After FIN or RST of one side, or where the other isn't seen.
    pub half_closed_ms: u64,
    /// After those of both.
    pub closing_ms: u64,
    /// A UDP session.
    pub udp_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            syn_ms: 30_000,
            tcp_ms: 900_000,
            half_closed_ms: 120_000,
            closing_ms: 10_000,
            udp_ms: 60_000,
        }
    }
}
