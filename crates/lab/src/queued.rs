//! Servers that answer one request after the other, each in the same time: queues whose rate is
//! known, on any machine.
//!
//! They sleep where others compute, so that three of them need no three processors. When a request
//! ends is reckoned from the end of the one before it, so that waking up late makes no server
//! slower.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use socket2::SockRef;

use crate::host::Host;

/// Where they listen: nginx is on other ports of the same host.
pub const PORT: u16 = 8081;
/// A thread for each connection needs little.
const STACK_LEN: usize = 64 * 1024;
/// Longer heads are none of ours, in bytes.
const HEAD_MAX: usize = 4096;
/// A peer that says nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(5);
/// A member looks so often at how many requests are in it.
const LOOK: Duration = Duration::from_millis(100);
/// A report is of so many looks: each second one.
const LOOKS: u32 = 10;

/// Answers `/healthz` at once, and each other GET in its turn. It ends when it is dropped.
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
    /// Wakes up who sleeps when it is over.
    over: Condvar,
}

/// Requests that have been taken and not answered.
#[derive(Debug)]
struct Queue {
    each: Duration,
    /// When they end, in order.
    ends: VecDeque<Instant>,
    answered: u64,
    is_over: bool,
    /// The last report that wasn't taken, and why.
    failed: Option<String>,
}

impl Queue {
    /// Takes a request; when it ends.
    fn join(&mut self, now: Instant) -> Instant {
        self.leave(now);
        let end = self.ends.back().copied().unwrap_or(now) + self.each;
        self.ends.push_back(end);
        end
    }

    /// How many are left of those that were taken.
    fn leave(&mut self, now: Instant) -> usize {
        while self.ends.front().is_some_and(|end| *end <= now) {
            self.ends.pop_front();
            self.answered += 1;
        }
        self.ends.len()
    }
}

impl Queued {
    /// Starts on a host, and answers so many requests in a second.
    ///
    /// # Errors
    /// When the port can't be had, or a thread.
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

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}:{PORT}", self.host.address())
    }

    /// Joins a group, and from now on tells it each second its load, 10 (r + m): requests that were
    /// answered in the last second, and how many were in it on average.
    ///
    /// # Errors
    /// When the group doesn't let it join.
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

    /// Whether each report was taken so far.
    ///
    /// # Errors
    /// Why the last one wasn't that wasn't.
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
        // this wakes threads that wait for a connection
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            // if it failed, requests without an answer show that
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until then; false if it is over.
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
        // one that doesn't start closes the connection, and its client tells
        let _ = thread.spawn(move || answer(stream, &shared));
    }
}

/// Answers the one request of a connection, and ends it.
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

/// Tells a group the load each second, until it is over.
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

/// Says something to a group, from the namespace that the caller is in.
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
