//! Closed-loop HTTP load: a number of connections, each of which sends the next request as soon as
//! the response has arrived.
//!
//! The load uses blocking threads, with the fewest system calls per request, since the load must
//! not limit a benchmark. Every byte of every response is checked.

mod arrivals;
mod body;
mod clients;
mod exchange;
mod mix;
mod names;
mod report;
mod schedule;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use evener_sim::Random;

use crate::network::host::Host;
pub use arrivals::Arrivals;
pub use clients::Clients;
use exchange::Client;
pub use mix::Mix;
pub use names::ServerName;
use report::Tally;
pub use report::{Errors, Report, Share};
pub use schedule::Schedule;

/// Stack size of a thread: small, since a load may have a thousand threads.
const STACK_LEN: usize = 128 * 1024;
/// Pause of a connection after an error, so that a dead farm does not get a million requests per
/// second.
const REST: Duration = Duration::from_millis(10);

/// Settings of a load. Start from [`Load::to`].
#[derive(Clone, Debug)]
pub struct Load {
    /// Targets, which connections use in turn.
    pub targets: Vec<SocketAddr>,
    /// Path of the requests; [`crate::servers::nginx`] has the available ones.
    pub path: String,
    /// Number of concurrent connections.
    pub connections: usize,
    /// True to reuse a connection for all its requests, false for a connection per request.
    pub keep_alive: bool,
    /// Maximum number of requests per connection.
    pub requests: Option<u64>,
    pub duration: Option<Duration>,
    /// Pause of a connection after each response.
    pub pause: Duration,
    /// Maximum read rate of a connection in bytes per second.
    pub pace: Option<u64>,
    /// Timeout of reads and writes.
    pub timeout: Duration,
    pub status: u16,
    /// True to follow redirects with status 302.
    pub follow: bool,
    /// Name to resolve for each connection; the targets then have the port alone.
    pub name: Option<ServerName>,
}

/// Load that runs in the background.
#[derive(Debug)]
pub struct Running {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<Report>>,
}

/// State that the threads of a load share.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    requests: AtomicU64,
    errors: AtomicU64,
}

impl Load {
    /// Returns a load of one connection to one address, with requests for `/who` on new
    /// connections.
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
            follow: false,
            name: None,
        }
    }

    /// Runs the load in the caller's network namespace to its end.
    pub fn run(&self) -> Report {
        self.run_shared(&Shared::default())
    }

    /// Runs the load on a host of a farm to its end.
    pub fn run_on(&self, host: &Host) -> Result<Report> {
        host.enter(|| self.run())
    }

    /// Starts the load on a host of a farm, until its end or until it is stopped.
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

    /// Runs one of the connections.
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
            // checked here, so that a load that is stopped at once still sends a request
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
    /// Number of answered requests so far.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Number of failed requests so far.
    pub fn errors(&self) -> u64 {
        self.shared.errors.load(Ordering::Relaxed)
    }

    /// Stops the load after at least one request per connection, and waits for outstanding
    /// responses. Downloads with limited rate are aborted.
    pub fn stop(self) -> Result<Report> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.join()
    }

    /// Waits for the end of the load.
    pub fn join(self) -> Result<Report> {
        self.thread.join().map_err(|_| anyhow!("The load's thread panicked"))?
    }
}
