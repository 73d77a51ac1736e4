//! Packets that the kernel must forward on the director's interfaces.

use std::collections::BTreeSet;
use std::net::IpAddr;

use evener_core::director::Director;
use evener_core::farm::Service;
use evener_dataplane::Engine;

use super::executor::KERNEL_ENGINE;
use crate::io::sysctl::Forwarded;

/// Returns the packets that the kernel must forward: packets of services with NAT, and replies of
/// servers that use this host as router. An interface that the file doesn't name is included only
/// if servers' replies arrive through it.
pub(super) fn forwarded<'d>(director: &'d Director, engine: &dyn Engine) -> Forwarded<'d> {
    let (farm, network) = (director.farm(), director.network());
    let nat = || farm.services.iter().filter(|service| service.method.translates());
    let addresses: BTreeSet<IpAddr> =
        nat().flat_map(|service| &service.addresses).map(|address| address.ip()).collect();
    let passing = network.passing_answers(nat());
    let named = !farm.interfaces.is_empty();
    let interfaces: Vec<u32> =
        director.links().keys().filter(|ifindex| named || passing.contains(ifindex)).copied().collect();
    let name = |ifindex: &u32| Some(network.interfaces.get(ifindex)?.name.as_str());
    let is_own_v4 = |address: IpAddr| address.is_ipv4() && network.is_local(address);
    let is_own = addresses.iter().any(|address| is_own_v4(*address));
    // With direct server return, replies have the service's address as source. If this host has
    // that address and routes the replies, its stack would treat the replies as its own packets.
    let is_direct = |service: &&Service| !service.method.translates();
    let is_owned = |service: &Service| service.addresses.iter().any(|address| is_own_v4(address.ip()));
    let routes_own = farm.services.iter().filter(is_direct).any(is_owned);
    let routed: BTreeSet<&str> = director.links().keys().filter(|_| routes_own).filter_map(name).collect();
    // With NAT, the packet engine routes by itself.
    if engine.kind() != KERNEL_ENGINE {
        return Forwarded { routed, ..Forwarded::default() };
    }
    let by_stack = if is_own { engine.sends_by_stack() } else { Vec::new() };
    Forwarded {
        own: interfaces.iter().filter(|ifindex| by_stack.contains(ifindex)).filter_map(name).collect(),
        routed,
        interfaces: interfaces.iter().filter_map(name).collect(),
        addresses,
    }
}
