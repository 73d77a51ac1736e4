//! Secret key of a hash.

/// Secret key of a hash. Without it an attacker can't choose flows that collide in one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seed(pub u64, pub u64);

impl Seed {
    /// Returns the seed in these bytes, which are random or the start of a derived key.
    pub fn from_bytes(bytes: [u8; 16]) -> Seed {
        let bits = u128::from_be_bytes(bytes);
        Seed((bits >> 64) as u64, bits as u64)
    }
}
