//! Health of a server by its probes. A state machine per server schedules the next probe and
//! computes the state from results.

use alloc::string::String;
use alloc::sync::Arc;

use super::{CheckHistory, HealthCheck, HealthKind};

/// State of a server by its probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HealthState {
    /// There is no probe result yet.
    Unknown,
    /// Probes succeed, so the server may take sessions.
    Up,
    /// The last `fall` probes failed, or the first probe did, or the server was ejected.
    Down,
}

/// Health state with the history that a plan needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthStatus {
    pub state: HealthState,
    /// Time of the last change of state, in milliseconds; 0 if the state never changed.
    pub since_ms: u64,
    /// True if the server was up at any time.
    pub was_up: bool,
}

impl HealthStatus {
    /// Status of a server without any probe result.
    pub const UNKNOWN: HealthStatus =
        HealthStatus { state: HealthState::Unknown, since_ms: 0, was_up: false };
}

/// A change of state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    pub from: HealthState,
    pub to: HealthState,
    /// Failure of the last probe, if the server went down.
    pub reason: Option<Failure>,
}

/// Reason why a probe failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No answer within the timeout.
    #[error("timed out")]
    Timeout,
    /// The server's stack refused the connection.
    #[error("connection refused")]
    Refused,
    /// The connection was reset after it opened.
    #[error("connection reset")]
    Reset,
    /// The server's MAC address is not known.
    #[error("no ARP answer")]
    NoArp,
    /// The server does not answer neighbour solicitations (IPv6's counterpart of ARP).
    #[error("no neighbour advertisement")]
    NoNeighbour,
    /// The server is on no link of the director, and no next hop is known.
    #[error("no route to the server, or its next hop does not answer")]
    NoWay,
    /// The connection ended in the middle of the reply.
    #[error("closed before the reply was complete")]
    Closed,
    /// The received bytes are not an HTTP/1 reply.
    #[error("the reply is not HTTP/1")]
    NotHttp,
    /// The service does not accept this status code.
    #[error("status {0}")]
    Status(u16),
    /// The body ended, or its maximum length was reached, without the expected text.
    #[error("the body lacks the expected text")]
    Body,
    /// Any other failure, described by the prober.
    #[error("{0}")]
    Other(String),
    /// The server was not probed, since connections to its address are forbidden. The prober
    /// describes the reason.
    #[error("{0}")]
    Forbidden(String),
    /// The server was not probed, since this host lacks a resource, which the prober describes. The
    /// result does not count against the server.
    #[error("{0}")]
    NotProbed(String),
}

/// Health of one server.
#[derive(Clone, Debug)]
pub struct Health {
    /// Settings that the servers of a service share.
    settings: Arc<HealthCheck>,
    status: HealthStatus,
    /// Number of last results in a row that contradict the state.
    against: u32,
    seed: u64,
    next_ms: u64,
    in_flight: bool,
    is_reachable: bool,
    latency_us: Option<u64>,
    last_failure: Option<(u64, Failure)>,
    failures: u64,
    changes: u64,
    checks: CheckHistory,
    /// Number of ejections in a row, and the time until which successful probes do not bring the
    /// server back, in milliseconds.
    ejections: u32,
    ejected_until_ms: u64,
}

/// Duration of the first ejection for failed client connections, in milliseconds. The n-th ejection
/// in a row lasts n times as long (Envoy's outlier detection).
pub const EJECTION_MS: u64 = 30_000;
/// Longest ejection, in milliseconds. After this much time without ejection the count restarts.
pub const EJECTION_MAX_MS: u64 = 300_000;

impl Health {
    /// Returns the health of a server that was not probed yet; its first probe is due at once.
    /// `seed` differs between servers and spreads their probes.
    pub fn new(settings: &Arc<HealthCheck>, seed: u64) -> Health {
        let up = settings.kind == HealthKind::None;
        let state = if up { HealthState::Up } else { HealthState::Unknown };
        Health {
            settings: Arc::clone(settings),
            status: HealthStatus { state, since_ms: 0, was_up: up },
            against: 0,
            seed,
            next_ms: 0,
            in_flight: false,
            is_reachable: true,
            latency_us: None,
            last_failure: None,
            failures: 0,
            changes: 0,
            checks: CheckHistory::default(),
            ejections: 0,
            ejected_until_ms: 0,
        }
    }

