//! The nodes to speak with: hosts of the file, and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use evener_core::farm::Service;

use crate::config::Config;
use crate::io::network::Network;

/// This host's role where connections are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeRole {
    /// Has clients' connections, and gives them away.
    Director,
    /// Takes them.
    Server,
    /// Does both.
    Host,
}

/// The other nodes, each with the address of this host that it is spoken to from, while a route
/// leads there. Servers have nothing to say to each other.
pub(super) fn nodes(part: NodeRole, config: &Config, network: &Network) -> BTreeMap<IpAddr, Option<IpAddr>> {
    let servers =
        config.handed_over().filter(|_| part != NodeRole::Server).flat_map(|service| &service.servers);
    let dispatcher = config.farm.dispatcher.filter(|_| part != NodeRole::Server);
    let all: BTreeSet<IpAddr> =
        servers.map(|server| server.address).chain(config.tunnel_sources()).chain(dispatcher).collect();
    let others = all.into_iter().filter(|address| !network.is_local(*address));
    others.map(|address| (address, network.source_towards(address))).collect()
}

/// This host's addresses that the file has, by which others know it.
pub(super) fn own(config: &Config, network: &Network) -> BTreeSet<IpAddr> {
    let servers = config.handed_over().flat_map(|service| &service.servers).map(|server| server.address);
    let known = servers.chain(config.tunnel_sources()).chain(config.farm.dispatcher);
    known.filter(|address| network.is_local(*address)).collect()
}

/// The services whose connections are taken. A host that gives connections away takes those of
/// which it is a server, too.
pub(super) fn served(part: NodeRole, config: &Config, network: &Network) -> BTreeSet<SocketAddr> {
    let serves = |service: &&Service| {
        let is_here = || service.servers.iter().any(|server| network.is_local(server.address));
        part == NodeRole::Server || service.is_on_every_host() && is_here()
    };
    config.handed_over().filter(serves).flat_map(|service| &service.addresses).copied().collect()
}
