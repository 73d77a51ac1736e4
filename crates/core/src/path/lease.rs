//! Time for which this host may answer for service addresses without renewal by its control plane.
//!
//! Where hosts take over each other's addresses, a host whose daemon has died must fall silent
//! before its peers conclude that the host is gone; packets still flow.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A word that control plane and engine share.
#[derive(Clone, Copy, Debug)]
pub struct Lease<'a>(pub &'a AtomicU64);

/// The word of a lease that never ends.
pub static ENDLESS: AtomicU64 = AtomicU64::new(0);

/// Marks a word that has a tick in its lower half.
const LIMITED: u64 = 1 << 32;
/// The word of a lease that was seen to have ended.
const ENDED: u64 = 2 << 32;
/// The longest lease, in ticks: an hour. An end later than that is long past, since ticks wrap.
const LONGEST: u32 = 1 << 22;

impl Lease<'_> {
    /// True if addresses may be answered for at tick `now`.
    ///
    /// The reader that finds the lease expired records that: ticks wrap after 52 days, and the
    /// lease must not become valid again. Only a reader without any query in all that time could
    /// see it valid once more.
    pub fn holds(&self, now: u32) -> bool {
        let word = self.0.load(Relaxed);
        let left = (word as u32).wrapping_sub(now).wrapping_sub(1);
        match word >> 32 {
            0 => true,
            1 if left < LONGEST => true,
            1 => {
                // Unless it was made longer meanwhile.
                let _ = self.0.compare_exchange(word, ENDED, Relaxed, Relaxed);
                false
            }
            _ => false,
        }
    }

    /// The tick it ends with, or ended; `None` if never.
    pub fn until(&self) -> Option<u32> {
        let word = self.0.load(Relaxed);
        (word != 0).then_some(word as u32)
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
    fn lease_expires_and_endless_lease_does_not() {
        let word = AtomicU64::new(0);
        let lease = Lease(&word);
        assert!(lease.holds(0) && lease.holds(u32::MAX));
        lease.set(Some(5));
        assert!(lease.holds(4) && !lease.holds(5));
        lease.set(Some(2));
        assert!(lease.holds(u32::MAX - 3), "ticks wrap");
        lease.set(None);
        assert_eq!(lease.until(), None);
    }

    /// Half the range of ticks would be 26 days.
    #[test]
    fn a_lease_that_has_ended_never_holds_again() {
        let word = AtomicU64::new(0);
        let lease = Lease(&word);
        lease.set(Some(5));
        for later in [1 << 30, 5 + (1 << 31), 6 + (1 << 31), u32::MAX - 1_000, u32::MAX, 4] {
            assert!(!lease.holds(later), "{later}");
        }
        lease.set(Some(9));
        assert!(lease.holds(4), "it begins anew");
    }
}