    /// Ejects the server because its clients' connections fail, whatever its probes report. The
    /// server is down for the ejection time, and then until `rise` probes in a row succeed.
    pub fn eject(&mut self, now_ms: u64, reason: Failure) -> Transition {
        let is_long_ago = self.ejected_until_ms.saturating_add(EJECTION_MAX_MS) <= now_ms;
        self.ejections = if is_long_ago { 1 } else { self.ejections.saturating_add(1) };
        let for_ms = (EJECTION_MS * u64::from(self.ejections)).min(EJECTION_MAX_MS);
        self.ejected_until_ms = now_ms.saturating_add(for_ms);
        self.last_failure = Some((now_ms, reason.clone()));
        self.become_state(now_ms, HealthState::Down, Some(reason))
    }

    /// True while successful probes do not bring the server back.
    pub fn is_ejected(&self, now_ms: u64) -> bool {
        now_ms < self.ejected_until_ms
    }

    /// Marks the server as up until probes fail, because the server took sessions before the
    /// control plane restarted.
    pub fn resume(&mut self) {
        self.status = HealthStatus { state: HealthState::Up, since_ms: 0, was_up: true };
    }

    /// Discards all probe results, but remembers if the server was up before.
    pub fn restart(&mut self, now_ms: u64) {
        let state =
            if self.settings.kind == HealthKind::None { HealthState::Up } else { HealthState::Unknown };
        self.status = HealthStatus { state, since_ms: now_ms, ..self.status };
        (self.against, self.in_flight, self.next_ms) = (0, false, now_ms);
        (self.ejections, self.ejected_until_ms) = (0, 0);
        self.last_failure = None;
    }

    /// Applies other settings after a reload. Probe results are kept.
    pub fn reconfigure(&mut self, now_ms: u64, settings: &Arc<HealthCheck>) -> Option<Transition> {
        let before = core::mem::replace(&mut self.settings, Arc::clone(settings));
        if before == *settings {
            return None;
        }
        self.against = 0;
        self.next_ms = now_ms;
        let unasked = settings.kind == HealthKind::None && self.status.state != HealthState::Up;
        unasked.then(|| self.become_state(now_ms, HealthState::Up, None))
    }

    /// Records if probes can be sent to the server.
    pub fn set_reachable(&mut self, is_reachable: bool) {
        self.is_reachable = is_reachable;
    }

    /// True if probes can be sent to the server.
    pub fn is_reachable(&self) -> bool {
        self.is_reachable
    }

    /// Returns the time of the next probe, in milliseconds. `u64::MAX` while a probe is in flight,
    /// while the server is unreachable, or if the service has no probes.
    pub fn next_probe_at(&self) -> u64 {
        let never = self.in_flight || !self.is_reachable || self.settings.kind == HealthKind::None;
        if never { u64::MAX } else { self.next_ms }
    }

    /// Records the start of a probe. Intervals run from the start of one probe to the start of the
    /// next.
    pub fn started(&mut self, now_ms: u64) {
        self.in_flight = true;
        self.next_ms = now_ms.saturating_add(self.interval_ms());
    }

