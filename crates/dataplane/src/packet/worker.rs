//! Worker threads: each reads frames from one ring, decides and sends them.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use evener_core::path::decide::Memory;
use evener_core::path::tables::Tables;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use socket2::Socket;

use super::fragments::FirstFragments;
use super::frame::{FrameContext, FrameScratch, work};
use super::guard::Withheld;
use super::outbox::{BATCH, Exits, Outbox};
use super::ring::{FanoutGroup, FrameStorage, RESERVE, ReceiveRing, RingFrame, VLAN_LEN};
use super::store::Store;
use super::trace::EventSender;
use super::virtio::VIRTIO_LEN;
use crate::fragment_queue::ROUND;
use crate::kernel_routes::HostRoutes;
use crate::now_ticks;
use crate::rehandoff::RehandoffSlot;

/// Maximum length of a merged frame with an inner tag, and of the reserve before it.
const FRAME_LEN: usize = RESERVE + 14 + VLAN_LEN + 40 + 65_535;
/// Maximum number of frames of that size in a batch.
const LARGE: usize = 16;

/// State that all threads share.
#[derive(Debug)]
pub(super) struct WorkerShared {
    pub(super) tables: ArcSwap<Tables>,
    /// Packets that the guard drops and the engine may pass to the host's own stack.
    pub(super) withheld: ArcSwap<Withheld>,
    pub(super) store: Store,
    pub(super) fragments: FirstFragments,
    pub(super) routes: HostRoutes,
    /// Loopback interface, on which frames are sent to the host's own stack.
    pub(super) loopback: u32,
    pub(super) event_sender: EventSender,
    pub(super) moves: RehandoffSlot,
}

impl WorkerShared {
    pub(super) fn memory(&self) -> Memory<'_> {
        self.store.memory(&self.fragments, &self.routes)
    }
}

/// Worker threads of one interface; dropping the value stops them.
#[derive(Debug)]
pub(super) struct Workers {
    stop: Arc<AtomicBool>,
    /// Closing the pipe wakes waiting threads.
    wake: Option<PipeWriter>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `threads` threads that share the frames received on `ifindex`.
    pub(super) fn start(common: &Arc<WorkerShared>, ifindex: u32, threads: usize) -> io::Result<Workers> {
        let (woken, wake) = io::pipe()?;
        let mut workers = Workers { stop: Arc::default(), wake: Some(wake), threads: Vec::new() };
        let mut group = FanoutGroup::default();
        let threads = threads.max(1);
        for number in 0..threads {
            let (socket, ring) = ReceiveRing::open(ifindex, (threads > 1).then_some(&mut group))?;
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
                tracing::error!("a packet thread has panicked");
            }
        }
    }
}

/// Pins thread `number` of `threads` to the CPUs whose frames the fanout delivers to it: CPU
/// numbers with the remainder `number`.
fn stay_near(number: usize, threads: usize) {
    let mut cpus = CpuSet::new();
    for cpu in (number..CpuSet::count()).step_by(threads.max(1)) {
        // Fails only beyond `count`, the capacity of the set.
        let _ = cpus.set(cpu);
    }
    // If none of these CPUs is allowed, the thread runs on any other, at a higher cost.
    let _ = sched_setaffinity(Pid::from_raw(0), &cpus);
}

struct Worker {
    common: Arc<WorkerShared>,
    stop: Arc<AtomicBool>,
    woken: PipeReader,
    exits: Exits,
    ifindex: u32,
    socket: Socket,
    ring: ReceiveRing,
}

impl Worker {
    fn run(mut self) {
        let mut bench = WorkerBuffers {
            outbox: Outbox::new(),
            tools: FrameScratch::new(),
            large: (0..LARGE).map(|_| vec![0; FRAME_LEN].into()).collect(),
            looked: (Instant::now(), 0),
        };
        while !self.stop.load(Relaxed) {
            if self.batch(&mut bench) == 0 {
                self.wait(&bench);
            }
        }
    }

    /// Processes the received frames, at most a batch. Returns the number of frames.
    fn batch(&mut self, bench: &mut WorkerBuffers) -> usize {
        let common = &*self.common;
        let (tables, memory, watch) =
            (common.tables.load(), common.memory(), common.event_sender.watch.load());
        let withheld = common.withheld.load();
        let around = FrameContext {
            tables: &tables,
            withheld: &withheld,
            memory: &memory,
            exits: &self.exits,
            ingress: self.ifindex,
            loopback: common.loopback,
            now: now_ticks(),
            watch: &watch,
            event_sender: &common.event_sender,
            moves: &common.moves,
        };
        let WorkerBuffers { outbox, tools, large, looked } = bench;
        let mut large = large.iter_mut();
        let mut batch = outbox.fill();
        let mut taken = 0;
        for received in self.ring.ready().take(BATCH) {
            let RingFrame { tag, outgoing, content } = received;
            let buffer = match content {
                FrameStorage::Whole(buffer) => Some(buffer),
                FrameStorage::Queued(len) => match large.next() {
                    Some(buffer) => dequeue(&self.socket, buffer, len),
                    // No buffer left: the frame stays in its slot for the next batch.
                    None => break,
                },
                FrameStorage::Lost => None,
            };
            taken += 1;
            if let Some(buffer) = buffer.filter(|_| !outgoing) {
                work(buffer, tag, &around, tools, &mut batch);
            }
        }
        batch.send(&self.exits);
        self.ring.release(taken);
        let noted = common.fragments.count();
        if !tools.fragments.is_empty() && (looked.1 != noted || looked.0.elapsed() >= ROUND) {
            tools.release_fragments(&around);
            *looked = (Instant::now(), noted);
        }
        tools.tally.flush(&common.store);
        taken
    }

    /// Waits for frames or for the stop signal.
    fn wait(&self, bench: &WorkerBuffers) {
        let mut fds = [
            PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.woken.as_fd(), PollFlags::POLLIN),
        ];
        // No wakeup reports a first fragment noted by another thread, so the thread polls.
        let empty = bench.tools.fragments.is_empty();
        let timeout = if empty { PollTimeout::NONE } else { ROUND.try_into().unwrap_or(PollTimeout::ZERO) };
        let polled = poll(&mut fds, timeout);
        let failed = fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLERR));
        if failed || polled.is_err() {
            // The interface went down. Reading the error clears it; frames arrive again once the
            // interface is up.
            let _ = self.socket.take_error();
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Buffers of one thread.
struct WorkerBuffers {
    outbox: Outbox,
    tools: FrameScratch,
    /// Buffers for frames longer than a slot.
    large: Vec<Box<[u8]>>,
    /// Time of the last pass over queued fragments, and the count of first fragments at that time.
    looked: (Instant, u64),
}

/// Receives the frame of `len` bytes from the socket's queue, into the buffer behind [`RESERVE`]
/// bytes. The queue contains a frame for every slot with `TP_STATUS_COPY`.
fn dequeue<'b>(socket: &Socket, buffer: &'b mut [u8], len: usize) -> Option<&'b mut [u8]> {
    let start = RESERVE - VIRTIO_LEN;
    let place = buffer.get_mut(start..)?;
    // The first call may return a pending error of the interface instead.
    let received = receive(socket, place).or_else(|_| receive(socket, place)).ok()?;
    (received == len + VIRTIO_LEN).then(|| buffer.get_mut(..start + received))?
}

/// Receives without blocking. Returns the full length of the frame with its virtio header.
fn receive(socket: &Socket, buffer: &mut [u8]) -> io::Result<usize> {
    use nix::sys::socket::{MsgFlags, recv};
    Ok(recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC)?)
}
