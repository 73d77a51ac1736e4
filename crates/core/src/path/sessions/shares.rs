//! Guaranteed share of each VIP in a session table, and its count of assured sessions.
//!
//! Any service may use vacant slots. If buckets are full, a new session of a VIP below its share
//! may evict an assured session of a VIP above its share. A VIP within its share loses no assured
//! session. Sessions that are not assured don't count towards the share.

use super::atomic::{AtomicU64, Ordering::Relaxed};
use crate::path::tables::{SERVICES_MAX, Tables, VIP_IDS};
use core::net::IpAddr;

/// Number of words of all shares: two for each VIP id.
pub const SHARE_WORDS: usize = 2 * VIP_IDS;

/// Number of words of all [`AffinityCounts`]: two for each service.
pub const AFFINITY_WORDS: usize = 2 * SERVICES_MAX;

/// Counts of affinity entries ([`crate::path::affinity`]), two words per service: the present
/// entries, and the entries that were evicted before they expired.
#[derive(Clone, Copy, Debug)]
pub struct AffinityCounts<'a>(pub &'a [AtomicU64]);

impl AffinityCounts<'_> {
    fn word(&self, service: u16, at: usize) -> Option<&AtomicU64> {
        self.0.get(2 * usize::from(service) + at)
    }

    fn read(&self, service: u16, at: usize) -> u64 {
        self.word(service, at).map_or(0, |word| word.load(Relaxed))
    }

    /// Number of entries of a service.
    pub fn entries(&self, service: u16) -> u64 {
        self.read(service, 0)
    }

    /// Number of entries of a service that were evicted.
    pub fn evicted(&self, service: u16) -> u64 {
        self.read(service, 1)
    }

    pub(super) fn count(&self, service: u16, by: i64) {
        if let Some(word) = self.word(service, 0) {
            word.fetch_add(by as u64, Relaxed);
        }
    }

    pub(super) fn count_evicted(&self, service: u16) {
        if let Some(word) = self.word(service, 1) {
            word.fetch_add(1, Relaxed);
        }
    }

    /// Forgets the evictions of services that are not in `tables`, since their numbers may become
    /// other services'.
    pub(super) fn keep(&self, tables: &Tables) {
        for service in (0..SERVICES_MAX as u16).filter(|number| !tables.rings.contains_key(number)) {
            if let Some(word) = self.word(service, 1) {
                word.store(0, Relaxed);
            }
        }
    }

    pub(super) fn clear_entries(&self) {
        self.0.iter().step_by(2).for_each(|word| word.store(0, Relaxed));
    }
}

/// Two words per VIP, shared by the engine's threads and the control plane: the guaranteed number
/// of assured sessions, and their current number.
#[derive(Clone, Copy, Debug)]
pub struct Shares<'a>(pub &'a [AtomicU64]);

impl Shares<'_> {
    fn word(&self, vip: u16, at: usize) -> Option<&AtomicU64> {
        self.0.get(2 * usize::from(vip) + at)
    }

    fn read(&self, vip: u16, at: usize) -> u64 {
        self.word(vip, at).map_or(0, |word| word.load(Relaxed))
    }

    /// Number of assured sessions guaranteed to a VIP.
    pub fn own(&self, vip: u16) -> u64 {
        self.read(vip, 0)
    }

    /// Number of assured sessions of a VIP.
    pub fn assured(&self, vip: u16) -> u64 {
        self.read(vip, 1)
    }

    /// Number of assured sessions of all VIPs.
    pub fn all_assured(&self) -> u64 {
        self.0.iter().skip(1).step_by(2).map(|word| word.load(Relaxed)).sum()
    }

    /// True if a VIP has less than its share.
    pub(super) fn is_short(&self, vip: u16) -> bool {
        self.assured(vip) < self.own(vip)
    }

    /// True if a VIP has more than its share.
    pub(super) fn is_beyond(&self, vip: u16) -> bool {
        self.assured(vip) > self.own(vip)
    }

    pub(super) fn count(&self, vip: u16, by: i64) {
        if let Some(word) = self.word(vip, 1) {
            word.fetch_add(by as u64, Relaxed);
        }
    }

    pub(super) fn clear_counts(&self) {
        self.0.iter().skip(1).step_by(2).for_each(|word| word.store(0, Relaxed));
    }

    /// Divides the session tables, sized for `four` IPv4 and `six` IPv6 sessions, evenly among the
    /// services of `tables`. Divides each service's part evenly among its VIPs.
    pub(super) fn share(&self, tables: &Tables, four: usize, six: usize) {
        let of = |vip: u16| {
            let (key, of) = tables.vip_by_id(vip)?;
            let kin =
                || tables.vips.iter().filter(|(other, _)| other.address.is_ipv4() == key.address.is_ipv4());
            let mut services: alloc::vec::Vec<u16> = kin().map(|(_, vip)| vip.service).collect();
            services.sort_unstable();
            services.dedup();
            let addresses = kin().filter(|(_, vip)| vip.service == of.service).count();
            let sized_for = if matches!(key.address, IpAddr::V4(_)) { four } else { six };
            Some(sized_for / services.len() / addresses)
        };
        for vip in 0..VIP_IDS as u16 {
            if let Some(word) = self.word(vip, 0) {
                word.store(of(vip).unwrap_or_default() as u64, Relaxed);
            }
        }
    }
}
