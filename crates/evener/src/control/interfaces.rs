//! The interfaces that packets are taken from, as they come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use evener_core::farm::Method;
use evener_core::wire::Mac;

use super::director::{DirectError, Director};
use super::settings::Forwarded;
use crate::network::{Network, is_link_local};

impl Director {
    /// Takes in what is newly known of the network. Without names in the file, an interface that came up is one more to
    /// take packets from.
    ///
    /// # Errors
    /// As [`Director::replan`].
    pub(super) fn surroundings(&mut self, network: Network, now_ms: u64) -> Result<(), DirectError> {
        self.tell_links(&network);
        // One that is down for a while keeps its place; one that came back may have another number or MAC.
        let known: BTreeMap<u32, Mac> = self
            .interfaces
            .keys()
            .filter_map(|ifindex| Some((*ifindex, network.interfaces.get(ifindex)?.mac)))
            .collect();
        let mut interfaces = network
            .pick_interfaces(&self.config.engine.interfaces, &self.config.services)
            .unwrap_or_default();
        interfaces.extend(&known);
        let added: BTreeSet<u32> = interfaces.keys().filter(|i| !known.contains_key(i)).copied().collect();
        self.network = network;
        self.interfaces = interfaces;
        self.forget_path_mtus(now_ms);
        match self.look_around(now_ms) {
            Err(error) if !added.is_empty() => {
                // What this is must not keep the farm from following anything else.
                self.tell_unattached(&added, &error);
                self.interfaces = known;
                self.look_around(now_ms)
            }
            done => {
                self.tell_attached(&added);
                done
            }
        }
    }

    fn tell_unattached(&mut self, added: &BTreeSet<u32>, error: &DirectError) {
        let names =
            self.interface_names(added.iter().filter(|ifindex| !self.told.unattached.contains(ifindex)));
        if !names.is_empty() {
            tracing::warn!("no packets can be taken from {}: {error}", names.join(", "));
        }
        self.told.unattached.extend(added);
    }

    fn tell_attached(&mut self, added: &BTreeSet<u32>) {
        for name in self.interface_names(added) {
            tracing::info!(interface = name, "packets are taken from here, too");
        }
        self.told.unattached.retain(|ifindex| !added.contains(ifindex));
    }

    /// What interfaces are called.
    pub(super) fn interface_names<'a>(&self, ifindexes: impl IntoIterator<Item = &'a u32>) -> Vec<&str> {
        let found = ifindexes.into_iter().filter_map(|ifindex| self.network.interfaces.get(ifindex));
        found.map(|interface| interface.name.as_str()).collect()
    }

    /// Why packets of a client may never be seen, as far as this host's routes tell: where no interface that leads to it is
    /// one that packets are taken from.
    pub(super) fn unseen(&self, client: IpAddr) -> Option<String> {
        if self.network.is_local(client) || is_link_local(client) {
            return None;
        }
        let Some(hop) = self.network.next_hop(client) else {
            return Some(format!("but no route of this host leads to {client}"));
        };
        let taken = self.plan.tables.interfaces.contains_key(&hop.ifindex);
        (!taken).then(|| {
            let name = self.network.interfaces.get(&hop.ifindex).map_or("?", |interface| &interface.name);
            format!(
                "but {client} is behind {name} by this host's routes, and no packets are taken from there: what comes by \
                 it is never seen"
            )
        })
    }

    /// What the kernel must let through for the sake of NAT. Of interfaces that the file doesn't name, only those that
    /// answers need.
    pub(super) fn forwarded(&self) -> Forwarded<'_> {
        let nat = || self.config.services.iter().filter(|service| service.method == Method::Nat);
        let addresses: BTreeSet<IpAddr> =
            nat().flat_map(|service| &service.addresses).map(|address| address.ip()).collect();
        let passing = self.network.passing_answers(nat());
        let named = !self.config.engine.interfaces.is_empty();
        let interfaces: Vec<u32> =
            self.interfaces.keys().filter(|ifindex| named || passing.contains(ifindex)).copied().collect();
        let is_own = addresses.iter().any(|address| address.is_ipv4() && self.network.is_local(*address));
        let by_stack = if is_own { self.engine.sends_by_stack() } else { Vec::new() };
        let own = interfaces.iter().filter(|ifindex| by_stack.contains(ifindex));
        Forwarded {
            own: self.interface_names(own).into_iter().collect(),
            interfaces: self.interface_names(&interfaces).into_iter().collect(),
            addresses,
        }
    }
}
