//! Period for which the shares or ranks of a name stay valid. It is constant or depends on the time
//! of day.

use alloc::boxed::Box;

/// Second of the day, and the period from that second on in milliseconds. Period 0 means until
/// loads change.
pub type PeriodStep = (u32, u64);

/// Periods by time of day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Period(Box<[PeriodStep]>);

impl Period {
    /// Returns periods by these steps, which must be in ascending order. An empty list means until
    /// loads change.
    pub fn new(steps: impl Into<Box<[PeriodStep]>>) -> Period {
        Period(steps.into())
    }

    /// Returns a constant period in milliseconds; 0 means until loads change.
    pub fn always(ms: u64) -> Period {
        Period(Box::new([(0, ms)]))
    }

    /// Returns the period at a second of the day, in milliseconds. Before the first step, the last
    /// step of the previous day is still valid.
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
