//! Closed-loop load: users who request pages and think in between, as in SURGE (Barford and
//! Crovella 1998).

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::exchange::Client;
use super::report::{Report, Tally};
use super::{Load, Mix, REST, Random, STACK_LEN};
use crate::network::host::Host;

/// Files per page: Pareto distribution of SURGE, with an upper limit.
const FILES_SHAPE: f64 = 2.43;
const FILES_MAX: f64 = 20.0;
/// Time between pages in seconds: Pareto distribution with SURGE's shape, but twelve times as
/// short, and with limits, since measurements are short.
const THINK_SHAPE: f64 = 1.5;
const THINK_LEAST_S: f64 = 0.08;
const THINK_MOST_S: f64 = 0.8;

/// Number of users. Each uses one connection at a time, and a new one for each file.
#[derive(Clone, Debug)]
pub struct Users {
    /// Targets, which connections use in turn.
    pub targets: Vec<SocketAddr>,
    /// Number of users (the paper's user equivalents).
    pub count: usize,
    /// True if users think between pages. Otherwise they send the next request at once.
    pub thinking: bool,
    /// Duration of the measurement.
    pub duration: Duration,
    /// Initial time whose requests are not counted.
    pub warmup: Duration,
    /// Seed of the users' choices and pauses.
    pub seed: u64,
}

impl Users {
    /// Runs on a host of a farm. Only responses within the duration count.
    pub fn run_on(&self, host: &Host) -> Result<Report> {
        host.enter(|| self.run())
    }

    fn run(&self) -> Report {
        let (mix, stop) = (Mix::new(self.seed), AtomicBool::new(false));
        let Some(first) = self.targets.first() else { return Report::default() };
        let load = Load { targets: self.targets.clone(), ..Load::to(*first) };
        let started = Instant::now();
        let mut total = Tally::default();
        thread::scope(|scope| {
            let (load, mix, stop) = (&load, &mix, &stop);
            let start = |number| {
                let thread = thread::Builder::new().stack_size(STACK_LEN);
                thread.spawn_scoped(scope, move || {
                    self.live(Client::new(load, number, stop), number, mix, started)
                })
            };
            let workers: Vec<_> = (0..self.count).map(start).collect();
            workers.into_iter().for_each(|worker| total.add_worker(worker.map(|worker| worker.join())));
        });
        total.report(self.duration)
    }

    fn live(&self, mut client: Client<'_>, number: usize, mix: &Mix, started: Instant) -> Tally {
        let end = self.warmup + self.duration;
        let mut random = Random::new((self.seed << 32) + number as u64 + 1);
        let mut tally = Tally::default();
        // users start at different times
        thread::sleep(self.warmup.min(Duration::from_secs(1)).mul_f64(random.unit()));
        while started.elapsed() < end {
            let files = random.pareto(FILES_SHAPE).min(FILES_MAX).round() as usize;
            for _ in 0..files {
                if started.elapsed() >= end {
                    break;
                }
                client.aim(&mix.next_path());
                let sent_at = started.elapsed();
                let outcome = client.send_request();
                let now = started.elapsed();
                match outcome {
                    Ok(Some(reply)) if (self.warmup..end).contains(&now) => {
                        tally.answered(&reply, now - sent_at)
                    }
                    Ok(_) => {}
                    Err(failure) => {
                        tally.failed(&failure, now);
                        thread::sleep(REST);
                    }
                }
            }
            if !self.thinking {
                continue;
            }
            let think = (random.pareto(THINK_SHAPE) * THINK_LEAST_S).min(THINK_MOST_S);
            thread::sleep(Duration::from_secs_f64(think).min(end.saturating_sub(started.elapsed())));
        }
        tally
    }
}
