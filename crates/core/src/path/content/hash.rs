//! Keyed hash for lookups of hosts and paths.

use crate::path::seed::Seed;

/// 2^31 - 1, a prime.
pub const PRIME: u32 = 0x7fff_ffff;

/// Tag of the hash of a whole host or path.
///
/// The upper bit of each 32-bit half of a hash is free for a tag. The tags keep keys of different
/// kinds distinct.
pub const EXACT: u64 = 0;
/// Tag of the hash of a host's suffix from a dot on, or of a path's prefix up to a slash.
pub const PART: u64 = 1 << 31;
/// Value in place of a hash that stands for any host or any path.
pub const ANY: u64 = 1 << 63;
/// Value in place of a path's hash. Its entry has the first route of a host pattern, for any path.
pub const PRESENT: u64 = ANY | PART;

/// Two secret multipliers, each in `2..PRIME`.
///
/// The hash of a text is a polynomial modulo a prime. Its coefficients are the bytes of the text,
/// and its variable is the secret multiplier (Carter and Wegman 1979, "Universal classes of hash
/// functions"). Each half of the hash uses one multiplier. Two texts of at most n bytes have the
/// same hash with a probability of about (n / 2^31)^2, which is 10^-12 for the longest path. An
/// attacker without the secret can't do better by choosing the texts. The hash is computed byte by
/// byte, which also gives the hashes of all prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKey(pub [u32; 2]);

impl HashKey {
    /// Derives a key from a secret seed.
    pub const fn new(seed: Seed) -> HashKey {
        HashKey([multiplier(seed.0), multiplier(seed.1)])
    }

    /// Returns the hash of a text that has one more byte than a text with hash `hash`. Hosts are
    /// hashed from right to left, paths from left to right. The upper half uses the first
    /// multiplier. Each half stays below [`PRIME`]. The hash of the empty text is 0.
    pub const fn step(self, hash: u64, byte: u8) -> u64 {
        let [first, second] = self.0;
        half(hash >> 32, first, byte) << 32 | half(hash as u32 as u64, second, byte)
    }

    /// Returns the hash of a host or of a host's suffix. Upper and lower case have the same hash.
    pub(super) fn host(self, host: &[u8]) -> u64 {
        host.iter().rev().fold(0, |hash, byte| self.step(hash, byte.to_ascii_lowercase()))
    }

    /// Returns the hash of a path or of a path's prefix.
    pub(super) fn path(self, path: &[u8]) -> u64 {
        path.iter().fold(0, |hash, byte| self.step(hash, *byte))
    }
}

const fn multiplier(seed: u64) -> u32 {
    (2 + seed % (PRIME as u64 - 2)) as u32
}

/// Returns one half of the hash with one more byte. The byte counts as its value plus 1, so that
/// zero bytes change the hash.
const fn half(hash: u64, multiplier: u32, byte: u8) -> u64 {
    (hash * multiplier as u64 + byte as u64 + 1) % PRIME as u64
}

/// Key of a route in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteKey {
    /// Hash of the host with tag [`EXACT`] or [`PART`], or else [`ANY`].
    pub host: u64,
    /// Hash of the path with tag [`EXACT`] or [`PART`], or else [`ANY`] or [`PRESENT`].
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
