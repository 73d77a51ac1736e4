//! The ways to servers that are reached by routes: next hops from the kernel's tables, and how long a packet may
//! be on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use evener_core::farm::{Method, Service};
use evener_core::membership::{Hop, Place, Surroundings};
use evener_core::wire::Mac;

use super::director::{DirectError, Director};
use crate::config::Config;
use crate::network::path_mtu::PathMtu;
use crate::network::{Network, resolve};

/// A path MTU is forgotten after this time, since the path may have changed (RFC 1191, section 6.3), in
/// milliseconds.
const PATH_MTU_MS: u64 = 10 * 60 * 1_000;
/// The kernel is to confirm a next hop that it knows at this interval, in milliseconds: packets that an engine
/// sends say nothing to it.
const CONFIRM_MS: u64 = 10_000;
/// A next hop that it doesn't know is asked for no more often than this, in milliseconds.
const ASK_MS: u64 = 1_000;

/// What the kernel's tables don't say about the ways.
#[derive(Debug, Default)]
pub(super) struct Ways {
    /// The longest packet that routers said to pass on to a server, in bytes, and until when that counts.
    path_mtus: BTreeMap<IpAddr, (u16, u64)>,
    /// When the kernel was last made to ask for a next hop.
    asked_ms: BTreeMap<(u32, IpAddr), u64>,
}

impl Ways {
    /// What stands around the servers, with the ways that are known to those reached by routes.
    pub(super) fn surroundings(
        &self,
        config: &Config,
        network: &Network,
        interfaces: &BTreeMap<u32, Mac>,
    ) -> Surroundings {
        let mut around = network.surroundings(&interfaces.keys().copied().collect::<Vec<_>>());
        for address in routed(config) {
            around.hops.extend(self.hop(config, network, address).map(|hop| (address, hop)));
        }
        around
    }

    fn hop(&self, config: &Config, network: &Network, address: IpAddr) -> Option<Hop> {
        let next = network.next_hop(address)?;
        let place = Place { mac: next.mac?, ifindex: next.ifindex };
        let own = source_towards(network, address)?;
        let mtu = u16::try_from(next.mtu).unwrap_or(u16::MAX);
        let path = self.path_mtus.get(&address).map_or(u16::MAX, |(mtu, _)| *mtu);
        Some(Hop {
            place,
            own,
            tunnel: tunnel_source(config, network, own),
            mtu: mtu.min(path),
            on_link: next.gateway.is_none(),
        })
    }
}

/// The addresses of all servers that are reached by routes.
fn routed(config: &Config) -> BTreeSet<IpAddr> {
    let services = config.services.iter().filter(|service| service.is_routed());
    services.flat_map(|service| &service.servers).map(|server| server.address).collect()
}

/// The address by which this host speaks to another one, perhaps behind a gateway.
pub(crate) fn source_towards(network: &Network, address: IpAddr) -> Option<IpAddr> {
    let next = network.next_hop(address)?;
    // An IPv6 gateway is known by its link-local address, which no server can answer.
    let gateway = next.gateway.filter(|gateway| gateway.is_ipv4() && address.is_ipv4());
    network.source_for(next.ifindex, gateway.unwrap_or(address))
}

/// The address that servers take tunnels from: `own` if the file lists it or lists none of this host's, else
/// the first of this host's that it lists.
pub(crate) fn tunnel_source(config: &Config, network: &Network, own: IpAddr) -> IpAddr {
    let listed = config.tunnel_sources();
    let mut here = listed.iter().filter(|at| at.is_ipv4() == own.is_ipv4() && network.is_local(**at));
    if listed.contains(&own) { own } else { here.next().copied().unwrap_or(own) }
}

/// Why this host, as a server by `nat`, can't answer clients. It needs no translation, which its own stack's packets
/// don't get: it answers as the service itself.
pub(crate) fn why_not_itself(service: &Service, server: &str, network: &Network) -> Option<String> {
    if service.method != Method::Nat {
        return None;
    }
    if !service.keeps_ports(server) {
        return Some(
            "it is this host itself, whose answers nobody translates: it must serve on the service's port"
                .into(),
        );
    }
    let missing = service.addresses.iter().map(SocketAddr::ip).find(|address| !network.is_local(*address))?;
    let bits = if missing.is_ipv4() { 32 } else { 128 };
    Some(format!(
        "it is this host itself, which needs the service's address to answer: `ip addr add {missing}/{bits} dev lo`"
    ))
}

