//! What is known of one member.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::load::Load;
use super::{Joiner, Moment};
use crate::farm::group::model::{Group, GroupMember};
use crate::farm::group::reach::{Origin, Reach};
use crate::net::http::Url;
use crate::pool::health::{self, Failure, Health};
use crate::pool::reports::{Heard, ReportsSnapshot};
use crate::pool::shares::{Share, WHOLE};
use crate::pool::signals::Signals;
use crate::pool::{HealthCheck, HealthKind};

/// How a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Clients are sent to it.
    Up,
    /// It fails its probes, or was never probed.
    Down,
    /// It gets no new requests: by its operator, by its weight, or because it has left.
    Draining,
    /// It works, and has not reported for so long that it was asked to.
    Silent,
}

impl State {
    /// Its name in views.
    pub const fn name(self) -> &'static str {
        match self {
            State::Up => "up",
            State::Down => "down",
            State::Draining => "draining",
            State::Silent => "silent",
        }
    }
}

/// One member at a moment, for views.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberState {
    /// [`super::super::Candidate::id`]: stays as long as the member does.
    pub id: usize,
    /// The operator's name for it, else its URL.
    pub name: String,
    /// As it described itself, or as it is listed.
    pub joiner: Joiner,
    /// Whether the operator listed it.
    pub is_listed: bool,
    /// How it is.
    pub state: State,
    /// Its weight in force, in percent of its own: less while it starts slowly, or has more load than others.
    pub weight_percent: u64,
    /// What it last reported, in thousandths of the paper's unit.
    pub reported: Option<u64>,
    /// How old that is, in milliseconds.
    pub age_ms: Option<u64>,
    /// What its load is thought to be, in thousandths.
    pub load: u64,
    /// Why the weight and load in force are as they are.
    pub cause: String,
    /// How often it was chosen.
    pub dispatched: u64,
    /// How long its last good probe took, in microseconds.
    pub latency_us: Option<u64>,
    /// When its last bad probe ended, in milliseconds, and what it met.
    pub last_failure: Option<(u64, Failure)>,
    /// Whether its own answers drain it.
    pub refuses: bool,
    /// What is known of its load beside its own reports.
    pub signals: Signals,
    /// What became of its answers, if it is asked for its load.
    pub answers: Option<ReportsSnapshot>,
}

/// What is known of one member.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: usize,
    /// The operator's name for it, if it is listed.
    pub(super) listed: Option<String>,
    pub(super) joiner: Joiner,
    /// Whether it has joined by itself: then it has to report.
    pub(super) joined: bool,
    /// Whence it joined.
    pub(super) origin: Origin,
    pub(super) drained: bool,
    /// It said so, and is listed: it waits for its return.
    pub(super) left: bool,
    pub(super) health: Health,
    pub(super) load: Load,
    /// What it answers when it is asked for its load, if the file says that it is.
    pub(super) heard: Option<Box<Heard>>,
    /// When something was last heard of it.
    pub(super) heard_ms: u64,
    /// When it was last asked for its load, since it fell silent.
    pub(super) asked_ms: Option<u64>,
    pub(super) dispatched: Arc<AtomicU64>,
}

impl Member {
    pub(super) fn joined(id: usize, joiner: Joiner, group: &Group, now: Moment, seed: u64) -> Member {
        Member::new(id, joiner, true, group, now, seed)
    }

    pub(super) fn listed(id: usize, one: &GroupMember, group: &Group, now: Moment, seed: u64) -> Member {
        let mut member = Member::new(id, Joiner::new(one.url.clone()), false, group, now, seed);
        member.list(one);
        member
    }

    fn new(id: usize, joiner: Joiner, joined: bool, group: &Group, now: Moment, seed: u64) -> Member {
        Member {
            id,
            listed: None,
            joiner,
            joined,
            origin: Origin::default(),
            drained: false,
            left: false,
            health: Health::new(&settings_of(group, joined), seed),
            load: Load::default(),
            heard: group.report.as_ref().map(|settings| Box::new(Heard::new(settings, seed, now.now_ms))),
            heard_ms: now.now_ms,
            asked_ms: None,
            dispatched: Arc::default(),
        }
    }

    /// What the operator says of it; what it said itself of paths and hosts stays.
    pub(super) fn list(&mut self, one: &GroupMember) {
        self.listed = Some(one.name.clone());
        self.joiner.weight = one.weight;
        self.joiner.anonymous = one.anonymous;
        self.joiner.control.clone_from(&one.control);
    }

    /// What it says of itself. Where the operator lists it, its weight is the operator's, and only more can be kept secret.
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

    /// Where its clients' requests and its probes may go; none where the operator lists it, and knows where it is.
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
    pub(super) fn check_address(&mut self, now: Moment, group: &Group) {
        let (reach, address) = (self.reach(group), self.joiner.url.address());
        if let Some((reach, address)) = reach.zip(address)
            && let Err(outside) = reach.permits(self.joiner.url.host(), address)
        {
            self.health.result(now.now_ms, Err(Failure::Forbidden(outside.to_string())));
        }
    }

    /// Whether it may be chosen while nobody knows whether it works: of a name that joined it isn't known yet where it leads.
    pub(super) fn may_be_tried(&self) -> bool {
        self.listed.is_some() || self.joiner.url.address().is_some()
    }

    /// Goes on by other settings.
    pub(super) fn reconfigure(&mut self, now: Moment, group: &Group) {
        self.health.reconfigure(now.now_ms, &settings_of(group, self.listed.is_none()));
        let id = self.id as u64;
        let heard = |settings| Box::new(Heard::new(settings, id.wrapping_mul(0x9e37_79b9), now.now_ms));
        self.heard =
            group.report.as_ref().map(|settings| self.heard.take().unwrap_or_else(|| heard(settings)));
    }

