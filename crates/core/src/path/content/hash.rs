//! The keyed hash by which hosts and paths are looked up.

use crate::path::seed::Seed;

/// 2^31 - 1, a prime.
pub const PRIME: u32 = 0x7fff_ffff;

/// The key by which a text is looked up. A hash leaves the upper bit of each of its halves free;
/// this goes there, so that no text can be taken for one of another kind.
///
/// The whole host or path.
pub const EXACT: u64 = 0;
/// A host's end from a dot on, or a path's beginning up to a slash.
pub const PART: u64 = 1 << 31;
/// In place of a hash: whatever the host or path.
pub const ANY: u64 = 1 << 63;
/// In place of a path's hash: the best that can be found for that host.
pub const PRESENT: u64 = ANY | PART;

/// Two secret multipliers, each in `2..PRIME`.
///
/// A text's hash is a polynomial over its bytes at a secret place, modulo a prime (Carter and
/// Wegman 1979, "Universal classes of hash functions"), twice. For two texts of at most n bytes
/// that were chosen without knowing the secret, both agree with a probability of about (n /
/// 2^31)^2, which is 10^-12 for the longest path that is read. It is made byte by byte, so that the
/// hashes of all beginnings come by the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKey(pub [u32; 2]);

impl HashKey {
    /// From a seed that nobody knows.
    pub const fn new(seed: Seed) -> HashKey {
        HashKey([multiplier(seed.0), multiplier(seed.1)])
    }

    /// The hash of a text that is one byte longer: from right to left for hosts, from left to right
    /// for paths. Each half stays below [`PRIME`]; the first one is the upper. The empty text's is
    /// 0.
    pub const fn step(self, hash: u64, byte: u8) -> u64 {
        let [first, second] = self.0;
        half(hash >> 32, first, byte) << 32 | half(hash as u32 as u64, second, byte)
    }

    /// The hash of a host or a host's end, in lower case.
    pub(super) fn host(self, host: &[u8]) -> u64 {
        host.iter().rev().fold(0, |hash, byte| self.step(hash, byte.to_ascii_lowercase()))
    }

    /// The hash of a path or a path's beginning.
    pub(super) fn path(self, path: &[u8]) -> u64 {
        path.iter().fold(0, |hash, byte| self.step(hash, *byte))
    }
}

const fn multiplier(seed: u64) -> u32 {
    (2 + seed % (PRIME as u64 - 2)) as u32
}

/// The byte counts from 1, so that no text is the beginning of another's number.
const fn half(hash: u64, multiplier: u32, byte: u8) -> u64 {
    (hash * multiplier as u64 + byte as u64 + 1) % PRIME as u64
}

/// The key by which a route is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteKey {
    /// A hash and [`EXACT`] or [`PART`]; or [`ANY`].
    pub host: u64,
    /// A hash and [`EXACT`] or [`PART`]; or [`ANY`], or [`PRESENT`].
    pub path: u64,
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::format;

    use super::*;

    #[test]
    fn multipliers_are_in_range_for_any_seed() {
        let p = u64::from(PRIME);
        for seed in [0, 1, 2, p - 4, p - 3, p - 2, p - 1, p, p + 1, u64::MAX] {
            let HashKey([first, second]) = HashKey::new(Seed(seed, !seed));
            assert!((2..PRIME).contains(&first) && (2..PRIME).contains(&second), "{seed}");
        }
    }

    #[test]
    fn a_hash_is_the_polynomial() {
        let key = HashKey([3, PRIME - 1]);
        // (97 + 1) * 3 + (98 + 1), and 98 * -1 + 99
        assert_eq!(key.path(b"ab"), (98 * 3 + 99) << 32 | 1);
        assert_eq!(key.host(b"bA"), key.path(b"ab"), "from the right, in lower case");
        assert_eq!(key.path(b""), 0);
    }

    #[test]
    fn kinds_have_bits_of_their_own() {
        let key = HashKey::new(Seed(u64::MAX, 0x0123_4567_89ab_cdef));
        let hashes: BTreeSet<u64> = (0..50_000).map(|n| key.path(format!("/{n}").as_bytes())).collect();
        assert_eq!(hashes.len(), 50_000);
        assert!(hashes.iter().all(|hash| hash & PRESENT == 0));
    }
}
