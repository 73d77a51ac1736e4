//! State of one member.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Joiner;
use super::load::MemberLoad;
use crate::farm::group::model::{Group, GroupMember};
use crate::farm::group::reach::{MessageOrigin, Reach};
use crate::net::http::Url;
use crate::pool::ClockReading;
use crate::pool::health::Failure;
use crate::pool::reports::ReportsSnapshot;
use crate::pool::serving::{DISBELIEVED, STANDS_BY};
use crate::pool::shares::{MemberShare, PERMILLE};
use crate::pool::signals::Signals;
use crate::pool::{
    CheckHistory, FULL_WEIGHT as WHOLE_TENTHS, Fact, HealthCheck, HealthKind, PoolEntry, PoolServer,
    PoolSettings, Reporting, ServerState,
};

/// Relation between the health of a member and the fact that it serves requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// The member serves according to its health.
    #[default]
    Normal,
    /// The member works but doesn't serve, because it is a backup and other members can serve.
    WaitingBackup,
    /// The member has failed but serves, because too few members work.
    Disbelieved,
}

/// State of a member at one time, for status output.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberSnapshot {
    /// Number of the member ([`super::super::MemberCandidate::id`]). The number is stable while the
    /// member exists.
    pub id: usize,
    /// The operator's name for the member, else its URL.
    pub name: String,
    /// Description of the member, by the member itself or by the operator.
    pub joiner: Joiner,
    pub is_listed: bool,
    /// True if the member serves only while no member can that is not a backup.
    pub backup: bool,
    pub standing: Standing,
    pub state: ServerState,
    /// Weight in force in percent of the configured weight. Slow start or load may reduce it.
    pub weight_percent: u64,
    /// Load in the last report, in thousandths of the paper's unit.
    pub reported: Option<u64>,
    /// Age of the last report, in milliseconds.
    pub age_ms: Option<u64>,
    /// Estimate of the current load, in thousandths of the paper's unit.
    pub load: u64,
    /// Reason in words why the member has this weight and load.
    pub cause: String,
    /// Number of requests dispatched to the member.
    pub dispatched: u64,
    /// Duration of the last successful probe, in microseconds.
    pub latency_us: Option<u64>,
    pub checks: CheckHistory,
    /// End of the last failed probe in milliseconds, and its failure.
    pub last_failure: Option<(u64, Failure)>,
    /// True if the member's answers to report queries refuse new requests.
    pub refuses: bool,
    /// Load signals besides the member's own reports.
    pub signals: Signals,
    /// State of the member's answers to report queries; `None` if it is not queried.
    pub answers: Option<ReportsSnapshot>,
}

/// State of one member.
#[derive(Clone, Debug)]
pub(super) struct TrackedMember {
    pub(super) id: usize,
    /// The operator's name for the member; `None` if the member is not listed.
    pub(super) listed: Option<String>,
    pub(super) joiner: Joiner,
    /// True if the operator has listed the member as a backup.
    pub(super) backup: bool,
    /// Address to probe in place of the URL's address, if configured by the operator.
    pub(super) health_address: Option<IpAddr>,
    /// True if the member joined by itself, and therefore has to report.
    pub(super) joined: bool,
    /// Origin of the message by which the member joined.
    pub(super) origin: MessageOrigin,
    /// True if a listed member has left and may return.
    pub(super) left: bool,
    /// Health of the member, and its answers to report queries.
    pub(super) server: PoolServer,
    pub(super) load: MemberLoad,
    /// Time of the member's last message, in milliseconds.
    pub(super) reported_ms: u64,
    /// Time of the LOAD-QUERY that was sent since the member's last message, in milliseconds.
    pub(super) queried_ms: Option<u64>,
    pub(super) dispatched: Arc<AtomicU64>,
}

impl PoolEntry for TrackedMember {
    fn server(&self) -> &PoolServer {
        &self.server
    }

    fn server_mut(&mut self) -> &mut PoolServer {
        &mut self.server
    }

    /// A member that has left is not probed until it returns.
    fn is_polled(&self) -> bool {
        !self.left
    }
}

impl TrackedMember {
    pub(super) fn new(
        id: usize,
        joiner: Joiner,
        joined: bool,
        server: PoolServer,
        now: ClockReading,
    ) -> TrackedMember {
        TrackedMember {
            id,
            listed: None,
            joiner,
            backup: false,
            health_address: None,
            joined,
            origin: MessageOrigin::default(),
            left: false,
            server,
            load: MemberLoad::default(),
            reported_ms: now.now_ms,
            queried_ms: None,
            dispatched: Arc::default(),
        }
    }

