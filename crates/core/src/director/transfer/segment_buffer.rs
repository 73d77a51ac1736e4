//! Buffer for clients' segments while no host owns their connection. The segments are forwarded
//! once a host owns it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::path::sessions::SessionKey;

/// Maximum number of segments per connection and in total. All segments together have at most 8 MB.
const KEPT_MAX: usize = 32;
const KEPT_OF_ALL_MAX: usize = 4_096;
/// Timeout of a buffered connection in milliseconds, longer than any transfer.
const KEPT_BACK_MS: u64 = 15_000;
/// Age at which a connection without an owner counts as orphaned, in milliseconds. The age counts
/// from the first pass of the sweep that found the connection without an owner. It is longer than a
/// segment waits for the task that moves its connection, and shorter than the interval between two
/// passes.
const ORPHANED_MS: u64 = 5_000;
/// Time after which an orphan candidate is forgotten, in milliseconds. By then the next pass of the
/// sweep has found the candidate again, or its session is gone.
const UNSEEN_MS: u64 = 60_000;

/// Buffered segments of connections that no host owns. `F` is a client's segment.
#[derive(Debug)]
pub struct SegmentBuffer<F> {
    connections: BTreeMap<SessionKey, BufferedSegments<F>>,
    /// Number of segments in total.
    kept: usize,
    /// Orphan candidates: connections that the sweep found without an owner, with the time of the
    /// first find in milliseconds. A task may still claim a candidate whose first segment is
    /// queued.
    orphans: BTreeMap<SessionKey, u64>,
}

impl<F> Default for SegmentBuffer<F> {
    fn default() -> Self {
        SegmentBuffer { connections: BTreeMap::new(), kept: 0, orphans: BTreeMap::new() }
    }
}

#[derive(Debug)]
struct BufferedSegments<F> {
    since_ms: u64,
    segments: Vec<F>,
}

impl<F> SegmentBuffer<F> {
    /// Starts to buffer a connection's segments, until [`SegmentBuffer::end`].
    pub fn begin(&mut self, key: SessionKey, now_ms: u64) {
        self.orphans.remove(&key);
        let new = || BufferedSegments { since_ms: now_ms, segments: Vec::new() };
        self.connections.entry(key).or_insert_with(new).since_ms = now_ms;
    }

    /// Buffers a segment of a buffered connection. Returns the segment if the connection is not
    /// buffered. If the buffer is full, the segment is dropped, and the client retransmits it.
    pub fn keep(&mut self, key: &SessionKey, segment: F) -> Option<F> {
        let Some(kept) = self.connections.get_mut(key) else { return Some(segment) };
        if kept.segments.len() < KEPT_MAX && self.kept < KEPT_OF_ALL_MAX {
            kept.segments.push(segment);
            self.kept += 1;
        }
        None
    }

    /// Ends a connection's buffering and returns its segments.
    pub fn end(&mut self, key: &SessionKey) -> Vec<F> {
        let segments = self.connections.remove(key).map(|kept| kept.segments).unwrap_or_default();
        self.kept -= segments.len();
        segments
    }

    /// Removes connections past their timeout, and orphan candidates that the sweep no longer
    /// finds.
    pub fn forget_old(&mut self, now_ms: u64) {
        self.connections.retain(|_, kept| now_ms < kept.since_ms + KEPT_BACK_MS);
        self.kept = self.connections.values().map(|kept| kept.segments.len()).sum();
        self.orphans.retain(|_, since_ms| now_ms < *since_ms + UNSEEN_MS);
    }