impl Director {
    /// Has the kernel ask for the next hops that it doesn't know, and confirm the others now and then. Its word
    /// of what it finds brings [`Director::surroundings`].
    pub(super) fn resolve_next_hops(&mut self, now_ms: u64) {
        let hops = routed(&self.config).into_iter().filter_map(|address| {
            let hop = self.network.next_hop(address)?;
            Some(((hop.ifindex, hop.gateway.unwrap_or(address)), hop.mac.is_some()))
        });
        let hops: BTreeMap<_, _> = hops.collect();
        self.ways.asked_ms.retain(|hop, _| hops.contains_key(hop));
        for ((ifindex, address), known) in hops {
            let pause_ms = if known { CONFIRM_MS } else { ASK_MS };
            let asked_ms = self.ways.asked_ms.get(&(ifindex, address));
            if asked_ms.is_some_and(|asked_ms| now_ms < asked_ms.saturating_add(pause_ms)) {
                continue;
            }
            self.ways.asked_ms.insert((ifindex, address), now_ms);
            if let Err(error) = resolve(ifindex, address) {
                tracing::debug!(%address, %error, "the kernel can't ask for this next hop");
            }
        }
    }

    /// A router can't pass on tunnel packets this long. Believed of tunnels there are, and for a while.
    ///
    /// # Errors
    /// As [`Director::replan`].
    pub(super) fn path_mtu(&mut self, learned: &PathMtu, now_ms: u64) -> Result<(), DirectError> {
        let PathMtu { from, to, mtu } = *learned;
        let tunnels = self.config.services.iter().filter(|service| service.is_routed());
        let known = tunnels.flat_map(|service| &service.servers).any(|server| server.address == to);
        if !known || !self.network.is_local(from) {
            tracing::debug!(%from, %to, mtu, "a path MTU of no tunnel of ours");
            return Ok(());
        }
        let until_ms = now_ms.saturating_add(PATH_MTU_MS);
        let before = self.ways.path_mtus.insert(to, (mtu, until_ms));
        if before.is_some_and(|(before, _)| before == mtu) {
            return Ok(());
        }
        tracing::info!(server = %to, mtu, "a router on the way takes no longer packets");
        self.look_around(now_ms)
    }

    /// Forgets path MTUs that are too old, and those of servers that are gone.
    pub(super) fn forget_path_mtus(&mut self, now_ms: u64) {
        let servers = routed(&self.config);
        self.ways.path_mtus.retain(|server, (_, until_ms)| *until_ms > now_ms && servers.contains(server));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::network::tests::{director, ip};

    fn config(directors: &str) -> Config {
        let text = format!(
            "[farm]\ndirectors = [{directors}]\n[[service]]\nname = \"web\"\naddress = \"203.0.113.1:80\"\n\
             method = \"tunnel\"\n[[service.server]]\nname = \"far\"\naddress = \"203.0.113.9\"\n\
             [[service.server]]\nname = \"near\"\naddress = \"198.51.100.11\"\n"
        );
        crate::config::parse(&text, "evener.toml")
            .unwrap_or_else(|problems| panic!("{}", problems.render(false)))
    }

    fn network() -> Network {
        let mut network = director();
        network.neighbours.insert((2, ip("192.0.2.1")), Mac([2, 0, 0, 0, 0, 0xfe]));
        network
    }

    #[test]
    fn ways_lead_over_gateways_whose_mac_is_known() {
        let network = network();
        let ways = Ways::default();
        let around = ways.surroundings(&config("\"192.0.2.2\""), &network, &BTreeMap::new());
        let place = Place { mac: Mac([2, 0, 0, 0, 0, 0xfe]), ifindex: 2 };
        let hop = Hop { place, own: ip("192.0.2.2"), tunnel: ip("192.0.2.2"), mtu: 1500, on_link: false };
        assert_eq!(around.hops, [(ip("203.0.113.9"), hop)].into(), "of the other no MAC is known");
    }

    #[test]
    fn tunnels_come_from_an_address_that_the_file_lists() {
        let network = network();
        let own = ip("192.0.2.2");
        let source = |directors: &str| tunnel_source(&config(directors), &network, own);
        assert_eq!(source("\"198.51.100.2\", \"192.0.2.2\""), own);
        assert_eq!(source("\"192.0.2.9\", \"198.51.100.2\""), ip("198.51.100.2"));
        assert_eq!(source("\"192.0.2.9\", \"2001:db8::2\""), own, "no other of its family is here");
    }

    #[test]
    fn a_path_mtu_counts_if_it_is_less() {
        let mut ways = Ways::default();
        let config = config("\"192.0.2.2\"");
        for (mtu, expected) in [(1_280, 1_280), (9_000, 1_500)] {
            ways.path_mtus.insert(ip("203.0.113.9"), (mtu, 1));
            assert_eq!(ways.hop(&config, &network(), ip("203.0.113.9")).unwrap().mtu, expected);
        }
    }
}
