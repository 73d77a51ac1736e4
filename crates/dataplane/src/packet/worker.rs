//! The threads: each takes frames from one ring, has them decided, and sends them on.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwap;
use evener_core::decide::{Reason, Verdict, decide};
use evener_core::tables::Tables;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use socket2::Socket;

use super::outbox::{BATCH, Exits, Outbox};
use super::ring::{Content, Received, Ring, VIRTIO_LEN};
use super::store::Store;
use super::tally::Tally;
use crate::now_ticks;

/// The longest frame the kernel makes of an IPv4 packet, and its virtio header.
const FRAME_LEN: usize = VIRTIO_LEN + 14 + 65_535;
/// How many of those one batch may hold.
const LARGE: usize = 16;

/// What all threads read.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) tables: ArcSwap<Tables>,
    pub(super) store: Store,
    /// The loopback interface, by which frames go up the host's own stack.
    pub(super) loopback: u32,
}

/// The threads of one interface; they end when this is dropped.
#[derive(Debug)]
pub(super) struct Workers {
    stop: Arc<AtomicBool>,
    /// Closing it wakes threads that wait.
    wake: Option<PipeWriter>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `threads` threads that share the frames coming in on `ifindex`.
    pub(super) fn start(common: &Arc<Common>, ifindex: u32, threads: usize) -> io::Result<Workers> {
        let (woken, wake) = io::pipe()?;
        let mut workers = Workers { stop: Arc::default(), wake: Some(wake), threads: Vec::new() };
        let mut group = 0;
        let threads = threads.max(1);
        for number in 0..threads {
            let (socket, ring) = Ring::open(ifindex, (threads > 1).then_some(&mut group))?;
            let worker = Worker {
                common: Arc::clone(common),
                stop: Arc::clone(&workers.stop),
                woken: woken.try_clone()?,
                exits: Exits::open()?,
                ifindex,
                socket,
                ring,
            };
            let thread = thread::Builder::new().name(format!("packet {ifindex}/{number}"));
            workers.threads.push(thread.spawn(move || {
                stay_near(number, threads);
                worker.run();
            })?);
        }
        Ok(workers)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.wake = None;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a packet thread had failed");
            }
        }
    }
}

/// Keeps thread `number` of `threads` on the CPUs whose frames the fan-out gives it: those whose number
/// leaves that remainder.
fn stay_near(number: usize, threads: usize) {
    let mut cpus = CpuSet::new();
    for cpu in (number..CpuSet::count()).step_by(threads.max(1)) {
        // `count` is how many there is room for.
        let _ = cpus.set(cpu);
    }
    // Where none of them may be used, any other does, at the price of a longer way.
    let _ = sched_setaffinity(Pid::from_raw(0), &cpus);
}

struct Worker {
    common: Arc<Common>,
    stop: Arc<AtomicBool>,
    woken: PipeReader,
    exits: Exits,
    ifindex: u32,
    socket: Socket,
    ring: Ring,
}

impl Worker {
    fn run(mut self) {
        let mut bench = Bench {
            outbox: Outbox::new(),
            tally: Tally::new(),
            large: (0..LARGE).map(|_| vec![0; FRAME_LEN].into()).collect(),
        };
        while !self.stop.load(Relaxed) {
            if self.batch(&mut bench) == 0 {
                self.wait();
            }
        }
    }

    /// Works on what is there, up to a batch; returns how many frames that were.
    fn batch(&mut self, bench: &mut Bench) -> usize {
        let common = &*self.common;
        let tables = common.tables.load();
        let memory = common.store.memory();
        let now = now_ticks();
        let mut large = bench.large.iter_mut();
        let mut batch = bench.outbox.fill();
        let mut taken = 0;
        for received in self.ring.ready().take(BATCH) {
            let Received { tagged, outgoing, content } = received;
            let packet = match content {
                Content::Whole(packet) => Some(packet),
                Content::Queued(len) => match large.next() {
                    Some(buffer) => dequeue(&self.socket, buffer, len),
                    // No buffer left: the frame stays in its slot for the next batch.
                    None => break,
                },
                Content::Lost => None,
            };
            taken += 1;
            let Some(packet) = packet.filter(|_| !outgoing) else { continue };
            if tagged {
                bench.tally.reason(Reason::Vlan);
                continue;
            }
            let frame = &mut packet[VIRTIO_LEN..];
            let decision = decide(&tables, &memory, frame, self.ifindex, now);
            bench.tally.decision(&decision, frame.len());
            match decision.verdict {
                Verdict::Forward { ifindex } => batch.push(packet, ifindex),
                Verdict::Pass if decision.reason == Reason::Local => {
                    // The guard keeps the frame from coming up by its interface. The loopback interface's
                    // address is all zeros; anything else would be another host's there.
                    frame[..6].fill(0);
                    batch.push(packet, common.loopback);
                }
                Verdict::Pass | Verdict::Drop => {}
            }
        }
        batch.send(&self.exits);
        self.ring.release(taken);
        if taken != 0 {
            bench.tally.flush(&common.store);
        }
        taken
    }

    /// Waits for frames, or for the end.
    fn wait(&self) {
        let mut fds = [
            PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.woken.as_fd(), PollFlags::POLLIN),
        ];
        let polled = poll(&mut fds, PollTimeout::NONE);
        let failed = fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLERR));
        if failed || polled.is_err() {
            // The interface went down. Asking clears the error; frames come again once it is up.
            let _ = self.socket.take_error();
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A thread's tools.
struct Bench {
    outbox: Outbox,
    tally: Tally,
    /// Buffers for frames longer than a slot.
    large: Vec<Box<[u8]>>,
}

/// Takes the frame of `len` bytes from the socket's queue. Every slot that says there is one has one.
fn dequeue<'b>(socket: &Socket, buffer: &'b mut [u8], len: usize) -> Option<&'b mut [u8]> {
    // The first try may report an error of the interface instead.
    let received = receive(socket, buffer).or_else(|_| receive(socket, buffer)).ok()?;
    (received == len + VIRTIO_LEN).then(|| buffer.get_mut(..received))?
}

/// Receives without waiting; returns the frame's whole length, virtio header included.
fn receive(socket: &Socket, buffer: &mut [u8]) -> io::Result<usize> {
    use nix::sys::socket::{MsgFlags, recv};
    Ok(recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC)?)
}
