//! Settings with which the kernel programs were loaded, as stored in their own map.

use evener_core::path::seed::Seed;

use super::{bytes, c, h};

/// Version of the object built with this crate. A running data plane may have another version.
pub(in crate::xdp) const ABI_VERSION: u32 = h::ABI_VERSION as u32;
pub(in crate::xdp) const ABI_WITHOUT_AFFINITY: u32 = h::ABI_WITHOUT_AFFINITY as u32;
pub(in crate::xdp) const SETTINGS_LEN: usize = size_of::<c::settings>();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::xdp) struct Settings {
    pub(in crate::xdp) abi_version: u32,
    pub(in crate::xdp) buckets: u32,
    pub(in crate::xdp) seed: Seed,
    pub(in crate::xdp) jiffy_ns: u64,
    pub(in crate::xdp) buckets6: u32,
    pub(in crate::xdp) fib_parts: u32,
    /// Ring key of this daemon: an adopted data plane gets new programs.
    pub(in crate::xdp) ring_seed: Seed,
}

impl Settings {
    pub(in crate::xdp) fn to_bytes(self) -> [u8; SETTINGS_LEN] {
        let Settings { abi_version, buckets, seed, jiffy_ns, buckets6, fib_parts, ring_seed } = self;
        // Both keys are used as multipliers, which must be odd.
        let [seed, ring_seed] = [seed, ring_seed].map(|seed| [seed.0 | 1, seed.1 | 1]);
        bytes(&c::settings { abi_version, buckets, seed, jiffy_ns, buckets6, fib_parts, ring_seed })
    }

    /// Decodes the settings of an earlier daemon of any version. The caller must replace
    /// `ring_seed`.
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

/// Length of a kernel timer tick in nanoseconds, the resolution of coarse clocks.
pub(in crate::xdp) fn jiffy_ns() -> u64 {
    use nix::time::{ClockId, clock_getres};
    clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).map_or(4_000_000, |resolution| resolution.tv_nsec() as u64)
}
