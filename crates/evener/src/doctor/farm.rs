//! Compares the configuration with the network around this host.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use evener_core::farm::{Announce, Service};

use super::links::Links;
use super::{admin, host, hosts, ingress, owners, routed_servers};
use crate::announce;
use crate::cli::CONFIG_FILE;
use crate::config::{self, Config, EngineKind};
use crate::io::network::{Network, interface_name};
use crate::views::Finding;

/// Loads the file, if there is one.
pub(super) fn load(path: &Path, findings: &mut Vec<Finding>) -> Option<Config> {
    const CHECK: &str = "config";
    let name = path.display();
    if path == Path::new(CONFIG_FILE) && !path.exists() {
        let message = format!("There is no {name}; services and servers were not checked.");
        findings.push(Finding::ok(CHECK, message));
        return None;
    }
    match config::load(path) {
        Ok(config) => {
            findings.push(Finding::ok(CHECK, format!("{name} is valid.")));
            Some(config)
        }
        Err(problems) => {
            let first = problems.reports().next().map(|report| report.message.to_owned()).unwrap_or_default();
            let count = problems.reports().count();
            let errors = if count == 1 { "1 error".to_owned() } else { format!("{count} errors") };
            let message = format!("{name} has {errors}: {first}; `evener check {name}` shows all there is.");
            findings.push(Finding::fail(CHECK, message));
            None
        }
    }
}

/// Checks the network for this farm. `attached` are the interfaces of a running daemon.
pub(super) async fn check_farm(
    config: &Config,
    network: &Network,
    links: &Links,
    attached: Option<BTreeSet<String>>,
    findings: &mut Vec<Finding>,
) {
    let picked =
        network.pick_interfaces(&config.engine.interfaces, &config.services).unwrap_or_else(|error| {
            findings.push(Finding::fail("interfaces", format!("{error}.")));
            BTreeMap::new()
        });
    let interfaces: Vec<u32> = picked.keys().copied().collect();
    if !interfaces.is_empty() {
        links.check_links(interfaces.iter().copied(), findings);
    }
    let warn = |message| Finding::warn("directors", format!("{message}."));
    findings.extend(config.unlike_directors().into_iter().chain(config.misrouted_replies()).map(warn));
    let nat = config.services.iter().any(|service| service.method.translates());
    findings.push(forwarding(config.engine.kind, nat));
    for service in &config.services {
        findings.extend(addresses(service, network));
        findings.extend(routed_servers::loops(service, network));
        findings.extend(match service.is_routed() {
            true => routed_servers::check_routes(config, service, network, links),
            false => servers(service, network, links),
        });
    }
    let would_be = || picked.keys().map(|ifindex| interface_name(*ifindex)).collect();
    let attached = attached.unwrap_or_else(would_be);
    let (owners, arrivals) = tokio::join!(
        owners::check_owners(config, network, &picked),
        ingress::check_ingress(&config.services, links, &attached)
    );
    findings.extend(owners);
    findings.extend(arrivals);
    findings.extend(hosts::check_hosts(config, network));
    findings.extend(admin::check_admin(&config.admin));
    let local = config.services.iter().any(|service| has_local_server(service, network));
    let strict = links.strict_reverse_path(interfaces);
    findings.extend(reverse_path(&strict, local, nat));
}

/// Checks the kernel's reverse path filter if it would drop needed packets.
fn reverse_path(strict: &[&str], local: bool, nat: bool) -> Option<Finding> {
    let name = strict.first()?;
    let dropped = match (local, nat) {
        (true, _) => "what this host serves itself is dropped where the way back to a client leads",
        (false, true) => "what nat servers send through this host is dropped where the way to them leads",
        (false, false) => return None,
    };
    let message = format!(
        "Strict on {}: {dropped} through another interface; `sysctl -w net.ipv4.conf.{name}.rp_filter=2` makes it \
         loose.",
        strict.join(", ")
    );
    Some(Finding::warn("rp_filter", message))
}

/// Checks IP forwarding. The packet engine gets copies of packets, which the host's stack must not
/// forward a second time.
fn forwarding(kind: EngineKind, nat: bool) -> Finding {
    const CHECK: &str = "ip_forward";
    let on = fs::read_to_string("/proc/sys/net/ipv4/ip_forward").is_ok_and(|text| text.trim() != "0");
    match (on, host::has_nft(), kind) {
        (false, _, EngineKind::Auto | EngineKind::Xdp) if nat => Finding::ok(
            CHECK,
            "Off; method nat needs it with the kernel engine, and `evener run` switches it on while it runs, on its interfaces.",
        ),
        (false, ..) => Finding::ok(CHECK, "Off; Evener does not need it."),
        (true, true, _) => Finding::ok(CHECK, "On; the packet engine guards the services with nft."),
        (true, false, EngineKind::Packet) => Finding::fail(
            CHECK,
            "On, and there is no nft: this host would forward the packet engine's packets a second time; \
             install nftables or `sysctl -w net.ipv4.ip_forward=0`.",
        ),
        (true, false, _) => Finding::warn(
            CHECK,
            "On, and there is no nft: the packet engine, where xdp does not work, would not start; install \
             nftables.",
        ),
    }
}

