//! Segments of clients while no host owns their connections: they are kept, and follow once one
//! does.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::path::sessions::SessionKey;

/// Segments that are kept of a connection while it moves, and of all together: 8 MB at the most.
const KEPT_MAX: usize = 32;
const KEPT_OF_ALL_MAX: usize = 4_096;
/// Longer than anything takes that connections are kept back for, in milliseconds.
const KEPT_BACK_MS: u64 = 15_000;
/// Longer than a segment waits for the loop that is to move its connection, and shorter than a pass
/// of the sweep takes.
const ORPHANED_MS: u64 = 5_000;
/// By then the sweep has come by again, or the session is gone.
const UNSEEN_MS: u64 = 60_000;

/// Connections that somebody here has, and that no server has meanwhile. `F` is a client's segment.
#[derive(Debug)]
pub struct KeptBack<F> {
    connections: BTreeMap<SessionKey, BufferedSegments<F>>,
    /// Segments of all together.
    kept: usize,
    /// Connections that the sweep has met with nobody, and when it did so first, in milliseconds.
    /// One of them may be somebody's yet: the segment that says so waits still.
    orphans: BTreeMap<SessionKey, u64>,
}

impl<F> Default for KeptBack<F> {
    fn default() -> Self {
        KeptBack { connections: BTreeMap::new(), kept: 0, orphans: BTreeMap::new() }
    }
}

#[derive(Debug)]
struct BufferedSegments<F> {
    since_ms: u64,
    segments: Vec<F>,
}

impl<F> KeptBack<F> {
    /// Somebody has a connection from now on, until he has done something about it.
    pub fn begin(&mut self, key: SessionKey, now_ms: u64) {
        self.orphans.remove(&key);
        let new = || BufferedSegments { since_ms: now_ms, segments: Vec::new() };
        self.connections.entry(key).or_insert_with(new).since_ms = now_ms;
    }

    /// Keeps a segment until its connection has a server. It is given back where that has one by
    /// now; where there is no room, it comes again, as if it were lost.
    pub fn keep(&mut self, key: &SessionKey, segment: F) -> Option<F> {
        let Some(kept) = self.connections.get_mut(key) else { return Some(segment) };
        if kept.segments.len() < KEPT_MAX && self.kept < KEPT_OF_ALL_MAX {
            kept.segments.push(segment);
            self.kept += 1;
        }
        None
    }

    /// Something was done about a connection: what was kept of it.
    pub fn end(&mut self, key: &SessionKey) -> Vec<F> {
        let segments = self.connections.remove(key).map(|kept| kept.segments).unwrap_or_default();
        self.kept -= segments.len();
        segments
    }

    /// Forgets those of which nobody has said what came of them, and what the sweep meets no more.
    pub fn forget_old(&mut self, now_ms: u64) {
        self.connections.retain(|_, kept| now_ms < kept.since_ms + KEPT_BACK_MS);
        self.kept = self.connections.values().map(|kept| kept.segments.len()).sum();
        self.orphans.retain(|_, since_ms| now_ms < *since_ms + UNSEEN_MS);
    }

    /// Whether nobody has a connection that the sweep finds kept back, and nobody had it when the
    /// sweep came by before: it is of a daemon that was killed, or of what found no room.
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
        let mut all = KeptBack::<u8>::default();
        assert!(!all.is_orphan(key(1), 1_000), "its segment may wait still");
        assert!(!all.is_orphan(key(1), 1_010), "a reload sweeps too, at any time");
        assert!(!all.is_orphan(key(2), 6_000));
        assert!(all.is_orphan(key(1), 11_000));
        // Taken up meanwhile, and with nobody once more.
        all.begin(key(2), 11_000);
        assert!(!all.is_orphan(key(2), 16_000), "somebody has it");
        all.end(&key(2));
        assert!(!all.is_orphan(key(2), 16_000));
        assert!(all.is_orphan(key(2), 26_000));
        // One that was seen long ago is another connection's by now.
        assert!(!all.is_orphan(key(2), 30_000));
        all.forget_old(100_000);
        assert!(!all.is_orphan(key(2), 100_000));
    }

    #[test]
    fn connection_is_an_orphan_five_seconds_after_first_sweep() {
        let mut all = KeptBack::<u8>::default();
        assert!(!all.is_orphan(key(1), 1_000) && !all.is_orphan(key(1), 5_999));
        assert!(all.is_orphan(key(1), 6_000));
        assert!(!all.is_orphan(key(1), 6_000), "it is dealt with, and another one begins anew");
        // One that the sweep doesn't meet again within a minute is gone.
        all.forget_old(6_000 + 59_999);
        assert!(all.is_orphan(key(1), 66_000));
        assert!(!all.is_orphan(key(1), 70_000));
        all.forget_old(70_000 + 60_000);
        assert!(!all.is_orphan(key(1), 130_000));
    }

    #[test]
    fn buffered_connection_expires_fifteen_seconds_after_last_use() {
        let mut all = KeptBack::default();
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
        let mut all = KeptBack::default();
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
        let mut all = KeptBack::default();
        let connections = KEPT_OF_ALL_MAX as u16 / KEPT_MAX as u16 + 1;
        for port in 0..connections {
            all.begin(key(port), u64::from(port));
            (0..KEPT_MAX).for_each(|segment| assert_eq!(all.keep(&key(port), segment), None));
        }
        assert_eq!(all.end(&key(connections - 1)), Vec::new());
        assert_eq!(all.kept, KEPT_OF_ALL_MAX);
        // Those of which nobody says anything make room.
        all.forget_old(KEPT_BACK_MS);
        assert_eq!(
            (all.connections.len(), all.kept),
            (usize::from(connections) - 2, KEPT_OF_ALL_MAX - KEPT_MAX)
        );
        all.forget_old(KEPT_BACK_MS + u64::from(connections));
        assert_eq!((all.connections.len(), all.kept), (0, 0));
    }
}