    /// The sweep calls this for each session of a connection that no host owns. Returns true if the
    /// connection isn't buffered now, and an earlier pass found it at least five seconds ago.
    /// Such a connection belonged to a killed daemon, or the buffer was full.
    pub fn is_orphan(&mut self, key: SessionKey, now_ms: u64) -> bool {
        if self.connections.contains_key(&key) {
            return false;
        }
        let is_one = now_ms >= *self.orphans.entry(key).or_insert(now_ms) + ORPHANED_MS;
        if is_one {
            self.orphans.remove(&key);
        }
        is_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> SessionKey {
        SessionKey { client: [203, 0, 113, 7].into(), port, vip: 1 }
    }

    #[test]
    fn an_orphan_was_met_by_two_passes_of_the_sweep() {
        let mut all = SegmentBuffer::<u8>::default();
        assert!(!all.is_orphan(key(1), 1_000), "its segment may wait still");
        assert!(!all.is_orphan(key(1), 1_010), "a reload sweeps too, at any time");
        assert!(!all.is_orphan(key(2), 6_000));
        assert!(all.is_orphan(key(1), 11_000));
        // The connection was buffered again after the first find, so the sweep finds it for the
        // first time.
        all.begin(key(2), 11_000);
        assert!(!all.is_orphan(key(2), 16_000), "somebody has it");
        all.end(&key(2));
        assert!(!all.is_orphan(key(2), 16_000));
        assert!(all.is_orphan(key(2), 26_000));
        // An orphan candidate that was found long ago was an earlier connection of the same client
        // port.
        assert!(!all.is_orphan(key(2), 30_000));
        all.forget_old(100_000);
        assert!(!all.is_orphan(key(2), 100_000));
    }

    #[test]
    fn connection_is_an_orphan_five_seconds_after_first_sweep() {
        let mut all = SegmentBuffer::<u8>::default();
        assert!(!all.is_orphan(key(1), 1_000) && !all.is_orphan(key(1), 5_999));
        assert!(all.is_orphan(key(1), 6_000));
        assert!(!all.is_orphan(key(1), 6_000), "it is dealt with, and another one begins anew");
        // An orphan candidate that the sweep doesn't find again within a minute is removed.
        all.forget_old(6_000 + 59_999);
        assert!(all.is_orphan(key(1), 66_000));
        assert!(!all.is_orphan(key(1), 70_000));
        all.forget_old(70_000 + 60_000);
        assert!(!all.is_orphan(key(1), 130_000));
    }

    #[test]
    fn buffered_connection_expires_fifteen_seconds_after_last_use() {
        let mut all = SegmentBuffer::default();
        all.begin(key(1), 1_000);
        assert_eq!(all.keep(&key(1), 7), None);
        all.begin(key(1), 2_000);
        all.forget_old(16_999);
        assert_eq!(all.keep(&key(1), 8), None);
        all.forget_old(17_000);
        assert_eq!((all.keep(&key(1), 9), all.kept), (Some(9), 0));
    }

    #[test]
    fn buffered_segments_are_replayed_in_order() {
        let mut all = SegmentBuffer::default();
        assert_eq!(all.keep(&key(1), 1), Some(1), "it has a server");
        all.begin(key(1), 0);
        for segment in 0..KEPT_MAX + 5 {
            assert_eq!(all.keep(&key(1), segment), None);
        }
        assert_eq!(all.end(&key(1)), (0..KEPT_MAX).collect::<Vec<_>>());
        assert_eq!((all.end(&key(1)), all.kept), (Vec::new(), 0));
    }

    #[test]
    fn buffered_segments_are_bounded() {
        let mut all = SegmentBuffer::default();
        let connections = KEPT_OF_ALL_MAX as u16 / KEPT_MAX as u16 + 1;
        for port in 0..connections {
            all.begin(key(port), u64::from(port));
            (0..KEPT_MAX).for_each(|segment| assert_eq!(all.keep(&key(port), segment), None));
        }
        assert_eq!(all.end(&key(connections - 1)), Vec::new());
        assert_eq!(all.kept, KEPT_OF_ALL_MAX);
        // Removing connections past their timeout frees the buffer.
        all.forget_old(KEPT_BACK_MS);
        assert_eq!(
            (all.connections.len(), all.kept),
            (usize::from(connections) - 2, KEPT_OF_ALL_MAX - KEPT_MAX)
        );
        all.forget_old(KEPT_BACK_MS + u64::from(connections));
        assert_eq!((all.connections.len(), all.kept), (0, 0));
    }
}
