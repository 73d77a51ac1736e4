//! An open-loop load that waits for each answer: for how long clients wait, and not for how much
//! servers can do.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::exchange::{Client, Failure, Reply};
use super::report::{Report, Tally};
use super::schedule::times;
use super::{Load, STACK_LEN};
use crate::host::Host;

/// Requests at a time, at most: what is due beyond them waits.
const CLIENTS_MAX: usize = 256;

/// Requests at the times of a Poisson process, which are the same in each run; each has a
/// connection of its own.
#[derive(Clone, Debug)]
pub struct Arrivals {
    /// The target of requests for `/`.
    pub target: SocketAddr,
    /// Whether the answer sends on, by 302, and its location is asked then.
    pub follow: bool,
    /// Requests that are due in a second.
    pub rate: f64,
    /// Those that are due in this time from the beginning on aren't counted.
    pub warmup: Duration,
    /// How long they are due after that.
    pub duration: Duration,
    /// An answer that takes longer is none.
    pub timeout: Duration,
}

impl Arrivals {
    /// Runs on a host of a farm, until each request is answered or has failed. How long it took
    /// counts from when it was due, for those that failed as well.
    pub fn run_on(&self, host: &Host) -> Result<Report> {
        host.enter(|| self.run())
    }

    fn run(&self) -> Report {
        let (times, next) = (times(self.rate, self.warmup + self.duration), AtomicUsize::new(0));
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
        if !self.follow {
            return self.request_page(self.target, "/", 200);
        }
        let sent_on = self.request_page(self.target, "/", 302)?.location;
        let place = sent_on.strip_prefix("http://").and_then(|rest| rest.split_once('/'));
        match place.and_then(|(place, path)| Some((place.parse().ok()?, path))) {
            Some((member, path)) => self.request_page(member, &format!("/{path}"), 200),
            None => Err(Failure::Wrong(format!("sent on to {sent_on:?}"))),
        }
    }

    fn request_page(&self, target: SocketAddr, path: &str, status: u16) -> Result<Reply, Failure> {
        let load = Load { path: path.to_owned(), timeout: self.timeout, status, ..Load::to(target) };
        let stop = AtomicBool::new(false);
        let reply = Client::new(&load, 0, &stop).send_request()?;
        reply.ok_or_else(|| Failure::Short("it was stopped".to_owned()))
    }
}
