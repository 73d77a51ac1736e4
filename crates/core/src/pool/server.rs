//! A server of a pool: its health, its reports, and its slow start.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::change::{Effect, ServerChange, ServerEvent};
use super::health::{self, Failure, Health, Transition};
use super::policy::Weighing;
use super::report::{BadReport, Report};
use super::reports::{Reports, ReportsSnapshot};
use super::signals::Signals;
use super::slow_start::SlowStart;
use super::{ClockReading, FULL_WEIGHT, HealthCheck, OperatorState, Reporting, ServerState};

/// Settings of the servers of a pool. Many pools may share them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolSettings {
    pub check: Arc<HealthCheck>,
    /// Settings of report queries, if reports are configured.
    pub report: Option<Arc<Reporting>>,
    /// Duration of the slow start, in milliseconds; 0 for none.
    pub slow_start_ms: u64,
}

impl PoolSettings {
    /// Returns the settings with copies of a file's settings.
    pub fn of(check: &HealthCheck, report: Option<&Reporting>, slow_start_ms: u64) -> PoolSettings {
        let report = report.map(|report| Arc::new(report.clone()));
        PoolSettings { check: Arc::new(check.clone()), report, slow_start_ms }
    }
}

/// Result of a probe or of a report query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Duration of a probe in microseconds, or its failure.
    Probed(Result<u64, Failure>),
    /// Reported load, or the reason of the rejection.
    Reported(Result<Report, BadReport>),
}

/// Checks of a server that are due, and a change that time alone has caused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueChecks {
    /// True if a probe is due.
    pub probe: bool,
    /// True if a report query is due.
    pub query: bool,
    /// Change caused by time alone.
    pub change: ServerChange,
}

/// State of one server.
#[derive(Clone, Debug)]
pub struct PoolServer {
    /// Settings that the servers of a pool share.
    settings: Arc<PoolSettings>,
    health: Health,
    reports: Option<Box<Reports>>,
    slow_start: SlowStart,
    operator: OperatorState,
}

impl PoolServer {
    /// Returns a server without results. `seed` differs between servers and spreads their probes
    /// and queries. `is_new` is true for a server added to a running pool.
    pub fn new(settings: &Arc<PoolSettings>, seed: u64, now_ms: u64, is_new: bool) -> PoolServer {
        let reports = |settings: &Arc<Reporting>| Box::new(Reports::new(settings, seed, now_ms));
        PoolServer {
            settings: Arc::clone(settings),
            health: Health::new(&settings.check, seed),
            reports: settings.report.as_ref().map(reports),
            slow_start: SlowStart::whole(is_new),
            operator: OperatorState::Ready,
        }
    }

    /// Marks the server as up until probes fail, because the server took sessions before the
    /// control plane restarted.
    pub fn resume(&mut self) {
        self.health.resume();
        self.slow_start = SlowStart::whole(false);
    }

    /// Applies other settings. Results are kept.
    pub fn reconfigure(&mut self, settings: &Arc<PoolSettings>, seed: u64, now_ms: u64) -> ServerChange {
        self.settings = Arc::clone(settings);
        let transition = self.health.reconfigure(now_ms, &settings.check);
        let reports = |settings| Box::new(Reports::new(settings, seed, now_ms));
        let known = self.reports.take();
        self.reports = settings.report.as_ref().map(|settings| match known {
            Some(mut known) => {
                known.query_by(reports(settings).query_at_ms());
                known
            }
            None => reports(settings),
        });
        self.follow(transition, now_ms)
    }

    /// Records if probes can be sent to the server.
    pub fn set_reachable(&mut self, is_reachable: bool) {
        self.health.set_reachable(is_reachable);
    }

    /// Returns the time of the next work for [`PoolServer::poll`], in milliseconds.
    pub fn next_at(&self) -> u64 {
        if self.operator.is_suspended() {
            return u64::MAX;
        }
        let query_at_ms = self.reports.as_ref().map_or(u64::MAX, |reports| reports.query_at_ms());
        let rises_at_ms = self.slow_start.next_at(self.settings.slow_start_ms);
        query_at_ms.min(rises_at_ms).min(self.health.next_probe_at())
    }

