//! Checks the routes to servers, and their routes back.

use evener_core::director::{tunnel_source, why_not_itself};
use std::fs;
use std::net::IpAddr;

use evener_core::farm::{Server, Service};

use super::links::Links;
use crate::config::Config;
use crate::io::network::Network;
use crate::views::Finding;

/// Checks the routes to a service's servers, and as far as possible the routes back.
pub(super) fn check_routes(
    config: &Config,
    service: &Service,
    network: &Network,
    links: &Links,
) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        service.servers.iter().filter_map(|server| way(service, server, network, links)).collect();
    if service.method.sees_replies() && !service.source_nat {
        findings.push(Finding::ok(
            &service.name,
            "Servers must send their replies through this host, for example by a default route to it. Run `evener doctor` on a server to check that. With source_nat = true it is not needed.",
        ));
    }
    if service.method.encapsulates() {
        findings.extend(accepted(config, service, network));
    }
    findings
}

/// Finds routing loops. If this host forwards IP packets, it returns packets for other ports of a
/// service address to the router that sent the packets.
pub(super) fn loops(service: &Service, network: &Network) -> Option<Finding> {
    let away = |address: &IpAddr| {
        let path = match address {
            IpAddr::V4(_) => "/proc/sys/net/ipv4/ip_forward",
            IpAddr::V6(_) => "/proc/sys/net/ipv6/conf/all/forwarding",
        };
        let forwards = fs::read_to_string(path).is_ok_and(|text| text.trim() != "0");
        let hop = network.next_hop(*address).filter(|_| forwards && !network.is_local(*address))?;
        hop.gateway
    };
    let addresses = service.addresses.iter().map(|address| address.ip());
    let (address, gateway) = addresses.filter_map(|address| Some((address, away(&address)?))).next()?;
    let message = format!(
        "This host forwards, and its route to {address} leads to {gateway}: packets for ports without a service \
         would go round between the two. `ip route add unreachable {address}` ends that."
    );
    Some(Finding::warn(&service.name, message))
}

fn way(service: &Service, server: &Server, network: &Network, links: &Links) -> Option<Finding> {
    let (check, address) = (format!("{}/{}", service.name, server.name), server.address);
    if network.is_local(address) {
        // Missing service addresses are reported by another check.
        let elsewhere = !service.keeps_ports(&server.name);
        return why_not_itself(service, &server.name, network)
            .filter(|_| elsewhere)
            .map(|reason| Finding::fail(check, format!("{reason}.")));
    }
    let Some(hop) = network.next_hop(address) else {
        let message = format!("No route leads to {address}; `ip route add {address} via GATEWAY`.");
        return Some(Finding::fail(check, message));
    };
    let next = hop.gateway.unwrap_or(address);
    if network.interfaces.get(&hop.ifindex).is_some_and(|interface| !interface.ethernet) {
        let message = format!("The route to {address} leads over an interface that is not Ethernet.");
        return Some(Finding::fail(check, message));
    }
    links.is_silent(next).then(|| {
        let protocol = if next.is_ipv4() { "ARP" } else { "neighbour discovery" };
        let who = if next == address { String::new() } else { format!("the gateway to {address}, ") };
        Finding::fail(check, format!("{who}{next} does not answer {protocol}; check that it runs."))
    })
}

/// Checks that servers accept tunnels from this director. The file must list this director for
/// that.
fn accepted(config: &Config, service: &Service, network: &Network) -> Option<Finding> {
    let farm = config.description();
    let sources = service.servers.iter().filter_map(|server| network.source_towards(server.address));
    let sources = sources.map(|own| tunnel_source(&farm, network, own));
    let unlisted: Option<IpAddr> =
        sources.into_iter().find(|source| !config.tunnel_sources().contains(source));
    unlisted.map(|source| {
        let message = format!(
            "Tunnel packets have the source {source}, which `directors` in [farm] does not list, so agents will drop them; add it on all hosts."
        );
        Finding::warn(&service.name, message)
    })
}
