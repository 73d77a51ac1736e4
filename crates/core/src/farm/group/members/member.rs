//! The state of one member.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::load::MemberLoad;
use super::{ClockReading, Joiner};
use crate::farm::group::model::{Group, GroupMember};
use crate::farm::group::reach::{MessageOrigin, Reach};
use crate::net::http::Url;
use crate::pool::health::Failure;
use crate::pool::reports::ReportsSnapshot;
use crate::pool::serving::{DISBELIEVED, STANDS_BY};
use crate::pool::shares::{MemberShare, PERMILLE};
use crate::pool::signals::Signals;
use crate::pool::{
    CheckHistory, FULL_WEIGHT as WHOLE_TENTHS, Fact, HealthCheck, HealthKind, PoolEntry, PoolServer,
    PoolSettings, Reporting, ServerState,
};

/// Whether a member serves as its health says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    #[default]
    Normal,
    /// It works and doesn't serve: it is a backup, and others can.
    WaitingBackup,
    /// It has failed and serves: too few work.
    Disbelieved,
}

/// One member at a moment, for views.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberSnapshot {
    /// [`super::super::MemberCandidate::id`]: stays as long as the member does.
    pub id: usize,
    /// The operator's name for it, else its URL.
    pub name: String,
    /// As it described itself, or as it is listed.
    pub joiner: Joiner,
    /// Whether the operator listed it.
    pub is_listed: bool,
    /// Whether clients are sent to it only while no member without this can serve.
    pub backup: bool,
    /// Whether it serves as its health says.
    pub standing: Standing,
    /// How it is.
    pub state: ServerState,
    /// Its weight in force, in percent of its own: less while it starts slowly, or has more load
    /// than others.
    pub weight_percent: u64,
    /// Its last report, in thousandths of the paper's unit.
    pub reported: Option<u64>,
    /// How old that is, in milliseconds.
    pub age_ms: Option<u64>,
    /// The estimate of its load, in thousandths.
    pub load: u64,
    /// Why the weight and load in force are as they are.
    pub cause: String,
    /// How often it was chosen.
    pub dispatched: u64,
    /// How long its last good probe took, in microseconds.
    pub latency_us: Option<u64>,
    /// The last results of its probes.
    pub checks: CheckHistory,
    /// When its last bad probe ended, in milliseconds, and what it met.
    pub last_failure: Option<(u64, Failure)>,
    /// Whether its own answers drain it.
    pub refuses: bool,
    /// Signals of its load beside its own reports.
    pub signals: Signals,
    /// The state of its answers, if it is asked for its load.
    pub answers: Option<ReportsSnapshot>,
}

/// The state of one member.
#[derive(Clone, Debug)]
pub(super) struct TrackedMember {
    pub(super) id: usize,
    /// The operator's name for it, if it is listed.
    pub(super) listed: Option<String>,
    pub(super) joiner: Joiner,
    /// Whether the operator wants it to serve only while no other can.
    pub(super) backup: bool,
    /// Where the operator wants it probed.
    pub(super) health_address: Option<IpAddr>,
    /// Whether it has joined by itself: then it has to report.
    pub(super) joined: bool,
    /// Whence it joined.
    pub(super) origin: MessageOrigin,
    /// It said so, and is listed: it waits for its return.
    pub(super) left: bool,
    /// How it is, and what it answers when it is asked for its load.
    pub(super) server: PoolServer,
    pub(super) load: MemberLoad,
    /// When something was last heard of it.
    pub(super) reported_ms: u64,
    /// When it was last asked for its load, since it fell silent.
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

    /// Takes the operator's description; the member's own paths and hosts stay.
    pub(super) fn list(&mut self, one: &GroupMember) {
        self.listed = Some(one.name.clone());
        (self.backup, self.health_address) = (one.backup, one.health_address);
        self.joiner.weight = one.weight;
        self.joiner.anonymous = one.anonymous;
        self.joiner.control.clone_from(&one.control);
    }

    /// Takes its own description. Where the operator lists it, its weight is the operator's, and
    /// only more can be kept secret.
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

    /// Whether the operator means it by a name, or by its URL.
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.listed.as_deref() == Some(name) || Url::parse(name).ok().as_ref() == Some(&self.joiner.url)
    }

    /// Where it is asked for its load.
    pub(super) fn control(&self) -> &Url {
        self.joiner.control.as_ref().unwrap_or(&self.joiner.url)
    }

    /// Where its clients' requests and its probes may go; none where the operator lists it, and
    /// knows where it is.
    pub(super) fn reach(&self, group: &Group) -> Option<Reach> {
        self.listed.is_none().then(|| Reach::new(group, &self.origin))
    }

    /// The same of questions for its load: a listed one may have named another place for them.
    pub(super) fn control_reach(&self, group: &Group) -> Option<Reach> {
        let listed =
            group.members.iter().find(|listed| self.listed.is_some() && listed.url == self.joiner.url);
        let named_here = listed.is_some_and(|listed| listed.control == self.joiner.control);
        (!named_here).then(|| Reach::new(group, &self.origin))
    }

    /// Makes it down at once where its URL is an address that it may not have (any more).
    pub(super) fn check_address(&mut self, now: ClockReading, group: &Group) {
        let (reach, address) = (self.reach(group), self.joiner.url.address());
        if let Some((reach, address)) = reach.zip(address)
            && let Err(outside) = reach.permits(self.joiner.url.host(), address)
        {
            self.server.apply_fact(Fact::Probed(Err(Failure::Forbidden(outside.to_string()))), now.now_ms);
        }
    }

    /// Whether it may be chosen while nobody knows whether it works: of a name that joined it isn't
    /// known yet where it leads.
    pub(super) fn may_be_tried(&self) -> bool {
        self.listed.is_some() || self.joiner.url.address().is_some()
    }

    /// Whether it is down because it is where it may not be.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self.server.health().last_failure(), Some((_, Failure::Forbidden(_))))
    }

    /// Whether it takes new requests, if it works.
    pub(super) fn is_wanted(&self) -> bool {
        !self.server.operator_state().is_drained() && !self.left && self.joiner.weight > 0
    }

    /// Whether reports are expected of it: one that is only listed may be a server that knows
    /// nothing of them.
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

    /// Something was heard of it.
    pub(super) fn note_message(&mut self, now: ClockReading) {
        (self.reported_ms, self.queried_ms) = (now.now_ms, None);
    }

    /// For views, with the load that it is thought to have, and the part of its weight that it has
    /// by that.
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

    /// By what it is judged, in words.
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

/// How members are looked after. Where listed ones aren't probed, it is still looked where those
/// are that joined by themselves.
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

    /// How they are probed: of one that isn't, it is only looked where it is.
    pub(super) fn check(&self) -> &Arc<HealthCheck> {
        &self.listed.check
    }

    /// How they are asked for their load, if they are.
    pub(super) fn report(&self) -> Option<&Arc<Reporting>> {
        self.listed.report.as_ref()
    }

    pub(super) fn settings(&self, is_joined: bool) -> &Arc<PoolSettings> {
        if is_joined { &self.joined } else { &self.listed }
    }
}

/// A load as people write it.
pub fn thousandths(load: u64) -> String {
    match (load / 1_000, load % 1_000) {
        (whole, 0) => whole.to_string(),
        (whole, rest) => format!("{whole}.{rest:03}").trim_end_matches('0').to_string(),
    }
}
