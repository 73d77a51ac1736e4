//! Queue of later fragments that arrived before the first fragment of their packet.
//!
//! Only the first fragment has the ports that select the server. Networks reorder by a few packets,
//! so fragments wait briefly. Packets are not reassembled. A flood of fragments without a first one
//! costs at most the memory of 256 frames.

use std::collections::VecDeque;
use std::time::Duration;

use evener_core::net::packet::{HEADROOM, Packet};
use evener_core::path::decide::{Decision, Memory, Verdict, decide};
use evener_core::path::fragments::PATIENCE_MS;
use evener_core::path::sessions::ticks;
use evener_core::path::tables::Tables;

use crate::packet::VIRTIO_LEN;

/// Maximum number of frames in the queue.
const WAITING_MAX: usize = 256;
/// Interval at which queued frames are decided again.
pub(crate) const ROUND: Duration = Duration::from_millis(5);
/// Headroom of a frame, for a longer header and a virtio header.
const RESERVE: usize = HEADROOM + VIRTIO_LEN;

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

    /// Returns the decision on the frame at tick `now`, or [`None`] if the frame has to wait.
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

pub(crate) enum WaitOutcome<'f> {
    Decided {
        decision: Decision,
        /// Length in bytes of the frame as received.
        len: usize,
        /// The rewritten frame, behind an empty virtio header.
        packet: &'f mut [u8],
    },
    /// The first fragment did not arrive in time.
    Lost,
}

impl FragmentQueue {
    /// Queues a frame until the first fragment of its packet arrives. Returns false if the queue
    /// was full and the oldest frame was dropped. So a flood of later fragments shortens the wait
    /// of other fragments, but excludes none.
    #[must_use]
    pub(crate) fn push(&mut self, frame: &[u8], ingress: u32, now: u32) -> bool {
        let is_full = self.waiting.len() >= WAITING_MAX;
        if is_full {
            self.waiting.pop_front();
        }
        self.waiting.push_back(WaitingFrame::new(frame, ingress, now));
        !is_full
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Decides all queued frames again, in the order of arrival. Frames that still lack the first
    /// fragment stay queued until their timeout.
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
