//! Counters of an address, which survive a replacement of the address pool.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::pool::CheckHistory;

/// Counters of one address of one name.
#[derive(Debug, Default)]
pub struct AddressCounts {
    given: AtomicU64,
    checks: AtomicU64,
}

impl AddressCounts {
    /// Counts an answer with the address in first place.
    pub(super) fn give(&self) {
        self.given.fetch_add(1, Relaxed);
    }

    /// Number of answers with the address in first place.
    pub fn given(&self) -> u64 {
        self.given.load(Relaxed)
    }

    /// Stores the last probe results of the address.
    pub(crate) fn set_checks(&self, checks: CheckHistory) {
        self.checks.store(checks.to_bits(), Relaxed);
    }

    /// Last probe results of the address, if its server is listed for the name; otherwise empty.
    pub fn checks(&self) -> CheckHistory {
        CheckHistory::from_bits(self.checks.load(Relaxed))
    }
}
