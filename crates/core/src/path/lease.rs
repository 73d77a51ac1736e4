//! Lease: the time for which a host may answer ARP and neighbour discovery for service addresses,
//! unless the control plane renews it.
//!
//! In an every-host farm, hosts take over each other's addresses. A host whose daemon is dead still
//! forwards packets. It must stop answering for the addresses before its peers conclude that it is
//! gone.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The word that the control plane and the engine share: [`ENDLESS`], the tick of the end, or a
/// mark that the lease has expired.
#[derive(Clone, Copy, Debug)]
pub struct Lease<'a>(pub &'a AtomicU64);

/// Word of a lease that never ends.
pub static ENDLESS: AtomicU64 = AtomicU64::new(0);

/// Tag of a word whose lower half is the tick at which the lease ends.
const LIMITED: u64 = 1 << 32;
/// Word of an expired lease, written by the first reader that notices.
const ENDED: u64 = 2 << 32;
/// Maximum length of a lease in ticks: an hour. Ticks wrap, so an end that seems further ahead is
/// long past.
const LONGEST: u32 = 1 << 22;

impl Lease<'_> {
    /// True if the host may answer for the addresses at tick `now`.
    ///
    /// The first reader after the end records in the word that the lease has ended. Otherwise the
    /// lease would become valid again when ticks wrap after 52 days. This still happens if nothing
    /// reads the word in that time.
    pub fn holds(&self, now: u32) -> bool {
        let word = self.0.load(Relaxed);
        let left = (word as u32).wrapping_sub(now).wrapping_sub(1);
        match word >> 32 {
            0 => true,
            1 if left < LONGEST => true,
            1 => {
                // The exchange fails if the lease was renewed in the meantime.
                let _ = self.0.compare_exchange(word, ENDED, Relaxed, Relaxed);
                false
            }
            _ => false,
        }
    }

    /// Returns the tick at which the lease ends or ended. `None` if it never ends.
    pub fn until(&self) -> Option<u32> {
        let word = self.0.load(Relaxed);
        (word != 0).then_some(word as u32)
    }

    /// Sets the tick at which the lease ends. `None` stands for never.
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

    /// If ticks were compared over half their range, the lease would hold again after 26 days.
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
