//! Extent of a table that is in use: a table is made for the most that it may ever hold, and
//! sessions stand in as few of its buckets as serve.
//!
//! A hash names a bucket of the whole table, and the lowest bits of that number name the bucket in
//! use. With as many bits as the whole table has, sessions stand as if there were no extent; one
//! bit more moves the sessions of bucket `i` to `i` or to one bucket further up.

use super::atomic::{AtomicU64, Ordering::SeqCst};

/// Buckets in use of a table that was just made.
pub const FIRST_BUCKETS: usize = 2_048;
/// All buckets: a whole table's extent, before and now.
pub const ALL_BUCKETS: u64 = u64::MAX;

/// The word that says it, which the kernel's programs read too: below, the bits of a bucket's
/// number that count now; above, those that did before. While the two differ, sessions are on their
/// way from where they stood to where they are to stand.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a>(pub Option<&'a AtomicU64>);

/// Both parts of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BucketMasks {
    pub(super) now: u32,
    pub(super) before: u32,
}

impl BucketMasks {
    pub(super) const fn is_moving(self) -> bool {
        self.now != self.before
    }
}

impl Extent<'_> {
    pub(super) fn masks(self) -> BucketMasks {
        let word = self.0.map_or(ALL_BUCKETS, |word| word.load(SeqCst));
        BucketMasks { now: word as u32, before: (word >> 32) as u32 }
    }

    pub(super) fn set(self, masks: BucketMasks) {
        if let Some(word) = self.0 {
            word.store(u64::from(masks.before) << 32 | u64::from(masks.now), SeqCst);
        }
    }
}

/// The extent of so many buckets of a table that has `all`: at least as many, a power of two, or
/// all.
pub(super) const fn mask_for(buckets: usize, all: usize) -> u32 {
    match buckets.checked_next_power_of_two() {
        Some(used) if used < all => used as u32 - 1,
        _ => u32::MAX,
    }
}

/// The word of a table that was just made, or holds nothing.
pub const fn extent_for(buckets: usize, all: usize) -> u64 {
    let mask = mask_for(buckets, all) as u64;
    mask << 32 | mask
}

/// Buckets that such an extent has, of a table of `all`.
pub(super) const fn used(mask: u32, all: usize) -> usize {
    let used = mask as usize + 1;
    if used < all { used } else { all }
}