    /// Returns the checks due now, and counts them as started.
    pub fn poll(&mut self, now: ClockReading) -> DueChecks {
        let now_ms = now.now_ms;
        let mut due = DueChecks::default();
        if self.operator.is_suspended() {
            return due;
        }
        if self.health.next_probe_at() <= now_ms {
            self.health.started(now_ms);
            due.probe = true;
        }
        if let (Some(settings), Some(reports)) = (&self.settings.report, &mut self.reports)
            && reports.query_at_ms() <= now_ms
        {
            due.change = reports.note_query(settings, now);
            due.query = true;
        }
        if self.slow_start.rise(now_ms, self.settings.slow_start_ms) {
            due.change.effect = Effect::Weight;
        }
        due
    }

    /// Applies the result of a check.
    pub fn apply_fact(&mut self, fact: Fact, now_ms: u64) -> ServerChange {
        if self.operator.is_suspended() {
            return ServerChange::default();
        }
        match fact {
            Fact::Probed(result) => {
                let transition = self.health.result(now_ms, result);
                self.follow(transition, now_ms)
            }
            // A late report is ignored once reports are no longer configured.
            Fact::Reported(result) => {
                let change = self.reports.as_mut().map(|reports| reports.apply_result(result, now_ms));
                change.unwrap_or_default()
            }
        }
    }

    /// Ejects the server because its clients' connections fail. Returns `None`, and does nothing,
    /// if the server is in maintenance.
    pub fn eject(&mut self, reason: Failure, now_ms: u64) -> Option<ServerChange> {
        if self.operator.is_suspended() {
            return None;
        }
        let transition = self.health.eject(now_ms, reason);
        Some(self.follow(Some(transition), now_ms))
    }

    fn follow(&mut self, transition: Option<Transition>, now_ms: u64) -> ServerChange {
        if let Some(transition) = &transition {
            self.slow_start.changed(transition, now_ms);
        }
        let has_risen = self.slow_start.rise(now_ms, self.settings.slow_start_ms);
        let effect = if transition.is_some() || has_risen { Effect::Weight } else { Effect::None };
        ServerChange { effect, events: transition.into_iter().map(ServerEvent::Health).collect() }
    }

    /// Sets the operator's state. At the end of maintenance, earlier probe results are discarded.
    pub fn set_operator_state(&mut self, state: OperatorState, now_ms: u64) -> ServerChange {
        let before = core::mem::replace(&mut self.operator, state);
        if before.is_suspended() && !state.is_suspended() {
            self.health.restart(now_ms);
            self.slow_start = SlowStart::whole(true);
        }
        let (drained, suspended) = (state.is_drained(), state.is_suspended());
        let drained = (before.is_drained() != drained).then_some(ServerEvent::Drained(drained));
        let suspended = (before.is_suspended() != suspended).then_some(ServerEvent::Suspended(suspended));
        ServerChange {
            effect: if before == state { Effect::None } else { Effect::Weight },
            events: drained.into_iter().chain(suspended).collect(),
        }
    }

    pub fn operator_state(&self) -> OperatorState {
        self.operator
    }

