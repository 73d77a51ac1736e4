//! Whether a server works, from the answers to probes: a state machine per server that says when to
//! probe next and what the answers amount to.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::{CheckHistory, HealthCheck, HealthKind};

/// The most of a reply that is read for a probe, head and body, in bytes.
pub const REPLY_MAX: usize = 64 * 1024;

/// The state of a server's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HealthState {
    /// No probe has been answered or failed yet.
    Unknown,
    /// It takes sessions.
    Up,
    /// It failed `fall` probes in a row.
    Down,
}

/// A state and its history, as much of it as a plan needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthStatus {
    /// The state now.
    pub state: HealthState,
    /// When it became so, in milliseconds; 0 for a server that began so.
    pub since_ms: u64,
    /// Whether the server was ever up.
    pub was_up: bool,
}

impl HealthStatus {
    /// Of a server that nothing is known of.
    pub const UNKNOWN: HealthStatus =
        HealthStatus { state: HealthState::Unknown, since_ms: 0, was_up: false };
}

/// A change of state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Before.
    pub from: HealthState,
    /// After.
    pub to: HealthState,
    /// The failure of the last probe, where the server went down.
    pub reason: Option<Failure>,
}

/// Why a probe failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nothing came back in time.
    #[error("no answer in time")]
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
    /// The server answers no neighbour solicitation, ARP's counterpart over IPv6.
    #[error("no neighbour advertisement")]
    NoNeighbour,
    /// The server is not on a link of the director's, and the way to it isn't known.
    #[error("no route to the server, or its next hop does not answer")]
    NoWay,
    /// The connection ended in the middle of the reply.
    #[error("closed before the reply was complete")]
    Closed,
    /// The bytes that came are not an HTTP/1 reply.
    #[error("the reply is not HTTP/1")]
    NotHttp,
    /// A status that the service does not accept.
    #[error("status {0}")]
    Status(u16),
    /// The body ended, or [`REPLY_MAX`] was reached, without the text asked for.
    #[error("the body lacks the text asked for")]
    Body,
    /// Anything else, in the prober's words.
    #[error("{0}")]
    Other(String),
    /// It was not even asked: no connection may be opened to where it is, in the prober's words.
    #[error("{0}")]
    Forbidden(String),
    /// This host lacks what a probe takes, in the prober's words. It says nothing of the server.
    #[error("{0}")]
    NotProbed(String),
}

/// The health of one server.
#[derive(Clone, Debug)]
pub struct Health {
    /// Mostly the same for many servers.
    settings: Arc<HealthCheck>,
    status: HealthStatus,
    /// Answers in a row that speak against `state`.
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
}

impl Health {
    /// A server not probed yet; its first probe is due at once. `seed` spreads the jitter of
    /// servers.
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
        }
    }

    /// It took sessions when the control plane stopped: it is up until probes say otherwise.
    pub fn resume(&mut self) {
        self.status = HealthStatus { state: HealthState::Up, since_ms: 0, was_up: true };
    }

    /// Goes on as if it had never been probed; whether it was ever up stays known.
    pub fn restart(&mut self, now_ms: u64) {
        let state =
            if self.settings.kind == HealthKind::None { HealthState::Up } else { HealthState::Unknown };
        self.status = HealthStatus { state, since_ms: now_ms, ..self.status };
        (self.against, self.in_flight, self.next_ms) = (0, false, now_ms);
        self.last_failure = None;
    }

    /// Goes on with other settings after a reload; what is known stays known.
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

    /// Says whether a probe can be sent to it.
    pub fn set_reachable(&mut self, is_reachable: bool) {
        self.is_reachable = is_reachable;
    }

    /// Whether a probe can be sent to it.
    pub fn is_reachable(&self) -> bool {
        self.is_reachable
    }

    /// When the next probe is due, in milliseconds: never while one is under way or none can be
    /// sent, or if servers of this service are not probed.
    pub fn next_probe_at(&self) -> u64 {
        let never = self.in_flight || !self.is_reachable || self.settings.kind == HealthKind::None;
        if never { u64::MAX } else { self.next_ms }
    }

    /// A probe began. Intervals run from the start of one probe to the start of the next.
    pub fn started(&mut self, now_ms: u64) {
        self.in_flight = true;
        self.next_ms = now_ms.saturating_add(self.interval_ms());
    }

    /// A probe ended: how long it took in microseconds, or why it failed.
    ///
    /// The first answer counts at once, so that a farm starts fast; later ones need `rise` or
    /// `fall` of them in a row.
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
        if finding == self.status.state {
            self.against = 0;
            return None;
        }
        self.against = self.against.saturating_add(1);
        let at_once =
            self.status.state == HealthState::Unknown || matches!(reason, Some(Failure::Forbidden(_)));
        let enough = at_once || self.against >= needed;
        enough.then(|| self.become_state(now_ms, finding, reason))
    }

    /// The state, and what a plan needs of its history.
    pub fn status(&self) -> HealthStatus {
        self.status
    }

    /// How long the last successful probe took, in microseconds.
    pub fn latency_us(&self) -> Option<u64> {
        self.latency_us
    }

    /// When the last failed probe ended, in milliseconds, and why it failed.
    pub fn last_failure(&self) -> Option<&(u64, Failure)> {
        self.last_failure.as_ref()
    }

    /// How many probes have failed.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// The last results of probes that say something of the server.
    pub fn checks(&self) -> CheckHistory {
        self.checks
    }

    /// How often the state has changed.
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

    /// The interval, a little shorter or longer each time, so that the probes of many servers by
    /// many directors do not fall together.
    fn interval_ms(&mut self) -> u64 {
        let interval = self.settings.interval_ms;
        let spread = interval.saturating_mul(u64::from(self.settings.jitter_percent.min(100))) / 100;
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let within = mix(self.seed) % spread.saturating_mul(2).saturating_add(1);
        (interval - spread).saturating_add(within)
    }
}

