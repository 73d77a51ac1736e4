//! Last results of a server's probes, with one bit per result and without allocation.

use core::fmt;

/// Number of results that are kept.
pub const CHECKS_MAX: u32 = u32::BITS;

/// The last [`CHECKS_MAX`] results. Displayed as one letter per result, oldest first: `.` for
/// success, `x` for failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckHistory {
    /// One bit per result, set for a failure. The lowest bit is the latest result.
    failed: u32,
    /// Number of valid bits in `failed`.
    count: u32,
}

impl CheckHistory {
    /// Adds a result. If there are [`CHECKS_MAX`] results, the oldest one is dropped.
    pub fn push(&mut self, is_good: bool) {
        self.failed = self.failed << 1 | u32::from(!is_good);
        self.count = (self.count + 1).min(CHECKS_MAX);
    }

    /// Packs the history into a number, for an atomic that other threads read.
    pub fn to_bits(self) -> u64 {
        u64::from(self.count) << 32 | u64::from(self.failed)
    }

    /// Unpacks a number made by [`CheckHistory::to_bits`].
    pub fn from_bits(bits: u64) -> CheckHistory {
        CheckHistory { failed: bits as u32, count: ((bits >> 32) as u32).min(CHECKS_MAX) }
    }
}

impl fmt::Display for CheckHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..self.count)
            .rev()
            .try_for_each(|at| f.write_str(if self.failed >> at & 1 == 1 { "x" } else { "." }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn check_history_keeps_the_last_results_in_order() {
        let mut history = CheckHistory::default();
        assert_eq!(history.to_string(), "");
        for letter in "..x.".chars() {
            history.push(letter == '.');
        }
        assert_eq!(history.to_string(), "..x.");
        assert_eq!(CheckHistory::from_bits(history.to_bits()), history);
        (0..31).for_each(|_| history.push(true));
        history.push(false);
        assert_eq!(history.to_string(), "...............................x");
    }
}
