//! Internet checksum (RFC 1071) and incremental updates (RFC 1624).

use core::net::IpAddr;

use crate::net::wire::Octets;

/// Adds bytes to a sum of 16-bit words. Only the last call may have an odd number of bytes.
pub fn add(sum: u32, bytes: &[u8]) -> u32 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let sum = pairs.iter().fold(sum, |sum, pair| fold(sum + u32::from(u16::from_be_bytes(*pair))));
    rest.first().map_or(sum, |last| fold(sum + (u32::from(*last) << 8)))
}

/// Returns the sum of the pseudo-header of a transport of `len` bytes (RFC 9293, section 3.1; RFC
/// 8200, section 8.1).
pub fn pseudo_header(src: IpAddr, dst: IpAddr, protocol: u8, len: usize) -> u32 {
    let sum = [src, dst].iter().fold(0, |sum, address| add(sum, Octets::of(*address).bytes()));
    add(add(sum, &[0, protocol]), &(len as u32).to_be_bytes())
}

/// Returns the checksum of the words added to `sum`.
pub const fn finish(sum: u32) -> u16 {
    !(fold(fold(sum)) as u16)
}

const fn fold(sum: u32) -> u32 {
    (sum & 0xffff) + (sum >> 16)
}

/// Change of the bytes that a checksum covers, as a sum to add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChecksumDelta(u32);

impl ChecksumDelta {
    /// Returns the change from `old` to `new`. Both must have the same even length.
    pub fn of(old: &[u8], new: &[u8]) -> ChecksumDelta {
        ChecksumDelta::default().and(old, new)
    }

    /// Adds the change from `old` to `new`.
    #[must_use]
    pub fn and(self, old: &[u8], new: &[u8]) -> ChecksumDelta {
        debug_assert!(old.len() == new.len() && old.len().is_multiple_of(2), "words become words");
        let removed = old.as_chunks::<2>().0.iter().fold(self.0, |sum, word| {
            // Adding the complement of a word subtracts the word (RFC 1624).
            fold(sum + u32::from(!u16::from_be_bytes(*word)))
        });
        ChecksumDelta(add(removed, new))
    }

    #[must_use]
    pub fn with(self, other: ChecksumDelta) -> ChecksumDelta {
        ChecksumDelta(fold(self.0 + other.0))
    }

    /// Returns a checksum after this change (RFC 1624, equation 3).
    pub fn applied(self, checksum: u16) -> u16 {
        finish(u32::from(!checksum) + self.0)
    }

    /// Returns a sum after this change. The sum is not complemented, as in a packet that the stack
    /// leaves to checksum offload.
    pub fn applied_to_sum(self, sum: u16) -> u16 {
        !finish(u32::from(sum) + self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_example_of_rfc_1071() {
        assert_eq!(finish(add(0, &[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), !0xddf2);
        assert_eq!(finish(add(0, &[0x12])), !0x1200);
    }

    #[test]
    fn the_example_of_rfc_1624() {
        assert_eq!(ChecksumDelta::of(&[0x55, 0x55], &[0x32, 0x85]).applied(0xdd2f), 0x0000);
    }

    proptest! {
        #[test]
        fn a_change_is_as_good_as_a_new_sum(
            before in prop::collection::vec(any::<u8>(), 40), at in 0usize..12, new in any::<[u8; 16]>(),
        ) {
            let mut after = before.clone();
            after[2 * at..2 * at + 16].copy_from_slice(&new);
            let changed = ChecksumDelta::of(&before[2 * at..2 * at + 16], &new);
            let (old, whole) = (finish(add(0, &before)), finish(add(0, &after)));
            // Zero has two representations, 0 and 0xffff. A computed sum and an updated sum may
            // differ in the representation.
            let applied = changed.applied(old);
            prop_assert!(applied == whole || (applied ^ whole) == 0xffff);
            let sum = changed.applied_to_sum(!old);
            prop_assert!(sum == !whole || (sum ^ !whole) == 0xffff);
        }
    }
}
