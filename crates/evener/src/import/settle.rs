//! Removes from the draft the parts that `evener check` rejects, and reports them as left.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;

use evener_core::path::tables::SERVICES_MAX;

use super::draft::{DraftHealth, DraftRoute, DraftServer, DraftService, Sourced};
use super::ledger::Ledger;
use super::reasons::{self, LeftReason, Weight};
use super::render::{self, DraftPart, Rendered};
use crate::config;

/// A part of the draft that the check rejects.
struct Refused {
    part: DraftPart,
    reason: LeftReason,
}

/// A removed part: its name in a report, and its places.
struct RemovedPart {
    text: String,
    lines: BTreeSet<usize>,
}

/// Limits that are applied before the check, because the check would reject each surplus part
/// separately.
pub(super) const ADDRESSES: usize = config::VIPS;
pub(super) const SERVERS: usize = config::SERVERS;
pub(super) const ROUTES: usize = config::ROUTES;
const FARM_ROUTES: usize = config::FARM_ROUTES;

/// Returns the farm as TOML that passes the check. Services that can't be repaired are removed.
pub(super) fn farm(
    services: &mut Vec<DraftService>,
    ledger: &mut Ledger<'_>,
    head: &[String],
    director: &str,
) -> Rendered {
    loop {
        services.retain(|service| !service.addresses.is_empty() && !service.servers.is_empty());
        let rendered = render::farm(services, head, director);
        if services.is_empty() {
            return rendered;
        }
        let mut refused = refused(&rendered);
        if refused.is_empty() {
            return rendered;
        }
        // Removal from the end keeps the numbers of the other parts valid.
        refused.sort_by_key(|refused| std::cmp::Reverse(order(refused.part)));
        refused.dedup_by_key(|refused| order(refused.part));
        let mut gone = None;
        for Refused { part, reason } in refused {
            let at = order(part).0;
            if gone != Some(at) && remove(services, ledger, part, &reason) {
                gone = Some(at);
            }
        }
    }
}

/// Removes the parts beyond the limits of a farm.
pub(super) fn limit(services: &mut Vec<DraftService>, ledger: &mut Ledger<'_>) {
    let before = all_lines(services);
    let mut removed = Vec::new();
    let mut addresses = 0;
    services.retain_mut(|service| {
        let gone = service.addresses.split_off(service.addresses.len().min(ADDRESSES));
        removed.extend(gone.iter().map(RemovedPart::address));
        let gone = service.servers.split_off(service.servers.len().min(SERVERS));
        removed.extend(gone.iter().map(RemovedPart::server));
        removed.extend(without_servers(service));
        let fits = addresses + service.addresses.len() <= ADDRESSES;
        addresses += if fits { service.addresses.len() } else { 0 };
        if !fits {
            removed.push(RemovedPart::service(service));
        }
        fits
    });
    let gone = named(before, services, ledger, removed, &reasons::TOO_MANY);
    let mut removed = Vec::new();
    let (mut sets, mut routes) = (SERVICES_MAX.saturating_sub(services.len()), FARM_ROUTES);
    for service in services.iter_mut() {
        removed.extend(limit_routes(service, &mut sets, &mut routes));
    }
    named(gone, services, ledger, removed, &reasons::TOO_MANY_ROUTES);
}

/// Removes the routes beyond the limits, but never the catch-all route.
/// Without a catch-all route, other requests would go to the servers of the remaining routes.
fn limit_routes(service: &mut DraftService, sets: &mut usize, routes: &mut usize) -> Vec<RemovedPart> {
    let is_rest =
        |route: &DraftRoute| route.host.is_none() && route.path.is_none() && route.methods.is_empty();
    let rest = service.routes.iter().find(|route| is_rest(route)).map(set_of);
    let mut removed = Vec::new();
    if let Some(rest) = rest.as_ref().filter(|_| *sets == 0 || *routes == 0) {
        // No route is left, so the service keeps only the servers of the catch-all route.
        let is_of_rest = |server: &DraftServer| server.name.as_ref().is_some_and(|name| rest.contains(name));
        let (stay, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut service.servers).into_iter().partition(is_of_rest);
        service.servers = stay;
        removed.extend(gone.iter().map(RemovedPart::server));
        let gone = std::mem::take(&mut service.routes).into_iter().filter(|route| !is_rest(route));
        removed.extend(gone.map(|route| RemovedPart::route(&route)));
        return removed;
    }
    let mut known: BTreeSet<BTreeSet<String>> = rest.into_iter().collect();
    let mut routes_left = ROUTES.min(*routes).saturating_sub(known.len());
    service.routes.retain(|route| {
        let set = set_of(route);
        let fits = is_rest(route) || routes_left > 0 && (known.contains(&set) || known.len() < *sets);
        match fits {
            true if is_rest(route) => {}
            true => {
                routes_left -= 1;
                known.insert(set);
            }
            false => removed.push(RemovedPart::route(route)),
        }
        fits
    });
    *sets = sets.saturating_sub(known.len());
    *routes = routes.saturating_sub(service.routes.len());
    removed
}

/// Returns the servers of a route.
fn set_of(route: &DraftRoute) -> BTreeSet<String> {
    route.servers.iter().cloned().collect()
}

/// Drops removed servers from the routes. Returns the routes that have no server left, which are
/// removed.
fn without_servers(service: &mut DraftService) -> Vec<RemovedPart> {
    let names: BTreeSet<&String> = service.servers.iter().filter_map(|server| server.name.as_ref()).collect();
    let mut removed = Vec::new();
    service.routes.retain_mut(|route| {
        route.servers.retain(|server| names.contains(server));
        if route.servers.is_empty() {
            removed.push(RemovedPart::route(route));
        }
        !route.servers.is_empty()
    });
    removed
}

