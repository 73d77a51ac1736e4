//! Later fragments that came before their packet's first one wait here, for a moment and in bounded
//! number.
//!
//! Only the first fragment has the ports that say where the packet goes. Networks reorder by a few
//! packets, so the wait is short; nothing is put together, and a flood of fragments without a first
//! costs 256 frames of memory and no more.

use std::collections::VecDeque;
use std::time::Duration;

use evener_core::net::packet::{HEADROOM, Packet};
use evener_core::path::decide::{Decision, Memory, Verdict, decide};
use evener_core::path::fragments::PATIENCE_MS;
use evener_core::path::sessions::ticks;
use evener_core::path::tables::Tables;

use crate::packet::VIRTIO_LEN;

/// Frames that may wait at once.
const WAITING_MAX: usize = 256;
/// How often the frames that wait are looked at, while there are any.
pub(crate) const ROUND: Duration = Duration::from_millis(5);
/// Room before a frame, for a longer header and a virtio header.
const RESERVE: usize = HEADROOM + VIRTIO_LEN;

/// A place for frames to wait in.
#[derive(Debug, Default)]
pub(crate) struct FragmentQueue {
    waiting: VecDeque<WaitingFrame>,
}

#[derive(Debug)]
struct WaitingFrame {
    buffer: Vec<u8>,
    ingress: u32,
    until: u32,
}

impl WaitingFrame {
    fn new(frame: &[u8], ingress: u32, now: u32) -> WaitingFrame {
        let mut buffer = vec![0; RESERVE + frame.len()];
        buffer[RESERVE..].copy_from_slice(frame);
        WaitingFrame { buffer, ingress, until: now.wrapping_add(ticks(PATIENCE_MS)) }
    }

    /// The decision on the frame at tick `now`; [`None`] if it is to wait.
    fn decide(&mut self, tables: &Tables, memory: &Memory<'_>, now: u32) -> Option<WaitOutcome<'_>> {
        let len = self.buffer.len() - RESERVE;
        let mut packet = Packet::new(&mut self.buffer, RESERVE, self.ingress);
        let decision = decide(tables, memory, &mut packet, now);
        if decision.verdict == Verdict::Hold {
            return None;
        }
        let start = packet.start() - VIRTIO_LEN.min(packet.start());
        let end = packet.start() + packet.frame().len();
        let packet = &mut self.buffer[start..end];
        packet[..VIRTIO_LEN].fill(0);
        Some(WaitOutcome::Decided { decision, len, packet })
    }
}

/// The outcome of a frame that waited.
pub(crate) enum WaitOutcome<'f> {
    /// It was decided.
    Decided {
        decision: Decision,
        /// Its length as it came in.
        len: usize,
        /// Now, behind an empty virtio header.
        packet: &'f mut [u8],
    },
    /// Its packet's first fragment never came.
    Lost,
}

impl FragmentQueue {
    /// Keeps a frame until its packet's first fragment was there; false if another is given up for
    /// it. That is the one that has waited longest: whoever sends many later fragments alone makes
    /// the wait shorter, and leaves none out.
    #[must_use]
    pub(crate) fn push(&mut self, frame: &[u8], ingress: u32, now: u32) -> bool {
        let is_full = self.waiting.len() >= WAITING_MAX;
        if is_full {
            self.waiting.pop_front();
        }
        self.waiting.push_back(WaitingFrame::new(frame, ingress, now));
        !is_full
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Decides all again, in the order of their coming; those that still have to wait do so, unless
    /// it is too late.
    pub(crate) fn decide(
        &mut self,
        tables: &Tables,
        memory: &Memory<'_>,
        now: u32,
        mut each: impl FnMut(WaitOutcome<'_>),
    ) {
        for _ in 0..self.waiting.len() {
            let Some(mut waiting) = self.waiting.pop_front() else { return };
            if let Some(outcome) = waiting.decide(tables, memory, now) {
                each(outcome);
            } else if (waiting.until.wrapping_sub(now) as i32) > 0 {
                self.waiting.push_back(waiting);
            } else {
                each(WaitOutcome::Lost);
            }
        }
    }
}
