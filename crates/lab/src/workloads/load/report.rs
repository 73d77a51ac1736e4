use std::collections::BTreeMap;
use std::io;
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::exchange::{Failure, Reply, Times};

/// Maximum number of failures with details.
const EXAMPLES_MAX: usize = 8;
/// Upper limit of recorded latencies, in microseconds.
const LONGEST_US: u64 = 600_000_000;

/// Results of a load.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub seconds: f64,
    /// Number of complete and right responses.
    pub requests: u64,
    /// Number of responses per second.
    pub requests_per_second: f64,
    /// Number of connections with a response.
    pub connections: u64,
    /// Number of bytes of bodies, and of whole replies.
    pub bytes: u64,
    pub wire_bytes: u64,
    /// Mean times of connecting, with the name's resolution, of redirects, and of the last request,
    /// in microseconds.
    pub connect_us: f64,
    pub redirect_us: f64,
    pub fetch_us: f64,
    /// Mean number of requests in progress (Little's law): WebStone's load factor.
    pub load_factor: f64,
    pub errors: Errors,
    /// Shares by server, as named in the responses.
    pub servers: BTreeMap<String, Share>,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median latency in microseconds, including the connection's handshake.
    pub p50_us: u64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: u64,
    /// First failures, with time in seconds and description.
    pub examples: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// Number of the server's connections.
    pub connections: u64,
    /// Number of the server's requests.
    pub requests: u64,
    /// Number of bytes of the server's bodies.
    pub bytes: u64,
}

/// Numbers of failed requests by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Errors {
    pub connect: u64,
    pub reset: u64,
    pub timeout: u64,
    /// The response ended early.
    pub short: u64,
    /// The response differed from the expected one.
    pub wrong: u64,
}

impl Errors {
    pub fn total(&self) -> u64 {
        self.connect + self.reset + self.timeout + self.short + self.wrong
    }
}

/// Intermediate results of one or more connections.
#[derive(Debug)]
pub(super) struct Tally {
    report: Report,
    latencies: Histogram<u64>,
    /// Sums of the times of answered requests.
    times: Times,
    elapsed: Duration,
}

impl Default for Tally {
    fn default() -> Self {
        let latencies = match Histogram::new_with_bounds(1, LONGEST_US, 2) {
            Ok(histogram) => histogram,
            Err(error) => unreachable!("constant bounds are good or bad for ever: {error}"),
        };
        Tally { report: Report::default(), latencies, times: Times::default(), elapsed: Duration::ZERO }
    }
}

impl Tally {
    pub(super) fn answered(&mut self, reply: &Reply, elapsed: Duration) {
        let report = &mut self.report;
        report.requests += 1;
        report.connections += u64::from(reply.fresh);
        report.bytes += reply.bytes;
        report.wire_bytes += reply.wire_bytes;
        self.times.add(&reply.times);
        self.elapsed += elapsed;
        // most responses come from a known server, which avoids a copy of the name
        let share = match report.servers.get_mut(&reply.server) {
            Some(share) => share,
            None => report.servers.entry(reply.server.clone()).or_default(),
        };
        share.requests += 1;
        share.bytes += reply.bytes;
        share.connections += u64::from(reply.fresh);
        self.waited(elapsed);
    }

    /// Records the latency of a request, also of a failed one.
    pub(super) fn waited(&mut self, elapsed: Duration) {
        self.latencies.saturating_record(u64::try_from(elapsed.as_micros()).unwrap_or(LONGEST_US).max(1));
    }

    pub(super) fn failed(&mut self, failure: &Failure, at: Duration) {
        let errors = &mut self.report.errors;
        let (count, kind, text) = match failure {
            Failure::Connect(text) => (&mut errors.connect, "connect", text),
            Failure::Reset(text) => (&mut errors.reset, "reset", text),
            Failure::Timeout(text) => (&mut errors.timeout, "timeout", text),
            Failure::Short(text) => (&mut errors.short, "short", text),
            Failure::Wrong(text) => (&mut errors.wrong, "wrong", text),
        };
        *count += 1;
        if self.report.examples.len() < EXAMPLES_MAX {
            self.report.examples.push(format!("{:.3} s: {kind}: {text}", at.as_secs_f64()));
        }
    }

    /// Adds the results of a thread. A thread without results counts as a failure.
    pub(super) fn add_worker(&mut self, worker: io::Result<thread::Result<Tally>>) {
        let lost = match worker {
            Ok(Ok(tally)) => return self.add(&tally),
            Ok(Err(_)) => "a thread of the load panicked",
            Err(_) => "a thread of the load did not start",
        };
        self.failed(&Failure::Wrong(lost.to_owned()), Duration::ZERO);
    }

    pub(super) fn add(&mut self, other: &Tally) {
        let (total, more) = (&mut self.report, &other.report);
        total.requests += more.requests;
        total.connections += more.connections;
        total.bytes += more.bytes;
        total.wire_bytes += more.wire_bytes;
        self.times.add(&other.times);
        self.elapsed += other.elapsed;
        total.errors.connect += more.errors.connect;
        total.errors.reset += more.errors.reset;
        total.errors.timeout += more.errors.timeout;
        total.errors.short += more.errors.short;
        total.errors.wrong += more.errors.wrong;
        for (server, share) in &more.servers {
            let sum = total.servers.entry(server.clone()).or_default();
            sum.requests += share.requests;
            sum.bytes += share.bytes;
            sum.connections += share.connections;
        }
        total.examples.extend(more.examples.iter().cloned());
        // equal bounds, so this cannot fail
        let _ = self.latencies.add(&other.latencies);
    }

    pub(super) fn report(mut self, elapsed: Duration) -> Report {
        self.report.seconds = elapsed.as_secs_f64();
        self.report.requests_per_second =
            self.report.requests as f64 / elapsed.as_secs_f64().max(f64::EPSILON);
        let mean_us = |time: Duration| time.as_secs_f64() * 1e6 / self.report.requests.max(1) as f64;
        self.report.connect_us = mean_us(self.times.connect);
        self.report.redirect_us = mean_us(self.times.redirect);
        self.report.fetch_us = mean_us(self.times.fetch);
        self.report.load_factor = self.elapsed.as_secs_f64() / elapsed.as_secs_f64().max(f64::EPSILON);
        self.report.mean_us = self.latencies.mean();
        self.report.p50_us = self.latencies.value_at_quantile(0.5);
        self.report.p99_us = self.latencies.value_at_quantile(0.99);
        self.report.examples.truncate(EXAMPLES_MAX);
        self.report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up() {
        let mut total = Tally::default();
        for server in ["web1", "web2", "web1"] {
            let mut tally = Tally::default();
            let reply = |fresh| Reply {
                server: server.to_owned(),
                bytes: 10,
                wire_bytes: 90,
                times: Times::default(),
                fresh,
                location: String::new(),
            };
            tally.answered(&reply(true), Duration::from_micros(100));
            tally.answered(&reply(false), Duration::from_micros(300));
            tally.failed(&Failure::Short("half".to_owned()), Duration::from_millis(1500));
            total.add(&tally);
        }
        let report = total.report(Duration::from_secs(2));
        assert_eq!((report.requests, report.connections, report.bytes), (6, 3, 60));
        assert_eq!(report.servers.get("web1"), Some(&Share { connections: 2, requests: 4, bytes: 40 }));
        assert_eq!(report.errors.total(), 3);
        assert_eq!(report.examples.first().map(String::as_str), Some("1.500 s: short: half"));
        assert_eq!(report.requests_per_second, 3.0);
        assert!((95..=105).contains(&report.p50_us) && report.p99_us >= 295, "{report:?}");
    }
}
