//! One server's reports of its load: asked for in turn, believed for a while.

use alloc::collections::BTreeMap;

use super::change::{Effect, ServerChange, ServerEvent};
use super::report::{AdminState, BadReport, Report};
use super::{FULL_WEIGHT, Reporting};

/// After so many questions without a good answer a report is too old, and after this time at least,
/// in milliseconds.
const EXPIRES_INTERVALS: u64 = 3;
const EXPIRES_MS: u64 = 10_000;

/// The reports of one server.
#[derive(Clone, Debug)]
pub struct Reports {
    query_at_ms: u64,
    last: Option<(Report, u64)>,
    requested: RequestedWeight,
    seen: ReportsSnapshot,
}

/// How much of its weight a server wants.
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
    /// Rounded to tenths, but for nothing, which only 0 % means: as an agent's 0 % does elsewhere,
    /// that drains.
    fn of(report: &Report) -> RequestedWeight {
        let percent = report.percent.unwrap_or(100).min(100);
        RequestedWeight {
            tenths: ((percent + 5) / 10).clamp(1, FULL_WEIGHT),
            refuses: percent == 0 || report.claim == Some(AdminState::Drain),
        }
    }
}

/// The state of a server's reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportsSnapshot {
    /// How many were not believed, by reason.
    pub bad: BTreeMap<BadReport, u64>,
    /// Why the last one wasn't, if it was not.
    pub error: Option<BadReport>,
}

impl Reports {
    /// Nothing yet. The first questions to servers are spread over an interval, so that not all
    /// answers come at once; `spread` is any number that differs among servers. Times are in
    /// milliseconds.
    pub fn new(settings: &Reporting, spread: u64, now_ms: u64) -> Reports {
        let query_at_ms = now_ms.saturating_add(spread % settings.interval_ms.max(1));
        Reports {
            query_at_ms,
            last: None,
            requested: RequestedWeight::default(),
            seen: ReportsSnapshot::default(),
        }
    }

    /// When the next question is due.
    pub fn query_at_ms(&self) -> u64 {
        self.query_at_ms
    }

    /// The server is asked now. A report that is too old means nothing any more, and what it wished
    /// neither.
    pub fn note_query(&mut self, settings: &Reporting, now_ms: u64) -> ServerChange {
        self.query_at_ms = now_ms.saturating_add(settings.interval_ms.max(1));
        let expires_ms = settings.interval_ms.saturating_mul(EXPIRES_INTERVALS).max(EXPIRES_MS);
        if self.latest(now_ms).is_none_or(|(_, age_ms)| age_ms < expires_ms) {
            return ServerChange::default();
        }
        self.last = None;
        self.request(RequestedWeight::default())
    }

    /// Takes in an answer, or that there was none.
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

    /// The last report, and how old it is.
    pub fn latest(&self, now_ms: u64) -> Option<(Report, u64)> {
        let (report, at_ms) = self.last?;
        Some((report, now_ms.saturating_sub(at_ms)))
    }

    /// Of its weight, how many tenths it wants.
    pub fn tenths(&self) -> u16 {
        self.requested.tenths
    }

    /// Whether it wants no new sessions.
    pub fn refuses(&self) -> bool {
        self.requested.refuses
    }

    /// The state of its reports.
    pub fn snapshot(&self) -> ReportsSnapshot {
        self.seen.clone()
    }
}
