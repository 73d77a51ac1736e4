//! One server of a pool: whether it works, what it reports of its load, and how much of its weight it has by now.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::health::{self, Failure, Health, Transition};
use super::report::{BadReport, Report};
use super::reports::{self, Reports, ReportsSnapshot};
use super::signals::Signals;
use super::slow_start::SlowStart;
use super::{FULL_WEIGHT, HealthCheck, Reporting, ServerState};

/// How the servers of a pool are looked after. Many pools may share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolSettings {
    /// How they are probed.
    pub check: Arc<HealthCheck>,
    /// How they are asked for their load, if they are.
    pub report: Option<Arc<Reporting>>,
    /// How long one takes to its whole weight once it works, in milliseconds; 0 for at once.
    pub slow_start_ms: u64,
}

impl PoolSettings {
    /// As a file describes them.
    pub fn of(check: &HealthCheck, report: Option<&Reporting>, slow_start_ms: u64) -> PoolSettings {
        let report = report.map(|report| Arc::new(report.clone()));
        PoolSettings { check: Arc::new(check.clone()), report, slow_start_ms }
    }
}

/// The answer to a question to a server, or the want of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// How long a probe took in microseconds, or why it failed.
    Probed(Result<u64, Failure>),
    /// The load that the server reports, or why that isn't believed.
    Reported(Result<Report, BadReport>),
}

/// What a fact, or the want of one, changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerChange {
    /// Something is known of it that was not, or the other way round.
    pub is_news: bool,
    /// It has another part of its weight, or isn't given what it was.
    pub is_weighed: bool,
    /// Probes found it in another state.
    pub transition: Option<Transition>,
    /// It wants no new sessions, or wants them again.
    pub refuses: Option<bool>,
    /// Its reports are believed again (`None` within), or no more, and why.
    pub reports: Option<Option<BadReport>>,
}

/// The questions due for a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueChecks {
    /// It is to be probed now.
    pub probe: bool,
    /// It is to be asked for its load now.
    pub query: bool,
    /// The change that time alone made.
    pub change: ServerChange,
}

/// The state of one server.
#[derive(Clone, Debug)]
pub struct PoolServer {
    /// Mostly the same for many servers.
    settings: Arc<PoolSettings>,
    health: Health,
    reports: Option<Box<Reports>>,
    slow_start: SlowStart,
    is_drained: bool,
}

impl PoolServer {
    /// Of a server that nothing is known of. `seed` is another number for each: it spreads probes and questions. One that `is_new` came to a
    /// pool that was at work already.
    pub fn new(settings: &Arc<PoolSettings>, seed: u64, now_ms: u64, is_new: bool) -> PoolServer {
        let reports = |settings: &Arc<Reporting>| Box::new(Reports::new(settings, seed, now_ms));
        PoolServer {
            settings: Arc::clone(settings),
            health: Health::new(&settings.check, seed),
            reports: settings.report.as_ref().map(reports),
            slow_start: SlowStart::whole(is_new),
            is_drained: false,
        }
    }

    /// It took sessions when the control plane stopped: it is up until probes say otherwise.
    pub fn resume(&mut self) {
        self.health.resume();
        self.slow_start = SlowStart::whole(false);
    }

    /// Goes on with other settings; what is known stays known.
    pub fn reconfigure(&mut self, settings: &Arc<PoolSettings>, seed: u64, now_ms: u64) -> ServerChange {
        self.settings = Arc::clone(settings);
        let transition = self.health.reconfigure(now_ms, &settings.check);
        let reports = |settings| Box::new(Reports::new(settings, seed, now_ms));
        let known = self.reports.take();
        self.reports = settings.report.as_ref().map(|settings| known.unwrap_or_else(|| reports(settings)));
        self.follow(transition, now_ms)
    }

    /// Says whether a probe can be sent to it.
    pub fn set_reachable(&mut self, is_reachable: bool) {
        self.health.set_reachable(is_reachable);
    }

    /// When [`PoolServer::poll`] has something to do, in milliseconds.
    pub fn next_at(&self) -> u64 {
        let query_at_ms = self.reports.as_ref().map_or(u64::MAX, |reports| reports.query_at_ms());
        let rises_at_ms = self.slow_start.next_at(self.settings.slow_start_ms);
        query_at_ms.min(rises_at_ms).min(self.health.next_probe_at())
    }

