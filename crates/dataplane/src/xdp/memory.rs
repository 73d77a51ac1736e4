//! Session memory in the kernel's maps, mapped into user space: sessions, ports and first
//! fragments.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use evener_core::path::cookie::{self, NO_KEYS, SharedKeys};
use evener_core::path::decide::{Memory, Reason};
use evener_core::path::fragments::{FragmentKey, Fragments, Track};
use evener_core::path::guesses::Guesses;
use evener_core::path::lease::Lease;
use evener_core::path::mark::{self, NO_MARKER, SharedMarker};
use evener_core::path::ports::Ports;
use evener_core::path::seed::Seed;
use evener_core::path::select::Counts;
use evener_core::path::sessions::{AffinityCounts, Bucket4, Bucket6, Counted, Sessions, Shares};
use evener_core::path::unmatched::Unmatched;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::abi;
use crate::ServerCounters;
use crate::kernel_routes::HostRoutes;
use crate::shared::Shared;

/// Number of words of `struct server_stats`.
pub(super) const STAT_WORDS: usize = 4;

/// Mapped maps with the state that outlives a packet.
pub(super) struct KernelMemory {
    pub(super) seed: Seed,
    pub(super) ring_seed: Seed,
    pub(super) sessions: Shared<Bucket4>,
    pub(super) sessions6: Shared<Bucket6>,
    pub(super) ports: Shared<Bucket6>,
    pub(super) active: Shared<AtomicU64>,
    /// Scores by server slot.
    pub(super) scores: Shared<AtomicU16>,
    /// Limits of active sessions by server slot.
    pub(super) limits: Shared<AtomicU32>,
    pub(super) shares: Shared<AtomicU64>,
    pub(super) affinities: Shared<AtomicU64>,
    /// Number of buckets in use per session table.
    pub(super) extents: Shared<AtomicU64>,
    pub(super) cursors: Shared<AtomicU64>,
    pub(super) lease: Shared<AtomicU64>,
    pub(super) cookies: Shared<AtomicU64>,
    pub(super) marker: Shared<AtomicU64>,
    pub(super) unmatched: Shared<AtomicU64>,
    pub(super) guesses: Shared<AtomicU64>,
    /// Counters of user space: [`STAT_WORDS`] words for each server slot. The slot of no server has
    /// the counters of removed servers.
    pub(super) stats: Shared<AtomicU64>,
    /// Counters of user space by reason.
    pub(super) reasons: Shared<AtomicU64>,
    pub(super) fragments: FragmentMap,
    pub(super) routes: HostRoutes,
    /// Program that returns the kernel's clock.
    pub(super) clock: OwnedFd,
}

impl KernelMemory {
    pub(super) fn memory(&self) -> Memory<'_> {
        let counted = Counted {
            active: &self.active,
            shares: Shares(&self.shares),
            affinity: AffinityCounts(&self.affinities),
        };
        Memory {
            sessions: Sessions::new(&self.sessions, &self.sessions6, counted).within(&self.extents),
            counts: Counts {
                cursors: &self.cursors,
                active: &self.active,
                scores: &self.scores,
                limits: &self.limits,
            },
            ports: Ports::new(&self.ports),
            fragments: &self.fragments,
            routes: &self.routes,
            seed: self.seed,
            ring_seed: self.ring_seed,
            lease: Lease(&self.lease[0]),
            cookies: SharedKeys(self.cookies.first_chunk::<{ cookie::WORDS }>().unwrap_or(&NO_KEYS)),
            marker: SharedMarker(self.marker.first_chunk::<{ mark::WORDS }>().unwrap_or(&NO_MARKER)),
            unmatched: Unmatched(&self.unmatched),
            guesses: Guesses(&self.guesses),
        }
    }

    fn stats_of(&self, slot: u16) -> &[AtomicU64] {
        let at = usize::from(slot) * STAT_WORDS;
        self.stats.get(at..at + STAT_WORDS).unwrap_or_default()
    }

    /// Returns the counters of user space for a server.
    pub(super) fn counted(&self, slot: u16) -> ServerCounters {
        let word = |at: usize| self.stats_of(slot).get(at).map_or(0, |word| word.load(Relaxed));
        ServerCounters { packets: word(0), bytes: word(1), connections: word(2) }
    }

    /// Adds to the counters of a server.
    pub(super) fn count(&self, slot: u16, more: ServerCounters) {
        let more = [more.packets, more.bytes, more.connections];
        for (word, more) in self.stats_of(slot).iter().zip(more) {
            word.fetch_add(more, Relaxed);
        }
    }

    /// Resets the counters of user space for a server.
    pub(super) fn clear(&self, slot: u16) {
        self.stats_of(slot).iter().for_each(|word| word.store(0, Relaxed));
    }

    pub(super) fn count_reason(&self, reason: Reason) {
        if let Some(word) = self.reasons.get(reason as usize) {
            word.fetch_add(1, Relaxed);
        }
    }

    /// Current time of the sessions' clock, in ticks.
    pub(super) fn now(&self) -> u32 {
        let frame = [0u8; 64];
        crate::test_run::run(self.clock.as_fd(), &frame, &mut [0u8; 64])
            // A loaded program runs. If the run fails nevertheless, the fallback clock is only
            // coarser.
            .map_or_else(|_| crate::now_ticks(), |run| run.verdict)
    }
}

/// Map of first fragments, accessed by system calls.
#[derive(Debug)]
pub(super) struct FragmentMap(pub(super) MapHandle);

impl Fragments for FragmentMap {
    fn find(&self, key: &FragmentKey) -> Option<Track> {
        let value = self.0.lookup(&abi::fragment_key(key), MapFlags::ANY).ok()??;
        abi::track_of(&value)
    }

    fn note(&self, key: &FragmentKey, track: Track) {
        // If the kernel has no memory for the entry, the fragments are lost, as in a network.
        let _ = self.0.update(&abi::fragment_key(key), &abi::track(&track), MapFlags::ANY);
    }
}