    /// Records the result of a probe: its duration in microseconds, or the failure.
    ///
    /// The first result counts at once, so that a farm starts fast. Later changes of state need
    /// `rise` or `fall` results in a row.
    pub fn result(&mut self, now_ms: u64, result: Result<u64, Failure>) -> Option<Transition> {
        if self.in_flight {
            self.in_flight = false;
            self.next_ms = self.next_ms.max(now_ms);
        } else {
            self.next_ms = now_ms.saturating_add(self.interval_ms());
        }
        let (finding, needed) = match &result {
            Ok(_) => (HealthState::Up, self.settings.rise),
            Err(_) => (HealthState::Down, self.settings.fall),
        };
        let reason = match result {
            Ok(latency_us) => {
                self.latency_us = Some(latency_us);
                None
            }
            Err(failure) => {
                self.failures = self.failures.saturating_add(1);
                self.last_failure = Some((now_ms, failure.clone()));
                Some(failure)
            }
        };
        if matches!(reason, Some(Failure::NotProbed(_))) {
            return None;
        }
        self.checks.push(reason.is_none());
        if finding == self.status.state || self.is_ejected(now_ms) {
            self.against = 0;
            return None;
        }
        self.against = self.against.saturating_add(1);
        let at_once =
            self.status.state == HealthState::Unknown || matches!(reason, Some(Failure::Forbidden(_)));
        if at_once || self.against >= needed {
            return Some(self.become_state(now_ms, finding, reason));
        }
        self.next_ms = self.next_ms.min(now_ms.saturating_add(self.settings.fast_interval_ms));
        None
    }

    /// Returns the state and the history that a plan needs.
    pub fn status(&self) -> HealthStatus {
        self.status
    }

    /// Duration of the last successful probe, in microseconds.
    pub fn latency_us(&self) -> Option<u64> {
        self.latency_us
    }

    /// End of the last failed probe, in milliseconds, and its failure.
    pub fn last_failure(&self) -> Option<&(u64, Failure)> {
        self.last_failure.as_ref()
    }

    /// Number of failed probes.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Last results, without those of [`Failure::NotProbed`].
    pub fn checks(&self) -> CheckHistory {
        self.checks
    }

    /// Number of changes of state.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    fn become_state(&mut self, now_ms: u64, to: HealthState, reason: Option<Failure>) -> Transition {
        let from = self.status.state;
        let was_up = self.status.was_up || to == HealthState::Up;
        self.status = HealthStatus { state: to, since_ms: now_ms, was_up };
        self.against = 0;
        self.changes = self.changes.saturating_add(1);
        Transition { from, to, reason }
    }

    /// Returns the interval with jitter, so that probes of many servers by many directors do not
    /// coincide.
    fn interval_ms(&mut self) -> u64 {
        let interval = self.settings.interval_ms;
        let spread = interval.saturating_mul(u64::from(self.settings.jitter_percent.min(100))) / 100;
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let within = mix(self.seed) % spread.saturating_mul(2).saturating_add(1);
        (interval - spread).saturating_add(within)
    }
}

