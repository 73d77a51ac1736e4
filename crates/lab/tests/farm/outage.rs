//! Time for which clients get no new connections.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use evener_lab::harness::wait::LONG;
use evener_lab::network::host::Host;

const ATTEMPT: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_millis(5);
/// Number of connections in a row that end an outage.
const ENOUGH: usize = 100;

/// Runs `event` while the host opens one new connection after the other. Returns the time from the
/// event to the last failed attempt, once many have succeeded in a row.
pub(crate) fn outage(
    client: &Host,
    service: SocketAddr,
    event: impl FnOnce() -> Result<()> + Send,
) -> Result<Duration> {
    let has_happened = AtomicBool::new(false);
    thread::scope(|scope| {
        let connecting = scope.spawn(|| client.enter(|| attempts(service, &has_happened)));
        let begun = Instant::now();
        let done = event();
        has_happened.store(true, Relaxed);
        let last = connecting.join().ok().context("the client panicked")??;
        done?;
        let last = last?;
        Ok(last.map_or(Duration::ZERO, |last| last.saturating_duration_since(begun)))
    })
}

/// Connects until enough attempts have succeeded in a row since the event. Returns the end of the
/// last failed attempt.
fn attempts(service: SocketAddr, has_happened: &AtomicBool) -> Result<Option<Instant>> {
    let until = Instant::now() + LONG;
    let (mut last, mut succeeded) = (None, 0);
    while succeeded < ENOUGH {
        ensure!(Instant::now() < until, "new connections don't succeed again");
        let counts = has_happened.load(Relaxed);
        match TcpStream::connect_timeout(&service, ATTEMPT) {
            Ok(_) if counts => succeeded += 1,
            Ok(_) => {}
            Err(_) => (last, succeeded) = (Some(Instant::now()), 0),
        }
        thread::sleep(PAUSE);
    }
    Ok(last)
}