    /// Returns in words why the operator lets the server take no new sessions; `None` if the
    /// operator has not drained it.
    pub fn operator_reason(&self) -> Option<&'static str> {
        match self.operator {
            OperatorState::Ready => None,
            OperatorState::Drain => Some("drained by the operator"),
            OperatorState::Maintenance => Some("in maintenance by the operator"),
        }
    }

    pub fn health(&self) -> &Health {
        &self.health
    }

    /// True if the server is up by its probes.
    pub fn is_up(&self) -> bool {
        self.health.status().state == health::HealthState::Up
    }

    /// True if the server has no probe result yet and is not in maintenance.
    pub fn is_unknown(&self) -> bool {
        let is_unknown = self.health.status().state == health::HealthState::Unknown;
        is_unknown && !self.operator.is_suspended() && self.health.last_failure().is_none()
    }

    /// True if the server's report refuses new sessions.
    pub fn refuses(&self) -> bool {
        self.reports.as_ref().is_some_and(|reports| reports.refuses())
    }

    /// Returns the state of the server with this weight. The caller sets `refuses` to false if a
    /// refusal is ignored because no other server serves.
    pub fn state(&self, weight: u16, refuses: bool) -> ServerState {
        let health = self.health.status().state;
        let is_drained = self.operator.is_drained() || weight == 0 || refuses;
        ServerState::shown(self.operator.is_suspended(), health, is_drained)
    }

    /// Tenths of its weight that the server has now: the smaller value of slow start and report.
    pub fn tenths(&self) -> u16 {
        self.slow_start.tenths().min(self.wanted_tenths())
    }

    /// Tenths of its weight that the server's report requests.
    pub fn wanted_tenths(&self) -> u16 {
        self.reports.as_ref().map_or(FULL_WEIGHT, |reports| reports.tenths())
    }

    /// Percentage of its weight that slow start gives the server now.
    pub fn slow_start_percent(&self, now_ms: u64) -> u64 {
        self.slow_start.percent(now_ms, self.settings.slow_start_ms)
    }

    /// Returns the load signals from reports and probes.
    pub fn signals(&self, now_ms: u64) -> Signals {
        let latest = self.reports.as_ref().and_then(|reports| reports.latest(now_ms));
        Signals {
            latency_us: self.health.latency_us(),
            report: latest.map(|(report, _)| report).unwrap_or_default(),
            age_ms: latest.map(|(_, age_ms)| age_ms),
            ..Signals::default()
        }
    }

    /// Returns the load of the server by a policy; `None` if a signal is missing.
    pub fn load(&self, weighing: &Weighing) -> Option<u64> {
        // The load doesn't depend on the age of the report.
        (weighing.load)(&self.signals(0))
    }

    /// Returns the state of the server's reports; `None` if reports are not configured.
    pub fn reports(&self) -> Option<ReportsSnapshot> {
        self.reports.as_ref().map(|reports| reports.snapshot())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::farm::example;
    use crate::pool::Period;
    use crate::pool::report::AdminState;
    use crate::pool::{HealthKind, ReportKind};

    fn settings(slow_start_ms: u64) -> Arc<PoolSettings> {
        let kind = ReportKind::AgentCheck;
        let report = Reporting { kind, port: 9, interval: Period::always(4_000), timeout_ms: 100 };
        let check = HealthCheck { interval_ms: 1_000, ..example::check(HealthKind::Tcp) };
        Arc::new(PoolSettings::of(&check, Some(&report), slow_start_ms))
    }

    fn without_reports(slow_start_ms: u64) -> Arc<PoolSettings> {
        Arc::new(PoolSettings { report: None, ..PoolSettings::clone(&settings(slow_start_ms)) })
    }

    fn works(server: &mut PoolServer, now_ms: u64) -> ServerChange {
        server.apply_fact(Fact::Probed(Ok(700)), now_ms)
    }

    fn fails(server: &mut PoolServer, now_ms: u64) -> ServerChange {
        server.apply_fact(Fact::Probed(Err(Failure::Refused)), now_ms)
    }

    fn reports(server: &mut PoolServer, report: Report, now_ms: u64) -> ServerChange {
        server.apply_fact(Fact::Reported(Ok(report)), now_ms)
    }

    fn weighed(event: ServerEvent) -> ServerChange {
        ServerChange { effect: Effect::Weight, events: alloc::vec![event] }
    }

    fn wants(percent: u16) -> Report {
        Report { percent: Some(percent), ..Report::default() }
    }

    #[test]
    fn probes_and_questions_for_load_each_have_their_own_pace() {
        let mut server = PoolServer::new(&settings(0), 0, 0, false);
        assert_eq!(server.next_at(), 0);
        let due = server.poll(ClockReading::at(0));
        assert!(due.probe && due.query && due.change == ServerChange::default());
        works(&mut server, 1);
        assert_eq!((server.next_at(), server.poll(ClockReading::at(999))), (1_000, DueChecks::default()));
        let (mut probes, mut questions) = (0, 0);
        for now_ms in 1_000..9_000 {
            let due = server.poll(ClockReading::at(now_ms));
            probes += usize::from(due.probe);
            questions += usize::from(due.query);
            if due.probe {
                works(&mut server, now_ms);
            }
        }
        assert_eq!((probes, questions), (8, 2));
    }

    /// A report that was queried in the long interval of the night is as good as any in the day.
    #[test]
    fn queries_and_expiry_follow_the_time_of_day() {
        let interval = Period::new([(0, 600_000), (8 * 3_600, 4_000)]);
        let report = Reporting { interval, ..(*settings(0).report.clone().unwrap()).clone() };
        let settings = Arc::new(PoolSettings { report: Some(Arc::new(report)), ..(*settings(0)).clone() });
        let mut server = PoolServer::new(&settings, 0, 0, false);
        let mut queries = alloc::vec::Vec::new();
        for second in 7 * 3_600..8 * 3_600 + 60 {
            let now = ClockReading { now_ms: u64::from(second) * 1_000, second_of_day: second, unix_ms: 0 };
            let due = server.poll(now);
            assert_eq!(due.change, ServerChange::default(), "{second}");
            if due.query {
                queries.push(second - 7 * 3_600);
                reports(&mut server, wants(50), now.now_ms);
            }
        }
        assert_eq!(queries[..8], [0, 600, 1_200, 1_800, 2_400, 3_000, 3_600, 3_604]);
        assert_eq!((queries.len(), server.wanted_tenths()), (21, 5));
    }

    #[test]
    fn first_questions_of_servers_are_spread_over_an_interval() {
        let asked_at = |seed| PoolServer::new(&settings(0), seed, 500, false).reports.unwrap().query_at_ms();
        assert_eq!((asked_at(0), asked_at(3_999), asked_at(4_000)), (500, 4_499, 500));
    }

    #[test]
    fn working_server_takes_sessions_unless_drained() {
        let mut server = PoolServer::new(&without_reports(0), 0, 0, false);
        assert_eq!(
            (server.state(1, false), server.is_unknown(), server.is_up()),
            (ServerState::Down, true, false)
        );
        works(&mut server, 1);
        assert_eq!(
            (server.state(1, false), server.is_unknown(), server.is_up()),
            (ServerState::Up, false, true)
        );
        assert_eq!(
            (server.state(0, false), server.state(1, true)),
            (ServerState::Draining, ServerState::Draining)
        );
        let drained = weighed(ServerEvent::Drained(true));
        assert_eq!(server.set_operator_state(OperatorState::Drain, 1), drained);
        assert_eq!(server.set_operator_state(OperatorState::Drain, 1), ServerChange::default());
        assert_eq!(server.operator_state(), OperatorState::Drain);
        assert_eq!(server.state(1, false), ServerState::Draining);
        let undrained = weighed(ServerEvent::Drained(false));
        assert_eq!(server.set_operator_state(OperatorState::Ready, 1), undrained);
        fails(&mut server, 2);
        assert_eq!((server.state(1, false), server.state(0, false)), (ServerState::Down, ServerState::Down));
    }

    #[test]
    fn suspended_server_is_left_alone_until_its_first_probe_afterwards() {
        let mut server = PoolServer::new(&settings(10_000), 0, 0, false);
        server.poll(ClockReading::at(0));
        works(&mut server, 1);
        let change = server.set_operator_state(OperatorState::Maintenance, 2);
        assert_eq!(change.events, [ServerEvent::Drained(true), ServerEvent::Suspended(true)]);
        let repeated = server.set_operator_state(OperatorState::Maintenance, 3);
        assert_eq!(repeated, ServerChange::default());
        assert_eq!(
            (server.next_at(), server.poll(ClockReading::at(60_000))),
            (u64::MAX, DueChecks::default())
        );
        for now_ms in 3..9 {
            assert_eq!(
                fails(&mut server, now_ms),
                ServerChange::default(),
                "what comes late changes nothing"
            );
        }
        assert_eq!(server.state(1, false), ServerState::Maintenance);
        let change = server.set_operator_state(OperatorState::Ready, 70_000);
        assert_eq!(change.events, [ServerEvent::Drained(false), ServerEvent::Suspended(false)]);
        assert_eq!(server.state(1, false), ServerState::Down, "nobody knows whether it works");
        assert!(server.poll(ClockReading::at(70_000)).probe);
        assert!(matches!(works(&mut server, 70_001).events[..], [ServerEvent::Health(_)]));
        assert_eq!((server.state(1, false), server.tenths()), (ServerState::Up, 1), "it starts slowly");
    }

    #[test]
    fn a_server_that_can_not_be_probed_here_is_not_waited_for() {
        let mut server = PoolServer::new(&without_reports(0), 0, 0, false);
        let lacks = Failure::NotProbed("no descriptor is left".into());
        server.apply_fact(Fact::Probed(Err(lacks)), 1);
        assert!(!server.is_unknown() && !server.is_up());
    }

    #[test]
    fn smaller_of_requested_weight_and_slow_start_counts() {
        let mut server = PoolServer::new(&settings(10_000), 0, 0, true);
        works(&mut server, 1_000);
        assert_eq!((server.tenths(), server.slow_start_percent(1_000)), (1, 10));
        let change = reports(&mut server, wants(40), 1_000);
        assert_eq!(change, ServerChange { effect: Effect::Weight, ..ServerChange::default() });
        assert_eq!((server.tenths(), server.wanted_tenths()), (1, 4));
        let due = server.poll(ClockReading::at(7_000));
        assert_eq!(due.change.effect, Effect::Weight);
        assert_eq!((server.tenths(), server.slow_start_percent(7_000)), (4, 60));
    }

    #[test]
    fn report_expires_after_three_unanswered_queries() {
        let mut server = PoolServer::new(&settings(0), 0, 0, false);
        server.poll(ClockReading::at(0));
        assert_eq!(server.signals(0), Signals::default());
        works(&mut server, 1);
        let report = Report { load_milli: Some(7), claim: Some(AdminState::Drain), ..wants(30) };
        assert_eq!(reports(&mut server, report, 1), weighed(ServerEvent::Refuses(true)));
        let signals = |server: &PoolServer, now_ms| server.signals(now_ms);
        let known = Signals { latency_us: Some(700), report, age_ms: Some(7_000), ..Signals::default() };
        assert_eq!(signals(&server, 7_001), known);
        for now_ms in [4_000, 8_000, 12_000] {
            assert_eq!(server.poll(ClockReading::at(now_ms)).change, ServerChange::default());
            assert!(server.refuses() && server.wanted_tenths() == 3, "{now_ms}");
        }
        let change = server.poll(ClockReading::at(16_000)).change;
        assert_eq!(change, weighed(ServerEvent::Refuses(false)));
        assert_eq!((server.signals(16_000).age_ms, server.wanted_tenths()), (None, 10));
    }

    #[test]
    fn a_report_counts_for_ten_seconds_however_short_the_interval_is() {
        let mut often = PoolSettings::clone(&settings(0));
        often.report = often
            .report
            .map(|report| Arc::new(Reporting { interval: Period::always(1_000), ..(*report).clone() }));
        let mut server = PoolServer::new(&Arc::new(often), 0, 0, false);
        reports(&mut server, wants(30), 0);
        (0..10).for_each(|second| {
            assert_eq!(
                server.poll(ClockReading::at(second * 1_000)).change,
                ServerChange::default(),
                "{second}"
            )
        });
        assert_eq!(server.poll(ClockReading::at(10_000)).change.effect, Effect::Weight);
    }

    #[test]
    fn report_without_report_settings_is_ignored() {
        let mut server = PoolServer::new(&without_reports(0), 0, 0, false);
        assert_eq!(reports(&mut server, wants(0), 1), ServerChange::default());
        assert_eq!((server.reports(), server.refuses(), server.tenths()), (None, false, 10));
    }

    #[test]
    fn reports_that_are_not_believed_are_counted_by_their_reason() {
        let mut server = PoolServer::new(&settings(0), 0, 0, false);
        let mut bad = |bad| server.apply_fact(Fact::Reported(Err(bad)), 1).events;
        assert_eq!(bad(BadReport::Silent), [ServerEvent::Reports(Some(BadReport::Silent))]);
        assert_eq!(
            (bad(BadReport::Silent), bad(BadReport::Odd)),
            (alloc::vec![], alloc::vec![]),
            "that is known"
        );
        assert_eq!(reports(&mut server, wants(100), 2).events, [ServerEvent::Reports(None)]);
        let seen = server.reports().unwrap();
        assert_eq!((seen.error, seen.bad[&BadReport::Silent], seen.bad[&BadReport::Odd]), (None, 2, 1));
    }

    #[test]
    fn reload_keeps_server_state_that_still_applies() {
        let mut server = PoolServer::new(&settings(10_000), 0, 0, true);
        works(&mut server, 1);
        reports(&mut server, wants(30), 1);
        assert_eq!(server.reconfigure(&settings(20_000), 0, 2), ServerChange::default());
        assert_eq!((server.wanted_tenths(), server.tenths(), server.is_up()), (3, 1, true));
        // Without a slow start the server has its whole weight, and without reports it requests its
        // whole weight.
        let change = server.reconfigure(&without_reports(0), 0, 3);
        assert_eq!(change, ServerChange { effect: Effect::Weight, ..ServerChange::default() });
        assert_eq!((server.wanted_tenths(), server.tenths(), server.reports()), (10, 10, None));
    }

    #[test]
    fn a_server_that_took_sessions_before_a_restart_has_its_whole_weight() {
        let mut server = PoolServer::new(&without_reports(10_000), 0, 0, true);
        server.resume();
        assert!(server.is_up());
        works(&mut server, 1);
        assert_eq!((server.tenths(), server.slow_start_percent(1)), (10, 100));
    }
}
