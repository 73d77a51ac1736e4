//! Networks without order: frames on a host's link overtake each other, in both directions.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evener_dataplane::link::{EtherType, LinkSocket};
use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::network::host::Host;
use crate::network::lan::Lan;

/// Ends of the veth pair that is inserted between port and bridge.
const ENDS: [&str; 2] = ["shuffle-port", "shuffle-bridge"];
/// Maximum number of frames that overtake a held frame, and maximum time that it is held.
const OVERTAKE_MAX: u64 = 3;
const WAIT: Duration = Duration::from_millis(3);
/// One frame in this many is held.
const ONE_OF: u64 = 4;
const FRAME_MAX: usize = 65_536;

/// Link with reordered frames. Dropping the value stops all traffic on it.
#[derive(Debug)]
pub struct Shuffle {
    stop: Arc<AtomicBool>,
    overtaken: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    /// Starts to reorder frames on the host's first link. A switch can have one such link.
    pub fn shuffle(&self) -> Result<Shuffle> {
        let interface = self.interfaces.first().context("The host has no interface")?;
        let ([near, far], bridge) = (ENDS, Lan::of(interface.address).bridge());
        self.switch.ip(&[
            format!("link add {near} type veth peer name {far}"),
            format!("link set {far} master {bridge} up"),
            format!("link set {near} up"),
        ])?;
        let open = |name: &str| -> Result<LinkSocket> {
            self.switch.enter(|| Ok(LinkSocket::open(if_nametoindex(name)?, EtherType::All)?))?
        };
        let ways = [Way::new(open(&interface.port)?, 1), Way::new(open(near)?, 2)];
        self.switch.ip(&[format!("link set {} nomaster", interface.port)])?;
        let (stop, overtaken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&overtaken));
        let thread = thread::spawn(move || carry(ways, &stopped, &count));
        Ok(Shuffle { stop, overtaken, thread: Some(thread) })
    }
}

impl Shuffle {
    /// Number of frames that were overtaken so far.
    pub fn overtaken(&self) -> u64 {
        self.overtaken.load(Ordering::Relaxed)
    }
}

impl Drop for Shuffle {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Frames received at one end.
struct Way {
    from: LinkSocket,
    /// Held frame, number of frames that have yet to overtake it, and time since when it is held.
    held: Option<(Vec<u8>, u64, Instant)>,
    random: u64,
}

impl Way {
    fn new(from: LinkSocket, seed: u64) -> Way {
        Way { from, held: None, random: seed }
    }

    /// Pseudo-random number (xorshift, Marsaglia 2003).
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn pass(&mut self, to: &LinkSocket, buffer: &mut [u8], overtaken: &AtomicU64) {
        while let Ok((len, _)) = self.from.recv(buffer) {
            let frame = buffer.get(..len).unwrap_or_default();
            if self.held.is_none() && self.random().is_multiple_of(ONE_OF) {
                let count = 1 + self.random() % OVERTAKE_MAX;
                self.held = Some((frame.to_vec(), count, Instant::now()));
                continue;
            }
            // a full queue drops frames, as in a network
            let _ = to.send(frame);
            if let Some((held, left, _)) = &mut self.held {
                *left -= 1;
                if *left == 0 {
                    let _ = to.send(held);
                    overtaken.fetch_add(1, Ordering::Relaxed);
                    self.held = None;
                }
            }
        }
        if let Some((held, ..)) = self.held.take_if(|(_, _, since)| since.elapsed() > WAIT) {
            let _ = to.send(&held);
        }
    }
}

fn carry(mut ways: [Way; 2], stop: &AtomicBool, overtaken: &AtomicU64) {
    let mut buffer = vec![0; FRAME_MAX];
    while !stop.load(Ordering::Relaxed) {
        let [left, right] = &mut ways;
        left.pass(&right.from, &mut buffer, overtaken);
        right.pass(&left.from, &mut buffer, overtaken);
        let mut ends = [&left.from, &right.from].map(|end| PollFd::new(end.as_fd(), PollFlags::POLLIN));
        // the next pass finds the cause of the wakeup
        let _ = poll(&mut ends, PollTimeout::from(1_u8));
    }
}
