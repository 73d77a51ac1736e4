//! Segments of connections that nobody knows.
//!
//! One may have overtaken its connection's first segment, or that was lost: then a reset would end
//! what is about to begin, and its sender sends it again anyway, with the first. Only what still
//! comes after some time belongs to nothing, and is told so. Nothing is remembered for long, nor of
//! many.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::path::sessions::{FlowHash, ticks};

/// Flows that are remembered at a time, at most.
pub const PLACES: usize = 1_024;
/// Until then what was lost has come again: a client's TCP repeats it within three seconds, even
/// where it knows nothing of the path (RFC 6298, sections 2 and 5).
pub const PATIENCE_TICKS: u32 = ticks(3_000);
/// A segment later than this is met as if for the first time: longer than the pauses of keep-alives
/// that only ask whether the connection lives (RFC 9293, section 3.8.4, as systems have it).
pub const FORGOTTEN_TICKS: u32 = ticks(300_000);

/// Words that the engine's threads share: for each place part of a flow's hash, mixed with what the
/// segment acknowledges, above the tick it was first met at. A client's port may soon be used
/// again, and what was met of the connection before is no word about this one: each begins with
/// other numbers.
#[derive(Clone, Copy, Debug)]
pub struct Unmatched<'a>(pub &'a [AtomicU64]);

impl Unmatched<'_> {
    /// True if a segment with the same acknowledgment was seen on this flow, long enough ago; the
    /// record is then removed. Flows that share a place may delay each other. Ticks wrap after 52
    /// days: an older record counts as new, so that the segment is answered a little later or
    /// sooner than it should be.
    pub fn is_retransmission(&self, flow: FlowHash, acknowledgment: u32, now: u32) -> bool {
        let Some(place) = self.0.get(flow.0 as usize % PLACES) else { return false };
        let (name, was) = ((flow.0 >> 32) as u32 ^ acknowledgment, place.load(Relaxed));
        let age = now.wrapping_sub(was as u32);
        let known = was != 0 && (was >> 32) as u32 == name && age < FORGOTTEN_TICKS;
        match known {
            true if age < PATIENCE_TICKS => false,
            true => {
                place.store(0, Relaxed);
                true
            }
            false => {
                place.store(u64::from(name) << 32 | u64::from(now), Relaxed);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmatched_flow_is_recognised_only_after_delay() {
        let words = [const { AtomicU64::new(0) }; PLACES];
        let unmatched = Unmatched(&words);
        let (one, other) = (FlowHash(7 << 40 | 5), FlowHash(9 << 40 | 6));
        let begin = u32::MAX - 10;
        let at = |ticks: u32| begin.wrapping_add(ticks);
        assert!(!unmatched.is_retransmission(one, 1, at(0)));
        assert!(!unmatched.is_retransmission(other, 1, at(PATIENCE_TICKS)));
        assert!(!unmatched.is_retransmission(one, 1, at(PATIENCE_TICKS - 1)));
        assert!(unmatched.is_retransmission(one, 1, at(PATIENCE_TICKS)));
        assert!(!unmatched.is_retransmission(one, 1, at(PATIENCE_TICKS + 1)), "each is answered once");
        assert!(
            !unmatched.is_retransmission(other, 1, at(PATIENCE_TICKS + FORGOTTEN_TICKS)),
            "that was too long ago"
        );
    }

    #[test]
    fn a_port_that_is_used_again_is_met_as_if_for_the_first_time() {
        let words = [const { AtomicU64::new(0) }; PLACES];
        let unmatched = Unmatched(&words);
        let flow = FlowHash(7 << 40 | 5);
        assert!(!unmatched.is_retransmission(flow, 1, 0));
        assert!(
            !unmatched.is_retransmission(flow, 2, PATIENCE_TICKS),
            "the next connection acknowledges something else"
        );
        assert!(unmatched.is_retransmission(flow, 2, 2 * PATIENCE_TICKS));
    }

    #[test]
    fn colliding_flow_replaces_unmatched_entry() {
        let words = [const { AtomicU64::new(0) }; PLACES];
        let unmatched = Unmatched(&words);
        let (one, other) = (FlowHash(7 << 40 | 5), FlowHash(9 << 40 | 5));
        assert!(!unmatched.is_retransmission(one, 1, 0));
        assert!(!unmatched.is_retransmission(other, 1, 1));
        assert!(!unmatched.is_retransmission(one, 1, PATIENCE_TICKS + 1));
        assert!(unmatched.is_retransmission(one, 1, 2 * PATIENCE_TICKS + 1));
    }
}