fn all_lines(services: &[DraftService]) -> BTreeSet<usize> {
    services.iter().flat_map(DraftService::all_lines).collect()
}

/// Reports all removed parts, and returns the places that are still in use.
/// A place that is no longer in use is left as a whole. Otherwise only the removed part of it is
/// left.
fn named(
    before: BTreeSet<usize>,
    services: &[DraftService],
    ledger: &mut Ledger<'_>,
    removed: Vec<RemovedPart>,
    reason: &LeftReason,
) -> BTreeSet<usize> {
    let after = all_lines(services);
    let gone: BTreeSet<usize> = before.difference(&after).copied().collect();
    ledger.take_back(&gone, &after, reason);
    // All parts of a line become one entry, because a range of addresses or a condition can have
    // hundreds of parts.
    let mut parts: BTreeMap<BTreeSet<usize>, Vec<String>> = BTreeMap::new();
    for RemovedPart { text, lines } in removed {
        if lines.is_subset(&after) {
            parts.entry(lines).or_default().push(text);
        }
    }
    for (lines, texts) in parts {
        let (Some(line), [first, rest @ ..]) = (lines.last().copied(), &texts[..]) else { continue };
        let text = match rest.last() {
            Some(last) => format!("{} parts of it: {first} to {last}", texts.len()),
            None => first.clone(),
        };
        ledger.leave_part(line, &text, reason);
    }
    after
}

impl RemovedPart {
    fn address(address: &Sourced<SocketAddr>) -> RemovedPart {
        RemovedPart { text: format!("address {}", address.value), lines: BTreeSet::from([address.line]) }
    }

    fn server(server: &DraftServer) -> RemovedPart {
        let name = server.name.clone().unwrap_or_else(|| server.address.value.to_string());
        let lines = server.lines.iter().copied().chain([server.address.line]).collect();
        RemovedPart { text: format!("server {name}"), lines }
    }

    fn route(route: &DraftRoute) -> RemovedPart {
        let mut text = "the route".to_owned();
        let parts = [("host", &route.host), ("path", &route.path)];
        for (key, value) in parts.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?))) {
            let _ = write!(text, " {key} {value}");
        }
        if !route.methods.is_empty() {
            let _ = write!(text, " methods {}", route.methods.join(" "));
        }
        RemovedPart { text, lines: route.lines.clone() }
    }

    fn service(service: &DraftService) -> RemovedPart {
        RemovedPart { text: format!("service {}", service.name), lines: service.all_lines() }
    }
}

/// Returns the sort key: the service comes before its parts.
fn order(part: DraftPart) -> (usize, u8, usize) {
    match part {
        DraftPart::Farm => (0, 0, 0),
        DraftPart::Service(at) => (at, 0, 0),
        DraftPart::Health(at) => (at, 1, 0),
        DraftPart::Address(at, number) => (at, 2, number),
        DraftPart::Server(at, number) => (at, 3, number),
        DraftPart::Route(at, number) => (at, 4, number),
    }
}

fn refused(rendered: &Rendered) -> Vec<Refused> {
    let Err(problems) = config::parse(&rendered.text, "evener.toml") else { return Vec::new() };
    let reports = problems.reports().map(|report| Refused {
        part: report
            .line
            .and_then(|line| rendered.parts.get(line - 1).copied())
            .filter(|part| *part != DraftPart::Farm)
            // A problem without a part removes the last service, so that the loop always ends.
            .unwrap_or_else(|| last(rendered)),
        reason: LeftReason {
            weight: Weight::Served,
            why: format!("`evener check` refuses what it would become: {}", report.message).into(),
            todo: report.help.to_owned().into(),
        },
    });
    reports.collect()
}

fn last(rendered: &Rendered) -> DraftPart {
    let at = rendered.parts.iter().map(|part| order(*part).0).max();
    DraftPart::Service(at.unwrap_or_default())
}

/// Removes a part, and returns true if its service is removed with it.
fn remove(
    services: &mut Vec<DraftService>,
    ledger: &mut Ledger<'_>,
    part: DraftPart,
    reason: &LeftReason,
) -> bool {
    let before = all_lines(services);
    let at = order(part).0.min(services.len().saturating_sub(1));
    let Some(service) = services.get_mut(at) else { return true };
    let taken = remove_part(service, part);
    let is_gone = taken.is_none() || service.addresses.is_empty() || service.servers.is_empty();
    let mut removed = taken.unwrap_or_default();
    if is_gone {
        removed.push(RemovedPart::service(service));
        services.remove(at);
    }
    named(before, services, ledger, removed, reason);
    is_gone
}

/// Removes a part from its service. Returns `None` if the service can't work without it.
fn remove_part(service: &mut DraftService, part: DraftPart) -> Option<Vec<RemovedPart>> {
    match part {
        DraftPart::Address(_, number) if number < service.addresses.len() => {
            Some(vec![RemovedPart::address(&service.addresses.remove(number))])
        }
        DraftPart::Server(_, number) if number < service.servers.len() => {
            let gone = RemovedPart::server(&service.servers.remove(number));
            Some([gone].into_iter().chain(without_servers(service)).collect())
        }
        DraftPart::Route(_, number) if number < service.routes.len() => {
            let mut gone = RemovedPart::route(&service.routes.remove(number));
            // The catch-all route has no place of its own.
            if gone.lines.is_empty() {
                gone.lines.extend(service.lines.first());
            }
            Some(vec![gone])
        }
        DraftPart::Health(_) if service.health != DraftHealth::default() => {
            service.health = DraftHealth::default();
            let lines = service.lines.first().copied().into_iter().collect();
            Some(vec![RemovedPart { text: "its checks".to_owned(), lines }])
        }
        _ => None,
    }
}
