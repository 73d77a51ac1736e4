//! Resizes a session table to fit the number of its sessions. Then the sessions are in fewer cache
//! lines, and lookups hit the cache.
//!
//! A resize has three steps. First the extent gets the previous and the new bucket mask. From then
//! on new sessions enter buckets of the new mask. Lookups search the buckets of the new mask, then
//! the buckets of the previous mask. Second, once no packet uses the previous mask alone any more
//! ([`ResizeStep::Settle`]), every session outside its new buckets is moved. A move copies the
//! session before it frees the old slot, so every lookup finds the session. Third, the extent gets
//! the new mask alone.
//!
//! If the daemon dies during a resize, lookups still find all sessions. The next daemon moves the
//! remaining sessions.

use super::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence};
use super::extent::{self, BucketMasks, FIRST_BUCKETS, mask_for};
use super::table::{Slot, Table, Words, vip_of};
use super::{BUCKET_SESSIONS, FlowHash, Sessions, State, Value};
use crate::path::seed::Seed;
use core::ops::Range;

/// The table grows if more than this part of the sampled slots is taken, as numerator and
/// denominator.
const GROW_ABOVE: (usize, usize) = (3, 8);
/// Number of buckets sampled to estimate how full the table is. The hash is keyed, so any bucket is
/// as good a sample as a random one.
const SAMPLE: usize = 256;
/// Number of buckets moved per step.
const PORTION: usize = 8_192;
/// Number of consecutive samples that must be nearly empty before the table shrinks.
const IDLE_SAMPLES: u32 = 100;

/// Next step of a resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResizeStep {
    /// No work is left. The caller calls again later.
    Rest,
    /// The table fills, so the caller must call again soon.
    Watch,
    /// More buckets must be moved.
    Walk,
    /// The caller must wait until all packets in progress are done, call [`TableResizer::settled`],
    /// and go on.
    Settle,
}

/// Resizes the session tables of both IP versions as their number of sessions changes.
#[derive(Clone, Debug, Default)]
pub struct TableResizer {
    four: Resizer,
    six: Resizer,
}

impl TableResizer {
    /// Takes the next step. `buckets` is the maximum number of buckets in use, for IPv4 and IPv6.
    /// Only one caller at a time may resize these tables.
    pub fn step(&mut self, sessions: &Sessions<'_>, buckets: [usize; 2], seed: Seed, now: u32) -> ResizeStep {
        let four = self.four.step(&sessions.four, buckets[0], seed, now);
        let six = self.six.step(&sessions.six, buckets[1], seed, now);
        four.max(six)
    }

    /// Reports that no packet uses the previous extent alone any more ([`ResizeStep::Settle`]).
    pub fn settled(&mut self) {
        (self.four.is_settled, self.six.is_settled) = (true, true);
    }
}

/// Returns the smallest number of buckets in use at which a table with this many sessions doesn't
/// grow.
pub const fn buckets_in_use_for(sessions: usize) -> usize {
    let buckets = (sessions * GROW_ABOVE.1).div_ceil(GROW_ABOVE.0 * BUCKET_SESSIONS);
    if buckets > FIRST_BUCKETS { buckets } else { FIRST_BUCKETS }
}

/// State of the resize of one table. See [`TableResizer`].
#[derive(Clone, Copy, Debug, Default)]
struct Resizer {
    /// Next bucket to sample or to move.
    next: usize,
    /// True if no packet uses the previous mask alone any more.
    is_settled: bool,
    /// Number of sessions that found no room in this walk through the table.
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
            // Some sessions found no room. Both masks stay until other sessions have ended.
            return ResizeStep::Watch;
        }
        table.end_move();
        ResizeStep::Watch
    }

    /// Samples the table, and starts a resize if it is too full or nearly empty.
    fn next_step<const N: usize>(&mut self, table: &Table<'_, N>, most: usize, now: u32) -> ResizeStep {
        let (used, all) = (table.buckets(), table.buckets.len());
        let (taken, places) = table.sample(&mut self.next, now);
        let most = most.min(all);
        let wanted = match places {
            0 => used,
            // A nearly full table grows 16-fold, since it is unknown how many more sessions will
            // come.
            _ if 4 * taken > 3 * places => used.saturating_mul(16),
            _ if GROW_ABOVE.1 * taken > GROW_ABOVE.0 * places => used.saturating_mul(2),
            _ if 16 * taken < places => used / 2,
            _ => used,
        };
        let wanted = wanted.clamp(FIRST_BUCKETS.min(most), most);
        self.idle_looks = if wanted < used { self.idle_looks + 1 } else { 0 };
        let mask = mask_for(wanted, all);
        let is_other = mask != table.extent.masks().now;
        let must_shrink = extent::used(mask_for(most, all), all) < used;
        if is_other && (wanted >= used || must_shrink || self.idle_looks > IDLE_SAMPLES) {
            table.begin_move(mask);
            self.is_settled = false;
            (self.next, self.left) = (0, 0);
            return ResizeStep::Settle;
        }
        if 8 * taken > places { ResizeStep::Watch } else { ResizeStep::Rest }
    }
}

impl<const N: usize> Table<'_, N> {
    /// Counts the taken slots and all slots of the next sample. `at` is the first bucket of the
    /// sample, and becomes the first bucket of the next one.
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

    /// Starts a resize to a new mask. No other resize may be under way.
    pub(super) fn begin_move(&self, mask: u32) {
        let before = self.extent.masks().now;
        self.extent.set(BucketMasks { now: mask, before });
        // An insert executes the same fence before it reads the extent again. So either the insert
        // sees the new mask, or the walk sees the new session.
        fence(SeqCst);
    }

    /// Ends the resize. All sessions must be in buckets of the new mask.
    pub(super) fn end_move(&self) {
        let now = self.extent.masks().now;
        self.extent.set(BucketMasks { now, before: now });
    }

    /// Moves the sessions of these buckets to their buckets of the new mask. Returns the number of
    /// sessions without room there.
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

    /// Moves the session of a slot, unless its bucket is right. Returns false if the new buckets
    /// have no room.
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
            // An interrupted walk has copied this session. Lookups have found the copy since.
            return self.free(slot, &key, value);
        }
        let Some((_, place)) = self.claim_in(self.order(pair, now), hash, now) else { return false };
        place.write(&key, value);
        self.free_moved(slot, place, &key, value);
        true
    }

    /// Frees the slot and adjusts the counts. Returns false if the session has changed since it was
    /// read.
    fn free(&self, slot: &Slot<N>, key: &Words<N>, value: Value) -> bool {
        let is_freed = slot.vacate(value);
        if is_freed {
            self.counted.count(vip_of(key), value, -1);
        }
        is_freed
    }

    /// Frees the old slot of a session that was copied to `place`. Before, other threads may change
    /// the old entry or the copy.
    fn free_moved(&self, slot: &Slot<N>, place: &Slot<N>, key: &Words<N>, value: Value) {
        // Last known values of the copy, which is not counted, and of the old entry, which is
        // counted.
        let (mut copied, mut stands) = (value, value);
        loop {
            if slot.vacate(stands) {
                // Counts the copy instead of the old entry. A change that the copy lacks is lost.
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
        // Another thread has ended the session and adjusted the counts. If another thread has also
        // changed the copy, the copy stays and is counted.
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
