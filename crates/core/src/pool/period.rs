//! Period between two reports or path probes, or for which the ranks of a name stay valid. It is
//! constant or depends on the time of day: "This frequency could depend upon the required accuracy
//! of the result as well as some other factors e.g. the time of day" (Web Load Balancing Through
//! More Accurate Server Report, section 1).

use super::ClockReading;
use alloc::boxed::Box;

const DAY_SECONDS: u32 = 86_400;

/// Second of the day, and the period from that second on in milliseconds. For ranks, period 0 means
/// until loads change.
pub type PeriodStep = (u32, u64);

/// Periods by time of day.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

    /// Returns the shortest period of the day, in milliseconds.
    pub fn shortest_ms(&self) -> u64 {
        self.0.iter().map(|(_, ms)| *ms).min().unwrap_or_default()
    }

    /// Returns the time until the next one of events that are a period apart, in milliseconds, and
    /// at least 1. A long period of the night ends where the next step begins, at different moments
    /// for events at different times.
    pub fn wait_ms(&self, now: ClockReading) -> u64 {
        let wait_ms = self.ms_at(now.second_of_day).max(1);
        let after = self.0.iter().find(|(from, _)| *from > now.second_of_day);
        let Some((from, next_ms)) = after.or(self.0.first()) else { return wait_ms };
        let until = (from + DAY_SECONDS - now.second_of_day) % DAY_SECONDS;
        let until_ms = if until == 0 { DAY_SECONDS } else { until };
        wait_ms.min(u64::from(until_ms) * 1_000 + now.now_ms % next_ms.max(&1))
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
        assert_eq!((period.shortest_ms(), Period::always(7).shortest_ms()), (5_000, 7));
    }

    #[test]
    fn long_period_ends_in_the_first_period_of_the_next_step() {
        let period = Period::new([(3_600, 600_000), (8 * 3_600, 5_000)]);
        let wait_ms = |second_of_day, now_ms| {
            period.wait_ms(ClockReading { now_ms, second_of_day, ..ClockReading::default() })
        };
        assert_eq!(wait_ms(2 * 3_600, 0), 600_000);
        assert_eq!(wait_ms(8 * 3_600 - 60, 12_345), 60_000 + 2_345, "spread over the next period");
        assert_eq!(wait_ms(8 * 3_600, 0), 5_000);
        assert_eq!(wait_ms(3_599, 7_000), 5_000, "the next period is longer");
        assert_eq!(wait_ms(23 * 3_600, 0), 5_000);
        let always = Period::always(86_400_000);
        assert_eq!(always.wait_ms(ClockReading::default()), 86_400_000);
        assert_eq!(Period::always(0).wait_ms(ClockReading::default()), 1);
    }
}
