//! Explanations of servers' effective weights.

use evener_core::director::ServerSnapshot;
use evener_core::farm::Service;
use evener_core::path::select::SCORE_UNIT;
use evener_core::pool::policy;
use evener_core::pool::serving::{DISBELIEVED, STANDS_BY};
use evener_core::pool::signals::Signal;
use evener_core::pool::{FULL_WEIGHT, ServerState};

/// Returns the effective part of the weight of a server that gets new sessions, between 0 and 1.
pub(super) fn share(seen: &ServerSnapshot) -> f64 {
    let by_score = SCORE_UNIT as f64 / (SCORE_UNIT as f64 + f64::from(seen.score));
    f64::from(seen.tenths) / f64::from(FULL_WEIGHT) * by_score
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
    if let Some(percent) = percent {
        return Some(format!("reported {percent} %{ago}"));
    }
    if (1..FULL_WEIGHT).contains(&seen.tenths) {
        return Some(format!("slow start {} %", seen.tenths * 100 / FULL_WEIGHT));
    }
    let weighing = policy::for_packets(service.policy)?.weighing?;
    let description = (weighing.describe)(&seen.signals);
    let ago = if weighing.needs.contains(&Signal::Load) { ago } else { String::new() };
    Some(description.map_or_else(|| "no report: the median".to_owned(), |description| description + &ago))
}
