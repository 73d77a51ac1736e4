//! How long ranks of a name count as they were: always as long, or by time of day.

use alloc::boxed::Box;

/// A second of the day, and how long ranks count from then on, in milliseconds; 0: until they
/// change.
pub type PeriodStep = (u32, u64);

/// For how long, by time of day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Period(Box<[PeriodStep]>);

impl Period {
    /// By steps of which each is later than the one before; none: until loads change.
    pub fn new(steps: impl Into<Box<[PeriodStep]>>) -> Period {
        Period(steps.into())
    }

    /// The same all day, in milliseconds; 0: until loads change.
    pub fn always(ms: u64) -> Period {
        Period(Box::new([(0, ms)]))
    }

    /// How long, at a second of the day, in milliseconds. Before the day's first step the last one
    /// of the day before holds.
    pub fn ms_at(&self, second: u32) -> u64 {
        let since = self.0.iter().rev().find(|(from, _)| *from <= second);
        since.or(self.0.last()).map_or(0, |(_, ms)| *ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_holds_from_its_time_of_day_until_the_next_ones_and_over_midnight() {
        let period = Period::new([(3_600, 20_000), (8 * 3_600, 5_000)]);
        let at = |hour: u32| period.ms_at(hour * 3_600);
        assert_eq!([at(0), at(1), at(7), at(8), at(23)], [5_000, 20_000, 20_000, 5_000, 5_000]);
        assert_eq!((Period::always(7).ms_at(0), Period::always(7).ms_at(86_399)), (7, 7));
    }
}
