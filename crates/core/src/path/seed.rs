//! The key of a hash.

/// A secret that keeps strangers from choosing what has the same hash, as sessions of one bucket
/// have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seed(pub u64, pub u64);

impl Seed {
    /// From random bytes, or from a derived key's first.
    pub fn from_bytes(bytes: [u8; 16]) -> Seed {
        let bits = u128::from_be_bytes(bytes);
        Seed((bits >> 64) as u64, bits as u64)
    }
}
