//! Mark of a GUE header: how often other hosts have passed a packet on, and the tag that proves
//! that a host of the farm wrote it. `bpf/net/mark.h` is its copy in C.
//!
//! The mark is the private data of the header, 12 bytes, big endian: the generation of the sender's
//! configuration (4) and the tag (8). The header's flags say that the mark is present, and how
//! often the packet was passed on. The tag is SipHash-2-4, under a key from the farm's secret, of
//! the outer addresses, the inner addresses, the generation and that count; all addresses in their
//! IPv6 form. So a mark is good for one way from host to host and one pair of client and service.
//! It is checked before anything else of the inner packet is read.
//!
//! The tag covers no ports and nothing behind them: the kernel puts one header before all the
//! segments that it cuts a long packet into, and later fragments have no ports. An attacker who
//! sees such packets on their way, and can write outer source addresses, can hence pass on any
//! packet in the same client's name, as the attacker could send it directly in that name. The
//! packet is served, or refused, where it comes out, and changes no session of another host
//! ([`crate::path::arrival`]).
//!
//! Behind the tunnel the source MAC of the frame has the count, by addresses that no interface has.

use core::hash::Hasher;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use siphasher::sip::SipHasher24;

use crate::net::wire::Mac;
use crate::path::seed::Seed;

/// Length of the mark in a GUE header, in bytes.
pub const MARK_LEN: usize = 12;
/// In a GUE header's flags, of those that are private to the two ends: whoever opens the tunnel
/// keeps the packet.
pub const GUE_LAST: u16 = 0x0001;
/// Likewise: a mark follows.
pub const GUE_MARKED: u16 = 0x0002;

/// The source of frames that came out of a tunnel from another host; never on a wire (locally
/// administered).
pub const PASSED: Mac = Mac([0x02, b'e', b'v', b'n', b'r', 1]);
/// The same, passed on for the second time.
pub const PASSED_TWICE: Mac = Mac([0x02, b'e', b'v', b'n', b'r', 2]);
/// The source of frames that go up this host's own stack to who reads what isn't decided here, and
/// not to the server that this host may be as well; never on a wire. A stranger who writes it gains
/// that the packet is read.
pub const PUNTED: Mac = Mac([0x02, b'e', b'v', b'n', b'r', 3]);

/// Number of times that a packet was passed on, the tunnel around it included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ForwardCount {
    /// By the host that a client sent it to.
    Once = 1,
    /// By a second one: whoever gets it keeps it.
    Twice = 2,
}

impl ForwardCount {
    /// The flags of the GUE header.
    pub const fn flags(self) -> u16 {
        match self {
            ForwardCount::Once => GUE_MARKED,
            ForwardCount::Twice => GUE_MARKED | GUE_LAST,
        }
    }

    /// The forward count in the flags of a GUE header that has a mark.
    pub const fn of_flags(flags: u16) -> ForwardCount {
        if flags & GUE_LAST != 0 { ForwardCount::Twice } else { ForwardCount::Once }
    }
}

/// Addresses of a packet and of the packet around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelAddresses {
    pub outer: (IpAddr, IpAddr),
    /// Client and service, of the same family.
    pub inner: (IpAddr, IpAddr),
}

/// The state by which a host writes marks.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Marker {
    /// Of all hosts of a farm; zero is none.
    pub key: Seed,
    /// Of this host's configuration. Hosts don't read a new file at one moment, so any is believed.
    pub generation: u32,
}

impl core::fmt::Debug for Marker {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Marker").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl Marker {
    /// The mark of a packet.
    pub fn mark(&self, ends: &TunnelAddresses, passed: ForwardCount) -> [u8; MARK_LEN] {
        let mut mark = [0; MARK_LEN];
        let (generation, tag) = mark.split_at_mut(4);
        generation.copy_from_slice(&self.generation.to_be_bytes());
        tag.copy_from_slice(&tag_of(self.key, ends, self.generation, passed).to_be_bytes());
        mark
    }
}

/// True if a packet's mark is from a host with this key.
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

/// Words of a [`Marker`].
pub const WORDS: usize = 3;

/// A [`Marker`] in words that control plane and engine share.
#[derive(Clone, Copy, Debug)]
pub struct SharedMarker<'a>(pub &'a [AtomicU64; WORDS]);

/// The words of nobody's marker.
pub static NO_MARKER: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

impl SharedMarker<'_> {
    /// The key of marks. It is written once, before any packet is passed on.
    pub fn get(&self) -> Marker {
        let [first, second, generation] = self.0.each_ref().map(|word| word.load(Relaxed));
        Marker { key: Seed(first, second), generation: generation as u32 }
    }

    /// Has marks written with this from now on.
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
