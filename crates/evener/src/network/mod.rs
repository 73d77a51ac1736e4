//! The network around this host, as its kernel knows it: interfaces, addresses, routes and neighbours.

pub mod path_mtu;
mod pick;
mod read;
mod resolve;
mod watch;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use evener_core::membership::{Router, Surroundings};
use evener_core::wire::Mac;
use nix::net::if_::if_indextoname;

pub use resolve::resolve;
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
    /// The MACs of neighbours, by interface and address, as far as the kernel has resolved them.
    pub neighbours: BTreeMap<(u32, IpAddr), Mac>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its MAC address; zeros where it has none.
    pub mac: Mac,
    /// Its addresses with their prefix lengths, the oldest first.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether it is switched on; a cable may be missing all the same.
    pub up: bool,
    /// Whether there is a cable, and something at its other end.
    pub carrier: bool,
    /// The longest packet it takes, in bytes, without link header.
    pub mtu: u32,
    /// Whether it leads back to this host.
    pub loopback: bool,
    /// Whether it speaks Ethernet, which rewriting MAC addresses needs.
    pub ethernet: bool,
}

/// What an interface is called now, for who knows but its number; `?` if it is gone.
pub(crate) fn interface_name(ifindex: u32) -> String {
    if_indextoname(ifindex).map_or_else(|_| "?".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where it leads, with the length of the prefix.
    pub destination: (IpAddr, u8),
    /// Among routes to one destination, the lowest is taken.
    pub priority: u32,
    /// By which interface; none for some routes that only refuse. Of several next hops, the first.
    pub ifindex: Option<u32>,
    /// Whether the destination is on the link itself, and not behind a gateway.
    pub on_link: bool,
    /// The router that it is behind; with `on_link` false and no gateway, the route refuses.
    pub gateway: Option<IpAddr>,
}

/// The next station on the way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The interface that leads there.
    pub ifindex: u32,
    /// The station's MAC, once the kernel has resolved it; [`resolve`] makes it do so.
    pub mac: Option<Mac>,
    /// The router whose MAC that is; `None` where the address is on the link itself.
    pub gateway: Option<IpAddr>,
    /// The longest packet that the interface takes, in bytes.
    pub mtu: u32,
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
    #[error("interface {name} is not Ethernet, and {why}: the director sends Ethernet frames, and no others")]
    NotEthernet {
        /// The interface.
        name: String,
        /// Why it matters.
        why: String,
    },
    /// Nothing to work on.
    #[error(
        "no Ethernet interface of this host is up and has an address or a route over it: name the interfaces in [engine], \
         as in interfaces = [\"eth0\"]"
    )]
    NoInterface,
}

impl Network {
    /// The interface by which this address is reached on the link, without a gateway.
    ///
    /// Only the main table counts, and no policy routing.
    pub fn route_to(&self, address: IpAddr) -> Option<u32> {
        let best = self.best_route(address)?;
        best.ifindex.filter(|_| best.on_link)
    }

    /// Where packets to this address go first: to the address itself on the link, else to a gateway. `None`
    /// where no route leads there, and for this host's own addresses.
    ///
    /// Only the main table counts, and no policy routing.
    pub fn next_hop(&self, address: IpAddr) -> Option<Hop> {
        let best = self.best_route(address).filter(|_| !self.is_local(address))?;
        let ifindex = best.ifindex.filter(|_| best.on_link || best.gateway.is_some())?;
        let station = best.gateway.unwrap_or(address);
        Some(Hop {
            ifindex,
            mac: self.neighbours.get(&(ifindex, station)).copied(),
            gateway: best.gateway,
            mtu: self.interfaces.get(&ifindex)?.mtu,
        })
    }

    fn best_route(&self, address: IpAddr) -> Option<&Route> {
        let matching = self.routes.iter().filter(|route| is_within(address, route.destination));
        matching.min_by_key(|route| (Reverse(route.destination.1), route.priority))
    }