    /// Applies the operator's settings for the member. The member's own paths and hosts stay.
    pub(super) fn list(&mut self, one: &GroupMember) {
        self.listed = Some(one.name.clone());
        (self.backup, self.health_address) = (one.backup, one.health_address);
        self.joiner.weight = one.weight;
        self.joiner.anonymous = one.anonymous;
        self.joiner.control.clone_from(&one.control);
    }

    /// Applies the member's own description. The operator's weight of a listed member stays. A
    /// listed member can become anonymous, but an anonymous listed member can't become public.
    pub(super) fn describe(&mut self, joiner: &Joiner) {
        let is_listed = self.listed.is_some();
        let control = self.joiner.control.take().filter(|_| is_listed).or_else(|| joiner.control.clone());
        let kept = (self.joiner.weight, self.joiner.anonymous);
        self.joiner = joiner.clone();
        self.joiner.control = control;
        if is_listed {
            self.joiner.weight = kept.0;
            self.joiner.anonymous |= kept.1;
        }
    }

    pub(super) fn name(&self) -> &str {
        self.listed.as_deref().unwrap_or(self.joiner.url.as_str())
    }

    /// True if `name` is the operator's name for this member, or the member's URL.
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.listed.as_deref() == Some(name) || Url::parse(name).ok().as_ref() == Some(&self.joiner.url)
    }

    /// URL for load queries.
    pub(super) fn control(&self) -> &Url {
        self.joiner.control.as_ref().unwrap_or(&self.joiner.url)
    }

    /// Addresses to which proxied requests and probes for this member may connect. `None` stands
    /// for any, for a listed member whose address the operator chose.
    pub(super) fn reach(&self, group: &Group) -> Option<Reach> {
        self.listed.is_none().then(|| Reach::new(group, &self.origin))
    }

    /// Addresses to which load queries may connect. They are restricted for a listed member, too,
    /// if the member itself has named the URL for load queries.
    pub(super) fn control_reach(&self, group: &Group) -> Option<Reach> {
        let listed =
            group.members.iter().find(|listed| self.listed.is_some() && listed.url == self.joiner.url);
        let named_here = listed.is_some_and(|listed| listed.control == self.joiner.control);
        (!named_here).then(|| Reach::new(group, &self.origin))
    }

    /// Counts a failed probe if the member's URL contains a forbidden address, which takes the
    /// member down at once.
    pub(super) fn check_address(&mut self, now: ClockReading, group: &Group) {
        let (reach, address) = (self.reach(group), self.joiner.url.address());
        if let Some((reach, address)) = reach.zip(address)
            && let Err(outside) = reach.permits(self.joiner.url.host(), address)
        {
            self.server.apply_fact(Fact::Probed(Err(Failure::Forbidden(outside.to_string()))), now.now_ms);
        }
    }

    /// True if the member may be selected without a probe result. A joined member whose URL
    /// contains a host name may not, since its address is not checked yet.
    pub(super) fn may_be_tried(&self) -> bool {
        self.listed.is_some() || self.joiner.url.address().is_some()
    }

    /// True if the member is down because its address is forbidden.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self.server.health().last_failure(), Some((_, Failure::Forbidden(_))))
    }

    /// True if the member takes new requests as soon as it works: it is not drained, has not left,
    /// and has a weight.
    pub(super) fn is_wanted(&self) -> bool {
        !self.server.operator_state().is_drained() && !self.left && self.joiner.weight > 0
    }

    /// True if the member has to report. A listed member may not support reports, if it has no URL
    /// for load queries and has neither joined nor reported.
    pub(super) fn is_to_report(&self) -> bool {
        !self.left && (self.joined || self.joiner.control.is_some() || self.load.report.is_some())
    }

    pub(super) fn is_silent(&self, now: ClockReading, query_after_ms: u64) -> bool {
        self.is_to_report() && now.now_ms.saturating_sub(self.reported_ms) >= query_after_ms
    }

    pub(super) fn state(&self, now: ClockReading, query_after_ms: u64) -> ServerState {
        match self.server.state(self.joiner.weight, self.left || self.server.refuses()) {
            ServerState::Up if self.is_silent(now, query_after_ms) => ServerState::Silent,
            state => state,
        }
    }

    /// Records the arrival of a message of the member.
    pub(super) fn note_message(&mut self, now: ClockReading) {
        (self.reported_ms, self.queried_ms) = (now.now_ms, None);
    }

    /// Returns the state of the member for status output, with the given estimate of its load and
    /// its part of the weight.
    pub(super) fn view(
        &self,
        now: ClockReading,
        group: &Group,
        load: u64,
        part: Option<&MemberShare>,
        standing: Standing,
    ) -> MemberSnapshot {
        let starts_percent = self.server.slow_start_percent(now.now_ms);
        let permille = part.map_or(PERMILLE, |part| part.permille);
        let report = self.load.report;
        let age_ms = report.map(|report| now.now_ms.saturating_sub(report.at_ms));
        let mut cause = match standing {
            Standing::Normal => self.cause(now, group),
            Standing::WaitingBackup => STANDS_BY.to_string(),
            Standing::Disbelieved => DISBELIEVED.to_string(),
        };
        if permille < PERMILLE {
            cause.push_str(&format!(", {} % of its weight", permille / 10));
        }
        if starts_percent < 100 {
            cause.push_str(&format!(", slow start {starts_percent} %"));
        }
        MemberSnapshot {
            id: self.id,
            name: self.name().to_string(),
            joiner: self.joiner.clone(),
            is_listed: self.listed.is_some(),
            backup: self.backup,
            standing,
            state: self.state(now, group.joining.query_after_ms),
            weight_percent: starts_percent * permille / PERMILLE,
            reported: report.map(|report| report.load),
            age_ms,
            load,
            cause,
            dispatched: self.dispatched.load(Relaxed),
            latency_us: self.server.health().latency_us(),
            checks: self.server.health().checks(),
            last_failure: self.server.health().last_failure().cloned(),
            refuses: self.server.refuses(),
            signals: self.server.signals(now.now_ms),
            answers: self.server.reports(),
        }
    }

    /// Reason in words why the member has its weight and load.
    fn cause(&self, now: ClockReading, group: &Group) -> String {
        if let Some(by_operator) = self.server.operator_reason() {
            return by_operator.to_string();
        }
        if self.server.refuses() {
            return "drained by its own report".to_string();
        }
        if let Some(weighing) = group.weighing() {
            let signals = self.server.signals(now.now_ms);
            let description = (weighing.describe)(&signals);
            return match (description, signals.age_ms) {
                (Some(description), Some(age_ms)) => format!("{description} {} s ago", age_ms / 1_000),
                (Some(description), None) => description,
                (None, _) => "nothing is known: median".to_string(),
            };
        }
        match self.load.report.map(|report| (report, now.now_ms.saturating_sub(report.at_ms))) {
            Some((report, age_ms)) => {
                let old = if age_ms >= group.joining.remove_after_ms { ", too old: median" } else { "" };
                format!("reported {} {} s ago{old}", thousandths(report.load), age_ms / 1_000)
            }
            None if self.server.wanted_tenths() < WHOLE_TENTHS => "wants less by its own report".to_string(),
            None => "no report: median".to_string(),
        }
    }
}