    /// Whether it takes new requests, if it works.
    pub(super) fn is_wanted(&self) -> bool {
        !self.drained && !self.left && self.joiner.weight > 0
    }

    /// Whether reports are expected of it: one that is only listed may be a server that knows nothing of them.
    pub(super) fn is_to_report(&self) -> bool {
        !self.left && (self.joined || self.joiner.control.is_some() || self.load.report.is_some())
    }

    pub(super) fn is_silent(&self, now: Moment, query_after_ms: u64) -> bool {
        self.is_to_report() && now.now_ms.saturating_sub(self.heard_ms) >= query_after_ms
    }

    pub(super) fn state(&self, now: Moment, query_after_ms: u64) -> State {
        match self.health.status().state {
            _ if !self.is_wanted() || self.refuses() => State::Draining,
            health::State::Down | health::State::Unknown => State::Down,
            health::State::Up if self.is_silent(now, query_after_ms) => State::Silent,
            health::State::Up => State::Up,
        }
    }

    /// Something was heard of it.
    pub(super) fn heard(&mut self, now: Moment) {
        (self.heard_ms, self.asked_ms) = (now.now_ms, None);
    }

    /// The share of its weight that is in force, in percent: from a tenth to the whole while it starts slowly, counted from when it
    /// began to work.
    pub(super) fn weight_percent(&self, now: Moment, slow_start_ms: u64) -> u64 {
        self.health.status().slow_start_percent(now.now_ms, slow_start_ms)
    }

    /// Of its weight, how many tenths it wants by its own answers.
    pub(super) fn tenths(&self) -> u16 {
        self.heard.as_ref().map_or(10, |heard| heard.tenths())
    }

    /// Whether it wants no clients by its own answers.
    pub(super) fn refuses(&self) -> bool {
        self.heard.as_ref().is_some_and(|heard| heard.refuses())
    }

    /// What is known of its load beside its own reports.
    pub(super) fn signals(&self, now: Moment) -> Signals {
        let latest = self.heard.as_ref().and_then(|heard| heard.latest(now.now_ms));
        Signals {
            latency_us: self.health.latency_us(),
            report: latest.map(|(report, _)| report).unwrap_or_default(),
            age_ms: latest.map(|(_, age_ms)| age_ms),
            ..Signals::default()
        }
    }

    /// For views, with the load that it is thought to have, and the part of its weight that it has by that.
    pub(super) fn view(&self, now: Moment, group: &Group, load: u64, part: Option<&Share>) -> MemberState {
        let starts_percent = self.weight_percent(now, group.slow_start_ms);
        let permille = part.map_or(WHOLE, |part| part.permille);
        let report = self.load.report;
        let age_ms = report.map(|report| now.now_ms.saturating_sub(report.at_ms));
        let mut cause = self.cause(now, group);
        if permille < WHOLE {
            cause.push_str(&format!(", {} % of its weight", permille / 10));
        }
        if starts_percent < 100 {
            cause.push_str(&format!(", slow start {starts_percent} %"));
        }
        MemberState {
            id: self.id,
            name: self.name().to_string(),
            joiner: self.joiner.clone(),
            is_listed: self.listed.is_some(),
            state: self.state(now, group.joining.query_after_ms),
            weight_percent: starts_percent * permille / WHOLE,
            reported: report.map(|report| report.load),
            age_ms,
            load,
            cause,
            dispatched: self.dispatched.load(Relaxed),
            latency_us: self.health.latency_us(),
            last_failure: self.health.last_failure().cloned(),
            refuses: self.refuses(),
            signals: self.signals(now),
            answers: self.heard.as_ref().map(|heard| heard.seen()),
        }
    }

    /// By what it is judged, in words.
    fn cause(&self, now: Moment, group: &Group) -> String {
        if self.refuses() {
            return "drained by its own report".to_string();
        }
        if let Some(weighing) = group.weighing() {
            let signals = self.signals(now);
            let said = (weighing.said)(&signals);
            return match (said, signals.age_ms) {
                (Some(said), Some(age_ms)) => format!("{said} {} s ago", age_ms / 1_000),
                (Some(said), None) => said,
                (None, _) => "nothing is known: median".to_string(),
            };
        }
        match self.load.report.map(|report| (report, now.now_ms.saturating_sub(report.at_ms))) {
            Some((report, age_ms)) => {
                let old = if age_ms >= group.joining.remove_after_ms { ", too old: median" } else { "" };
                format!("reported {} {} s ago{old}", thousandths(report.load), age_ms / 1_000)
            }
            None if self.tenths() < 10 => "wants less by its own report".to_string(),
            None => "no report: median".to_string(),
        }
    }
}

/// How a member is probed. Where listed ones aren't, it is still looked where those are that joined by themselves.
pub(super) fn settings_of(group: &Group, is_joined: bool) -> HealthCheck {
    match group.health.kind {
        HealthKind::None if is_joined => {
            HealthCheck { kind: HealthKind::Tcp, rise: 1, ..group.health.clone() }
        }
        _ => group.health.clone(),
    }
}

/// A load as people write it.
pub fn thousandths(load: u64) -> String {
    match (load / 1_000, load % 1_000) {
        (whole, 0) => whole.to_string(),
        (whole, rest) => format!("{whole}.{rest:03}").trim_end_matches('0').to_string(),
    }
}