/// The output function of SplitMix64 (Steele, Lea and Flood 2014): enough for jitter.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The verdict on a reply read so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyVerdict {
    /// Read on.
    More,
    /// The probe succeeded; the connection can be closed.
    Ok,
    /// The probe failed.
    Failed(Failure),
}

/// The request of an HTTP probe to a service address; `None` for other kinds.
///
/// HTTP/1.0, so that the server neither chunks the body nor keeps the connection (RFC 9112,
/// sections 6.1 and 9.3).
pub fn http_request(kind: &HealthKind, address: SocketAddr) -> Option<Vec<u8>> {
    let HealthKind::Http { path, host, tls, .. } = kind else {
        return None;
    };
    let default_port = if tls.is_some() { 443 } else { 80 };
    let named = || tls.as_ref()?.name.clone();
    let host = host.clone().or_else(named).unwrap_or_else(|| match address {
        SocketAddr::V4(address) if address.port() == default_port => format!("{}", address.ip()),
        // In brackets, as with a port (RFC 3986, section 3.2.2).
        SocketAddr::V6(address) if address.port() == default_port => format!("[{}]", address.ip()),
        _ => format!("{address}"),
    });
    let request = format!(
        "GET {path} HTTP/1.0\r\nHost: {host}\r\nUser-Agent: evener\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    Some(request.into_bytes())
}

/// Judges the reply to a probe from its bytes so far; `eof`: no more will come.
///
/// Bytes behind the first [`REPLY_MAX`] are not looked at. A probe that only opens a connection
/// needs no reply and is always [`ReplyVerdict::Ok`].
pub fn judge_http(kind: &HealthKind, reply: &[u8], eof: bool) -> ReplyVerdict {
    let HealthKind::Http { status: accepted, body: wanted, .. } = kind else {
        return ReplyVerdict::Ok;
    };
    let full = reply.len() >= REPLY_MAX;
    let reply = &reply[..reply.len().min(REPLY_MAX)];
    let status = match status_of(reply) {
        Ok(Some(status)) => status,
        Ok(None) if eof => return ReplyVerdict::Failed(Failure::Closed),
        Ok(None) => return ReplyVerdict::More,
        Err(failure) => return ReplyVerdict::Failed(failure),
    };
    if !accepted.iter().any(|&(low, high)| (low..=high).contains(&status)) {
        return ReplyVerdict::Failed(Failure::Status(status));
    }
    let Some(wanted) = wanted.as_ref().filter(|text| !text.is_empty()) else {
        return ReplyVerdict::Ok;
    };
    let body = body_of(reply);
    match body {
        Some(body) if contains(body, wanted.as_bytes()) => ReplyVerdict::Ok,
        None if eof && !full => ReplyVerdict::Failed(Failure::Closed),
        _ if eof || full => ReplyVerdict::Failed(Failure::Body),
        _ => ReplyVerdict::More,
    }
}

/// The status code of a status line (RFC 9112, section 4), once it is there.
fn status_of(reply: &[u8]) -> Result<Option<u16>, Failure> {
    const SHAPE: &[u8; 13] = b"HTTP/1.d ddd ";
    for (&byte, &shape) in reply.iter().zip(SHAPE) {
        let fits = match shape {
            b'd' => byte.is_ascii_digit(),
            // The reason and the space before it are left out by some.
            b' ' => matches!(byte, b' ' | b'\r' | b'\n'),
            _ => byte == shape,
        };
        if !fits {
            return Err(Failure::NotHttp);
        }
    }
    let code = |digits: &[u8]| digits.iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0'));
    Ok(reply.get(..SHAPE.len()).and_then(|line| line.get(9..12)).map(code))
}

/// The body behind the empty line, lone line feeds accepted (RFC 9112, section 2.2).
fn body_of(reply: &[u8]) -> Option<&[u8]> {
    let mut at_line_start = false;
    let mut bytes = reply.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\n' if at_line_start => return Some(bytes.as_slice()),
            b'\n' => at_line_start = true,
            b'\r' if at_line_start => {}
            _ => at_line_start = false,
        }
    }
    None
}

