//! A table as large as what is in it: fewer cache lines hold the same sessions, so that a look-up
//! finds its own in the cache.
//!
//! First the extent names both, that before and that to come: new sessions stand where they shall,
//! and who finds one nowhere there looks where it was. Once no packet goes by the extent of before
//! alone ([`ResizeStep::Settle`]), every session is moved that stands elsewhere: it is copied, then
//! freed where it was, so that at each moment a look finds it. Then the extent names the new one
//! alone. A daemon that dies in between leaves a table in which everybody finds all sessions, and
//! its successor walks once more.

use super::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence};
use super::extent::{self, BucketMasks, FIRST_BUCKETS, mask_for};
use super::table::{Slot, Table, Words, vip_of};
use super::{BUCKET_SESSIONS, FlowHash, Sessions, State, Value};
use crate::path::seed::Seed;
use core::ops::Range;

/// A table grows where more than this part of its places is taken.
const CROWDED: (usize, usize) = (3, 8);
/// Buckets that are looked at to know how full all are: their number is random, since the hash is
/// keyed.
const SAMPLE: usize = 256;
/// Buckets that are moved at once.
const PORTION: usize = 8_192;
/// Looks one after the other that must find the table nearly empty before it shrinks.
const IDLE_LOOKS: u32 = 100;

/// The next thing to be done for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResizeStep {
    /// Look again in a while.
    Rest,
    /// Look again soon: the table fills.
    Watch,
    /// There is more to move.
    Walk,
    /// Wait until every packet that was met before has been dealt with, and go on.
    Settle,
}

/// Keeps the tables of both IP versions as large as what is in them.
#[derive(Clone, Debug, Default)]
pub struct Fitting {
    four: Resizer,
    six: Resizer,
}

impl Fitting {
    /// Takes a step; `buckets` bounds what is in use of each table. One at a time for all tables of
    /// this memory.
    pub fn step(&mut self, sessions: &Sessions<'_>, buckets: [usize; 2], seed: Seed, now: u32) -> ResizeStep {
        let four = self.four.step(&sessions.four, buckets[0], seed, now);
        let six = self.six.step(&sessions.six, buckets[1], seed, now);
        four.max(six)
    }

    /// No packet goes by the extent of before alone any more ([`ResizeStep::Settle`]).
    pub fn settled(&mut self) {
        (self.four.is_settled, self.six.is_settled) = (true, true);
    }
}

/// Buckets that come to be in use for so many sessions, or somewhat more.
pub const fn buckets_in_use_for(sessions: usize) -> usize {
    let buckets = (sessions * CROWDED.1).div_ceil(CROWDED.0 * BUCKET_SESSIONS);
    if buckets > FIRST_BUCKETS { buckets } else { FIRST_BUCKETS }
}

/// The same as [`Fitting`] for one table.
#[derive(Clone, Copy, Debug, Default)]
struct Resizer {
    /// The next bucket to look at, or to move.
    next: usize,
    /// True if no packet uses the former extent alone any more.
    is_settled: bool,
    /// Sessions that found no room in this walk.
    left: usize,
    idle_looks: u32,
}

impl Resizer {
    fn step<const N: usize>(
        &mut self,
        table: &Table<'_, N>,
        most: usize,
        seed: Seed,
        now: u32,
    ) -> ResizeStep {
        if !table.extent.masks().is_moving() {
            return self.next_step(table, most, now);
        }
        if !self.is_settled {
            (self.next, self.left) = (0, 0);
            return ResizeStep::Settle;
        }
        let all = table.buckets();
        let end = (self.next + PORTION).min(all);
        self.left += table.move_all(self.next..end, seed, now);
        self.next = end;
        if end < all {
            return ResizeStep::Walk;
        }
        (self.next, self.idle_looks) = (0, 0);
        if core::mem::take(&mut self.left) > 0 {
            // Both extents stay in force until others have ended.
            return ResizeStep::Watch;
        }
        table.end_move();
        ResizeStep::Watch
    }

    /// Looks how full the table is, and begins to move sessions where it shall be larger or
    /// smaller.
    fn next_step<const N: usize>(&mut self, table: &Table<'_, N>, most: usize, now: u32) -> ResizeStep {
        let (used, all) = (table.buckets(), table.buckets.len());
        let (taken, places) = table.sample(&mut self.next, now);
        let most = most.min(all);
        let wanted = match places {
            0 => used,
            // The number of further sessions is unknown.
            _ if 4 * taken > 3 * places => used.saturating_mul(16),
            _ if CROWDED.1 * taken > CROWDED.0 * places => used.saturating_mul(2),
            _ if 16 * taken < places => used / 2,
            _ => used,
        };
        let wanted = wanted.clamp(FIRST_BUCKETS.min(most), most);
        self.idle_looks = if wanted < used { self.idle_looks + 1 } else { 0 };
        let mask = mask_for(wanted, all);
        let is_other = mask != table.extent.masks().now;
        let must_shrink = extent::used(mask_for(most, all), all) < used;
        if is_other && (wanted >= used || must_shrink || self.idle_looks > IDLE_LOOKS) {
            table.begin_move(mask);
            self.is_settled = false;
            (self.next, self.left) = (0, 0);
            return ResizeStep::Settle;
        }
        if 8 * taken > places { ResizeStep::Watch } else { ResizeStep::Rest }
    }
}

