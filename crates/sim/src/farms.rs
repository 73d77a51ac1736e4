//! Simulated farms and their networks.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use evener_core::farm::network::{Interface, KernelRoute, Network};
use evener_core::farm::plan::{self, ServerName};
use evener_core::farm::{
    Announce, Farm, Method, PeerOptions, Placement, RouteList, Server, Service, example,
};
use evener_core::net::Encapsulation;
use evener_core::net::wire::Mac;
use evener_core::node::secret::Key;
use evener_core::path::tables::Tables;
use evener_core::pool::HealthCheck;

use crate::{handoff, web};

pub(crate) const KEY: Key = Key([7; 32]);
/// Interface index of every host's only interface.
pub(crate) const LINK: u32 = 2;
/// Time after which a silent host counts as gone, in milliseconds.
pub(crate) const SILENCE_MS: u64 = 3_000;
/// Interval and timeout of probes, in milliseconds.
const PROBE_MS: u64 = 1_000;
pub(crate) const PROBE_TIMEOUT_MS: u64 = 400;

/// One in this many farms of kind `Link` is `Large` instead, which is about one in fifty of all
/// farms.
const LARGE: u64 = 8;
/// Duration of a slow start, if the file has one, in milliseconds.
pub(crate) const SLOW_START_MS: u64 = 4_000;
/// Maximum sessions of a server in files with a limit.
pub(crate) const CONNECTIONS_MAX: u32 = 2;
/// Percentage of working servers below which probes are ignored, in files with such a limit.
pub(crate) const PANIC_PERCENT: u8 = 60;

/// Number of consecutive seeds that cover all kinds of farms.
pub(crate) const KINDS: u64 = 6;

/// Seed of a farm with an HTTP server group and names.
pub(crate) const WEB: u64 = KINDS - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One director, and servers on its link, resolved by ARP.
    Link,
    /// As `Link`, with many servers.
    Large,
    /// One director with NAT: servers are reached by routes.
    Nat,
    EveryHost,
    /// Two directors side by side that hand off connections by their requests.
    Handoff,
    /// One director, an HTTP server group and balanced names, which share servers.
    Web,
}

impl Kind {
    pub(crate) fn of(seed: u64) -> Kind {
        match seed % KINDS {
            0 => Kind::EveryHost,
            2 if seed / KINDS % LARGE == 1 => Kind::Large,
            2 => Kind::Link,
            3 => Kind::Nat,
            4 => Kind::Handoff,
            _ => Kind::Web,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Link => "link",
            Kind::Large => "large",
            Kind::Nat => "nat",
            Kind::EveryHost => "every-host",
            Kind::Handoff => "handoff",
            Kind::Web => "web",
        }
    }

    /// Number of hosts of the farm, directors included.
    pub(crate) fn hosts(self) -> usize {
        if self == Kind::EveryHost { SERVERS } else { self.nodes() + self.servers() }
    }

    pub(crate) fn servers(self) -> usize {
        if self == Kind::Large { SERVERS_MAX } else { SERVERS }
    }

    /// Number of nodes that run a director.
    pub(crate) fn nodes(self) -> usize {
        match self {
            Kind::EveryHost => SERVERS,
            Kind::Handoff => 2,
            Kind::Link | Kind::Large | Kind::Nat | Kind::Web => 1,
        }
    }
}

/// Number of servers of most farms; in every-host placement the servers are the nodes.
pub(crate) const SERVERS: usize = 4;
/// Number of servers of a large farm.
pub(crate) const SERVERS_MAX: usize = 32;
/// Servers of both services, by their identity in tables.
static NAMES: LazyLock<BTreeMap<u64, ServerName>> = LazyLock::new(|| {
    let servers =
        (0..VIPS.len()).flat_map(|number| (0..SERVERS_MAX).map(move |server| server_name(number, server)));
    servers.map(|name| (plan::identity(&name.service, &name.server), name)).collect()
});
pub(crate) const VIPS: [IpAddr; 2] = [address(100), address(101)];
/// Address of the second service after a file has moved it.
const MOVED_VIP: IpAddr = address(102);

const fn address(last: u8) -> IpAddr {
    IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, last))
}

/// Returns the address and MAC of a server.
pub(crate) fn server(number: usize) -> (IpAddr, Mac) {
    let last = 11 + number as u8;
    (address(last), Mac([2, 0, 0, 0, 1, last]))
}

/// Returns the address and MAC of a node.
pub(crate) fn node(kind: Kind, number: usize) -> (IpAddr, Mac) {
    let last = 1 + number as u8;
    if kind == Kind::EveryHost { server(number) } else { (address(last), Mac([2, 0, 0, 0, 0, last])) }
}

/// MAC of a host outside the farm.
pub(crate) const STRANGER: Mac = Mac([2, 0, 0, 9, 9, 9]);

pub(crate) fn client(number: usize) -> IpAddr {
    address(200 + number as u8)
}

pub(crate) fn service(number: usize) -> String {
    format!("service{number}")
}

pub(crate) fn name(number: usize) -> String {
    format!("web{}", number + 1)
}

pub(crate) fn server_name(service: usize, server: usize) -> ServerName {
    ServerName { service: self::service(service), server: name(server) }
}