/// Output function of SplitMix64 (Steele, Lea and Flood 2014), which is random enough for jitter.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    fn settings(rise: u32, fall: u32) -> Arc<HealthCheck> {
        Arc::new(HealthCheck { rise, fall, ..HealthCheck::default() })
    }

    #[test]
    fn results_against_the_state_bring_the_next_probe_forward() {
        let fast = HealthCheck { fast_interval_ms: 100, jitter_percent: 0, ..HealthCheck::default() };
        let mut health = Health::new(&Arc::new(fast), 0);
        let mut probe = |now_ms, result| {
            health.started(now_ms);
            health.result(now_ms + 10, result);
            health.next_probe_at() - now_ms
        };
        let refused = || Err(Failure::Refused);
        assert_eq!((probe(0, Ok(5)), probe(2_000, Ok(5))), (2_000, 2_000));
        assert_eq!((probe(4_000, refused()), probe(4_110, refused())), (110, 110));
        assert_eq!(probe(4_220, refused()), 2_000, "the third failure makes it down");
        assert_eq!((probe(6_220, refused()), probe(8_220, Ok(5))), (2_000, 110));
        assert_eq!((probe(8_330, refused()), probe(10_330, Ok(5))), (2_000, 110));
        assert_eq!(probe(10_440, Ok(5)), 2_000, "the second success makes it up");
    }

    /// Applies a result for each character: `.` is a success and `x` a failure. Returns the state
    /// after each result.
    fn states(health: &mut Health, answers: &str) -> String {
        let mut now_ms = 0;
        let mut letter = |answer| {
            now_ms += 1;
            health.result(now_ms, if answer == '.' { Ok(1) } else { Err(Failure::Timeout) });
            match health.status().state {
                HealthState::Unknown => '?',
                HealthState::Up => 'U',
                HealthState::Down => 'D',
            }
        };
        answers.chars().map(&mut letter).collect()
    }

    #[test]
    fn the_first_answer_counts_at_once() {
        assert_eq!(states(&mut Health::new(&settings(3, 3), 1), "."), "U");
        assert_eq!(states(&mut Health::new(&settings(3, 3), 1), "x"), "D");
    }

    #[test]
    fn later_answers_count_in_a_row() {
        let mut health = Health::new(&settings(2, 3), 1);
        assert_eq!(states(&mut health, ".xx.xxx.x.."), "UUUUUUDDDDU");
    }

    #[test]
    fn ejected_server_stays_down_for_longer_each_time() {
        let mut health = Health::new(&settings(2, 3), 1);
        health.result(0, Ok(1));
        let mut now_ms = 0;
        for times in [1, 2, 3, 10, 10] {
            assert_eq!(health.eject(now_ms, Failure::Timeout).to, HealthState::Down);
            let until_ms = now_ms + EJECTION_MS * times;
            let (mut state, mut failures) = (HealthState::Down, 0);
            while state == HealthState::Down {
                now_ms += 1_000;
                health.result(now_ms, Ok(1));
                state = health.status().state;
                failures += 1;
            }
            assert!(now_ms >= until_ms && now_ms <= until_ms + 2_000 && failures > 20, "{now_ms} {until_ms}");
            health.ejections = if times == 3 { 9 } else { health.ejections };
        }
        now_ms += 2 * EJECTION_MAX_MS;
        health.eject(now_ms, Failure::Timeout);
        assert!(
            health.is_ejected(now_ms) && !health.is_ejected(now_ms + EJECTION_MS),
            "long ago is forgotten"
        );
    }

    #[test]
    fn transition_has_its_reason() {
        let mut health = Health::new(&settings(1, 1), 1);
        let up = Transition { from: HealthState::Unknown, to: HealthState::Up, reason: None };
        assert_eq!(health.result(5, Ok(300)), Some(up));
        assert_eq!(health.latency_us(), Some(300));
        assert_eq!(health.result(6, Ok(200)), None);
        let down =
            Transition { from: HealthState::Up, to: HealthState::Down, reason: Some(Failure::Status(503)) };
        assert_eq!(health.result(9, Err(Failure::Status(503))), Some(down));
        assert_eq!(health.status(), HealthStatus { state: HealthState::Down, since_ms: 9, was_up: true });
        assert_eq!(health.last_failure(), Some(&(9, Failure::Status(503))));
        assert_eq!(Failure::Status(503).to_string(), "status 503");
    }

    #[test]
    fn local_probe_failure_keeps_server_state() {
        let lacks = || Err(Failure::NotProbed(String::from("no descriptor is left")));
        let mut health = Health::new(&settings(2, 2), 1);
        assert_eq!(health.result(1, lacks()), None);
        assert_eq!(health.status().state, HealthState::Unknown);
        health.result(2, Ok(300));
        for now_ms in 3..9 {
            assert_eq!(health.result(now_ms, lacks()), None);
        }
        assert_eq!(health.status().state, HealthState::Up);
        assert_eq!(
            (health.failures(), health.last_failure().map(|(at, _)| *at)),
            (7, Some(8)),
            "views tell of it"
        );
        assert_eq!(health.checks().to_string(), ".", "the history is of the server");
        // A result [`Failure::NotProbed`] doesn't interrupt a series of failures either.
        assert_eq!(health.result(9, Err(Failure::Timeout)), None);
        assert_eq!(health.result(10, lacks()), None);
        let down = health.result(11, Err(Failure::Timeout)).map(|transition| transition.to);
        assert_eq!(down, Some(HealthState::Down));
    }

    #[test]
    fn probes_do_not_overlap_and_keep_their_pace() {
        let mut health = Health::new(&settings(1, 1), 7);
        assert_eq!(health.next_probe_at(), 0);
        health.started(100);
        assert_eq!(health.next_probe_at(), u64::MAX);
        health.result(150, Ok(50_000));
        assert!((1_900..=2_300).contains(&health.next_probe_at()));
        health.started(3_000);
        health.result(9_000, Err(Failure::Timeout));
        assert_eq!(health.next_probe_at(), 9_000);
    }

    #[test]
    fn a_server_not_probed_is_up() {
        let none = Arc::new(HealthCheck { kind: HealthKind::None, ..(*settings(1, 1)).clone() });
        let health = Health::new(&none, 1);
        assert_eq!((health.status().state, health.next_probe_at()), (HealthState::Up, u64::MAX));
        let mut down = Health::new(&settings(1, 1), 1);
        down.result(1, Err(Failure::Refused));
        let transition = down.reconfigure(2, &none).unwrap();
        assert_eq!(transition.to, HealthState::Up);
    }

    #[test]
    fn reload_keeps_health_and_restarts_probes() {
        let mut health = Health::new(&settings(1, 3), 1);
        health.resume();
        health.started(10);
        health.result(11, Ok(1));
        assert_eq!(health.reconfigure(20, &settings(1, 3)), None);
        assert!(health.next_probe_at() > 20);
        assert_eq!(health.reconfigure(20, &settings(1, 2)), None);
        assert_eq!((health.status().state, health.next_probe_at()), (HealthState::Up, 20));
    }

    #[test]
    fn a_probe_in_the_middle_of_a_reload_is_not_followed_by_another_at_once() {
        let mut health = Health::new(&settings(1, 1), 7);
        health.started(100);
        health.reconfigure(200, &settings(2, 2));
        assert_eq!(health.next_probe_at(), u64::MAX, "one is under way");
        health.result(300, Ok(1));
        assert_eq!(health.next_probe_at(), 300);
        // A result without a started probe postpones the next probe.
        health.result(400, Ok(1));
        assert!((2_200..=2_600).contains(&health.next_probe_at()));
    }

    #[test]
    fn a_server_that_no_connection_may_be_opened_to_is_down_at_once() {
        let mut health = Health::new(&settings(3, 3), 1);
        health.result(1, Ok(1));
        let forbidden = Failure::Forbidden("a firewall forbids it".into());
        assert_eq!(health.result(2, Err(forbidden.clone())).map(|turn| turn.to), Some(HealthState::Down));
        assert_eq!((health.failures(), health.changes()), (1, 2));
        assert_eq!(forbidden.to_string(), "a firewall forbids it");
    }

    #[test]
    fn a_server_that_can_not_be_reached_is_not_probed() {
        let mut health = Health::new(&settings(1, 1), 1);
        assert!(health.is_reachable());
        health.set_reachable(false);
        assert_eq!((health.is_reachable(), health.next_probe_at()), (false, u64::MAX));
        health.set_reachable(true);
        assert_eq!(health.next_probe_at(), 0);
    }

    #[test]
    fn answers_in_a_row_count_anew_after_a_reload() {
        let mut health = Health::new(&settings(1, 2), 1);
        assert_eq!(states(&mut health, ".x"), "UU");
        health.reconfigure(5, &settings(1, 3));
        assert_eq!(states(&mut health, "xxx"), "UUD");
    }

    proptest! {
        #[test]
        fn the_interval_stays_within_its_jitter(
            seed: u64, interval_ms in 0u64..100_000, jitter_percent in 0u32..150
        ) {
            let mut health = Health::new(&Arc::new(HealthCheck { interval_ms, jitter_percent, ..(*settings(1, 1)).clone() }), seed);
            let spread = interval_ms * u64::from(jitter_percent.min(100)) / 100;
            for _ in 0..20 {
                health.started(1_000);
                health.result(1_000, Ok(1));
                let wait = health.next_probe_at() - 1_000;
                prop_assert!((interval_ms - spread..=interval_ms + spread).contains(&wait));
            }
        }
    }
}
