//! What a member's load is thought to be, from what it reported and what it was given since.
//!
//! In thousandths of the paper's unit, load = 10 (r + m) (section 3.4). There is no floating point behind the reading of a report.

use alloc::vec::Vec;

use super::Moment;

/// A dispatch adds so much until the next report, in thousandths: ten, as one more process that can run does.
pub const PER_DISPATCH: u64 = 10_000;

/// The last that a member reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// In thousandths.
    pub(super) load: u64,
    /// When it came.
    pub(super) at_ms: u64,
}

/// What is known of one member's load.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    pub(super) report: Option<Report>,
    /// When the last report was made, by its sender's clock.
    pub(super) stamp_ms: Option<u64>,
    /// What dispatches added, and since when that is so.
    added: u64,
    added_ms: u64,
    /// When reports last took away what dispatches had added.
    cleared_ms: Option<u64>,
}

impl Load {
    /// Takes a report. It stands for what was given until now, but for that it counts once in `clears_ms` only, and always where that is 0.
    pub(super) fn report(&mut self, now: Moment, load: u64, stamp_ms: Option<u64>, clears_ms: u64) {
        self.report = Some(Report { load, at_ms: now.now_ms });
        self.stamp_ms = stamp_ms.or(self.stamp_ms);
        let due = self.cleared_ms.is_none_or(|at_ms| now.now_ms.saturating_sub(at_ms) >= clears_ms);
        if due {
            (self.added, self.cleared_ms) = (0, Some(now.now_ms));
        }
    }

    /// Adds what it was given.
    pub(super) fn given(&mut self, now: Moment, times: u64) {
        self.added = self.added.saturating_add(times.saturating_mul(PER_DISPATCH));
        self.added_ms = self.added_ms.max(now.now_ms);
    }

    /// Lets go of what was given long ago: of `report_ms`, a bit more than half is left after as much again.
    pub(super) fn fade(&mut self, now: Moment, report_ms: u64) {
        let passed = now.now_ms.saturating_sub(self.added_ms);
        self.added = scaled(self.added, report_ms.max(1), report_ms.max(1).saturating_add(passed));
        self.added_ms = now.now_ms;
    }

    /// The report's part, if it is not older than that.
    pub(super) fn fresh(&self, now: Moment, for_ms: u64) -> Option<u64> {
        self.report
            .filter(|report| now.now_ms.saturating_sub(report.at_ms) < for_ms)
            .map(|report| report.load)
    }

    /// The last report, and what was given since: as the paper has it. Of the silent, what most have.
    pub(super) fn as_in_the_paper(&self, now: Moment, for_ms: u64, median: u64) -> u64 {
        self.fresh(now, for_ms).unwrap_or(median).saturating_add(self.added)
    }

    /// The same, but a report says the less the older it is, so that an old one says only what most have.
    pub(super) fn aged(&self, now: Moment, for_ms: u64, report_ms: u64, median: u64) -> u64 {
        let base = self.report.filter(|_| self.fresh(now, for_ms).is_some()).map_or(median, |report| {
            let age_ms = now.now_ms.saturating_sub(report.at_ms);
            let part = |of: u64| scaled(of, report_ms.max(1), report_ms.max(1).saturating_add(age_ms));
            match report.load >= median {
                true => median.saturating_add(part(report.load - median)),
                false => median - part(median - report.load),
            }
        });
        base.saturating_add(self.added)
    }

    /// What was given alone.
    pub(super) fn added(&self) -> u64 {
        self.added
    }
}

/// The load in the middle; none where nobody has one.
pub(super) fn median(mut loads: Vec<u64>) -> u64 {
    loads.sort_unstable();
    loads.get(loads.len() / 2).copied().unwrap_or_default()
}

/// So many of so many parts of it.
fn scaled(value: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    fn at(now_ms: u64) -> Moment {
        Moment { now_ms, unix_ms: now_ms }
    }

    #[test]
    fn a_report_says_less_the_older_it_is() {
        let mut load = Load::default();
        load.report(at(0), 200, None, 1_000);
        let seen = [0, 1_000, 3_000, 9_999].map(|now_ms| load.aged(at(now_ms), 10_000, 1_000, 100));
        assert_eq!(seen, [200, 150, 125, 109]);
        assert_eq!(load.aged(at(10_000), 10_000, 1_000, 100), 100);
        load.report(at(0), 0, None, 1_000);
        assert_eq!(load.aged(at(1_000), 10_000, 1_000, 100), 50);
    }

    #[test]
    fn the_paper_adds_ten_for_each_dispatch_until_a_report() {
        let mut load = Load::default();
        load.report(at(0), 5_000, None, 1_000);
        load.given(at(10), 2);
        assert_eq!(load.as_in_the_paper(at(900), 60_000, 0), 25_000);
        load.report(at(1_000), 7_000, None, 1_000);
        assert_eq!(load.as_in_the_paper(at(1_000), 60_000, 0), 7_000);
    }

    #[test]
    fn reports_clear_dispatches_once_in_an_interval() {
        let mut load = Load::default();
        for now_ms in 0..500 {
            load.report(at(now_ms), 0, None, 500);
            load.given(at(now_ms), 1);
        }
        assert_eq!(load.added(), 500 * PER_DISPATCH);
        load.report(at(500), 0, None, 500);
        assert_eq!(load.added(), 0);
    }

    #[test]
    fn every_report_clears_dispatches_without_an_interval() {
        let mut load = Load::default();
        for _ in 0..3 {
            load.given(at(7), 2);
            load.report(at(7), 5_000, None, 0);
            assert_eq!(load.as_in_the_paper(at(7), 60_000, 0), 5_000);
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!((median(vec![]), median(vec![7]), median(vec![9, 1, 5])), (0, 7, 5));
    }

    proptest! {
        #[test]
        fn the_aged_load_is_between_the_report_and_the_median(reported: u64, median: u64, age in 0u64..100_000, report_ms: u64) {
            let mut load = Load::default();
            load.report(at(0), reported, None, report_ms);
            let seen = load.aged(at(age), 100_000, report_ms, median);
            prop_assert!(reported.min(median) <= seen && seen <= reported.max(median));
        }

        #[test]
        fn nothing_is_too_much(load_is: u64, times: u64, passed: u64, report_ms: u64) {
            let mut load = Load::default();
            load.given(at(0), times);
            load.fade(at(passed), report_ms);
            load.report(at(passed), load_is, None, report_ms);
            load.given(at(passed), times);
            prop_assert!(load.aged(at(passed), u64::MAX, report_ms, 0) >= load_is.min(u64::MAX - 1));
        }
    }
}
