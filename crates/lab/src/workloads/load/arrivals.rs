//! Open-loop load that waits for each response: measures the waiting time of clients, not the
//! capacity of servers.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::exchange::{Client, Failure, Reply};
use super::report::{Report, Tally};
use super::schedule::times;
use super::{Load, STACK_LEN};
use crate::network::host::Host;

/// Maximum number of concurrent requests: further due requests wait.
const CLIENTS_MAX: usize = 256;

/// Requests at the times of a Poisson process, equal in each run, each on a new connection.
#[derive(Clone, Debug)]
pub struct Arrivals {
    /// Target of requests for `/`.
    pub target: SocketAddr,
    /// True if the response is a redirect with status 302, which the client follows.
    pub follow: bool,
    /// Scheduled requests per second.
    pub rate: f64,
    /// Initial time whose requests are not counted.
    pub warmup: Duration,
    /// Duration of the measurement after that.
    pub duration: Duration,
    /// Timeout of a response.
    pub timeout: Duration,
}

impl Arrivals {
    /// Runs on a host of a farm until each request is answered or has failed. The latency starts at
    /// the scheduled time, also for failures.
    pub fn run_on(&self, host: &Host) -> Result<Report> {
        host.enter(|| self.run())
    }

    fn run(&self) -> Report {
        let (times, next) = (times(self.rate, self.warmup + self.duration, 2), AtomicUsize::new(0));
        let started = Instant::now();
        let work = || {
            let mut tally = Tally::default();
            while let Some(due) = times.get(next.fetch_add(1, Ordering::Relaxed)) {
                thread::sleep(due.saturating_sub(started.elapsed()));
                let outcome = self.request();
                let now = started.elapsed();
                match outcome {
                    _ if *due < self.warmup => {}
                    Ok(reply) => tally.answered(&reply, now.saturating_sub(*due)),
                    Err(failure) => {
                        tally.failed(&failure, now);
                        tally.waited(now.saturating_sub(*due));
                    }
                }
            }
            tally
        };
        let mut total = Tally::default();
        thread::scope(|scope| {
            let start = |_| thread::Builder::new().stack_size(STACK_LEN).spawn_scoped(scope, work);
            let workers: Vec<_> = (0..CLIENTS_MAX).map(start).collect();
            workers.into_iter().for_each(|worker| total.add_worker(worker.map(|worker| worker.join())));
        });
        total.report(self.duration)
    }

    fn request(&self) -> Result<Reply, Failure> {
        let (path, timeout, follow) = ("/".to_owned(), self.timeout, self.follow);
        let load = Load { path, timeout, follow, ..Load::to(self.target) };
        let stop = AtomicBool::new(false);
        let reply = Client::new(&load, 0, &stop).send_request()?;
        reply.ok_or_else(|| Failure::Short("it was stopped".to_owned()))
    }
}
