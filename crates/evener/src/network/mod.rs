//! The network around this host, as its kernel knows it: interfaces, addresses, routes and neighbours.

mod pick;
mod read;
mod watch;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use evener_core::membership::{Router, Surroundings};
use evener_core::wire::Mac;

pub use watch::watch;

/// What the kernel knew when it was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Interfaces by index.
    pub interfaces: BTreeMap<u32, Interface>,
    /// The gateways of all routes, each once, ordered by address.
    pub gateways: Vec<Router>,
    /// The routes of the main table.
    pub routes: Vec<Route>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its MAC address; zeros where it has none.
    pub mac: Mac,
    /// Its addresses with their prefix lengths, the oldest first.
    pub addresses: Vec<(Ipv4Addr, u8)>,
    /// Whether it is switched on; a cable may be missing all the same.
    pub up: bool,
    /// The longest packet it takes, in bytes, without link header.
    pub mtu: u32,
    /// Whether it leads back to this host.
    pub loopback: bool,
    /// Whether it speaks Ethernet, which rewriting MAC addresses needs.
    pub ethernet: bool,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where it leads, with the length of the prefix.
    pub destination: (Ipv4Addr, u8),
    /// Among routes to one destination, the lowest is taken.
    pub priority: u32,
    /// By which interface; none for routes that only refuse, or that have several next hops.
    pub ifindex: Option<u32>,
    /// Whether the destination is on the link itself, and not behind a gateway.
    pub on_link: bool,
}

/// Why the network is not as the farm needs it.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The kernel did not answer.
    #[error("the kernel could not be asked for {what}: {source}")]
    Netlink {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        source: rtnetlink::Error,
    },
    /// No netlink socket.
    #[error("no netlink socket, by which the kernel is asked for the network: {0}")]
    Socket(#[from] std::io::Error),
    /// A configured interface is not there.
    #[error("there is no interface {name:?} here: {hint}")]
    NoSuchInterface {
        /// As configured.
        name: String,
        /// What there is.
        hint: String,
    },
    /// MAC addresses cannot be rewritten there.
    #[error(
        "interface {name} is not Ethernet, and {why}: layer-two dispatch reaches servers by their MAC addresses only"
    )]
    NotEthernet {
        /// The interface.
        name: String,
        /// Why it matters.
        why: String,
    },
    /// Nothing to work on.
    #[error(
        "no route leads to a server or a service address on a link of this host, and no Ethernet interface that is \
         up has an IPv4 address: name the interfaces in [engine], as in interfaces = [\"eth0\"]"
    )]
    NoInterface,
}

impl Network {
    /// The interface by which this address is reached on the link, without a gateway.
    ///
    /// Only the main table counts, and no policy routing.
    pub fn route_to(&self, address: Ipv4Addr) -> Option<u32> {
        let matching = self.routes.iter().filter(|route| is_within(address, route.destination));
        let best = matching.min_by_key(|route| (Reverse(route.destination.1), route.priority))?;
        best.ifindex.filter(|_| best.on_link)
    }

    /// Whether this host has the address, on whatever interface.
    pub fn is_local(&self, address: Ipv4Addr) -> bool {
        self.addresses().any(|own| own == address)
    }

    /// What must not be taken for a server, for a director on these interfaces.
    pub fn surroundings(&self, ifindexes: &[u32]) -> Surroundings {
        let found =
            ifindexes.iter().filter_map(|&ifindex| Some((ifindex, self.interfaces.get(&ifindex)?.mac)));
        Surroundings {
            interfaces: found.collect(),
            addresses: self.addresses().collect::<BTreeSet<_>>(),
            routers: self.gateways.clone(),
        }
    }

    /// The address by which this host speaks to `destination` on an interface: one of the same subnet
    /// where it has one there, else another of that interface, else another of this host.
    ///
    /// Never `destination` itself, which a director that is also a server has too.
    pub fn source_for(&self, ifindex: u32, destination: Ipv4Addr) -> Option<Ipv4Addr> {
        let there = self.interfaces.get(&ifindex)?;
        let elsewhere = self.interfaces.values().filter(|interface| interface.up && !interface.loopback);
        let others = elsewhere.flat_map(|interface| &interface.addresses);
        let same_subnet = there.addresses.iter().filter(|subnet| is_within(destination, **subnet));
        let mut candidates = same_subnet.chain(&there.addresses).chain(others).map(|(own, _)| *own);
        candidates.find(|own| *own != destination)
    }

    fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.interfaces.values().flat_map(|interface| &interface.addresses).map(|(address, _)| *address)
    }
}

fn is_within(address: Ipv4Addr, (subnet, prefix_len): (Ipv4Addr, u8)) -> bool {
    let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix_len.into())).unwrap_or(0);
    (address.to_bits() ^ subnet.to_bits()) & mask == 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn ip(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    pub(crate) fn interface(name: &str, mac: u8, addresses: &[(&str, u8)]) -> Interface {
        Interface {
            name: name.to_owned(),
            mac: Mac([2, 0, 0, 0, 0, mac]),
            addresses: addresses.iter().map(|(address, prefix_len)| (ip(address), *prefix_len)).collect(),
            up: true,
            mtu: 1500,
            loopback: name == "lo",
            ethernet: name.starts_with("eth"),
        }
    }

    pub(crate) fn route(destination: &str, prefix_len: u8, ifindex: u32, on_link: bool) -> Route {
        Route { destination: (ip(destination), prefix_len), priority: 0, ifindex: Some(ifindex), on_link }
    }

    /// A director on two networks and a tunnel, with a service address of its own.
    pub(crate) fn director() -> Network {
        Network {
            interfaces: BTreeMap::from([
                (1, interface("lo", 0, &[("127.0.0.1", 8), ("192.0.2.100", 32)])),
                (2, interface("eth0", 2, &[("192.0.2.2", 24), ("192.0.2.100", 32)])),
                (3, interface("eth1", 3, &[("198.51.100.2", 24)])),
                (4, interface("wg0", 0, &[("10.9.0.1", 24)])),
                (5, interface("eth2", 5, &[])),
            ]),
            gateways: vec![Router { address: ip("192.0.2.1"), mac: None }],
            routes: vec![
                route("0.0.0.0", 0, 2, false),
                route("192.0.2.0", 24, 2, true),
                route("192.0.2.200", 32, 3, false),
                route("198.51.100.0", 24, 3, true),
                Route { priority: 5, ..route("198.51.100.0", 24, 2, true) },
                route("10.9.0.0", 24, 4, true),
            ],
        }
    }

    #[test]
    fn the_longest_prefix_leads_the_way_if_it_is_on_the_link() {
        let network = director();
        assert_eq!(network.route_to(ip("192.0.2.11")), Some(2));
        assert_eq!(network.route_to(ip("198.51.100.11")), Some(3), "the lower priority");
        assert_eq!(network.route_to(ip("192.0.2.200")), None, "behind a gateway");
        assert_eq!(network.route_to(ip("203.0.113.1")), None, "by the default route");
        assert_eq!(Network::default().route_to(ip("192.0.2.11")), None);
    }

    #[test]
    fn the_source_is_of_the_same_subnet_and_never_the_destination() {
        let network = director();
        assert_eq!(network.source_for(2, ip("192.0.2.11")), Some(ip("192.0.2.2")));
        assert_eq!(network.source_for(2, ip("192.0.2.100")), Some(ip("192.0.2.2")));
        assert_eq!(network.source_for(3, ip("192.0.2.100")), Some(ip("198.51.100.2")));
        assert_eq!(network.source_for(5, ip("192.0.2.100")), Some(ip("192.0.2.2")), "of another interface");
        assert_eq!(network.source_for(9, ip("192.0.2.100")), None);
    }

    #[test]
    fn surroundings_are_the_interfaces_asked_for_and_every_address() {
        let network = director();
        assert!(network.is_local(ip("192.0.2.100")) && !network.is_local(ip("192.0.2.1")));
        let surroundings = network.surroundings(&[3, 9]);
        assert_eq!(surroundings.interfaces, BTreeMap::from([(3, Mac([2, 0, 0, 0, 0, 3]))]));
        assert!(surroundings.addresses.contains(&ip("192.0.2.2")));
        assert_eq!(surroundings.routers, network.gateways);
    }
}
