//! A closed-loop HTTP load: so many connections, each asking again as soon as it was answered.
//!
//! Blocking threads, because they cost the fewest system calls for each request; the load must not
//! be what a benchmark measures. Every byte of every reply is checked.

mod arrivals;
mod exchange;
mod mix;
mod report;
mod schedule;
mod users;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use evener_sim::Random;

use crate::host::Host;
pub use arrivals::Arrivals;
use exchange::Client;
pub use mix::Mix;
use report::Tally;
pub use report::{Errors, Report, Share};
pub use schedule::Schedule;
pub use users::Users;

/// Little, since a load may have a thousand threads.
const STACK_LEN: usize = 128 * 1024;
/// After an error a connection rests for so long, lest a dead farm be asked a million times a
/// second.
const REST: Duration = Duration::from_millis(10);

/// The requests and their targets, and for how long. Start from [`Load::to`].
#[derive(Clone, Debug)]
pub struct Load {
    /// Connections take turns over these.
    pub targets: Vec<SocketAddr>,
    /// The path; see [`crate::web`] for what there is.
    pub path: String,
    /// How many connections at a time.
    pub connections: usize,
    /// Whether a connection is used for all its requests, or each request has its own.
    pub keep_alive: bool,
    /// How many requests each connection sends, at most.
    pub requests: Option<u64>,
    /// How long requests are sent, at most.
    pub duration: Option<Duration>,
    /// How long a connection rests after each reply.
    pub pause: Duration,
    /// How fast a connection reads at most, in bytes per second.
    pub pace: Option<u64>,
    /// A reply that says nothing for so long has failed.
    pub timeout: Duration,
    /// The status of good replies.
    pub status: u16,
}

/// A load that runs beside the caller.
#[derive(Debug)]
pub struct Running {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<Report>>,
}

/// The state that the threads of a load share.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    requests: AtomicU64,
    errors: AtomicU64,
}

impl Load {
    /// One connection to one address, asking for `/who`, a new connection for each request.
    pub fn to(target: SocketAddr) -> Load {
        Load {
            targets: vec![target],
            path: "/who".to_owned(),
            connections: 1,
            keep_alive: false,
            requests: None,
            duration: None,
            pause: Duration::ZERO,
            pace: None,
            timeout: Duration::from_secs(5),
            status: 200,
        }
    }

    /// Runs from the network namespace that the caller is in, until its bounds are reached.
    pub fn run(&self) -> Report {
        self.run_shared(&Shared::default())
    }

    /// Runs on a host of a farm, until its bounds are reached.
    pub fn run_on(&self, host: &Host) -> Result<Report> {
        host.enter(|| self.run())
    }

    /// Starts on a host of a farm, and runs until its bounds are reached or it is stopped.
    pub fn start_on(self, host: &Host) -> Running {
        let shared = Arc::new(Shared::default());
        let (host, threads) = (host.clone(), Arc::clone(&shared));
        let thread = thread::spawn(move || host.enter(|| self.run_shared(&threads)));
        Running { shared, thread }
    }

    fn run_shared(&self, shared: &Shared) -> Report {
        let started = Instant::now();
        let mut total = Tally::default();
        thread::scope(|scope| {
            let start = |number| {
                let thread = thread::Builder::new().stack_size(STACK_LEN);
                thread.spawn_scoped(scope, move || self.work(number, started, shared))
            };
            let workers: Vec<_> = (0..self.connections).map(start).collect();
            workers.into_iter().for_each(|worker| total.add_worker(worker.map(|worker| worker.join())));
        });
        total.report(started.elapsed())
    }

    /// The work of one of the connections.
    fn work(&self, number: usize, started: Instant, shared: &Shared) -> Tally {
        let mut tally = Tally::default();
        let mut client = Client::new(self, number, &shared.stop);
        let mut left = self.requests.unwrap_or(u64::MAX);
        let ended = || self.duration.is_some_and(|duration| started.elapsed() >= duration);
        while left > 0 && !ended() {
            left -= 1;
            let sent_at = Instant::now();
            match client.send_request() {
                Ok(None) => break,
                Ok(Some(reply)) => {
                    tally.answered(&reply, sent_at.elapsed());
                    shared.requests.fetch_add(1, Ordering::Relaxed);
                }
                Err(failure) => {
                    tally.failed(&failure, started.elapsed());
                    shared.errors.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(REST);
                }
            }
            // looked at here: a load that is stopped at once has asked, too
            if shared.stop.load(Ordering::Relaxed) {
                break;
            }
            if !self.pause.is_zero() {
                thread::sleep(self.pause);
            }
        }
        tally
    }
}

impl Running {
    /// Requests answered so far.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Requests that failed so far.
    pub fn errors(&self) -> u64 {
        self.shared.errors.load(Ordering::Relaxed)
    }

    /// Sends no more requests after one of each connection, and waits for the replies that are due.
    /// A download that was paced is cut short.
    pub fn stop(self) -> Result<Report> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.join()
    }

    /// Waits until the load has reached its bounds.
    pub fn join(self) -> Result<Report> {
        self.thread.join().map_err(|_| anyhow!("The load's thread panicked"))?
    }
}
