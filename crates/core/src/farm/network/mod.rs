//! The network around this host, as its kernel knows it: interfaces, addresses, routes and
//! neighbours.

mod pick;
#[cfg(test)]
pub(crate) mod tests;

pub use pick::PickError;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::IpAddr;

use crate::farm::membership::{LocalNetwork, Router};
use crate::net::wire::Mac;

/// The kernel's answer when it was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Interfaces by index.
    pub interfaces: BTreeMap<u32, Interface>,
    /// The gateways of all routes, each once, ordered by address.
    pub gateways: Vec<Router>,
    /// The routes of the main table.
    pub routes: Vec<KernelRoute>,
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

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRoute {
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
pub struct NextHop {
    /// The interface that leads there.
    pub ifindex: u32,
    /// The station's MAC, once the kernel has resolved it.
    pub mac: Option<Mac>,
    /// The router whose MAC that is; `None` where the address is on the link itself.
    pub gateway: Option<IpAddr>,
    /// The longest packet that the interface takes, in bytes.
    pub mtu: u32,
}

impl Network {
    /// The interface by which this address is reached on the link, without a gateway.
    ///
    /// Only the main table counts, and no policy routing.
    pub fn route_to(&self, address: IpAddr) -> Option<u32> {
        let best = self.best_route(address)?;
        best.ifindex.filter(|_| best.on_link)
    }

    /// Where packets to this address go first: to the address itself on the link, else to a
    /// gateway. `None` where no route leads there, and for this host's own addresses.
    ///
    /// Only the main table counts, and no policy routing.
    pub fn next_hop(&self, address: IpAddr) -> Option<NextHop> {
        let best = self.best_route(address).filter(|_| !self.is_local(address))?;
        let ifindex = best.ifindex.filter(|_| best.on_link || best.gateway.is_some())?;
        let station = best.gateway.unwrap_or(address);
        Some(NextHop {
            ifindex,
            mac: self.neighbours.get(&(ifindex, station)).copied(),
            gateway: best.gateway,
            mtu: self.interfaces.get(&ifindex)?.mtu,
        })
    }

    fn best_route(&self, address: IpAddr) -> Option<&KernelRoute> {
        let matching = self.routes.iter().filter(|route| is_within(address, route.destination));
        matching.min_by_key(|route| (Reverse(route.destination.1), route.priority))
    }

    /// Whether this host has the address, on whatever interface.
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.addresses().any(|own| own == address)
    }

    /// The addresses that must not be taken for a server, for a director on these interfaces.
    pub fn surroundings(&self, ifindexes: impl Iterator<Item = u32>) -> LocalNetwork {
        let found = ifindexes.filter_map(|ifindex| Some((ifindex, self.interfaces.get(&ifindex)?.mac)));
        LocalNetwork {
            interfaces: found.collect(),
            addresses: self.addresses().collect::<BTreeSet<_>>(),
            routers: self.gateways.clone(),
            ..LocalNetwork::default()
        }
    }

    /// The address by which this host speaks to `destination` on an interface: one of the same
    /// subnet where it has one there, else another of that interface, else another of this host. It
    /// is of the destination's family, and link-local only if the destination is (RFC 6724, section
    /// 5, rule 2).
    ///
    /// Never `destination` itself, which a director that is also a server has too.
    pub fn source_for(&self, ifindex: u32, destination: IpAddr) -> Option<IpAddr> {
        let there = self.interfaces.get(&ifindex)?;
        let elsewhere = self.interfaces.values().filter(|interface| interface.up && !interface.loopback);
        let others = elsewhere.flat_map(|interface| &interface.addresses);
        let same_subnet = there.addresses.iter().filter(|subnet| is_within(destination, **subnet));
        // One that is alone in its network comes last: it is a service's, most likely.
        let is_alone = |(own, bits): &&(IpAddr, u8)| *bits == if own.is_ipv4() { 32 } else { 128 };
        let of_networks = there.addresses.iter().filter(|own| !is_alone(own));
        let candidates = same_subnet.chain(of_networks).chain(&there.addresses).chain(others);
        candidates.map(|(own, _)| *own).find(|own| {
            let same_scope = is_link_local(destination) || !is_link_local(*own);
            own.is_ipv4() == destination.is_ipv4() && same_scope && *own != destination
        })
    }

    /// The address by which this host speaks to another one, perhaps behind a gateway.
    pub fn source_towards(&self, address: IpAddr) -> Option<IpAddr> {
        let next = self.next_hop(address)?;
        // An IPv6 gateway is mostly known by its link-local address, which no server can answer.
        let gateway = next.gateway.filter(|gateway| {
            gateway.is_ipv4() == address.is_ipv4() && (gateway.is_ipv4() || !is_link_local(*gateway))
        });
        self.source_for(next.ifindex, gateway.unwrap_or(address))
    }

    /// This host's addresses on its links, for a sentence.
    pub fn own_addresses(&self) -> String {
        let interfaces = self.interfaces.values().filter(|interface| !interface.loopback);
        let addresses: Vec<String> =
            interfaces.flat_map(|interface| &interface.addresses).map(|(a, _)| a.to_string()).collect();
        if addresses.is_empty() { "none at all".into() } else { addresses.join(", ") }
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.interfaces.values().flat_map(|interface| &interface.addresses).map(|(address, _)| *address)
    }
}

/// Whether the address means something on its own link only (RFC 4291, section 2.5.6). Every
/// interface has one over IPv6; over IPv4 they are addresses like others.
pub fn is_link_local(address: IpAddr) -> bool {
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
