//! What has to be seen, and let through, on the interfaces that packets are taken from.

use std::collections::BTreeSet;
use std::net::IpAddr;

use evener_core::director::Director;
use evener_core::farm::Method;
use evener_core::network::is_link_local;
use evener_dataplane::Engine;

use super::executor::Executor;
use super::settings::Forwarded;

impl Executor {
    /// Why packets of a client may never be seen, as far as this host's routes tell: where no interface that leads to it is
    /// one that packets are taken from.
    pub(super) fn unseen(&self, client: IpAddr) -> Option<String> {
        if self.director.network().is_local(client) || is_link_local(client) {
            return None;
        }
        let Some(hop) = self.director.network().next_hop(client) else {
            return Some(format!("but no route of this host leads to {client}"));
        };
        let taken = self.director.plan().tables.interfaces.contains_key(&hop.ifindex);
        (!taken).then(|| {
            let name = self.director.network().interfaces.get(&hop.ifindex).map_or("?", |interface| &interface.name);
            format!(
                "but {client} is behind {name} by this host's routes, and no packets are taken from there: what comes by \
                 it is never seen"
            )
        })
    }
}

/// What the kernel must let through for the sake of NAT. Of interfaces that the file doesn't name, only those that answers need.
pub(super) fn forwarded<'d>(director: &'d Director, engine: &dyn Engine) -> Forwarded<'d> {
    let (farm, network) = (director.farm(), director.network());
    let nat = || farm.services.iter().filter(|service| service.method == Method::Nat);
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
