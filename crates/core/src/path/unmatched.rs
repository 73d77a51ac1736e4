//! Memory of segments that belong to no known connection.
//!
//! An unmatched segment may have overtaken the first segment of its connection, or the first
//! segment was lost. A reset would end a connection that is about to begin, and the client
//! retransmits both segments anyway. So a segment is answered with a reset only if the client still
//! retransmits it after some time. Then it belongs to no connection. The memory is small and
//! short-lived.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::path::sessions::{FlowHash, ticks};

/// Maximum number of flows remembered at a time.
pub const PLACES: usize = 1_024;
/// Time within which a client has retransmitted a lost segment. TCP retransmits within three
/// seconds, even without a round-trip estimate (RFC 6298, sections 2 and 5).
pub const PATIENCE_TICKS: u32 = ticks(3_000);
/// Time after which a record is forgotten. It is longer than the interval of keep-alive probes on
/// common systems (RFC 9293, section 3.8.4).
pub const FORGOTTEN_TICKS: u32 = ticks(300_000);

/// Words that the engine's threads share, one per record. The upper half of a word is a part of the
/// flow's hash, mixed with the acknowledgment number. The lower half is the tick of the first
/// segment. If the client soon reuses its port, the acknowledgment number differs in the new
/// connection, so the old record doesn't match.
#[derive(Clone, Copy, Debug)]
pub struct Unmatched<'a>(pub &'a [AtomicU64]);

impl Unmatched<'_> {
    /// Records a segment of a flow. Returns true, and removes the record, if the flow had a segment
    /// with the same acknowledgment number at least [`PATIENCE_TICKS`] ago. Flows that share a word
    /// may delay each other's reset. Ticks wrap after 52 days. A record that is so old may count as
    /// new, so a reset may come a little early or late.
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
