//! Extent of a session table: the part of its buckets that is in use. A table is allocated for the
//! maximum number of sessions. While it holds fewer sessions, they use only a part of the buckets.
//!
//! A session's hash selects a bucket number of the whole table. A *mask* keeps only the lowest bits
//! of this number, which select a bucket in use. A mask with all bits set uses the whole table. If
//! one more bit doubles the buckets in use from n to 2n, each session of bucket `i` stays or moves
//! to bucket `i + n`.

use super::atomic::{AtomicU64, Ordering::SeqCst};

/// Number of buckets in use in a new table. A smaller table uses all buckets.
pub const FIRST_BUCKETS: usize = 2_048;
/// Extent word of a table that uses all buckets and is not being resized.
pub const ALL_BUCKETS: u64 = u64::MAX;

/// Word with the two bucket masks of a table, shared with the BPF programs. The lower half is the
/// current mask, the upper half the previous one. While the masks differ, the table is being
/// resized: sessions move from their buckets under the previous mask to their buckets under the
/// current mask. If the word is `None`, all buckets are in use.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a>(pub Option<&'a AtomicU64>);

/// Current and previous bucket mask of a table. They are equal unless the table is being resized.
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

/// Returns the mask that uses at least `buckets` of the `all` buckets of a table: it uses `buckets`
/// rounded up to a power of two, or all buckets if that is not below `all`.
pub(super) const fn mask_for(buckets: usize, all: usize) -> u32 {
    match buckets.checked_next_power_of_two() {
        Some(used) if used < all => used as u32 - 1,
        _ => u32::MAX,
    }
}

/// Returns the extent word of a new or empty table that uses at least `buckets` of its `all`
/// buckets.
pub const fn extent_for(buckets: usize, all: usize) -> u64 {
    let mask = mask_for(buckets, all) as u64;
    mask << 32 | mask
}

/// Returns the number of buckets in use under a mask, in a table of `all` buckets.
pub(super) const fn used(mask: u32, all: usize) -> usize {
    let used = mask as usize + 1;
    if used < all { used } else { all }
}
