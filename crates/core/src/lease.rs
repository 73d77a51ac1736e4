//! How long this host may answer for service addresses without having heard from its control plane.
//!
//! Where hosts take over each other's addresses, one whose daemon has died must fall silent before its
//! peers conclude that it is gone; its packets still flow.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A word that control plane and engine share.
#[derive(Clone, Copy, Debug)]
pub struct Lease<'a>(pub &'a AtomicU64);

/// The word of a lease that never ends.
pub static ENDLESS: AtomicU64 = AtomicU64::new(0);

/// Marks a word that has a tick in its lower half.
const LIMITED: u64 = 1 << 32;

impl Lease<'_> {
    /// Whether addresses may be answered for at tick `now`.
    pub fn holds(&self, now: u32) -> bool {
        match self.until() {
            Some(until) => until.wrapping_sub(now) as i32 > 0,
            None => true,
        }
    }

    /// The tick it ends with; `None` if never.
    pub fn until(&self) -> Option<u32> {
        let word = self.0.load(Relaxed);
        (word & LIMITED != 0).then_some(word as u32)
    }

    /// Has it end with this tick, or never.
    pub fn set(&self, until: Option<u32>) {
        self.0.store(until.map_or(0, |until| LIMITED | u64::from(until)), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_and_none_does_not() {
        let word = AtomicU64::new(0);
        let lease = Lease(&word);
        assert!(lease.holds(0) && lease.holds(u32::MAX));
        lease.set(Some(5));
        assert!(lease.holds(4) && !lease.holds(5) && !lease.holds(1 << 30));
        lease.set(Some(2));
        assert!(lease.holds(u32::MAX - 3), "ticks wrap");
        lease.set(None);
        assert_eq!(lease.until(), None);
    }
}
