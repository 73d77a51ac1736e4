//! Routing table of the host in a case.

use std::collections::BTreeMap;
use std::net::IpAddr;

use evener_core::net::wire::Mac;
use evener_core::path::reply_hops::{FibResult, Routes};

use super::ground::MTU;
use super::words::{Words, Wrong};

/// Route to a network.
#[derive(Clone, Debug)]
pub struct Route {
    /// First address of the network.
    pub network: IpAddr,
    /// Length of the prefix in bits.
    pub bits: u8,
    /// Next hop; `None` if the host's own stack resolves it.
    pub next: Option<Next>,
}

/// Neighbour as a next hop.
#[derive(Clone, Copy, Debug)]
pub struct Next {
    /// Number of the egress interface.
    pub interface: u32,
    /// MAC address of the neighbour.
    pub mac: Mac,
    /// MTU of the route in bytes.
    pub mtu: u16,
}

impl Route {
    /// Reads `ADDRESS/BITS via N MAC [mtu N]` or `ADDRESS/BITS host`.
    pub(super) fn of(words: &mut Words<'_>, interfaces: &BTreeMap<u32, Mac>) -> Result<Route, Wrong> {
        let prefix = words.next("ADDRESS/BITS")?;
        let wrong = || format!("`{prefix}` is no ADDRESS/BITS");
        let (network, bits) = prefix.split_once('/').ok_or_else(wrong)?;
        let network: IpAddr = network.parse().map_err(|_| wrong())?;
        let longest = if network.is_ipv4() { 32 } else { 128 };
        let bits = bits.parse().ok().filter(|bits| *bits <= longest).ok_or_else(wrong)?;
        if words.take("host") {
            return Ok(Route { network, bits, next: None });
        }
        words.expect("via")?;
        let interface = words.parse("an interface number")?;
        if !interfaces.contains_key(&interface) {
            return Err(format!("there is no interface {interface}"));
        }
        let mac = words.parse("a MAC address")?;
        let mtu = if words.take("mtu") { words.parse("a number of bytes")? } else { 1500 };
        Ok(Route { network, bits, next: Some(Next { interface, mac, mtu }) })
    }

    fn covers(&self, address: IpAddr) -> bool {
        let same = |own: u128, other: u128, width: u32| {
            let host_bits = width - u32::from(self.bits);
            // a shift by the full width is undefined
            own.checked_shr(host_bits).unwrap_or(0) == other.checked_shr(host_bits).unwrap_or(0)
        };
        match (self.network, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => same(own.to_bits().into(), other.to_bits().into(), 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => same(own.to_bits(), other.to_bits(), 128),
            _ => false,
        }
    }
}

/// Routing table with the routes of a case.
#[derive(Debug)]
pub(super) struct RoutingTable<'a> {
    pub(super) routes: &'a [Route],
    pub(super) interfaces: &'a BTreeMap<u32, Mac>,
}

impl Routes for RoutingTable<'_> {
    fn hop(&self, _ingress: u32, _src: IpAddr, dst: IpAddr) -> FibResult {
        let covering = self.routes.iter().filter(|route| route.covers(dst));
        let Some(route) = covering.max_by_key(|route| route.bits) else { return FibResult::None };
        let Some(Next { interface, mac, mtu }) = route.next else { return FibResult::HostStack };
        match self.interfaces.get(&interface) {
            Some(&src) => FibResult::Neighbour { ifindex: interface, src, dst: mac, mtu },
            None => FibResult::None,
        }
    }

    fn mtu(&self, ifindex: u32) -> Option<u16> {
        self.interfaces.contains_key(&ifindex).then_some(MTU as u16)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn the_longest_prefix_counts() {
        let interfaces = BTreeMap::from([(1, Mac([2, 0, 0, 0, 0, 1])), (2, Mac([2, 0, 0, 0, 0, 2]))]);
        let route = |text| Route::of(&mut Words::of(text), &interfaces);
        let routes: Vec<Route> = [
            "0.0.0.0/0 via 1 02:00:00:00:00:09",
            "203.0.113.0/24 via 2 02:00:00:00:00:0a mtu 1400",
            "203.0.113.7/32 host",
            "2001:db8:c::/64 via 1 02:00:00:00:00:09",
        ]
        .map(|text| route(text).unwrap())
        .into();
        let table = RoutingTable { routes: &routes, interfaces: &interfaces };
        let to = |dst: &str| match table.hop(1, "192.0.2.1".parse().unwrap(), dst.parse().unwrap()) {
            FibResult::Neighbour { ifindex, mtu, .. } => (ifindex, mtu),
            FibResult::HostStack => (0, 1),
            FibResult::None => (0, 0),
        };
        assert_eq!(to("198.51.100.1"), (1, 1500));
        assert_eq!(to("203.0.113.9"), (2, 1400));
        assert_eq!(to("203.0.113.7"), (0, 1));
        assert_eq!(to("2001:db8:c::5"), (1, 1500));
        assert_eq!(to("2001:db8:d::5"), (0, 0));
        for wrong in
            ["10.0.0.0/33 host", "10.0.0.0 host", "::/129 host", "10.0.0.0/8 via 3 02:00:00:00:00:09"]
        {
            assert!(route(wrong).is_err(), "{wrong}");
        }
    }
}
