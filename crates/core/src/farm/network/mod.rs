//! Network configuration of this host, as read from its kernel: interfaces, addresses, routes and
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

/// Network configuration at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    pub interfaces: BTreeMap<u32, Interface>,
    /// Gateways of all routes without duplicates, sorted by address.
    pub gateways: Vec<Router>,
    /// Routes of the main table.
    pub routes: Vec<KernelRoute>,
    /// Resolved neighbours by interface and address.
    pub neighbours: BTreeMap<(u32, IpAddr), Mac>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// MAC address; zero if the interface has none.
    pub mac: Mac,
    /// Addresses with prefix lengths, oldest first.
    pub addresses: Vec<(IpAddr, u8)>,
    /// True if the interface is administratively up; it may lack carrier.
    pub up: bool,
    /// True if the interface has carrier.
    pub carrier: bool,
    /// MTU in bytes, without link header.
    pub mtu: u32,
    /// True for a loopback interface.
    pub loopback: bool,
    /// True for Ethernet, which rewriting of MAC addresses needs.
    pub ethernet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// Destination with prefix length.
    pub destination: (IpAddr, u8),
    /// Metric. Of several routes to one destination, the one with the lowest metric is used.
    pub priority: u32,
    /// Interface of the route's first next hop; `None` for some unreachable routes.
    pub ifindex: Option<u32>,
    /// True if the destination is on the link, not behind a gateway.
    pub on_link: bool,
    /// Gateway; if `None` and `on_link` is false, the route rejects packets.
    pub gateway: Option<IpAddr>,
}

/// Next hop to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Index of the interface.
    pub ifindex: u32,
    /// MAC address; `None` until the kernel has resolved it.
    pub mac: Option<Mac>,
    /// Gateway; `None` if the address is on the link.
    pub gateway: Option<IpAddr>,
    /// MTU of the interface, in bytes.
    pub mtu: u32,
}

impl Network {
    /// Returns the interface whose link has this address. `None` if a gateway leads to the address,
    /// or no route.
    ///
    /// Only the main table counts, without policy routing.
    pub fn route_to(&self, address: IpAddr) -> Option<u32> {
        let best = self.best_route(address)?;
        best.ifindex.filter(|_| best.on_link)
    }

    /// Returns the next hop to this address: the address itself if it is on a link, else a gateway.
    /// `None` if there is no route, and for this host's own addresses.
    ///
    /// Only the main table counts, without policy routing.
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

    /// True if this host has the address, on any interface.
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.addresses().any(|own| own == address)
    }

    /// Returns the network of a director on these interfaces, by which the membership recognises
    /// neighbours that are no servers.
    pub fn surroundings(&self, ifindexes: impl Iterator<Item = u32>) -> LocalNetwork {
        let found = ifindexes.filter_map(|ifindex| Some((ifindex, self.interfaces.get(&ifindex)?.mac)));
        LocalNetwork {
            interfaces: found.collect(),
            addresses: self.addresses().collect::<BTreeSet<_>>(),
            routers: self.gateways.clone(),
            ..LocalNetwork::default()
        }
    }

    /// Returns the source address for `destination` on an interface. It is an address of the
    /// destination's subnet if possible, else another address of the interface, else another
    /// address of this host. The address has the destination's family, and is link-local only if
    /// the destination is (RFC 6724, section 5, rule 2).
    ///
    /// The result is never `destination` itself. A director that is also a server has that address,
    /// too.
    pub fn source_for(&self, ifindex: u32, destination: IpAddr) -> Option<IpAddr> {
        let there = self.interfaces.get(&ifindex)?;
        let elsewhere = self.interfaces.values().filter(|interface| interface.up && !interface.loopback);
        let others = elsewhere.flat_map(|interface| &interface.addresses);
        let same_subnet = there.addresses.iter().filter(|subnet| is_within(destination, **subnet));
        // Addresses with a host prefix (/32 or /128) come last, since they are most likely service
        // addresses.
        let is_alone = |(own, bits): &&(IpAddr, u8)| *bits == if own.is_ipv4() { 32 } else { 128 };
        let of_networks = there.addresses.iter().filter(|own| !is_alone(own));
        let candidates = same_subnet.chain(of_networks).chain(&there.addresses).chain(others);
        candidates.map(|(own, _)| *own).find(|own| {
            let same_scope = is_link_local(destination) || !is_link_local(*own);
            own.is_ipv4() == destination.is_ipv4() && same_scope && *own != destination
        })
    }

    /// Returns the source address for a destination that may be behind a gateway.
    pub fn source_towards(&self, address: IpAddr) -> Option<IpAddr> {
        let next = self.next_hop(address)?;
        // IPv6 gateways mostly have link-local addresses, which remote servers can't answer.
        let gateway = next.gateway.filter(|gateway| {
            gateway.is_ipv4() == address.is_ipv4() && (gateway.is_ipv4() || !is_link_local(*gateway))
        });
        self.source_for(next.ifindex, gateway.unwrap_or(address))
    }

    /// Returns this host's addresses as text, without loopback addresses.
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

/// True if the address is valid on its own link only (RFC 4291, section 2.5.6). Every IPv6
/// interface has such an address. False for IPv4 link-local addresses, which need no special
/// treatment.
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
