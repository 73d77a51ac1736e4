//! The farm as described by its operator: services, servers, placement, discovery, method and
//! policy.
//!
//! These types are the meaning of a valid configuration. They hold no file positions and no
//! defaults; the product's `config` module makes them from TOML, and tests and the lab by hand.

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

/// Placement of the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placement {
    /// Only dedicated hosts decide.
    Director,
    /// Every server decides too: the host that receives a packet serves or forwards it (Distributed
    /// Packet Rewriting).
    EveryHost,
}

impl Placement {
    /// Returns the consumer of policies for packets.
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

/// Discovery of unlisted servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discover {
    /// Each MAC address that answers ARP (or neighbour discovery) for the service address is a
    /// server (LSMAC, section 3.1).
    Arp,
}

/// Hosts that discovery may add: an answer alone proves no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allow {
    /// Host with this MAC address.
    Mac(Mac),
    /// The host with the MAC address that answers ARP for this address.
    Address(IpAddr),
}

/// A farm: all settings of its director.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Farm {
    /// Names of the interfaces that the engine uses. If empty, those that lead to services and
    /// servers.
    pub interfaces: Vec<String>,
    /// Addresses of directors, from which servers accept tunnels.
    pub directors: Vec<IpAddr>,
    /// Settings of the protocol between `every-host` hosts.
    pub peers: PeerOptions,
    /// Services that forward packets, in the order of the file.
    pub services: Vec<Service>,
    /// Groups, whose clients are redirected by HTTP, in the order of the file.
    pub groups: Vec<Arc<Group>>,
    /// Balanced names, in the order of the file.
    pub names: Vec<Arc<BalancedName>>,
}

impl Farm {
    /// Lease for which a host may answer for shared addresses without renewal, in milliseconds:
    /// shorter than the time after which other hosts consider it dead.
    pub fn lease_ms(&self) -> u64 {
        self.peers.silence_ms * 2 / 3
    }

    pub fn service(&self, name: &str) -> Option<&Service> {
        self.services.iter().find(|service| service.name == name)
    }

    /// Returns the services with placement `every-host`.
    pub fn every_host(&self) -> impl Iterator<Item = &Service> + Clone {
        self.services.iter().filter(|service| service.is_on_every_host())
    }

    /// True if any service hands over connections.
    pub fn hands_over(&self) -> bool {
        self.services.iter().any(|service| service.method.hands_over())
    }

    /// Returns the addresses from which servers accept tunnels: directors and `every-host` hosts.
    pub fn tunnel_sources(&self) -> BTreeSet<IpAddr> {
        let hosts = self.every_host().flat_map(|service| &service.servers).map(|server| server.address);
        self.directors.iter().copied().chain(hosts).collect()
    }

    /// True if a service address or server needs neighbour discovery.
    pub fn has_ipv6(&self) -> bool {
        let addresses = self.services.iter().flat_map(|service| &service.addresses).map(SocketAddr::ip);
        let servers = self.services.iter().flat_map(|service| &service.servers).map(|server| server.address);
        addresses.chain(servers).any(|address| address.is_ipv6())
    }
}

/// Settings of the protocol between `every-host` hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerOptions {
    /// UDP port, the same on all hosts.
    pub port: u16,
    /// Interval of a host's reports, in milliseconds.
    pub interval_ms: u64,
    /// Time without a report after which a host is down, in milliseconds.
    pub silence_ms: u64,
}

