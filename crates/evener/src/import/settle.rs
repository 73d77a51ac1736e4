//! Holds the draft against `evener check`: what it refuses is taken out again, and named as left.

use std::collections::BTreeSet;

use super::draft::{DraftHealth, DraftService};
use super::ledger::Ledger;
use super::reasons;
use super::render::{self, DraftPart, Rendered};
use crate::config;

/// Something that the check refused.
struct Refused {
    part: DraftPart,
    why: String,
    todo: String,
}

/// Addresses of all services together, servers of one, and sets of servers that routes name: more
/// are refused one by one, so they are counted first.
pub(super) const ADDRESSES: usize = 64;
pub(super) const SERVERS: usize = 256;
const ROUTES: usize = 32;

/// The farm as TOML that passes the check; services that can't be mended are gone.
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
        // From behind, so that the numbers of the others stay.
        refused.sort_by_key(|refused| std::cmp::Reverse(order(refused.part)));
        refused.dedup_by_key(|refused| order(refused.part));
        let mut gone = None;
        for Refused { part, why, todo } in refused {
            let at = order(part).0;
            if gone != Some(at) && remove(services, ledger, part, &why, &todo) {
                gone = Some(at);
            }
        }
    }
}

/// Leaves what is beyond the limits of a farm.
pub(super) fn limit(services: &mut Vec<DraftService>, ledger: &mut Ledger<'_>) {
    let before: BTreeSet<usize> = services.iter().flat_map(DraftService::all_lines).collect();
    let (mut addresses, mut routes) = (0, 0);
    services.retain_mut(|service| {
        service.servers.truncate(SERVERS);
        service.addresses.truncate(ADDRESSES);
        service.routes.truncate(ROUTES.saturating_sub(routes));
        let names: BTreeSet<&String> =
            service.servers.iter().filter_map(|server| server.name.as_ref()).collect();
        for route in &mut service.routes {
            route.servers.retain(|server| names.contains(server));
        }
        service.routes.retain(|route| !route.servers.is_empty());
        routes += service.routes.len();
        addresses += service.addresses.len();
        addresses <= ADDRESSES
    });
    let after: BTreeSet<usize> = services.iter().flat_map(DraftService::all_lines).collect();
    let gone: BTreeSet<usize> = before.difference(&after).copied().collect();
    ledger.take_back(&gone, &after, reasons::TOO_MANY.why, reasons::TOO_MANY.todo);
}

/// Parts within services, behind the service itself.
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
            // One that fits nowhere is the last service's, lest nothing would come of it.
            .unwrap_or_else(|| last(rendered)),
        why: format!("`evener check` refuses what it would become: {}", report.message),
        todo: report.help.to_owned(),
    });
    reports.collect()
}

fn last(rendered: &Rendered) -> DraftPart {
    let at = rendered.parts.iter().map(|part| order(*part).0).max();
    DraftPart::Service(at.unwrap_or_default())
}

/// Takes a part out; `true` where its service is gone with it.
fn remove(
    services: &mut Vec<DraftService>,
    ledger: &mut Ledger<'_>,
    part: DraftPart,
    why: &str,
    todo: &str,
) -> bool {
    let before: BTreeSet<usize> = services.iter().flat_map(DraftService::all_lines).collect();
    let at = order(part).0.min(services.len().saturating_sub(1));
    let Some(service) = services.get_mut(at) else { return true };
    let line = service.lines.first().copied();
    let is_whole = !remove_part(service, part);
    if let (DraftPart::Health(_), false, Some(line)) = (part, is_whole, line) {
        ledger.leave_span(line..=line, Some("its checks"), why, todo);
    }
    let is_gone = is_whole || service.addresses.is_empty() || service.servers.is_empty();
    if is_gone {
        services.remove(at);
    }
    let after: BTreeSet<usize> = services.iter().flat_map(DraftService::all_lines).collect();
    let gone: BTreeSet<usize> = before.difference(&after).copied().collect();
    ledger.take_back(&gone, &after, why, todo);
    is_gone
}

/// Takes a part out of its service; `false` where the service can't do without.
fn remove_part(service: &mut DraftService, part: DraftPart) -> bool {
    match part {
        DraftPart::Address(_, number) if number < service.addresses.len() => {
            service.addresses.remove(number);
        }
        DraftPart::Server(_, number) if number < service.servers.len() => {
            let gone = service.servers.remove(number).name;
            for route in &mut service.routes {
                route.servers.retain(|server| Some(server) != gone.as_ref());
            }
            service.routes.retain(|route| !route.servers.is_empty());
        }
        DraftPart::Route(_, number) if number < service.routes.len() => {
            service.routes.remove(number);
        }
        DraftPart::Health(_) if service.health != DraftHealth::default() => {
            service.health = DraftHealth::default();
        }
        _ => return false,
    }
    true
}
