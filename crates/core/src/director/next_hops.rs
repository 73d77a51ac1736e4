//! Paths to servers that are reached by IP routes: next hops from the kernel's tables, and path
//! MTUs.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use core::net::{IpAddr, SocketAddr};

use super::{Director, Event, Output};
use crate::farm::membership::{LinkAddress, LocalNetwork, ServerRoute};
use crate::farm::network::Network;
use crate::farm::{Farm, Service};
use crate::net::wire::Mac;

/// Lifetime of a path MTU, in milliseconds, since the path may change (RFC 1191, section 6.3).
const PATH_MTU_MS: u64 = 10 * 60 * 1_000;
/// Interval at which the kernel is asked to confirm a known next hop, in milliseconds. Otherwise
/// the kernel would forget the next hop, since it does not see the packets that an engine sends.
const CONFIRM_MS: u64 = 10_000;
/// Minimum interval between requests for an unknown next hop, in milliseconds.
const REQUEST_INTERVAL_MS: u64 = 1_000;

/// Facts about paths to servers that the kernel's tables do not contain.
#[derive(Clone, Debug, Default)]
pub(super) struct Paths {
    /// Path MTU to a server in bytes, with its expiry in milliseconds.
    mtus: BTreeMap<IpAddr, (u16, u64)>,
    /// Time of the last request to resolve a next hop, in milliseconds.
    requested_ms: BTreeMap<(u32, IpAddr), u64>,
}

impl Paths {
    /// Returns the part of the network that `Membership` reads: this host's links, and the paths to
    /// servers that are reached by IP routes.
    pub(super) fn surroundings(
        &self,
        farm: &Farm,
        network: &Network,
        links: &BTreeMap<u32, Mac>,
    ) -> LocalNetwork {
        let mut around = network.surroundings(links.keys().copied());
        for address in routed(farm) {
            around.hops.extend(self.hop(farm, network, address, None).map(|hop| (address, hop)));
        }
        around
    }

    /// Returns the path to a server. If the kernel has forgotten the next hop's MAC address, the
    /// address in `known` is used.
    pub(super) fn hop(
        &self,
        farm: &Farm,
        network: &Network,
        address: IpAddr,
        known: Option<Mac>,
    ) -> Option<ServerRoute> {
        let next = network.next_hop(address)?;
        let place = LinkAddress { mac: next.mac.or(known)?, ifindex: next.ifindex };
        let own = network.source_towards(address)?;
        let mtu = u16::try_from(next.mtu).unwrap_or(u16::MAX);
        let path = self.mtus.get(&address).map_or(u16::MAX, |(mtu, _)| *mtu);
        Some(ServerRoute {
            place,
            own,
            tunnel: tunnel_source(farm, network, own),
            mtu: mtu.min(path),
            on_link: next.gateway.is_none(),
        })
    }
}

/// Returns the addresses of all servers that are reached by IP routes, including those on a link of
/// this host.
fn routed(farm: &Farm) -> BTreeSet<IpAddr> {
    let services = farm.services.iter().filter(|service| service.is_routed());
    services.flat_map(|service| &service.servers).map(|server| server.address).collect()
}

/// Returns the outer source address of tunnels. That is `own` if the farm lists `own` as a tunnel
/// source, or lists no address of this host. Otherwise it is the first address of this host in the
/// farm's list.
pub fn tunnel_source(farm: &Farm, network: &Network, own: IpAddr) -> IpAddr {
    let listed = farm.tunnel_sources();
    let mut here = listed.iter().filter(|at| at.is_ipv4() == own.is_ipv4() && network.is_local(**at));
    if listed.contains(&own) { own } else { here.next().copied().unwrap_or(own) }
}

/// Reason why this host can't answer clients as a server of a `nat` service. Packets of this host's
/// own stack are not translated, so this host must answer from the service's address and port.
pub fn why_not_itself(service: &Service, server: &str, network: &Network) -> Option<String> {
    if !service.method.translates() {
        return None;
    }
    if !service.keeps_ports(server) {
        return Some(
            "it is this host itself, whose replies aren't translated: it must serve on the service's port"
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
    /// Orders the kernel to resolve unknown next hops, and to confirm known ones every 10 seconds.
    /// The results arrive as [`super::Input::Network`].
    pub(super) fn resolve_next_hops(&mut self, now_ms: u64) {
        let hops = routed(&self.farm).into_iter().filter_map(|address| {
            let hop = self.network.next_hop(address)?;
            Some(((hop.ifindex, hop.gateway.unwrap_or(address)), hop.mac.is_some()))
        });
        let hops: BTreeMap<_, _> = hops.collect();
        let requested_ms = &mut self.paths.requested_ms;
        requested_ms.retain(|hop, _| hops.contains_key(hop));
        for ((ifindex, address), known) in hops {
            let pause_ms = if known { CONFIRM_MS } else { REQUEST_INTERVAL_MS };
            let last_ms = requested_ms.get(&(ifindex, address));
            if last_ms.is_none_or(|last_ms| now_ms >= last_ms.saturating_add(pause_ms)) {
                requested_ms.insert((ifindex, address), now_ms);
                self.outputs.push_back(Output::Resolve { ifindex, address });
            }
        }
    }

    /// Stores a path MTU that a router reported, for 10 minutes. Reports about unknown servers are
    /// ignored.
    pub(super) fn path_mtu(&mut self, from: IpAddr, to: IpAddr, mtu: u16, now_ms: u64) {
        if !routed(&self.farm).contains(&to) || !self.network.is_local(from) {
            return;
        }
        let until_ms = now_ms.saturating_add(PATH_MTU_MS);
        let before = self.paths.mtus.insert(to, (mtu, until_ms));
        if before.is_none_or(|(before, _)| before != mtu) {
            self.emit(Event::PathMtu { server: to, mtu });
            self.update_membership(now_ms);
        }
    }

    /// Removes expired path MTUs and path MTUs of removed servers.
    pub(super) fn forget_path_mtus(&mut self, now_ms: u64) {
        let servers = routed(&self.farm);
        self.paths.mtus.retain(|server, (_, until_ms)| *until_ms > now_ms && servers.contains(server));
    }
}
