//! Reads frames that the kernel's programs hold or punt. A thread keeps later fragments until the
//! first one has arrived, decides them again with the shared session memory, and sends them. The
//! host's stack sends replies whose neighbour is unknown. Later requests for another server go to
//! the rehandoff task.

use std::cell::RefCell;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use arc_swap::ArcSwap;
use evener_core::path::decide::{Decision, Reason};
use evener_core::path::tables::{NO_SERVER, Tables};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::abi::{self, PuntedFrame};
use super::memory::KernelMemory;
use super::program::{Program, refused};
use crate::fragment_queue::{FragmentQueue, ROUND, WaitOutcome};
use crate::packet::outbox::{Exits, Outbox};
use crate::rehandoff::RehandoffSlot;
use crate::{EngineError, ServerCounters};

/// Reader thread. Dropping the value stops the thread and loses queued frames.
pub(super) struct PuntThread {
    common: Arc<PuntShared>,
    /// Closing the pipe wakes the thread.
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

struct PuntShared {
    memory: Arc<KernelMemory>,
    tables: ArcSwap<Tables>,
    moves: Arc<RehandoffSlot>,
    stop: AtomicBool,
}

impl PuntThread {
    /// Starts the thread in the network namespace of the calling thread.
    pub(super) fn start(
        program: &Program,
        tables: &Arc<Tables>,
        moves: &Arc<RehandoffSlot>,
    ) -> Result<PuntThread, EngineError> {
        let failed =
            |error| EngineError::system("opening the way out for held fragments", "CAP_NET_RAW", error);
        let common = Arc::new(PuntShared {
            memory: program.shared_memory(),
            tables: ArcSwap::new(Arc::clone(tables)),
            moves: Arc::clone(moves),
            stop: AtomicBool::new(false),
        });
        let (woken, wake) = io::pipe().map_err(failed)?;
        let map = program.map("held")?;
        // Discards frames of an earlier daemon: their fragment ids may be in use again. All later
        // frames are new, even if the thread starts late.
        let _ = ring(&map, |_| 0)?.consume();
        let worker = PuntReader {
            common: Arc::clone(&common),
            map,
            woken,
            exits: Exits::open().map_err(failed)?,
            loopback: if_nametoindex("lo").unwrap_or_default(),
        };
        let thread = thread::Builder::new().name("held frames".into());
        let thread = thread.spawn(move || worker.run()).map_err(failed)?;
        Ok(PuntThread { common, wake: Some(wake), thread: Some(thread) })
    }

    /// Replaces the tables for decisions on frames.
    pub(super) fn apply(&self, tables: &Arc<Tables>) {
        self.common.tables.store(Arc::clone(tables));
    }
}

impl Drop for PuntThread {
    fn drop(&mut self) {
        self.common.stop.store(true, Relaxed);
        self.wake = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread for held frames has panicked");
        }
    }
}

impl PuntShared {
    /// Counts like the kernel's programs: the number of forwarded packets is derived from the
    /// servers' counters.
    fn count_decision(&self, decision: &Decision, len: usize) {
        if decision.reason != Reason::Forwarded {
            self.memory.count_reason(decision.reason);
        }
        if decision.server() != NO_SERVER {
            let given = ServerCounters { packets: 1, bytes: len as u64, connections: 0 };
            self.memory.count(decision.server(), given);
        }
    }
}

/// Opens the kernel's ring buffer at its current read position.
fn ring<'r>(map: &MapHandle, take: impl FnMut(&[u8]) -> i32 + 'r) -> Result<RingBuffer<'r>, EngineError> {
    let mut builder = RingBufferBuilder::new();
    let ring = builder.add(map, take).map(drop).and_then(|()| builder.build());
    ring.map_err(|error| refused("reading held frames", error))
}

struct PuntReader {
    common: Arc<PuntShared>,
    map: MapHandle,
    woken: PipeReader,
    exits: Exits,
    loopback: u32,
}

impl PuntReader {
    fn run(self) {
        let (fragments, outbox) = (RefCell::new(FragmentQueue::default()), RefCell::new(Outbox::new()));
        let take = |record: &[u8]| {
            self.receive_record(record, &mut fragments.borrow_mut());
            0
        };
        match ring(&self.map, take) {
            Ok(ring) => self.serve(&ring, &fragments, &outbox),
            Err(error) => {
                tracing::error!(%error, "held frames are lost: fragments that arrive before the first one, and requests of connections that move")
            }
        }
    }

    fn serve(&self, ring: &RingBuffer<'_>, fragments: &RefCell<FragmentQueue>, outbox: &RefCell<Outbox>) {
        // SAFETY: the descriptor is the ring's own, which lives as long as this call.
        let frames = unsafe { BorrowedFd::borrow_raw(ring.epoll_fd()) };
        while !self.common.stop.load(Relaxed) {
            let idle = fragments.borrow().is_empty();
            let timeout =
                if idle { PollTimeout::NONE } else { ROUND.try_into().unwrap_or(PollTimeout::ZERO) };
            let mut fds =
                [PollFd::new(frames, PollFlags::POLLIN), PollFd::new(self.woken.as_fd(), PollFlags::POLLIN)];
            if poll(&mut fds, timeout).is_err() {
                thread::sleep(ROUND);
            }
            if let Err(error) = ring.consume() {
                tracing::debug!(%error, "failed to read held frames");
            }
            self.look_into(&mut fragments.borrow_mut(), &mut outbox.borrow_mut());
        }
    }

    /// Handles a frame from the kernel, which has already counted it as held.
    fn receive_record(&self, record: &[u8], fragments: &mut FragmentQueue) {
        let Some(PuntedFrame { ifindex, reason, server, frame }) = abi::held_of(record) else { return };
        match reason {
            Reason::Rehandoff | Reason::RehandoffBuffered => {
                self.common.moves.give(reason, ifindex, server, frame)
            }
            _ if !fragments.push(frame, ifindex, self.common.memory.now()) => {
                self.common.memory.count_reason(Reason::FragmentLost);
            }
            _ => {}
        }
    }

    fn look_into(&self, fragments: &mut FragmentQueue, outbox: &mut Outbox) {
        if fragments.is_empty() {
            return;
        }
        let (tables, memory) = (self.common.tables.load(), self.common.memory.memory());
        fragments.decide(&tables, &memory, self.common.memory.now(), |outcome| match outcome {
            WaitOutcome::Lost => self.common.memory.count_reason(Reason::FragmentLost),
            WaitOutcome::Decided { decision, len, packet } => {
                self.common.count_decision(&decision, len);
                outbox.carry_out(&decision, packet, self.loopback, &self.exits);
            }
        });
    }
}