    /// The questions due now. Each counts as begun.
    pub fn poll(&mut self, now_ms: u64) -> DueChecks {
        let mut due = DueChecks::default();
        if self.health.next_probe_at() <= now_ms {
            self.health.started(now_ms);
            due.probe = true;
        }
        if let (Some(settings), Some(reports)) = (&self.settings.report, &mut self.reports)
            && reports.query_at_ms() <= now_ms
        {
            due.change = reports.note_query(settings, now_ms).into();
            due.query = true;
        }
        if self.slow_start.rise(now_ms, self.settings.slow_start_ms) {
            (due.change.is_news, due.change.is_weighed) = (true, true);
        }
        due
    }

    /// Takes in what came of a question.
    pub fn apply_fact(&mut self, fact: Fact, now_ms: u64) -> ServerChange {
        match fact {
            Fact::Probed(result) => {
                let transition = self.health.result(now_ms, result);
                self.follow(transition, now_ms)
            }
            // One that comes late, when the file says no more that servers are asked, changes nothing.
            Fact::Reported(result) => {
                let change = self.reports.as_mut().map(|reports| reports.apply_result(result, now_ms));
                change.map(ServerChange::from).unwrap_or_default()
            }
        }
    }

    fn follow(&mut self, transition: Option<Transition>, now_ms: u64) -> ServerChange {
        if let Some(transition) = &transition {
            self.slow_start.changed(transition, now_ms);
        }
        let has_risen = self.slow_start.rise(now_ms, self.settings.slow_start_ms);
        let is_news = transition.is_some() || has_risen;
        ServerChange { is_news, is_weighed: is_news, transition, ..ServerChange::default() }
    }

    /// Its operator wants no new sessions to go there, or wants them again. True if that is news.
    pub fn drain(&mut self, is_drained: bool) -> bool {
        core::mem::replace(&mut self.is_drained, is_drained) != is_drained
    }

    /// Whether its operator wants no new sessions to go there.
    pub fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Its health, by probes.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Whether it works, by its probes.
    pub fn is_up(&self) -> bool {
        self.health.status().state == health::HealthState::Up
    }

    /// Whether nothing is known of it yet.
    pub fn is_unknown(&self) -> bool {
        self.health.status().state == health::HealthState::Unknown && self.health.last_failure().is_none()
    }

    /// Whether it wants no new sessions by its own report.
    pub fn refuses(&self) -> bool {
        self.reports.as_ref().is_some_and(|reports| reports.refuses())
    }

    /// How it is, where its weight is this. That it `refuses` counts only where others don't.
    pub fn state(&self, weight: u16, refuses: bool) -> ServerState {
        match self.is_up() {
            _ if self.is_drained || weight == 0 || refuses => ServerState::Draining,
            true => ServerState::Up,
            false => ServerState::Down,
        }
    }

    /// Of its weight, how many tenths it has by now, and wants.
    pub fn tenths(&self) -> u16 {
        self.slow_start.tenths().min(self.wanted_tenths())
    }

    /// Of its weight, how many tenths it wants by its own report.
    pub fn wanted_tenths(&self) -> u16 {
        self.reports.as_ref().map_or(FULL_WEIGHT, |reports| reports.tenths())
    }

    /// How much of its weight it has while it starts slowly, in percent.
    pub fn slow_start_percent(&self, now_ms: u64) -> u64 {
        self.slow_start.percent(now_ms, self.settings.slow_start_ms)
    }

    /// Its load, by reports and probes.
    pub fn signals(&self, now_ms: u64) -> Signals {
        let latest = self.reports.as_ref().and_then(|reports| reports.latest(now_ms));
        Signals {
            latency_us: self.health.latency_us(),
            report: latest.map(|(report, _)| report).unwrap_or_default(),
            age_ms: latest.map(|(_, age_ms)| age_ms),
            ..Signals::default()
        }
    }

    /// The state of its reports, if it is asked for them.
    pub fn reports(&self) -> Option<ReportsSnapshot> {
        self.reports.as_ref().map(|reports| reports.snapshot())
    }
}

impl From<reports::ReportChange> for ServerChange {
    fn from(change: reports::ReportChange) -> ServerChange {
        let reports::ReportChange { is_news, turned, requests_weight, refuses } = change;
        ServerChange {
            is_news,
            is_weighed: requests_weight || refuses.is_some(),
            transition: None,
            refuses,
            reports: turned,
        }
    }
}