fn contains(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len()).any(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::ProbeTls;
    use alloc::string::ToString;
    use proptest::prelude::*;
    use std::vec;

    fn settings(rise: u32, fall: u32) -> Arc<HealthCheck> {
        Arc::new(HealthCheck {
            kind: HealthKind::Tcp,
            interval_ms: 2_000,
            timeout_ms: 1_000,
            rise,
            fall,
            jitter_percent: 10,
            port: None,
        })
    }

    fn http(body: Option<&str>) -> HealthKind {
        HealthKind::Http {
            path: "/healthz".into(),
            host: None,
            status: vec![(200, 299), (304, 304)],
            body: body.map(Into::into),
            tls: None,
        }
    }

    /// Feeds `.` for a success and `x` for a failure; gives the state after each.
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
        // Nor does it come between two answers that do say something.
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
    fn http_status_is_judged_without_body() {
        let kind = http(None);
        assert_eq!(judge_http(&kind, b"", false), ReplyVerdict::More);
        assert_eq!(judge_http(&kind, b"HTTP/1.1 20", false), ReplyVerdict::More);
        assert_eq!(judge_http(&kind, b"HTTP/1.1 200 OK\r\n", false), ReplyVerdict::Ok);
        assert_eq!(judge_http(&kind, b"HTTP/1.0 304\r\n", false), ReplyVerdict::Ok);
        let failed = |reply: &[u8], eof| match judge_http(&kind, reply, eof) {
            ReplyVerdict::Failed(failure) => failure,
            other => panic!("{other:?}"),
        };
        assert_eq!(failed(b"HTTP/1.1 503 Busy\r\n", false), Failure::Status(503));
        assert_eq!(failed(b"SSH-2.0-x", false), Failure::NotHttp);
        assert_eq!(failed(b"HTTP/1.1 2000", false), Failure::NotHttp);
        assert_eq!(failed(b"HTTP/1.1 20", true), Failure::Closed);
        assert_eq!(failed(b"", true), Failure::Closed);
    }

    #[test]
    fn expected_text_is_searched_until_body_end() {
        let kind = http(Some("ready"));
        let head = "HTTP/1.1 200 OK\r\nX-State: ready\r\n\r\n";
        let judge = |body: &str, eof| judge_http(&kind, [head, body].concat().as_bytes(), eof);
        assert_eq!(judge("rea", false), ReplyVerdict::More, "the head is not the body");
        assert_eq!(judge("all ready", false), ReplyVerdict::Ok);
        assert_eq!(judge("starting", true), ReplyVerdict::Failed(Failure::Body));
        assert_eq!(judge(&"x".repeat(REPLY_MAX), false), ReplyVerdict::Failed(Failure::Body));
        let far = ["x".repeat(REPLY_MAX).as_str(), "ready"].concat();
        assert_eq!(judge(&far, true), ReplyVerdict::Failed(Failure::Body));
        assert_eq!(judge_http(&kind, b"HTTP/1.1 200 OK\nA: b\n\nready", false), ReplyVerdict::Ok);
        assert_eq!(judge_http(&kind, b"HTTP/1.1 200 OK\r\nA", true), ReplyVerdict::Failed(Failure::Closed));
        assert_eq!(judge_http(&http(Some("")), b"HTTP/1.1 200 OK\r\n", false), ReplyVerdict::Ok);
    }

    #[test]
    fn a_request_names_the_service() {
        let text = |port| {
            let address = SocketAddr::new([192, 0, 2, 100].into(), port);
            String::from_utf8(http_request(&http(None), address).unwrap()).unwrap()
        };
        assert!(text(80).starts_with("GET /healthz HTTP/1.0\r\nHost: 192.0.2.100\r\n"));
        assert!(text(8080).contains("\r\nHost: 192.0.2.100:8080\r\n"));
        let ipv6 = |address: &str| http_request(&http(None), address.parse().unwrap()).unwrap();
        assert!(contains(&ipv6("[2001:db8::100]:80"), b"\r\nHost: [2001:db8::100]\r\n"));
        assert!(contains(&ipv6("[2001:db8::100]:8080"), b"\r\nHost: [2001:db8::100]:8080\r\n"));
        assert!(text(80).ends_with("\r\n\r\n"));
        let secure = |name: Option<&str>| HealthKind::Http {
            path: "/".into(),
            host: None,
            status: vec![(200, 399)],
            body: None,
            tls: Some(ProbeTls { name: name.map(Into::into), ca: None, verify: true }),
        };
        let host = |kind: &HealthKind, port: u16| {
            let request = http_request(kind, SocketAddr::new([192, 0, 2, 1].into(), port)).unwrap();
            String::from_utf8(request).unwrap().lines().nth(1).unwrap().to_string()
        };
        assert_eq!(host(&secure(None), 443), "Host: 192.0.2.1");
        assert_eq!(host(&secure(None), 80), "Host: 192.0.2.1:80");
        assert_eq!(host(&secure(Some("www.example.com")), 443), "Host: www.example.com");
        assert_eq!(http_request(&HealthKind::Tcp, SocketAddr::new([192, 0, 2, 1].into(), 80)), None);
    }

    #[test]
    fn a_probe_in_the_middle_of_a_reload_is_not_followed_by_another_at_once() {
        let mut health = Health::new(&settings(1, 1), 7);
        health.started(100);
        health.reconfigure(200, &settings(2, 2));
        assert_eq!(health.next_probe_at(), u64::MAX, "one is under way");
        health.result(300, Ok(1));
        assert_eq!(health.next_probe_at(), 300);
        // An answer that nobody waits for puts the next probe off.
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

    #[test]
    fn the_edges_of_accepted_statuses_are_accepted_and_their_neighbours_are_not() {
        let kind = http(None);
        let judge = |status: u16| judge_http(&kind, format!("HTTP/1.1 {status} x\r\n").as_bytes(), false);
        for status in [200, 299, 304] {
            assert_eq!(judge(status), ReplyVerdict::Ok, "{status}");
        }
        for status in [100, 199, 300, 303, 305, 999] {
            assert_eq!(judge(status), ReplyVerdict::Failed(Failure::Status(status)));
        }
    }

    #[test]
    fn a_body_that_fills_all_that_is_read_is_still_searched() {
        let kind = http(Some("ready"));
        let head = "HTTP/1.1 200 OK\r\n\r\n";
        let reply = |len: usize| format!("{head}{}ready", "x".repeat(len - head.len() - 5));
        assert_eq!(judge_http(&kind, reply(REPLY_MAX).as_bytes(), false), ReplyVerdict::Ok);
        assert_eq!(
            judge_http(&kind, reply(REPLY_MAX + 1).as_bytes(), false),
            ReplyVerdict::Failed(Failure::Body)
        );
        let open = "HTTP/1.1 200 OK\r\nA: ".to_string() + &"b".repeat(REPLY_MAX);
        assert_eq!(judge_http(&kind, &open.as_bytes()[..REPLY_MAX - 1], false), ReplyVerdict::More);
        assert_eq!(
            judge_http(&kind, &open.as_bytes()[..REPLY_MAX], false),
            ReplyVerdict::Failed(Failure::Body)
        );
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

        #[test]
        fn any_reply_is_judged_and_an_ended_one_for_good(
            start in prop_oneof![Just(""), Just("HTTP/1.1 200 OK\r\n"), Just("HTTP/1.1 200 OK\r\n\r\n")],
            rest in prop::collection::vec(any::<u8>(), 0..200),
            body in prop::option::of("[a-c]{0,2}"),
        ) {
            let reply = [start.as_bytes(), &rest].concat();
            let kind = http(body.as_deref());
            prop_assert_ne!(judge_http(&kind, &reply, true), ReplyVerdict::More);
            // A judgement once made is not taken back by bytes that follow.
            let mut last = ReplyVerdict::More;
            for end in 0..=reply.len() {
                let now = judge_http(&kind, &reply[..end], false);
                prop_assert!(last == ReplyVerdict::More || now == last);
                last = now;
            }
        }
    }
}
