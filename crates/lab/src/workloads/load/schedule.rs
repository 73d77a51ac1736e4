//! Open-loop load: requests at predetermined times, independent of the servers (as in SPECweb96).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::exchange::Client;
use super::report::{Report, Tally};
use super::{Load, Random, STACK_LEN};
use crate::network::host::Host;
use crate::workloads::{Step, Workload};

/// Requests at a rate, at the times of a Poisson process, each on a new connection.
#[derive(Clone)]
pub struct Schedule<'a> {
    /// Files to request; rests are ignored.
    pub workload: &'a dyn Workload,
    /// Targets, which connections use in turn.
    pub targets: Vec<SocketAddr>,
    /// Scheduled requests per second.
    pub rate: f64,
    /// Duration of the measurement.
    pub duration: Duration,
    /// Initial time whose requests are not counted.
    pub warmup: Duration,
    /// Seed of the times.
    pub seed: u64,
}

impl Schedule<'_> {
    /// Maximum number of concurrent requests: further due requests wait.
    pub const CONNECTIONS_MAX: usize = 128;

    /// Runs on a host of a farm. Only responses within the duration count. The latency starts at
    /// the scheduled time, since a request that waits in the client for a slow server is also
    /// delayed.
    pub fn run_on(&self, host: &Host) -> Result<Report> {
        host.enter(|| self.run())
    }

    /// Runs in the caller's network namespace.
    pub fn run(&self) -> Report {
        let end = self.warmup + self.duration;
        let times = times(self.rate, end, self.seed);
        let paths = Mutex::new(self.workload.steps(0).filter_map(Step::path));
        let path = || paths.lock().unwrap_or_else(PoisonError::into_inner).next();
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let Some(first) = self.targets.first() else { return Report::default() };
        let load = Load { targets: self.targets.clone(), ..Load::to(*first) };
        let started = Instant::now();
        let work = |number: usize| {
            let mut tally = Tally::default();
            let mut client = Client::new(&load, number, &stop);
            while let Some(due) = times.get(next.fetch_add(1, Ordering::Relaxed)) {
                thread::sleep(due.saturating_sub(started.elapsed()));
                if started.elapsed() >= end {
                    break;
                }
                let Some(path) = path() else { break };
                client.aim(&path);
                let outcome = client.send_request();
                let now = started.elapsed();
                match outcome {
                    Ok(Some(reply)) if (self.warmup..end).contains(&now) => {
                        tally.answered(&reply, now - *due)
                    }
                    Ok(_) => {}
                    Err(failure) => tally.failed(&failure, now),
                }
            }
            tally
        };
        let mut total = Tally::default();
        thread::scope(|scope| {
            let start = |number| {
                let thread = thread::Builder::new().stack_size(STACK_LEN);
                let work = &work;
                thread.spawn_scoped(scope, move || work(number))
            };
            let workers: Vec<_> = (0..Self::CONNECTIONS_MAX).map(start).collect();
            workers.into_iter().for_each(|worker| total.add_worker(worker.map(|worker| worker.join())));
        });
        total.report(self.duration)
    }
}

/// Returns the scheduled times of requests at a rate, by a seed.
pub(super) fn times(rate: f64, end: Duration, seed: u64) -> Vec<Duration> {
    let mut random = Random::new(seed);
    let mut at = Duration::ZERO;
    let next = || {
        at += Duration::from_secs_f64(-random.unit().ln() / rate.max(f64::MIN_POSITIVE));
        (at < end).then_some(at)
    };
    std::iter::from_fn(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_has_requested_number_of_arrivals() {
        let second = Duration::from_secs(1);
        let times = times(200.0, 50 * second, 2);
        assert!((9_700..10_300).contains(&times.len()), "{}", times.len());
        assert!(times.is_sorted() && times.last().is_some_and(|last| *last < 50 * second));
    }
}
