//! The farms that are simulated, and the networks that they stand in.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use evener_core::farm::network::{Interface, Network, Route};
use evener_core::net::wire::Mac;
use evener_core::{
    farm::{Farm, Health, HealthKind, Method, Peers, Placement, Server, Service, Timeouts},
    net::{Encapsulation, Protocol},
};

/// The one interface of every host.
pub(super) const LINK: u32 = 2;
/// How long a host is believed that is silent.
pub(super) const SILENCE_MS: u64 = 3_000;
/// Time between two probes, and for each.
const PROBE_MS: u64 = 1_000;
pub(super) const PROBE_TIMEOUT_MS: u64 = 400;

/// What kind of farm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A director, and servers on its link that are known by ARP.
    Link,
    /// The same with servers that are known by routes.
    Nat,
    /// Every server decides.
    EveryHost,
}

impl Kind {
    pub(super) fn of(seed: u64) -> Kind {
        match seed % 4 {
            0 | 1 => Kind::EveryHost,
            2 => Kind::Link,
            _ => Kind::Nat,
        }
    }

    /// Hosts of the farm, whether they decide or only serve.
    pub(super) fn hosts(self) -> usize {
        if self == Kind::EveryHost { SERVERS } else { self.nodes() + SERVERS }
    }

    /// Nodes that run a director.
    pub(super) fn nodes(self) -> usize {
        if self == Kind::EveryHost { SERVERS } else { 1 }
    }
}

/// Servers of a farm; where every host decides they are its nodes.
pub(super) const SERVERS: usize = 4;
/// The service addresses.
pub(super) const VIPS: [IpAddr; 2] = [address(100), address(101)];

const fn address(last: u8) -> IpAddr {
    IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, last))
}

/// A server's own address, and its MAC.
pub(super) fn server(number: usize) -> (IpAddr, Mac) {
    let last = 11 + number as u8;
    (address(last), Mac([2, 0, 0, 0, 1, last]))
}

/// A node's own address, and its MAC.
pub(super) fn node(kind: Kind, number: usize) -> (IpAddr, Mac) {
    if kind == Kind::EveryHost { server(number) } else { (address(1), Mac([2, 0, 0, 0, 0, 1])) }
}

pub(super) fn client(number: usize) -> IpAddr {
    address(200 + number as u8)
}

/// Who a server is called.
pub(super) fn name(number: usize) -> String {
    format!("web{}", number + 1)
}

/// The file with these servers, by bits; where every host decides all files have all of them, and differ by a weight.
pub(super) fn farm(kind: Kind, bits: u8) -> Farm {
    let every_host = kind == Kind::EveryHost;
    let has = |number: &usize| every_host || bits >> number & 1 == 1;
    let listed = |number| Server {
        name: name(number),
        address: server(number).0,
        port: None,
        mac: None,
        weight: if every_host && bits >> number & 1 == 0 { 2 } else { 1 },
        publish: Vec::new(),
    };
    let service = |(number, vip): (usize, &IpAddr)| Service {
        name: format!("service{number}"),
        addresses: vec![SocketAddr::new(*vip, 80)],
        protocol: Protocol::Tcp,
        method: if kind == Kind::Nat { Method::Nat } else { Method::L2 },
        source_nat: false,
        encapsulation: Encapsulation::Gue,
        tunnel_mtu: None,
        clamp_mss: false,
        later_requests: Default::default(),
        proxy_protocol_port: None,
        placement: if every_host { Placement::EveryHost } else { Placement::Director },
        stateless: false,
        policy: if every_host { "hash" } else { "round-robin" },
        discover: None,
        discover_interval_ms: 1_000,
        discover_rounds: 2,
        announce: true,
        allow: Vec::new(),
        servers_max: 16,
        servers: (0..SERVERS).filter(has).map(listed).collect(),
        routes: Vec::new(),
        health: Health {
            kind: HealthKind::Tcp,
            interval_ms: PROBE_MS,
            timeout_ms: PROBE_TIMEOUT_MS,
            rise: 1,
            fall: 2,
            jitter_percent: 10,
            port: None,
        },
        timeouts: Timeouts::default(),
        keep_last: number == 0,
    };
    Farm {
        interfaces: Vec::new(),
        directors: Vec::new(),
        peers: Peers { port: 7, interval_ms: 500, silence_ms: SILENCE_MS },
        services: VIPS.iter().enumerate().map(service).collect(),
    }
}

/// What a node's kernel knows.
pub(super) fn network(
    kind: Kind,
    number: usize,
    has_carrier: bool,
    neighbours: &BTreeMap<IpAddr, Mac>,
) -> Network {
    let (own, mac) = node(kind, number);
    let link = Interface {
        name: "eth0".to_owned(),
        mac,
        addresses: vec![(own, 24)],
        up: true,
        carrier: has_carrier,
        mtu: 1_500,
        loopback: false,
        ethernet: true,
    };
    let on_link = Route {
        destination: (address(0), 24),
        priority: 0,
        ifindex: Some(LINK),
        on_link: true,
        gateway: None,
    };
    Network {
        interfaces: BTreeMap::from([(LINK, link)]),
        gateways: Vec::new(),
        routes: vec![on_link],
        neighbours: neighbours.iter().map(|(address, mac)| ((LINK, *address), *mac)).collect(),
    }
}
