//! Clients of a workload: each takes its steps one after another, on a new connection for each
//! request, as WebStone's and SURGE's do.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::Client;
use super::report::{Report, Tally};
use super::{Load, REST, STACK_LEN, ServerName};
use crate::network::host::Host;
use crate::workloads::{Step, Workload};

/// Timeout of a connection, a request and each read: slow servers are meant.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Number of clients of a workload.
#[derive(Clone)]
pub struct Clients<'a> {
    pub workload: &'a dyn Workload,
    /// Targets, which connections use in turn.
    pub targets: Vec<SocketAddr>,
    pub count: usize,
    /// Initial time whose requests are not counted.
    pub warmup: Duration,
    /// Duration of the measurement after that.
    pub duration: Duration,
    /// True to follow redirects.
    pub follow: bool,
    /// Name to resolve for each connection.
    pub name: Option<ServerName>,
}

impl std::fmt::Debug for Clients<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clients").field("count", &self.count).finish_non_exhaustive()
    }
}

impl<'a> Clients<'a> {
    /// Returns one client without a duration.
    pub fn new(workload: &'a dyn Workload, targets: Vec<SocketAddr>) -> Clients<'a> {
        Clients {
            workload,
            targets,
            count: 1,
            warmup: Duration::ZERO,
            duration: Duration::ZERO,
            follow: false,
            name: None,
        }
    }

    /// Runs on a host of a farm. Only responses within the duration count.
    pub fn run_on(&self, host: &Host) -> Result<Report> {
        self.run_on_all(std::slice::from_ref(host))
    }

    /// Runs on several hosts of a farm, with about as many clients on each.
    pub fn run_on_all(&self, hosts: &[Host]) -> Result<Report> {
        let mut total = Tally::default();
        thread::scope(|scope| -> Result<()> {
            let mut running = Vec::new();
            for (number, host) in hosts.iter().enumerate() {
                let numbers = (number..self.count).step_by(hosts.len());
                running.push(scope.spawn(move || host.enter(|| self.run_some(numbers))));
            }
            running.into_iter().try_for_each(|host| {
                total.add(&host.join().map_err(|_| anyhow!("The clients' thread panicked"))??);
                Ok(())
            })
        })?;
        Ok(total.report(self.duration))
    }

    /// Runs in the caller's network namespace.
    pub fn run(&self) -> Report {
        self.run_some(0..self.count).report(self.duration)
    }

    fn run_some(&self, numbers: impl Iterator<Item = usize>) -> Tally {
        let mut total = Tally::default();
        let Some(first) = self.targets.first() else { return total };
        let load = Load {
            targets: self.targets.clone(),
            follow: self.follow,
            name: self.name.clone(),
            timeout: TIMEOUT,
            ..Load::to(*first)
        };
        let (stop, started) = (AtomicBool::new(false), Instant::now());
        thread::scope(|scope| {
            let (load, stop) = (&load, &stop);
            let start = |number| {
                let thread = thread::Builder::new().stack_size(STACK_LEN);
                thread
                    .spawn_scoped(scope, move || self.live(Client::new(load, number, stop), number, started))
            };
            let workers: Vec<_> = numbers.map(start).collect();
            workers.into_iter().for_each(|worker| total.add_worker(worker.map(|worker| worker.join())));
        });
        total
    }

    fn live(&self, mut client: Client<'_>, number: usize, started: Instant) -> Tally {
        let end = self.warmup + self.duration;
        let mut tally = Tally::default();
        for step in self.workload.steps(number) {
            let now = started.elapsed();
            if now >= end {
                break;
            }
            if let Step::Rest(time) = step {
                thread::sleep(time.min(end - now));
            }
            let Some(path) = step.path() else { continue };
            client.aim(&path);
            let sent_at = started.elapsed();
            let outcome = client.send_request();
            let now = started.elapsed();
            match outcome {
                Ok(Some(reply)) if (self.warmup..end).contains(&now) => tally.answered(&reply, now - sent_at),
                Ok(_) => {}
                Err(failure) => {
                    tally.failed(&failure, now);
                    thread::sleep(REST);
                }
            }
        }
        tally
    }
}
