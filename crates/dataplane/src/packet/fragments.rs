//! First fragments that this engine's threads have seen.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use evener_core::path::fragments::{FragmentKey, Fragments, Track};

use crate::xdp::abi::FRAGMENTS_MAX;

/// First fragments of packets, shared by the engine's threads. If the table is full the oldest
/// entry is evicted.
#[derive(Debug, Default)]
pub(super) struct FirstFragments {
    noted: Mutex<TrackedFragments>,
    count: AtomicU64,
}

#[derive(Debug, Default)]
struct TrackedFragments {
    tracks: HashMap<FragmentKey, Track>,
    order: VecDeque<FragmentKey>,
}

impl FirstFragments {
    /// Number of first fragments noted so far. An increase means that queued fragments can be
    /// decided again.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    fn noted(&self) -> MutexGuard<'_, TrackedFragments> {
        // A poisoned lock is still consistent: no code between the two updates can panic.
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fragments for FirstFragments {
    fn find(&self, key: &FragmentKey) -> Option<Track> {
        self.noted().tracks.get(key).copied()
    }

    fn note(&self, key: &FragmentKey, track: Track) {
        let mut noted = self.noted();
        if noted.tracks.insert(*key, track).is_none() {
            noted.order.push_back(*key);
        }
        if noted.order.len() > FRAGMENTS_MAX
            && let Some(oldest) = noted.order.pop_front()
        {
            noted.tracks.remove(&oldest);
        }
        drop(noted);
        self.count.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn fragment_flood_evicts_oldest_and_stays_bounded() {
        let memory = FirstFragments::default();
        let key = |id| FragmentKey {
            src: "203.0.113.7".parse().unwrap(),
            dst: "192.0.2.100".parse().unwrap(),
            id,
            protocol: 17,
        };
        let track = |port| Track { expires: 9, server: 1, vip: 1, port, first_end: 10, answer: false };
        for id in 0..2 * FRAGMENTS_MAX as u32 {
            memory.note(&key(id), track(0));
        }
        memory.note(&key(FRAGMENTS_MAX as u32), track(7));
        assert_eq!(memory.find(&key(FRAGMENTS_MAX as u32 - 1)), None);
        assert_eq!(memory.find(&key(FRAGMENTS_MAX as u32)).unwrap().port, 7);
        assert_eq!(memory.noted().tracks.len(), FRAGMENTS_MAX);
        assert_eq!(memory.noted().order.len(), FRAGMENTS_MAX);
        assert_eq!(memory.count(), 2 * FRAGMENTS_MAX as u64 + 1);
    }
}
