//! The settings that a data plane was loaded with, as it says itself.

use evener_core::path::seed::Seed;

use super::{bytes, c, h};

/// Of the object that is built here; that of one that runs already may differ.
pub(in crate::xdp) const ABI_VERSION: u32 = h::ABI_VERSION as u32;
pub(in crate::xdp) const ABI_WITHOUT_EXTENTS: u32 = h::ABI_WITHOUT_EXTENTS as u32;
pub(in crate::xdp) const SETTINGS_LEN: usize = size_of::<c::settings>();

/// The settings that a data plane was loaded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::xdp) struct Settings {
    pub(in crate::xdp) abi_version: u32,
    pub(in crate::xdp) buckets: u32,
    pub(in crate::xdp) seed: Seed,
    pub(in crate::xdp) jiffy_ns: u64,
    pub(in crate::xdp) buckets6: u32,
    pub(in crate::xdp) fib_parts: u32,
    /// Of who runs now: a data plane that is adopted gets its programs anew.
    pub(in crate::xdp) ring_seed: Seed,
}

impl Settings {
    pub(in crate::xdp) fn to_bytes(self) -> [u8; SETTINGS_LEN] {
        let Settings { abi_version, buckets, seed, jiffy_ns, buckets6, fib_parts, ring_seed } = self;
        // As multipliers, which are odd.
        let [seed, ring_seed] = [seed, ring_seed].map(|seed| [seed.0 | 1, seed.1 | 1]);
        bytes(&c::settings { abi_version, buckets, seed, jiffy_ns, buckets6, fib_parts, ring_seed })
    }

    /// Reads back what an earlier daemon wrote, of any version; the key of rings is for the caller
    /// to say.
    pub(in crate::xdp) fn from_bytes(bytes: &[u8]) -> Option<Settings> {
        let u32_at = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let seed = Seed(u64_at(8)?, u64_at(16)?);
        Some(Settings {
            abi_version: u32_at(0)?,
            buckets: u32_at(4)?,
            seed,
            jiffy_ns: u64_at(24)?,
            buckets6: u32_at(32)?,
            fib_parts: u32_at(36)?,
            ring_seed: seed,
        })
    }
}

/// The length of one tick of the kernel's timer, in nanoseconds: what coarse clocks resolve.
pub(in crate::xdp) fn jiffy_ns() -> u64 {
    use nix::time::{ClockId, clock_getres};
    clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).map_or(4_000_000, |resolution| resolution.tv_nsec() as u64)
}
