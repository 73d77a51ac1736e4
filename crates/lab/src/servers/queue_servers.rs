//! Servers that answer requests one after another, each in the same time: queues with a known rate
//! on any machine.
//!
//! The servers sleep instead of computing, so three servers don't need three processors. The end of
//! a request is computed from the end of the previous request. So a late wakeup does not slow the
//! server down.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use socket2::SockRef;

use crate::network::host::Host;

/// Port of the servers; nginx uses other ports of the same host.
pub const PORT: u16 = 8081;
/// Stack size of a connection's thread.
const STACK_LEN: usize = 64 * 1024;
/// Maximum length of a request's head in bytes.
const HEAD_MAX: usize = 4096;
const SILENCE: Duration = Duration::from_secs(5);
/// Interval at which a member counts its requests.
const LOOK: Duration = Duration::from_millis(100);
/// Number of counts per report: one report per second.
const LOOKS: u32 = 10;

/// Server that answers `/healthz` at once and every other GET in its queue. Dropping the value
/// stops it.
#[derive(Debug)]
pub struct Queued {
    host: Host,
    listener: TcpListener,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    queue: Mutex<Queue>,
    /// Wakes sleeping threads at the end.
    over: Condvar,
}

/// Requests that are not answered yet.
#[derive(Debug)]
struct Queue {
    each: Duration,
    /// Ends of the requests in order.
    ends: VecDeque<Instant>,
    answered: u64,
    is_over: bool,
    /// Error of the last failed report.
    failed: Option<String>,
}

impl Queue {
    /// Adds a request to the queue. Returns its end.
    fn join(&mut self, now: Instant) -> Instant {
        self.leave(now);
        let end = self.ends.back().copied().unwrap_or(now) + self.each;
        self.ends.push_back(end);
        end
    }

    /// Removes ended requests. Returns the number of remaining ones.
    fn leave(&mut self, now: Instant) -> usize {
        while self.ends.front().is_some_and(|end| *end <= now) {
            self.ends.pop_front();
            self.answered += 1;
        }
        self.ends.len()
    }
}

impl Queued {
    /// Starts a server on a host with a rate of requests per second.
    ///
    /// # Errors
    /// Fails if the port or a thread is unavailable.
    pub fn start(host: &Host, per_second: f64) -> Result<Queued> {
        let each = Duration::try_from_secs_f64(1.0 / per_second)?;
        let listener = host.enter(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)))??;
        let queue = Queue { each, ends: VecDeque::new(), answered: 0, is_over: false, failed: None };
        let (name, over) = (host.name().to_owned(), Condvar::new());
        let shared = Arc::new(Shared { name, queue: Mutex::new(queue), over });
        let (ours, theirs) = (listener.try_clone()?, Arc::clone(&shared));
        let threads = vec![thread::spawn(move || accept(&ours, &theirs))];
        Ok(Queued { host: host.clone(), listener, shared, threads })
    }

    pub fn url(&self) -> String {
        format!("http://{}:{PORT}", self.host.address())
    }

    /// Joins a group and then reports the load each second. The load is ten times the sum of two
    /// numbers: answered requests in the last second, and the average number of queued requests.
    ///
    /// # Errors
    /// Fails if the group refuses the member.
    pub fn join(&mut self, group: SocketAddr) -> Result<()> {
        let (url, shared) = (self.url(), Arc::clone(&self.shared));
        let thread = self.host.enter(|| -> Result<_> {
            reply(group, "GROUP-ADD", &url)?;
            // in the host's namespace too, since it is started there
            Ok(thread::spawn(move || report(group, &url, &shared)))
        })??;
        self.threads.push(thread);
        Ok(())
    }

    /// Checks that all reports so far were accepted.
    ///
    /// # Errors
    /// Returns the error of the last failed report.
    pub fn check(&self) -> Result<()> {
        match &self.shared.lock().failed {
            Some(why) => bail!("{} reported in vain: {why}", self.shared.name),
            None => Ok(()),
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.over.notify_all();
        // wakes threads that wait for a connection
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            // a failure shows in requests without a response
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until `end`; returns false if the server was stopped.
    fn sleep_until(&self, end: Instant) -> bool {
        let left = end.saturating_duration_since(Instant::now());
        let slept = self.over.wait_timeout_while(self.lock(), left, |queue| !queue.is_over);
        let (queue, _) = slept.unwrap_or_else(PoisonError::into_inner);
        !queue.is_over
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept() {
        let shared = Arc::clone(shared);
        let thread = thread::Builder::new().stack_size(STACK_LEN);
        // if the thread doesn't start, the connection is closed and its client fails
        let _ = thread.spawn(move || answer(stream, &shared));
    }
}

/// Answers the single request of a connection and closes it.
fn answer(mut stream: TcpStream, shared: &Shared) -> Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let len = stream.read(&mut buffer)?;
        ensure!(len > 0 && head.len() < HEAD_MAX, "a head that doesn't end");
        head.extend_from_slice(buffer.get(..len).unwrap_or_default());
    }
    let status = match head.split(|byte| *byte == b' ').take(2).collect::<Vec<_>>().as_slice() {
        [b"GET", b"/healthz"] => "200 OK",
        [b"GET", _] => {
            let end = shared.lock().join(Instant::now());
            ensure!(shared.sleep_until(end), "it is over");
            "200 OK"
        }
        _ => "405 Method Not Allowed",
    };
    let name = &shared.name;
    let len = name.len() + 1;
    let head = format!(
        "HTTP/1.1 {status}\r\nX-Server: {name}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{name}\n"
    );
    Ok(stream.write_all(head.as_bytes())?)
}

/// Reports the load to a group each second, until the end.
fn report(group: SocketAddr, url: &str, shared: &Shared) {
    let (mut next, mut before) = (Instant::now(), (Instant::now(), shared.lock().answered));
    loop {
        let mut seen = 0;
        for _ in 0..LOOKS {
            next += LOOK;
            if !shared.sleep_until(next) {
                return;
            }
            seen += shared.lock().leave(Instant::now());
        }
        let now = (Instant::now(), shared.lock().answered);
        let per_second = (now.1 - before.1) as f64 / (now.0 - before.0).as_secs_f64();
        before = now;
        let load = 10.0 * (per_second + seen as f64 / f64::from(LOOKS));
        if let Err(why) = reply(group, "LOAD-INFORM", &format!("{load:.1} {url}")) {
            shared.lock().failed = Some(format!("{why:#}"));
        }
    }
}

/// Sends a message to a group, from the caller's namespace.
fn reply(group: SocketAddr, verb: &str, body: &str) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&group, SILENCE)?;
    stream.set_read_timeout(Some(SILENCE))?;
    let len = body.len();
    let message = format!(
        "{verb} / HTTP/1.1\r\nHost: {group}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(message.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).with_context(|| format!("{verb} isn't answered"))?;
    ensure!(answer.starts_with("HTTP/1.1 2"), "{verb} is answered by {answer:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queued_requests_end_in_order_and_idle_server_answers_at_once() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let each = ms(20);
        let mut queue = Queue { each, ends: VecDeque::new(), answered: 0, is_over: false, failed: None };
        let ends = [0, 5, 19].map(|at| queue.join(start + ms(at)) - start);
        assert_eq!(ends, [ms(20), ms(40), ms(60)]);
        assert_eq!((queue.leave(start + ms(39)), queue.answered), (2, 1));
        assert_eq!((queue.leave(start + ms(60)), queue.answered), (0, 3));
        assert_eq!(queue.join(start + ms(100)) - start, ms(120));
    }
}
