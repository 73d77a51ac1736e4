//! Nodes to exchange messages with: only hosts of the file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use evener_core::farm::Service;

use crate::config::Config;
use crate::io::network::Network;

/// Role of this host in handoffs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeRole {
    /// Holds clients' connections and hands them off.
    Director,
    Server,
    Host,
}

/// Returns the other nodes, each with this host's source address for it if there is a route.
/// Servers don't exchange messages with each other.
pub(super) fn nodes(part: NodeRole, config: &Config, network: &Network) -> BTreeMap<IpAddr, Option<IpAddr>> {
    let servers =
        config.handed_over().filter(|_| part != NodeRole::Server).flat_map(|service| &service.servers);
    let dispatcher = config.farm.dispatcher.filter(|_| part != NodeRole::Server);
    let all: BTreeSet<IpAddr> =
        servers.map(|server| server.address).chain(config.tunnel_sources()).chain(dispatcher).collect();
    let others = all.into_iter().filter(|address| !network.is_local(*address));
    others.map(|address| (address, network.source_towards(address))).collect()
}

/// Returns this host's addresses in the file, by which other nodes know it.
pub(super) fn own(config: &Config, network: &Network) -> BTreeSet<IpAddr> {
    let servers = config.handed_over().flat_map(|service| &service.servers).map(|server| server.address);
    let known = servers.chain(config.tunnel_sources()).chain(config.farm.dispatcher);
    known.filter(|address| network.is_local(*address)).collect()
}

/// Returns the services with connections that are accepted here. A host that hands connections off
/// also accepts connections of its own servers.
pub(super) fn served(part: NodeRole, config: &Config, network: &Network) -> BTreeSet<SocketAddr> {
    let serves = |service: &&Service| {
        let is_here = || service.servers.iter().any(|server| network.is_local(server.address));
        part == NodeRole::Server || service.is_on_every_host() && is_here()
    };
    config.handed_over().filter(serves).flat_map(|service| &service.addresses).copied().collect()
}
