//! Estimate of a member's load, from its last report and the requests dispatched since then.
//!
//! The unit is a thousandth of the paper's unit, in which load = 10 (r + m) (section 3.4). Loads
//! are integers once a report is parsed.

use alloc::vec::Vec;

use super::learned::Learned;
use crate::farm::group::dispatch::PER_DISPATCH;
use crate::pool::ClockReading;

/// Last report of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemberReport {
    /// Load, in thousandths of the paper's unit.
    pub(super) load: u64,
    /// Time of arrival, in milliseconds.
    pub(super) at_ms: u64,
}

/// Known facts about the load of one member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemberLoad {
    pub(super) report: Option<MemberReport>,
    /// Time of the last report by the sender's clock, in milliseconds.
    pub(super) stamp_ms: Option<u64>,
    /// Part of the weight, learned from reports.
    pub(super) learned: Learned,
    /// Load added by dispatched requests in thousandths, and the time of its last update in
    /// milliseconds.
    added: u64,
    added_ms: u64,
}

impl MemberLoad {
    /// Applies a report. It includes all requests dispatched before, so their added load is
    /// cleared.
    pub(super) fn report(&mut self, now: ClockReading, load: u64, stamp_ms: Option<u64>) {
        self.report = Some(MemberReport { load, at_ms: now.now_ms });
        self.stamp_ms = stamp_ms.or(self.stamp_ms);
        self.added = 0;
    }

    pub(super) fn given(&mut self, now: ClockReading, times: u64) {
        self.learned.given(now.now_ms, times);
        self.added = self.added.saturating_add(times.saturating_mul(PER_DISPATCH));
        self.added_ms = self.added_ms.max(now.now_ms);
    }

    /// Decays the load added by dispatched requests. Half of it is left after `report_ms`.
    pub(super) fn fade(&mut self, now: ClockReading, report_ms: u64) {
        let passed = now.now_ms.saturating_sub(self.added_ms);
        self.added = scaled(self.added, report_ms.max(1), report_ms.max(1).saturating_add(passed));
        self.added_ms = now.now_ms;
    }

    /// Returns the reported load, if the report is younger than `for_ms`.
    pub(super) fn fresh(&self, now: ClockReading, for_ms: u64) -> Option<u64> {
        self.report
            .filter(|report| now.now_ms.saturating_sub(report.at_ms) < for_ms)
            .map(|report| report.load)
    }

    /// Returns the load as in the paper: the last report plus the load of the requests dispatched
    /// since. A member without a report younger than `for_ms` counts as the median.
    pub(super) fn as_in_the_paper(&self, now: ClockReading, for_ms: u64, median: u64) -> u64 {
        self.fresh(now, for_ms).unwrap_or(median).saturating_add(self.added)
    }

    /// Load added by dispatched requests, in thousandths.
    pub(super) fn added(&self) -> u64 {
        self.added
    }
}

/// Returns the median; 0 if the list is empty.
pub(super) fn median(mut loads: Vec<u64>) -> u64 {
    loads.sort_unstable();
    loads.get(loads.len() / 2).copied().unwrap_or_default()
}

/// Returns `value` times `part` / `whole`.
fn scaled(value: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    fn at(now_ms: u64) -> ClockReading {
        ClockReading { now_ms, unix_ms: now_ms, ..ClockReading::default() }
    }

    #[test]
    fn the_paper_adds_ten_for_each_dispatch_until_a_report() {
        let mut load = MemberLoad::default();
        load.report(at(0), 5_000, None);
        load.given(at(10), 2);
        assert_eq!(load.as_in_the_paper(at(900), 60_000, 0), 25_000);
        load.report(at(1_000), 7_000, None);
        assert_eq!(load.as_in_the_paper(at(1_000), 60_000, 0), 7_000);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!((median(vec![]), median(vec![7]), median(vec![9, 1, 5])), (0, 7, 5));
    }

    proptest! {
        #[test]
        fn loads_saturate_without_overflow(load_is: u64, times: u64, passed: u64, report_ms: u64) {
            let mut load = MemberLoad::default();
            load.given(at(0), times);
            load.fade(at(passed), report_ms);
            load.report(at(passed), load_is, None);
            load.given(at(passed), times);
            prop_assert!(load.as_in_the_paper(at(passed), u64::MAX, 0) >= load_is.min(u64::MAX - 1));
        }
    }
}