impl<const N: usize> Table<'_, N> {
    /// Counts the places taken in some buckets, and all places of these; `at` is the first bucket,
    /// and moves on.
    fn sample(&self, at: &mut usize, now: u32) -> (usize, usize) {
        let used = self.buckets();
        let start = if *at < used { *at } else { 0 };
        let end = (start + SAMPLE).min(used);
        *at = end;
        let buckets = self.buckets.get(start..end).unwrap_or_default();
        let slots = buckets.iter().flat_map(|bucket| &bucket.0);
        let taken = slots.filter(|slot| !Value(slot.value.load(Acquire)).is_vacant(now)).count();
        (taken, buckets.len() * BUCKET_SESSIONS)
    }

    /// From now on sessions are to stand in this extent. To be called where none is on its way.
    pub(super) fn begin_move(&self, mask: u32) {
        let before = self.extent.masks().now;
        self.extent.set(BucketMasks { now: mask, before });
        // An insert looks at the extent behind such a fence as well: either it sees this, or the
        // walk sees the session.
        fence(SeqCst);
    }

    /// The extent of before ends. To be called where no session stands in it alone.
    pub(super) fn end_move(&self) {
        let now = self.extent.masks().now;
        self.extent.set(BucketMasks { now, before: now });
    }

    /// Moves the sessions of these buckets to where they are to stand; returns how many found no
    /// room there.
    pub(super) fn move_all(&self, range: Range<usize>, seed: Seed, now: u32) -> usize {
        let mask = self.extent.masks().now;
        let mut left = 0;
        for number in range {
            let Some(bucket) = self.buckets.get(number) else { break };
            for slot in &bucket.0 {
                left += usize::from(!self.move_one(number, slot, mask, seed, now));
            }
        }
        left
    }

    /// Moves what stands in a slot, unless it stands right; false where there is no room for it.
    fn move_one(&self, number: usize, slot: &Slot<N>, mask: u32, seed: Seed, now: u32) -> bool {
        let (key, value) = slot.read();
        if matches!(value.state(), State::Free | State::Claimed) {
            return true;
        }
        if !value.is_live(now) {
            self.free(slot, &key, value);
            return true;
        }
        let hash = FlowHash::of(&key, seed);
        let Some(pair) = self.pair(hash, mask).filter(|pair| !pair.contains(&number)) else { return true };
        if self.find_in(mask, &key, hash, now).is_some() {
            // A walk that was cut short has copied it; since then packets find that one.
            return self.free(slot, &key, value);
        }
        let Some((_, place)) = self.claim_in(self.order(pair, now), hash, now) else { return false };
        place.write(&key, value);
        self.free_moved(slot, place, &key, value);
        true
    }

    /// Ends a session that stands there as it was read; else another walk meets it again.
    fn free(&self, slot: &Slot<N>, key: &Words<N>, value: Value) -> bool {
        let is_freed = slot.vacate(value);
        if is_freed {
            self.counted.count(vip_of(key), value, -1);
        }
        is_freed
    }

    /// Frees a session's slot once it has been copied. Packets that had found it there may change
    /// it until then, others its copy.
    fn free_moved(&self, slot: &Slot<N>, place: &Slot<N>, key: &Words<N>, value: Value) {
        // As the copy was written, without being counted; and as the session stands in its old
        // slot, counted.
        let (mut copied, mut stands) = (value, value);
        loop {
            if slot.vacate(stands) {
                // A change that the copy hasn't got is forgotten.
                self.counted.change(vip_of(key), stands, copied);
                return;
            }
            let (there, changed) = slot.read();
            if there != *key || matches!(changed.state(), State::Free | State::Claimed) {
                break;
            }
            if place.value.compare_exchange(copied.0, changed.0, Release, Relaxed).is_ok() {
                copied = changed;
            }
            stands = changed;
        }
        // Another thread has ended the session and counted that. A copy that was changed meanwhile
        // lives on.
        if place.value.compare_exchange(copied.0, Value::FREE.0, Release, Relaxed).is_err() {
            self.counted.count(vip_of(key), copied, 1);
        }
    }
}

#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used)]
mod model;
#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests;
