//! Mark of a GUE header: a count of how often hosts have forwarded the packet, and a tag. The tag
//! proves that a host of the farm wrote the count. `bpf/net/mark.h` is this module's copy in C.
//!
//! The mark is the private data of the header, 12 bytes, big endian: the generation of the sender's
//! configuration (4) and the tag (8). The header's flags hold the count and a bit for the presence
//! of the mark. The tag is SipHash-2-4 of the outer addresses, the inner addresses, the generation
//! and the count. All addresses are hashed in their IPv6 form. The key is derived from the farm's
//! secret. So a mark is valid for one pair of hosts and one pair of client and service. The
//! receiver checks the mark before it reads more of the inner packet than the addresses.
//!
//! The tag doesn't cover ports or payload. The kernel puts one header before all segments that it
//! cuts from a long packet, and later fragments have no ports. So an attacker who sees marked
//! packets on the wire, and can forge outer source addresses, can replay a mark with another packet
//! of the same client. But the attacker could also send that packet directly, with the client's
//! address. The receiver serves or refuses a replayed packet. It changes no session of another host
//! ([`crate::path::arrival`]).
//!
//! After decapsulation the source MAC of the frame contains the count: [`PASSED`] or
//! [`PASSED_TWICE`]. No interface has these MACs.

use core::hash::Hasher;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use siphasher::sip::SipHasher24;

use crate::net::wire::Mac;
use crate::path::seed::Seed;

/// Length of the mark in a GUE header, in bytes.
pub const MARK_LEN: usize = 12;
/// Private flag of a GUE header, set if the receiver must not forward the packet again.
pub const GUE_LAST: u16 = 0x0001;
/// Private flag of a GUE header, set if a mark follows.
pub const GUE_MARKED: u16 = 0x0002;

/// Source MAC of frames that were decapsulated from another host's tunnel and were forwarded once.
/// It is locally administered and never seen on a wire.
pub const PASSED: Mac = Mac([0x02, b'e', b'v', b'n', b'r', 1]);
/// Like [`PASSED`], for a packet that was forwarded twice.
pub const PASSED_TWICE: Mac = Mac([0x02, b'e', b'v', b'n', b'r', 2]);
/// Source MAC of frames that are punted through this host's own stack to a process of Evener, and
/// not to a server on this host. It is never seen on a wire. An attacker who forges this MAC only
/// makes the process read the packet.
pub const PUNTED: Mac = Mac([0x02, b'e', b'v', b'n', b'r', 3]);

/// Number of times that a packet was forwarded, including by the sender of this tunnel header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ForwardCount {
    /// Only the host that received the client's packet has forwarded it.
    Once = 1,
    /// A second host has forwarded the packet, too. The receiver must not forward it again.
    Twice = 2,
}

impl ForwardCount {
    /// Returns the flags of the GUE header.
    pub const fn flags(self) -> u16 {
        match self {
            ForwardCount::Once => GUE_MARKED,
            ForwardCount::Twice => GUE_MARKED | GUE_LAST,
        }
    }

    /// Returns the forward count in the flags of a GUE header with a mark.
    pub const fn of_flags(flags: u16) -> ForwardCount {
        if flags & GUE_LAST != 0 { ForwardCount::Twice } else { ForwardCount::Once }
    }
}

/// Addresses of a packet and of the outer packet around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelAddresses {
    pub outer: (IpAddr, IpAddr),
    /// Client and service, of the same address family.
    pub inner: (IpAddr, IpAddr),
}

/// Key and generation with which a host writes marks.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Marker {
    /// Key of all hosts of the farm. Zero if the farm has no key.
    pub key: Seed,
    /// Generation of this host's configuration. Hosts load a new file at different times, so
    /// receivers accept any generation.
    pub generation: u32,
}

impl core::fmt::Debug for Marker {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Marker").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl Marker {
    /// Returns the mark for a packet.
    pub fn mark(&self, ends: &TunnelAddresses, passed: ForwardCount) -> [u8; MARK_LEN] {
        let mut mark = [0; MARK_LEN];
        let (generation, tag) = mark.split_at_mut(4);
        generation.copy_from_slice(&self.generation.to_be_bytes());
        tag.copy_from_slice(&tag_of(self.key, ends, self.generation, passed).to_be_bytes());
        mark
    }
}

