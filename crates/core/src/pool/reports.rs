//! Reports of one server. They are queried at an interval, and expire when they are too old.

use alloc::collections::BTreeMap;

use super::change::{Effect, ServerChange, ServerEvent};
use super::report::{AdminState, BadReport, Report};
use super::{ClockReading, FULL_WEIGHT, Reporting};

/// A report expires if no valid report has followed for this many intervals and this many
/// milliseconds.
const EXPIRES_INTERVALS: u64 = 3;
const EXPIRES_MS: u64 = 10_000;

/// The reports of one server.
#[derive(Clone, Debug)]
pub struct Reports {
    query_at_ms: u64,
    /// Age at which a report expires, in milliseconds, by the interval at its query.
    expires_ms: u64,
    last: Option<(Report, u64)>,
    requested: RequestedWeight,
    seen: ReportsSnapshot,
}

/// Weight that a server requests by its report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RequestedWeight {
    tenths: u16,
    refuses: bool,
}

impl Default for RequestedWeight {
    fn default() -> Self {
        RequestedWeight { tenths: FULL_WEIGHT, refuses: false }
    }
}

impl RequestedWeight {
    /// Rounds the requested percentage to tenths, and to at least one tenth. Only 0 % drains the
    /// server, as in HAProxy's agent-check.
    fn of(report: &Report) -> RequestedWeight {
        let percent = report.percent.unwrap_or(100).min(100);
        RequestedWeight {
            tenths: ((percent + 5) / 10).clamp(1, FULL_WEIGHT),
            refuses: percent == 0 || report.claim == Some(AdminState::Drain),
        }
    }
}

/// State of a server's reports, for status output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportsSnapshot {
    /// Number of rejected reports by reason.
    pub bad: BTreeMap<BadReport, u64>,
    /// Reason of the last rejection, if the last report was rejected.
    pub error: Option<BadReport>,
}

/// Age at which a report expires, in milliseconds.
fn expires_ms(interval_ms: u64) -> u64 {
    interval_ms.saturating_mul(EXPIRES_INTERVALS).max(EXPIRES_MS)
}

impl Reports {
    /// Returns an empty state. The first queries to servers are spread over an interval, so that
    /// answers do not arrive all at once. `spread` is any number that differs among servers.
    pub fn new(settings: &Reporting, spread: u64, now_ms: u64) -> Reports {
        let query_at_ms = now_ms.saturating_add(spread % settings.interval.shortest_ms().max(1));
        Reports {
            query_at_ms,
            expires_ms: expires_ms(settings.interval.shortest_ms()),
            last: None,
            requested: RequestedWeight::default(),
            seen: ReportsSnapshot::default(),
        }
    }

    /// Time of the next query, in milliseconds.
    pub fn query_at_ms(&self) -> u64 {
        self.query_at_ms
    }

    /// Moves the next query to this time in milliseconds, unless it is earlier.
    pub fn query_by(&mut self, at_ms: u64) {
        self.query_at_ms = self.query_at_ms.min(at_ms);
    }

    /// Records a query that is sent now. An expired report is discarded together with the weight
    /// that it requested.
    pub fn note_query(&mut self, settings: &Reporting, now: ClockReading) -> ServerChange {
        let now_ms = now.now_ms;
        self.query_at_ms = now_ms.saturating_add(settings.interval.wait_ms(now));
        let next_ms = expires_ms(settings.interval.ms_at(now.second_of_day));
        let expires_ms = core::mem::replace(&mut self.expires_ms, next_ms);
        if self.latest(now_ms).is_none_or(|(_, age_ms)| age_ms < expires_ms) {
            return ServerChange::default();
        }
        self.last = None;
        self.request(RequestedWeight::default())
    }

    /// Applies a report, or the failure to get one.
    pub fn apply_result(&mut self, result: Result<Report, BadReport>, now_ms: u64) -> ServerChange {
        let error = result.err();
        let turned = (self.seen.error.is_some() != error.is_some()).then_some(error);
        self.seen.error = error;
        let mut change = match result {
            Ok(report) => {
                self.last = Some((report, now_ms));
                self.request(RequestedWeight::of(&report))
            }
            Err(bad) => {
                *self.seen.bad.entry(bad).or_default() += 1;
                ServerChange { effect: Effect::Load, ..ServerChange::default() }
            }
        };
        change.events.extend(turned.map(ServerEvent::Reports));
        change
    }

    fn request(&mut self, requested: RequestedWeight) -> ServerChange {
        let before = core::mem::replace(&mut self.requested, requested);
        let refuses = (before.refuses != requested.refuses).then_some(requested.refuses);
        ServerChange {
            effect: if before == requested { Effect::Load } else { Effect::Weight },
            events: refuses.into_iter().map(ServerEvent::Refuses).collect(),
        }
    }

    /// Returns the last report and its age in milliseconds.
    pub fn latest(&self, now_ms: u64) -> Option<(Report, u64)> {
        let (report, at_ms) = self.last?;
        Some((report, now_ms.saturating_sub(at_ms)))
    }

    /// Tenths of its weight that the server requests.
    pub fn tenths(&self) -> u16 {
        self.requested.tenths
    }

    /// True if the last valid report refuses new sessions.
    pub fn refuses(&self) -> bool {
        self.requested.refuses
    }

    /// Returns the state of the reports, for status output.
    pub fn snapshot(&self) -> ReportsSnapshot {
        self.seen.clone()
    }
}
