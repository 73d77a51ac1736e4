//! Explanations of servers' effective weights.

use evener_core::director::ServerSnapshot;
use evener_core::farm::Service;
use evener_core::farm::membership::ServerOrigin;
use evener_core::node::peers::HostedServer;
use evener_core::path::select::SCORE_UNIT;
use evener_core::pool::policy;
use evener_core::pool::serving::{DISBELIEVED, STANDS_BY};
use evener_core::pool::signals::Signal;
use evener_core::pool::{FULL_WEIGHT, ServerState};

use super::overrides::OverrideView;

/// Returns the effective part of the weight of a server that gets new sessions, between 0 and 1.
pub(super) fn share(seen: &ServerSnapshot) -> f64 {
    let by_score = SCORE_UNIT as f64 / (SCORE_UNIT as f64 + f64::from(seen.score));
    f64::from(seen.tenths) / f64::from(FULL_WEIGHT) * by_score
}

/// Explains where the weight of a server comes from, and why only a part of it is in force.
/// `changed` is the change of the weight at run time.
pub(super) fn weight(
    service: &Service,
    seen: &ServerSnapshot,
    changed: Option<&OverrideView>,
    since_ms: u64,
) -> String {
    let name = &seen.name.server;
    let weight = match changed {
        Some(changed) => changed.sentence(),
        None => format!("weight {}", seen.member.weight),
    };
    let source = match (seen.hosted.and_then(|hosted| hosted.weight), seen.member.source) {
        (Some(_), _) => format!(", as {name} itself reports"),
        (None, _) if changed.is_some() => String::new(),
        (None, ServerOrigin::Discovered) => ", as every discovered server".to_owned(),
        (None, ServerOrigin::Listed) => ", from the file".to_owned(),
    };
    let in_force = match cause(service, seen, since_ms) {
        Some(cause) => format!("; {:.0} % of it are in force: {cause}", share(seen) * 100.0),
        None => String::new(),
    };
    format!("{name} has {weight}{source}{in_force}")
}

/// Explains why a working backup gets no new sessions.
pub(super) fn stands_by(seen: &ServerSnapshot) -> Option<String> {
    let works = seen.state == ServerState::Up && seen.slot.is_some();
    (seen.member.backup && works).then(|| STANDS_BY.to_owned())
}

/// Explains why the weight is reduced, or on which load the choice is based. `since_ms` is the age
/// of the snapshot.
pub(super) fn cause(service: &Service, seen: &ServerSnapshot, since_ms: u64) -> Option<String> {
    if seen.state == ServerState::Down {
        return Some(DISBELIEVED.to_owned());
    }
    let age = seen.signals.age_ms.map(|age_ms| (age_ms + since_ms) / 1_000);
    let ago = age.map_or_else(String::new, |age| format!(" {age} s ago"));
    let percent = seen.signals.report.percent.filter(|percent| *percent < 100);
    let requested = |hosted: HostedServer| (hosted.tenths < FULL_WEIGHT).then_some(hosted.tenths * 10);
    if let Some(percent) = percent.or_else(|| seen.hosted.and_then(requested)) {
        return Some(format!("reported {percent} %{ago}"));
    }
    if (1..FULL_WEIGHT).contains(&seen.tenths) {
        return Some(format!("slow start {} %", seen.tenths * 100 / FULL_WEIGHT));
    }
    let weighing = policy::for_packets(service.policy)?.weighing?;
    let description = match seen.hosted {
        Some(hosted) => hosted.load.map(|load| format!("reported load {load}")),
        None => (weighing.describe)(&seen.signals),
    };
    let ago = if weighing.needs.contains(&Signal::Load) { ago } else { String::new() };
    Some(description.map_or_else(|| "no report: the median".to_owned(), |description| description + &ago))
}
