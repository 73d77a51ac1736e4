//! The farm as described by its operator: services, servers, placement, discovery, method and
//! policy.
//!
//! The types here contain the settings of a valid farm file, without positions in the file and
//! without defaults. The `config` module of crate `evener` creates them from TOML. Tests and the
//! lab create them by hand.

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

/// The hosts that select servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placement {
    /// Only dedicated hosts (directors) select servers.
    Director,
    /// Every server selects, too. The host that receives a packet serves or forwards it
    /// (Distributed Packet Rewriting).
    EveryHost,
}

impl Placement {
    /// Returns the kind of policies that select the servers for packets.
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

/// Host part that answers ARP or neighbour discovery for a service's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announce {
    /// The director, for as long as it runs.
    Director,
    /// The host's own stack, while the host has the address. Another program, such as keepalived,
    /// moves the address between directors (VRRP, RFC 9568).
    Host,
    /// No part of this host. `evener announce` adds a host route while the address is ready, which
    /// a routing daemon announces.
    Route,
    /// No part of this host: a router sends the packets here.
    Never,
}

/// Discovery of unlisted servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discover {
    /// Each MAC address that answers ARP (or neighbour discovery) for the service address is a
    /// server (LSMAC, section 3.1).
    Arp,
}

/// Host that discovery may add. An ARP answer alone proves no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allow {
    /// Host with this MAC address.
    Mac(Mac),
    /// The host with the MAC address that answers ARP for this address.
    Address(IpAddr),
}

/// All settings of a farm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Farm {
    /// Names of the interfaces that the engine uses. If empty, the engine uses the interfaces on
    /// which clients' packets may arrive and those that lead to servers.
    pub interfaces: Vec<String>,
    /// Addresses of directors, from which servers accept tunnels.
    pub directors: Vec<IpAddr>,
    /// Settings of the reports between hosts of an every-host farm.
    pub peers: PeerOptions,
    /// Services that forward packets, in the order of the file.
    pub services: Vec<Service>,
    /// Server groups of method `redirect`, in the order of the file.
    pub groups: Vec<Arc<Group>>,
    /// Balanced names, in the order of the file.
    pub names: Vec<Arc<BalancedName>>,
}

impl Farm {
    /// Time for which a host of an every-host farm may answer ARP for its addresses without
    /// renewing the lease, in milliseconds. It is shorter than the time after which other hosts
    /// consider a host dead.
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

    /// True if a service hands off connections.
    pub fn hands_over(&self) -> bool {
        self.services.iter().any(|service| service.method.hands_over())
    }

    /// Returns the addresses from which servers accept tunnels: those of directors and of
    /// `every-host` hosts.
    pub fn tunnel_sources(&self) -> BTreeSet<IpAddr> {
        let hosts = self.every_host().flat_map(|service| &service.servers).map(|server| server.address);
        self.directors.iter().copied().chain(hosts).collect()
    }

    /// True if a service address or a listed server's address is IPv6.
    pub fn has_ipv6(&self) -> bool {
        let addresses = self.services.iter().flat_map(|service| &service.addresses).map(SocketAddr::ip);
        let servers = self.services.iter().flat_map(|service| &service.servers).map(|server| server.address);
        addresses.chain(servers).any(|address| address.is_ipv6())
    }
}

/// Settings of the reports between hosts of an every-host farm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerOptions {
    /// UDP port, the same on all hosts.
    pub port: u16,
    /// Interval of a host's reports, in milliseconds.
    pub interval_ms: u64,
    /// Time without a report after which a host is down, in milliseconds.
    pub silence_ms: u64,
}

/// Settings of the affinity of clients to servers ([`crate::path::affinity`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAffinity {
    /// Time after a client's last connection for which the client is remembered, in milliseconds.
    pub time_ms: u64,
    /// Prefix lengths of the networks that count as one client, of IPv4 and of IPv6.
    pub prefix_lens: [u8; 2],
}