    /// Whether this host has the address, on whatever interface.
    pub fn is_local(&self, address: IpAddr) -> bool {
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
            ..Surroundings::default()
        }
    }

    /// The address by which this host speaks to `destination` on an interface: one of the same subnet
    /// where it has one there, else another of that interface, else another of this host. It is of the
    /// destination's family, and link-local only if the destination is (RFC 6724, section 5, rule 2).
    ///
    /// Never `destination` itself, which a director that is also a server has too.
    pub fn source_for(&self, ifindex: u32, destination: IpAddr) -> Option<IpAddr> {
        let there = self.interfaces.get(&ifindex)?;
        let elsewhere = self.interfaces.values().filter(|interface| interface.up && !interface.loopback);
        let others = elsewhere.flat_map(|interface| &interface.addresses);
        let same_subnet = there.addresses.iter().filter(|subnet| is_within(destination, **subnet));
        let mut candidates = same_subnet.chain(&there.addresses).chain(others).map(|(own, _)| *own);
        candidates.find(|own| {
            let same_scope = is_link_local(destination) || !is_link_local(*own);
            own.is_ipv4() == destination.is_ipv4() && same_scope && *own != destination
        })
    }

    /// This host's addresses on its links, for a sentence.
    pub fn own_addresses(&self) -> String {
        let interfaces = self.interfaces.values().filter(|interface| !interface.loopback);
        let addresses: Vec<String> =
            interfaces.flat_map(|interface| &interface.addresses).map(|(a, _)| a.to_string()).collect();
        if addresses.is_empty() { "none at all".to_owned() } else { addresses.join(", ") }
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.interfaces.values().flat_map(|interface| &interface.addresses).map(|(address, _)| *address)
    }
}