/// Settings of probes and report queries. If members aren't probed, the addresses of joined members
/// are still checked.
#[derive(Clone, Debug)]
pub(super) struct MemberSettings {
    listed: Arc<PoolSettings>,
    joined: Arc<PoolSettings>,
}

impl MemberSettings {
    pub(super) fn of(group: &Group) -> MemberSettings {
        let Group { health, report, slow_start_ms, .. } = group;
        let listed = Arc::new(PoolSettings::of(health, report.as_ref(), *slow_start_ms));
        let joined = match group.health.kind {
            HealthKind::None => {
                let check = HealthCheck { kind: HealthKind::Tcp, rise: 1, ..group.health.clone() };
                Arc::new(PoolSettings { check: Arc::new(check), ..PoolSettings::clone(&listed) })
            }
            _ => Arc::clone(&listed),
        };
        MemberSettings { listed, joined }
    }

    /// Settings of probes. If members aren't probed, only the addresses of joined members are
    /// checked.
    pub(super) fn check(&self) -> &Arc<HealthCheck> {
        &self.listed.check
    }

    /// Settings of report queries, if enabled.
    pub(super) fn report(&self) -> Option<&Arc<Reporting>> {
        self.listed.report.as_ref()
    }

    pub(super) fn settings(&self, is_joined: bool) -> &Arc<PoolSettings> {
        if is_joined { &self.joined } else { &self.listed }
    }
}

/// Formats a number of thousandths as a decimal number.
pub fn thousandths(load: u64) -> String {
    match (load / 1_000, load % 1_000) {
        (whole, 0) => whole.to_string(),
        (whole, rest) => format!("{whole}.{rest:03}").trim_end_matches('0').to_string(),
    }
}
