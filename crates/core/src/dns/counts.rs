//! The numbers of an address that others read, and change, while its name goes on.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::pool::CheckHistory;

/// Of one address of one name.
#[derive(Debug, Default)]
pub struct AddressCounts {
    given: AtomicU64,
    checks: AtomicU64,
}

impl AddressCounts {
    /// An answer has the address first.
    pub(super) fn give(&self) {
        self.given.fetch_add(1, Relaxed);
    }

    /// How often answers had it first.
    pub fn given(&self) -> u64 {
        self.given.load(Relaxed)
    }

    /// Replaces the last results of its probes.
    pub(crate) fn set_checks(&self, checks: CheckHistory) {
        self.checks.store(checks.to_bits(), Relaxed);
    }

    /// The last results of its probes, where its name lists the server itself: none elsewhere.
    pub fn checks(&self) -> CheckHistory {
        CheckHistory::from_bits(self.checks.load(Relaxed))
    }
}