/// Whether the address means something on its own link only (RFC 4291, section 2.5.6). Every interface has
/// one over IPv6; over IPv4 they are addresses like others.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn is_within(address: IpAddr, (subnet, prefix_len): (IpAddr, u8)) -> bool {
    let (differing, len) = match (address, subnet) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits() ^ b.to_bits()) << 96, 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits(), 128),
        _ => return false,
    };
    differing.leading_zeros() >= u32::from(prefix_len.min(len))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    pub(crate) fn interface(name: &str, mac: u8, addresses: &[(&str, u8)]) -> Interface {
        Interface {
            name: name.to_owned(),
            mac: Mac([2, 0, 0, 0, 0, mac]),
            addresses: addresses.iter().map(|(address, prefix_len)| (ip(address), *prefix_len)).collect(),
            up: true,
            carrier: true,
            mtu: 1500,
            loopback: name == "lo",
            ethernet: name.starts_with("eth"),
        }
    }

    pub(crate) fn route(destination: &str, prefix_len: u8, ifindex: u32, on_link: bool) -> Route {
        let gateway = None;
        Route {
            destination: (ip(destination), prefix_len),
            priority: 0,
            ifindex: Some(ifindex),
            on_link,
            gateway,
        }
    }

    pub(crate) fn via(destination: &str, prefix_len: u8, ifindex: u32, gateway: &str) -> Route {
        Route { gateway: Some(ip(gateway)), ..route(destination, prefix_len, ifindex, false) }
    }

    /// A director on two networks and a tunnel, with a service address of its own.
    pub(crate) fn director() -> Network {
        Network {
            interfaces: BTreeMap::from([
                (1, interface("lo", 0, &[("127.0.0.1", 8), ("192.0.2.100", 32)])),
                (
                    2,
                    interface(
                        "eth0",
                        2,
                        &[("192.0.2.2", 24), ("192.0.2.100", 32), ("fe80::2", 64), ("2001:db8::2", 64)],
                    ),
                ),
                (3, interface("eth1", 3, &[("fe80::3", 64), ("198.51.100.2", 24)])),
                (4, interface("wg0", 0, &[("10.9.0.1", 24)])),
                (5, interface("eth2", 5, &[("fe80::5", 64)])),
            ]),
            gateways: vec![Router { address: ip("192.0.2.1"), mac: None }],
            routes: vec![
                via("0.0.0.0", 0, 2, "192.0.2.1"),
                route("192.0.2.0", 24, 2, true),
                via("192.0.2.200", 32, 3, "198.51.100.1"),
                route("203.0.113.64", 26, 1, false),
                route("198.51.100.0", 24, 3, true),
                Route { priority: 5, ..route("198.51.100.0", 24, 2, true) },
                route("10.9.0.0", 24, 4, true),
                route("fe80::", 64, 2, true),
                route("fe80::", 64, 3, true),
                route("2001:db8::", 64, 2, true),
                via("2001:db8:9::", 48, 3, "fe80::1"),
            ],
            neighbours: BTreeMap::from([
                ((2, ip("192.0.2.1")), Mac([2, 0, 0, 0, 1, 1])),
                ((2, ip("192.0.2.11")), Mac([2, 0, 0, 0, 1, 11])),
                ((3, ip("fe80::1")), Mac([2, 0, 0, 0, 6, 1])),
            ]),
        }
    }

    #[test]
    fn the_longest_prefix_leads_the_way_if_it_is_on_the_link() {
        let network = director();
        assert_eq!(network.route_to(ip("192.0.2.11")), Some(2));
        assert_eq!(network.route_to(ip("198.51.100.11")), Some(3), "the lower priority");
        assert_eq!(network.route_to(ip("192.0.2.200")), None, "behind a gateway");
        assert_eq!(network.route_to(ip("203.0.113.1")), None, "by the default route");
        assert_eq!(network.route_to(ip("2001:db8::11")), Some(2));
        assert_eq!(network.route_to(ip("2001:db8:9::11")), None, "behind a gateway");
        assert_eq!(Network::default().route_to(ip("192.0.2.11")), None);
    }

    #[test]
    fn the_next_hop_is_the_address_itself_or_its_gateway() {
        let network = director();
        let hop = |address: &str| network.next_hop(ip(address));
        let on_link = |ifindex, mac| Some(Hop { ifindex, mac, gateway: None, mtu: 1500 });
        let behind =
            |ifindex, mac, gateway: &str| Some(Hop { ifindex, mac, gateway: Some(ip(gateway)), mtu: 1500 });
        assert_eq!(hop("192.0.2.11"), on_link(2, Some(Mac([2, 0, 0, 0, 1, 11]))));
        assert_eq!(hop("192.0.2.12"), on_link(2, None), "not resolved yet");
        assert_eq!(hop("198.51.100.11"), on_link(3, None));
        assert_eq!(hop("203.0.113.1"), behind(2, Some(Mac([2, 0, 0, 0, 1, 1])), "192.0.2.1"));
        assert_eq!(hop("192.0.2.200"), behind(3, None, "198.51.100.1"), "the longer prefix");
        assert_eq!(hop("203.0.113.65"), None, "the route refuses");
        assert_eq!(hop("2001:db8::11"), on_link(2, None));
        assert_eq!(hop("2001:db8:9::11"), behind(3, Some(Mac([2, 0, 0, 0, 6, 1])), "fe80::1"));
        assert_eq!(hop("2001:db9::1"), None, "no default route over IPv6");
        assert_eq!(hop("192.0.2.2"), None, "this host");
    }

    #[test]
    fn prefixes_hold_addresses_of_their_own_family() {
        assert!(is_within(ip("203.0.113.1"), (ip("0.0.0.0"), 0)));
        assert!(!is_within(ip("2001:db8::1"), (ip("0.0.0.0"), 0)));
        assert!(is_within(ip("2001:db8::1"), (ip("::"), 0)));
        assert!(is_within(ip("192.0.2.127"), (ip("192.0.2.0"), 25)));
        assert!(!is_within(ip("192.0.2.128"), (ip("192.0.2.0"), 25)));
        assert!(is_within(ip("2001:db8::1"), (ip("2001:db8::1"), 128)));
        assert!(!is_within(ip("2001:db8::2"), (ip("2001:db8::1"), 255)));
    }

    #[test]
    fn the_source_is_of_the_same_subnet_and_never_the_destination() {
        let network = director();
        assert_eq!(network.source_for(2, ip("192.0.2.11")), Some(ip("192.0.2.2")));
        assert_eq!(network.source_for(2, ip("192.0.2.100")), Some(ip("192.0.2.2")));
        assert_eq!(network.source_for(3, ip("192.0.2.100")), Some(ip("198.51.100.2")));
        assert_eq!(network.source_for(5, ip("192.0.2.100")), Some(ip("192.0.2.2")), "of another interface");
        assert_eq!(network.source_for(9, ip("192.0.2.100")), None);
        assert_eq!(network.source_for(2, ip("2001:db8::11")), Some(ip("2001:db8::2")));
        assert_eq!(network.source_for(3, ip("2001:db8:9::11")), Some(ip("2001:db8::2")), "no link-local one");
        assert_eq!(network.source_for(3, ip("fe80::1")), Some(ip("fe80::3")));
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