/// A service: addresses and the servers behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Unique among the services of a farm.
    pub name: String,
    /// The service addresses (the paper's cluster address), with port. At least one.
    pub addresses: Vec<SocketAddr>,
    pub protocol: Protocol,
    pub method: Method,
    /// [`Method::Nat`]: forwarded packets carry an address of the director, so that servers need no
    /// return route through it.
    pub source_nat: bool,
    /// [`Method::Tunnel`]: encapsulation of forwarded packets.
    pub encapsulation: Encapsulation,
    /// [`Method::Tunnel`]: MTU of the path to the servers in bytes, outer headers included; `None`
    /// uses the interface's MTU and routers' reports.
    pub tunnel_mtu: Option<u16>,
    /// [`Method::Tunnel`]: agents clamp the MSS that servers offer, so that clients' packets fit
    /// into the tunnel.
    pub clamp_mss: bool,
    /// [`Method::Handoff`]: treatment of later requests on a connection.
    pub later_requests: RehandoffMode,
    /// [`Method::Handoff`]: port of the servers that accepts the PROXY protocol, for connections
    /// that can't be handed over and are spliced. `None` splices to the service's own port, without
    /// the client's address.
    pub proxy_protocol_port: Option<u16>,
    pub placement: Placement,
    /// [`Placement::EveryHost`]: hosts keep no sessions of forwarded packets and forward each by
    /// hash (the paper's stateless variant).
    pub stateless: bool,
    /// Name of a policy in [`crate::pool::policy::POLICIES`].
    pub policy: &'static str,
    /// Duration of the slow start of a new or recovered server, in milliseconds; 0 for none.
    pub slow_start_ms: u64,
    /// Discovery of unlisted servers, if enabled.
    pub discover: Option<Discover>,
    /// Interval of discovery, in milliseconds.
    pub discover_interval_ms: u64,
    /// Number of rounds without an answer after which a discovered server is drained; later it is
    /// removed.
    pub discover_rounds: u32,
    /// True if the director answers ARP for the addresses.
    pub announce: bool,
    /// Hosts that discovery may add; empty for any.
    pub allow: Vec<Allow>,
    /// Maximum number of servers up to which discovery adds.
    pub servers_max: usize,
    /// Servers listed by the operator.
    pub servers: Vec<Server>,
    /// [`Method::Handoff`]: servers by request. The first matching route counts; requests without a
    /// route go to all servers.
    pub routes: RouteList,
    pub health: HealthCheck,
    /// [`Method::Nat`]: true if a server is ejected for a time when it leaves new connections
    /// unanswered, unlike the others.
    pub passive_checks: bool,
    /// Settings of report queries, if enabled.
    pub report: Option<Reporting>,
    /// Limit of the new sessions that a server gains by its report, in percent of its fair share.
    pub report_gain_percent: u64,
    pub timeouts: Timeouts,
    /// True if the last working servers are kept when all fail at once: an empty service helps no
    /// client.
    pub keep_last: bool,
    /// Percentage of working servers below which probes are not trusted; 0 for never.
    pub panic_percent: u8,
}

impl Service {
    /// True if servers are found by routes, not by ARP on the link.
    pub fn is_routed(&self) -> bool {
        !self.method.needs_link_layer() || self.is_on_every_host()
    }

    /// True if servers on the link are reached by MAC address, and other servers by a tunnel.
    pub fn goes_by_link(&self) -> bool {
        self.method.hands_over() || self.method.needs_link_layer() && self.is_on_every_host()
    }

    /// Returns the VIPs of the service.
    pub fn vip_keys(&self) -> impl Iterator<Item = VipKey> + '_ {
        let protocol = self.protocol;
        self.addresses.iter().map(move |at| VipKey { address: at.ip(), port: at.port(), protocol })
    }

    /// Returns the address to probe for a service address, for methods without translation.
    pub fn probe_address(&self, address: SocketAddr) -> SocketAddr {
        SocketAddr::new(address.ip(), self.health.port.unwrap_or(address.port()))
    }

    /// Returns the port of a server of [`Method::Nat`]: its own, or that of the service's first
    /// address.
    pub fn server_port(&self, server: &str) -> Option<u16> {
        let listed = self.servers.iter().find(|listed| listed.name == server);
        let own = listed.and_then(|listed| listed.port);
        own.or_else(|| self.addresses.first().map(SocketAddr::port))
    }

    /// True if a server uses the service's own ports.
    pub fn keeps_ports(&self, server: &str) -> bool {
        let port = self.server_port(server);
        self.addresses.iter().all(|address| Some(address.port()) == port)
    }

    /// True if placement is `every-host`.
    pub fn is_on_every_host(&self) -> bool {
        self.placement == Placement::EveryHost
    }
}

/// A server listed by the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Unique within its service.
    pub name: String,
    /// Own address of the server, by which its MAC address or route is found.
    pub address: IpAddr,
    /// [`Method::Nat`]: port of the server; `None` for the service's own.
    pub port: Option<u16>,
    /// MAC address, if configured; otherwise it is resolved by ARP.
    pub mac: Option<Mac>,
    /// Share of new sessions relative to the other servers; 0 drains.
    pub weight: u16,
    /// True if the server takes new sessions only while no other one can serve.
    pub backup: bool,
    /// Limit of active sessions; 0 for none.
    pub max_connections: u32,
    /// [`Method::Nat`]: address to probe, if it isn't the server's own.
    pub health_address: Option<IpAddr>,
    /// [`Placement::EveryHost`]: service addresses that this host owns.
    pub publish: Vec<IpAddr>,
}

/// Lifetimes of sessions without a packet, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// After a SYN, without further packets.
    pub syn_ms: u64,
    /// Of an open TCP connection.
    pub tcp_ms: u64,
    /// After FIN or RST of one side, or if only one side is visible.
    pub half_closed_ms: u64,
    /// After FIN or RST of both sides.
    pub closing_ms: u64,
    /// Of a session of UDP.
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
