//! What has to be let through on the interfaces that packets are taken from.

use std::collections::BTreeSet;
use std::net::IpAddr;

use evener_core::director::Director;
use evener_dataplane::Engine;

use super::settings::Forwarded;

/// What the kernel must let through for the sake of NAT. Of interfaces that the file doesn't name, only those that answers need.
pub(super) fn forwarded<'d>(director: &'d Director, engine: &dyn Engine) -> Forwarded<'d> {
    let (farm, network) = (director.farm(), director.network());
    let nat = || farm.services.iter().filter(|service| service.method.translates());
    let addresses: BTreeSet<IpAddr> =
        nat().flat_map(|service| &service.addresses).map(|address| address.ip()).collect();
    let passing = network.passing_answers(nat());
    let named = !farm.interfaces.is_empty();
    let interfaces: Vec<u32> =
        director.links().keys().filter(|ifindex| named || passing.contains(ifindex)).copied().collect();
    let is_own = addresses.iter().any(|address| address.is_ipv4() && network.is_local(*address));
    let by_stack = if is_own { engine.sends_by_stack() } else { Vec::new() };
    let name = |ifindex: &u32| Some(network.interfaces.get(ifindex)?.name.as_str());
    Forwarded {
        own: interfaces.iter().filter(|ifindex| by_stack.contains(ifindex)).filter_map(name).collect(),
        interfaces: interfaces.iter().filter_map(name).collect(),
        addresses,
    }
}