fn has_local_server(service: &Service, network: &Network) -> bool {
    service.servers.iter().any(|server| network.is_local(server.address))
}

/// Checks which hosts have the service's addresses, and that this host has the addresses that it
/// serves.
fn addresses(service: &Service, network: &Network) -> Vec<Finding> {
    let addresses: BTreeSet<IpAddr> = service.addresses.iter().map(|address| address.ip()).collect();
    let (own, others): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| network.is_local(*address));
    let serves = has_local_server(service, network);
    match service.announce {
        Announce::Host => return moved_addresses(service, &own, &others),
        Announce::Route => return routed_addresses(service),
        Announce::Director | Announce::Never => {}
    }
    let mut findings = Vec::new();
    for address in &own {
        findings.push(match (serves, service.method.hands_over()) {
            (true, _) => {
                Finding::ok(&service.name, format!("{address} is this host's own, which serves it too."))
            }
            // A punted packet is delivered to this host's own stack.
            (false, true) => Finding::ok(
                &service.name,
                format!(
                    "{address} is this host's own: `evener run` puts it here, to read what clients ask for."
                ),
            ),
            (false, false) => Finding::ok(
                &service.name,
                format!("{address} is this host's own, so its stack answers on ports without a service."),
            ),
        });
    }
    // In an every-host farm, the daemon adds missing service addresses.
    for address in others.iter().filter(|_| serves && !service.is_on_every_host()) {
        let len = if address.is_ipv4() { 32 } else { 128 };
        let message = format!(
            "This host is one of the servers but does not have {address}: `ip address add {address}/{len} dev lo`."
        );
        findings.push(Finding::fail(&service.name, message));
    }
    if findings.is_empty() {
        let listed: Vec<_> = others.iter().map(IpAddr::to_string).collect();
        findings.push(Finding::ok(&service.name, format!("{} is not this host's own.", listed.join(", "))));
    }
    findings
}

/// Checks that the announcer keeps routes to the service's addresses.
fn routed_addresses(service: &Service) -> Vec<Finding> {
    let found = match announce::state() {
        Ok(found) => found,
        Err(error) => {
            return vec![Finding::warn(
                &service.name,
                format!("The announcer's state can't be read: {error}."),
            )];
        }
    };
    let Some(state) = found else {
        let message = "`evener announce` does not run, so no route follows the readiness of the addresses: \
                       `systemctl enable --now evener-announce`.";
        return vec![Finding::fail(&service.name, message)];
    };
    let addresses: BTreeSet<IpAddr> = service.addresses.iter().map(|address| address.ip()).collect();
    let problem = state.problem.iter().map(|problem| Finding::fail(&service.name, format!("{problem}.")));
    let of = |address: &IpAddr| match state.addresses.iter().find(|one| one.address == *address) {
        Some(one) => {
            let message = format!("{address} is {}.", one.describe());
            if one.is_announced() {
                Finding::ok(&service.name, message)
            } else {
                Finding::warn(&service.name, message)
            }
        }
        None => Finding::warn(&service.name, format!("{address} has no route yet.")),
    };
    problem.chain(addresses.iter().map(of)).collect()
}

/// Describes addresses that another program moves between directors.
fn moved_addresses(service: &Service, own: &[IpAddr], others: &[IpAddr]) -> Vec<Finding> {
    let here = own.iter().map(|address| format!("{address} is on this host now, so it serves its clients."));
    let away = others.iter().map(|address| {
        format!("{address} is not on this host now; it serves its clients as soon as keepalived gives it the address.")
    });
    let mut findings: Vec<Finding> = here.chain(away).map(|text| Finding::ok(&service.name, text)).collect();
    if service.method.translates() && !service.source_nat {
        findings.push(Finding::ok(
            &service.name,
            "With nat, replies must pass the director that has the address: the servers' gateway must be an address that moves with it (vrrp_sync_group), or set source_nat = true.",
        ));
    }
    findings
}

/// Checks that servers of method l2 are on a LAN of this host (LSMAC, section 3.1).
fn servers(service: &Service, network: &Network, links: &Links) -> Vec<Finding> {
    let listed = service.servers.iter().filter(|server| !network.is_local(server.address));
    let judged = listed.filter_map(|server| {
        let (check, address) = (format!("{}/{}", service.name, server.name), server.address);
        if network.route_to(address).is_none() {
            let help = "method l2 needs servers on a LAN that this host is on";
            return Some(Finding::fail(
                check,
                format!("{address} is on none of this host's networks; {help}."),
            ));
        }
        if server.mac.is_none() && links.is_silent(address) {
            let help = "look whether it runs, and on the same LAN";
            let protocol = if address.is_ipv4() { "ARP" } else { "neighbour discovery" };
            return Some(Finding::fail(check, format!("{address} does not answer {protocol}; {help}.")));
        }
        None
    });
    judged.collect()
}