/// Returns the number of the server with this name.
pub(crate) fn number(name: &str) -> Option<usize> {
    let number: usize = name.strip_prefix("web")?.parse().ok()?;
    number.checked_sub(1).filter(|number| *number < SERVERS_MAX)
}

/// Returns the server of each slot, from the tables alone.
pub(crate) fn names(tables: &Tables) -> BTreeMap<u16, ServerName> {
    let named = tables.servers.iter().filter_map(|(slot, entry)| Some((*slot, NAMES.get(&entry.identity)?)));
    named.map(|(slot, name)| (slot, name.clone())).collect()
}

/// File of a simulated farm, whose bits select the settings. In every-host placement all files have
/// all servers, and differ by weights.
#[derive(Clone, Copy)]
pub(crate) struct File {
    pub(crate) kind: Kind,
    pub(crate) bits: u8,
}

impl File {
    fn lacks(self, bit: u8) -> bool {
        ![Kind::EveryHost, Kind::Web].contains(&self.kind) && self.bits >> bit & 1 == 0
    }

    pub(crate) fn weight(self, server: usize) -> u16 {
        let is_double = match self.kind {
            Kind::EveryHost => !lists(self.bits, server),
            // Different weights would fill a table that no other farm has.
            Kind::Large => false,
            _ => self.lacks(4) && server % 2 == 1,
        };
        1 + u16::from(is_double)
    }

    /// True if the server is a backup of the first service.
    pub(crate) fn is_backup(self, server: usize) -> bool {
        self.lacks(5) && server % SERVERS == SERVERS - 1
    }

    /// Percentage of working servers below which the second service ignores probes.
    pub(crate) fn panic_percent(self) -> u8 {
        if self.lacks(5) { PANIC_PERCENT } else { 0 }
    }

    /// Maximum sessions of a server of the second service; 0 for no limit.
    pub(crate) fn connections_max(self) -> u32 {
        if self.lacks(6) { CONNECTIONS_MAX } else { 0 }
    }

    /// True if the file's routes have other servers, and the second service has another address,
    /// than in other files.
    pub(crate) fn is_moved(self) -> bool {
        self.lacks(7)
    }

    pub(crate) fn vip(self, service: usize) -> IpAddr {
        if service == 1 && self.is_moved() { MOVED_VIP } else { VIPS[service % VIPS.len()] }
    }
}

/// True if a file lists a server. In large farms each bit of `bits` stands for several servers.
pub(crate) fn lists(bits: u8, server: usize) -> bool {
    bits >> (server % SERVERS) & 1 == 1
}

/// Returns the farm that a file describes.
pub(crate) fn farm(kind: Kind, bits: u8) -> Farm {
    let every_host = kind == Kind::EveryHost;
    let file = File { kind, bits };
    let has = |number: &usize| every_host || lists(bits, *number);
    let listed = |service: usize, number| Server {
        weight: file.weight(number),
        backup: service == 0 && file.is_backup(number),
        max_connections: if service == 1 { file.connections_max() } else { 0 },
        ..example::server(&name(number), server(number).0)
    };
    let service = |number: usize| Service {
        method: match kind {
            Kind::Nat => Method::Nat,
            Kind::Handoff if number == 0 => Method::Handoff,
            Kind::EveryHost if number == 1 => Method::Handoff,
            _ => Method::L2,
        },
        routes: if kind == Kind::Handoff && number == 0 {
            handoff::routes(file.is_moved())
        } else {
            RouteList::default()
        },
        // A router spreads packets over directors side by side, so no director announces addresses.
        announce: if kind == Kind::Handoff { Announce::Never } else { Announce::Director },
        encapsulation: Encapsulation::Gue,
        clamp_mss: false,
        placement: if every_host { Placement::EveryHost } else { Placement::Director },
        policy: match (every_host, number) {
            (true, 0) => "hash",
            (true, _) => "overflow",
            _ => "round-robin",
        },
        discover_interval_ms: 1_000,
        discover_rounds: 2,
        servers_max: 2 * SERVERS_MAX,
        health: HealthCheck {
            interval_ms: PROBE_MS,
            timeout_ms: PROBE_TIMEOUT_MS,
            rise: 1,
            fall: 2,
            ..HealthCheck::default()
        },
        keep_last: number == 0,
        panic_percent: if number == 1 { file.panic_percent() } else { 0 },
        slow_start_ms: if kind == Kind::Nat && number == 0 { SLOW_START_MS } else { 0 },
        ..example::service(
            &self::service(number),
            SocketAddr::new(file.vip(number), 80),
            (0..kind.servers()).filter(has).map(|server| listed(number, server)).collect(),
        )
    };
    let mut farm = Farm {
        interfaces: Vec::new(),
        directors: Vec::new(),
        // Hosts with different files ignore each other's reports. Weights alone make no such
        // difference, since each host reports its own.
        peers: PeerOptions {
            port: 7,
            interval_ms: 500,
            silence_ms: SILENCE_MS - u64::from(bits & ((1 << SERVERS) - 1)),
        },
        services: (0..VIPS.len()).map(service).collect(),
        groups: Vec::new(),
        names: Vec::new(),
    };
    if kind == Kind::Web {
        web::extend(&mut farm, bits);
    }
    farm
}

/// Returns a node's network, as its kernel describes it.
pub(crate) fn network(
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
    let on_link = KernelRoute {
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