/// A service: addresses and the servers behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Unique among the services of a farm.
    pub name: String,
    /// Service addresses with ports (the paper's cluster address). There is at least one.
    pub addresses: Vec<SocketAddr>,
    pub protocol: Protocol,
    pub method: Method,
    /// [`Method::Nat`]: the source of forwarded packets is an address of the director, so that
    /// servers need no return route through the director.
    pub source_nat: bool,
    /// [`Method::Tunnel`]: encapsulation of forwarded packets.
    pub encapsulation: Encapsulation,
    /// [`Method::Tunnel`]: MTU of the path to the servers in bytes, outer headers included. If
    /// `None`, the interface's MTU and routers' reports decide.
    pub tunnel_mtu: Option<u16>,
    /// [`Method::Tunnel`]: true if agents clamp the MSS that servers offer, so that clients'
    /// packets fit into the tunnel.
    pub clamp_mss: bool,
    /// [`Method::Handoff`]: treatment of later requests on a connection.
    pub later_requests: RehandoffMode,
    /// [`Method::Handoff`]: port on which servers accept the PROXY protocol, for connections that
    /// can't be handed off and are spliced. If `None`, such connections are spliced to the
    /// service's own port, and the server doesn't learn the client's address.
    pub proxy_protocol_port: Option<u16>,
    pub placement: Placement,
    /// [`Placement::EveryHost`]: true if hosts store no sessions for forwarded packets, but forward
    /// each packet by hash (the paper's stateless variant).
    pub stateless: bool,
    /// Name of a policy in [`crate::pool::policy::POLICIES`].
    pub policy: &'static str,
    /// Affinity of clients to servers, if enabled.
    pub affinity: Option<ClientAffinity>,
    /// Duration of the slow start of a new or recovered server, in milliseconds; 0 for none.
    pub slow_start_ms: u64,
    /// Discovery of unlisted servers, if enabled.
    pub discover: Option<Discover>,
    /// Interval of discovery, in milliseconds.
    pub discover_interval_ms: u64,
    /// Number of rounds without an answer after which a server that is found by ARP is drained. A
    /// discovered server is removed after twice as many rounds.
    pub discover_rounds: u32,
    /// Host part that answers ARP or neighbour discovery for the addresses.
    pub announce: Announce,
    /// Hosts that discovery may add. If empty, any host.
    pub allow: Vec<Allow>,
    /// Number of servers at which discovery stops adding servers.
    pub servers_max: usize,
    /// Servers listed by the operator.
    pub servers: Vec<Server>,
    /// [`Method::Handoff`]: routes, of which the first match counts. Requests that match no route
    /// go to all servers.
    pub routes: RouteList,
    pub health: HealthCheck,
    /// [`Method::Nat`]: true if a server is ejected for a time when it leaves more new connections
    /// unanswered than the other servers do.
    pub passive_checks: bool,
    /// Settings of report queries, if enabled.
    pub report: Option<Reporting>,
    /// Limit of the new sessions that a server gains by its report, in percent of its fair share.
    pub report_gain_percent: u64,
    pub timeouts: Timeouts,
    /// True if the last servers stay in the ring when all servers fail or refuse, since a service
    /// without servers helps no client.
    pub keep_last: bool,
    /// If the percentage of working servers falls below this value, failed servers get new
    /// sessions, too. 0 disables this.
    pub panic_percent: u8,
}

impl Service {
    /// True if servers are found by routes, not by ARP on the link.
    pub fn is_routed(&self) -> bool {
        !self.method.needs_link_layer() || self.is_on_every_host()
    }

    /// True if packets go by MAC address to servers on the link, and through a tunnel to other
    /// servers.
    pub fn goes_by_link(&self) -> bool {
        self.method.hands_over() || self.method.needs_link_layer() && self.is_on_every_host()
    }

    /// Returns the VIPs of the service.
    pub fn vip_keys(&self) -> impl Iterator<Item = VipKey> + '_ {
        let protocol = self.protocol;
        self.addresses.iter().map(move |at| VipKey { address: at.ip(), port: at.port(), protocol })
    }

    /// Returns the address and port to probe for a service address, for all methods but
    /// [`Method::Nat`].
    pub fn probe_address(&self, address: SocketAddr) -> SocketAddr {
        SocketAddr::new(address.ip(), self.health.port.unwrap_or(address.port()))
    }

    /// Returns the port on which a server of [`Method::Nat`] serves: its configured port, or the
    /// port of the service's first address.
    pub fn server_port(&self, server: &str) -> Option<u16> {
        let listed = self.servers.iter().find(|listed| listed.name == server);
        let own = listed.and_then(|listed| listed.port);
        own.or_else(|| self.addresses.first().map(SocketAddr::port))
    }

    /// True if the server's port is the port of each service address.
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
    /// Own address of the server, by which its MAC address or next hop is found.
    pub address: IpAddr,
    /// [`Method::Nat`]: port of the server; `None` for the service's port.
    pub port: Option<u16>,
    /// MAC address, if configured. Otherwise the director resolves it by ARP.
    pub mac: Option<Mac>,
    /// Share of new sessions relative to the other servers; 0 drains the server.
    pub weight: u16,
    /// True if the server takes new sessions only while no server can that is not a backup.
    pub backup: bool,
    /// Limit of active sessions; 0 for none.
    pub max_connections: u32,
    /// [`Method::Nat`]: address to probe; `None` for the server's own address.
    pub health_address: Option<IpAddr>,
    /// [`Placement::EveryHost`]: service addresses that this host owns.
    pub publish: Vec<IpAddr>,
}

/// Time after its last packet at which a session expires, by the session's state, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP session with SYNs of the client only.
    pub syn_ms: u64,
    /// TCP session of an open connection.
    pub tcp_ms: u64,
    /// TCP session after the client's FIN or RST, or the server's FIN.
    pub half_closed_ms: u64,
    /// TCP session after FIN of both sides, or the server's RST.
    pub closing_ms: u64,
    /// UDP session past its first packets.
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
