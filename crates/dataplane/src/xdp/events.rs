//! Reads the kernel programs' trace events from the shared ring buffer.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libbpf_rs::{RingBuffer, RingBufferBuilder};

use super::abi;
use super::program::{Program, refused};
use crate::EngineError;
use crate::events::{EventSource, TraceEvent, TraceFilter};
use crate::shared::Shared;

/// Maximum number of events per read. The kernel may add events as fast as they are read.
const TAKEN_MAX: usize = 4096;
/// Error with which the callback ends a read at this limit.
const ENOUGH: i32 = -libc::ENOBUFS;

impl Program {
    /// Replaces the filter. Events that both filters select are reported without interruption.
    pub(super) fn write_watch(&self, watch: &TraceFilter) {
        let image = abi::watch(watch);
        let (what, clients) = (&self.watch[0], abi::LOST_WORD + 1);
        // New packets are not compared with a partly written address, because the clients flag is
        // cleared first.
        what.fetch_and(image[0] & !abi::WATCH_CLIENTS, Relaxed);
        for (place, word) in self.watch.iter().zip(image).skip(clients) {
            place.store(word, Release);
        }
        what.store(image[0], Release);
    }

    /// Returns the reader of events.
    pub(super) fn reader(&self) -> Result<RingReader, EngineError> {
        let map = self.map("events")?;
        let taken = Arc::new(Mutex::new(Vec::new()));
        let takes = Arc::clone(&taken);
        let take = move |record: &[u8]| {
            let mut taken = lock(&takes);
            taken.extend(abi::event_of(record));
            if taken.len() < TAKEN_MAX { 0 } else { ENOUGH }
        };
        let mut builder = RingBufferBuilder::new();
        let ring = builder.add(&map, take).map(drop).and_then(|()| builder.build());
        let ring = ring.map_err(|error| refused("reading events", error))?;
        Ok(RingReader { ring, taken, watch: self.second_watch()? })
    }
}

/// Reader of the ring buffer.
pub(super) struct RingReader {
    ring: RingBuffer<'static>,
    taken: Arc<Mutex<Vec<TraceEvent>>>,
    watch: Shared<AtomicU64>,
}

impl EventSource for RingReader {
    fn read(&mut self, patience: Duration) -> io::Result<Vec<TraceEvent>> {
        let mut answer = self.ring.consume_raw();
        if answer == 0 {
            answer = self.ring.poll_raw(patience);
        }
        if answer < 0 && ![ENOUGH, -libc::EINTR].contains(&answer) {
            return Err(io::Error::from_raw_os_error(-answer));
        }
        Ok(std::mem::take(&mut *lock(&self.taken)))
    }

    fn lost(&self) -> u64 {
        self.watch[abi::LOST_WORD].load(Relaxed)
    }
}

fn lock(taken: &Mutex<Vec<TraceEvent>>) -> MutexGuard<'_, Vec<TraceEvent>> {
    // A poisoned list of events is still consistent.
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}