/// True if a host with this key wrote the mark.
pub fn is_good(key: Seed, ends: &TunnelAddresses, passed: ForwardCount, mark: &[u8; MARK_LEN]) -> bool {
    let [a, b, c, d, tag @ ..] = *mark;
    let generation = u32::from_be_bytes([a, b, c, d]);
    key != Seed(0, 0) && u64::from_be_bytes(tag) == tag_of(key, ends, generation, passed)
}

fn tag_of(key: Seed, ends: &TunnelAddresses, generation: u32, passed: ForwardCount) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(key.0, key.1);
    for address in [ends.outer.0, ends.outer.1, ends.inner.0, ends.inner.1] {
        let octets = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        hasher.write(&octets);
    }
    hasher.write(&generation.to_be_bytes());
    hasher.write(&(passed as u32).to_be_bytes());
    hasher.finish()
}

/// Number of words of a [`Marker`].
pub const WORDS: usize = 3;

/// A [`Marker`] in words that the control plane and the engine share.
#[derive(Clone, Copy, Debug)]
pub struct SharedMarker<'a>(pub &'a [AtomicU64; WORDS]);

/// Words of a marker without a key.
pub static NO_MARKER: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

impl SharedMarker<'_> {
    /// Returns the marker. The key is written once, before any packet is forwarded.
    pub fn get(&self) -> Marker {
        let [first, second, generation] = self.0.each_ref().map(|word| word.load(Relaxed));
        Marker { key: Seed(first, second), generation: generation as u32 }
    }

    /// Replaces the marker for all later marks.
    pub fn set(&self, marker: &Marker) {
        let Marker { key, generation } = *marker;
        for (place, word) in self.0.iter().zip([key.0, key.1, generation.into()]) {
            place.store(word, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::format;

    const KEY: Seed = Seed(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);

    fn ends(v6: bool) -> TunnelAddresses {
        let text = match v6 {
            false => ["10.0.0.1", "10.0.0.2", "203.0.113.7", "192.0.2.100"],
            true => ["2001:db8::1", "2001:db8::2", "2001:db8:c::7", "2001:db8::100"],
        };
        let [from, to, client, service] = text.map(|text| text.parse().unwrap());
        TunnelAddresses { outer: (from, to), inner: (client, service) }
    }

    #[test]
    fn only_authentic_mark_is_accepted() {
        for (v6, passed) in
            [(false, ForwardCount::Once), (true, ForwardCount::Once), (false, ForwardCount::Twice)]
        {
            let (ends, other) = (ends(v6), ends(!v6));
            let mark = Marker { key: KEY, generation: 7 }.mark(&ends, passed);
            assert!(is_good(KEY, &ends, passed, &mark));
            for bit in 0..8 * MARK_LEN {
                let mut wrong = mark;
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert!(!is_good(KEY, &ends, passed, &wrong), "bit {bit}");
            }
            let another = if passed == ForwardCount::Once { ForwardCount::Twice } else { ForwardCount::Once };
            assert!(!is_good(KEY, &ends, another, &mark));
            assert!(!is_good(Seed(KEY.0, 9), &ends, passed, &mark));
            let swapped = TunnelAddresses { outer: (ends.outer.1, ends.outer.0), ..ends };
            for wrong in [
                swapped,
                TunnelAddresses { outer: other.outer, ..ends },
                TunnelAddresses { inner: other.inner, ..ends },
            ] {
                assert!(!is_good(KEY, &wrong, passed, &mark), "{wrong:?}");
            }
        }
    }

    #[test]
    fn any_generation_is_accepted_and_zero_key_marks_nothing() {
        let ends = ends(false);
        for generation in [0, 1, u32::MAX] {
            assert!(is_good(
                KEY,
                &ends,
                ForwardCount::Once,
                &Marker { key: KEY, generation }.mark(&ends, ForwardCount::Once)
            ));
            let unkeyed = Marker { generation, ..Marker::default() }.mark(&ends, ForwardCount::Once);
            assert!(!is_good(Seed(0, 0), &ends, ForwardCount::Once, &unkeyed));
        }
        let debug = format!("{:?}", Marker { key: KEY, generation: 7 });
        assert_eq!(debug, "Marker { generation: 7, .. }", "no key in a log");
    }
}
