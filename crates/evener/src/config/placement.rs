//! `placement` of a service, and the rules of every-host for the file.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use evener_core::farm::{Method, Placement, Server};
use toml::Spanned;

use super::keys::tables::service;
use super::once::FirstSeen;
use super::problems::{Problem, Span};
use super::section::Section;
use super::service::ServiceEntry;
use super::{FarmConfig, values};

pub(super) const PLACEMENTS: [(&str, Placement); 2] =
    [("director", Placement::Director), ("every-host", Placement::EveryHost)];

pub(super) fn read(section: &mut Section<'_>) -> Placement {
    let placement = section.word(&service::PLACEMENT, &PLACEMENTS);
    section.scope().placement = placement;
    placement
}

pub(super) fn stateless(section: &Section<'_>, placement: Placement, policy: &str) -> bool {
    let Some(stateless) = section.get(&service::STATELESS, values::flag) else { return false };
    if placement == Placement::EveryHost && policy != "hash" && *stateless.get_ref() {
        let message = "only policy \"hash\" comes to the same choice for every packet without remembering it";
        let help = "write policy = \"hash\", or remove `stateless`";
        section.problem(Problem::new(stateless.span(), message, help));
    }
    stateless.into_inner()
}

/// Reports settings that would change the tables of a stateless service often. Its connections
/// have no sessions, so each change of the tables moves some of them.
pub(super) fn check_stateless(section: &Section<'_>, servers: &[Server]) {
    let Some(span) = section.key_span(service::STATELESS.name) else { return };
    let help = "remove it, or remove `stateless`";
    for key in [&service::REPORT, &service::SLOW_START] {
        if let Some(span) = section.key_span(key.name) {
            let message = format!("`{}` would move open connections with each change of a weight", key.name);
            section.problem(Problem::new(span, message, help));
        }
    }
    if servers.iter().any(|server| server.max_connections > 0) {
        let message = "`max_connections` counts sessions, and a stateless service has none";
        let help = "remove `max_connections` of its servers, or remove `stateless`";
        section.problem(Problem::new(span, message, help));
    }
}

/// Adds published addresses to the service's addresses, with the port of the service's first
/// address.
pub(super) fn join(addresses: &mut Vec<Spanned<SocketAddr>>, published: &[PublishedAddress]) {
    let Some(port) = addresses.first().map(|first| first.get_ref().port()) else { return };
    for PublishedAddress { address, .. } in published {
        let ip = *address.get_ref();
        if !addresses.iter().any(|known| known.get_ref().ip() == ip) {
            addresses.push(Spanned::new(address.span(), SocketAddr::new(ip, port)));
        }
    }
}

/// A service address that a host owns.
pub(super) struct PublishedAddress {
    pub(super) host: String,
    pub(super) address: Spanned<IpAddr>,
}

/// Checks the settings that hosts need to authenticate each other.
pub(super) fn check(root: &Section<'_>, farm: &FarmConfig, placed: &[ServiceEntry]) {
    if farm.secret_file.is_none() {
        check_secret(root, placed);
    }
    if farm.directors.is_empty() {
        check_directors(root, placed);
    }
    let every_host = || placed.iter().filter(|placed| placed.service.is_on_every_host());
    check_names(root, every_host());
    check_owners(root, every_host());
}

/// Reports the first service that needs the farm's secret.
fn check_secret(root: &Section<'_>, placed: &[ServiceEntry]) {
    let needs = placed.iter().find_map(|placed| match &placed.service {
        service if service.is_on_every_host() => {
            Some((placed, "hosts of placement \"every-host\" know each other by"))
        }
        service if service.method.hands_over() => {
            Some((placed, "servers know connections of method \"handoff\" by"))
        }
        _ => None,
    });
    if let Some((placed, needs)) = needs {
        let message = format!("{needs} a secret, and [farm] names none");
        let help = "run `evener keygen FILE` once, copy FILE to every host, and add secret_file = \"FILE\" to [farm]";
        root.problem(Problem::new(placed.name.clone(), message, help));
    }
}

/// Reports the first service whose servers would accept no director.
fn check_directors(root: &Section<'_>, placed: &[ServiceEntry]) {
    let needs = placed.iter().filter(|placed| !placed.service.is_on_every_host()).find_map(|placed| {
        match placed.service.method {
            Method::Tunnel => Some((placed, "servers accept tunnels of method \"tunnel\"")),
            Method::Handoff => Some((placed, "servers acknowledge connections of method \"handoff\"")),
            Method::L2 | Method::Nat => None,
        }
    });
    if let Some((placed, needs)) = needs {
        let message = format!("{needs} from listed directors only, and [farm] lists none");
        let help = "add directors = [\"192.0.2.2\"] to [farm], with the own address of each host that runs `evener run`";
        root.problem(Problem::new(placed.name.clone(), message, help));
    }
}

/// Reports hosts whose name or address differs between services.
fn check_names<'a>(root: &Section<'_>, placed: impl Iterator<Item = &'a ServiceEntry>) {
    let mut known: Vec<(&Server, &Span)> = Vec::new();
    for ServiceEntry { service, name: span, .. } in placed {
        for server in &service.servers {
            let differs = |(other, _): &&(&Server, &Span)| {
                (other.name == server.name) != (other.address == server.address)
            };
            if let Some((other, there)) = known.iter().find(differs) {
                let message = format!(
                    "{} has the address {} in this service, and {} has {} in another",
                    server.name, server.address, other.name, other.address
                );
                let help = "give a host the same name and the same address in every service";
                root.problem(Problem::new(span.clone(), message, help).also((*there).clone(), "the other"));
            }
        }
        known.extend(service.servers.iter().map(|server| (server, span)));
    }
}

/// Reports addresses that several hosts publish, and published addresses that are a host's own.
fn check_owners<'a>(root: &Section<'_>, placed: impl Iterator<Item = &'a ServiceEntry>) {
    let mut owners: BTreeMap<IpAddr, (&str, Span)> = BTreeMap::new();
    for ServiceEntry { service, published, .. } in placed {
        let mut of_service = FirstSeen::new();
        for PublishedAddress { host, address } in published {
            let ip = *address.get_ref();
            let help = "an address is one host's: remove it from the other";
            let message = format!("{ip} is published twice in this service");
            let new = of_service.first(root, ip, address.span(), message, help);
            let owner = owners.entry(ip).or_insert((host, address.span()));
            if new && owner.0 != host {
                let message =
                    format!("{ip} is published by {host} here and by {} in another service", owner.0);
                root.problem(Problem::new(address.span(), message, help).also(owner.1.clone(), "first here"));
            }
            if let Some(own) = service.servers.iter().find(|server| server.address == ip) {
                let message =
                    format!("{ip} is the own address of {}, and can't be the service's too", own.name);
                let help = "publish another one, which clients connect to";
                root.problem(Problem::new(address.span(), message, help));
            }
        }
    }
}
