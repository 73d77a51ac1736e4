//! How long ranks of a name count as they were: always as long, or by time of day.

use toml::de::DeValue;

use crate::config::section::Complaint;
use crate::config::{defaults, values};

/// A second of the day, and how long ranks count from then on, in milliseconds; 0: until they change.
type Step = (u32, u64);

/// For how long, by time of day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Period(Box<[Step]>);

impl Period {
    /// The same all day, in milliseconds; 0: until loads change.
    pub fn always(ms: u64) -> Period {
        Period(Box::new([(0, ms)]))
    }

    /// Whether it depends on the time of day.
    pub fn is_by_time_of_day(&self) -> bool {
        self.0.len() > 1
    }

    /// How long, at a second of the day, in milliseconds. Before the day's first step the last one of the day before holds.
    pub fn ms_at(&self, second: u32) -> u64 {
        let since = self.0.iter().rev().find(|(from, _)| *from <= second);
        since.or(self.0.last()).map_or(0, |(_, ms)| *ms)
    }
}

/// A time, or a list of times of day with one each.
pub(super) fn period(value: &DeValue<'_>) -> Result<Period, Complaint> {
    let time = values::duration_ms(defaults::PERIOD_MS);
    let DeValue::Array(entries) = value else { return time(value).map(Period::always) };
    let help = "write for example [[\"00:00\", \"20s\"], [\"08:00\", \"5s\"]]";
    let mut steps = Vec::new();
    for entry in entries {
        let DeValue::Array(pair) = entry.get_ref() else {
            return Complaint::new("has an entry that is no pair of a time of day and a time", help);
        };
        let [from, lasts] = &pair[..] else {
            return Complaint::new("has an entry that is no pair of a time of day and a time", help);
        };
        let Some(second) = time_of_day(from.get_ref()) else {
            return Complaint::new("has an entry without a time of day", help);
        };
        steps.push((second, time(lasts.get_ref())?));
    }
    if steps.is_empty() || !steps.is_sorted_by(|(one, _), (next, _)| one < next) {
        return Complaint::new("is no list of times of day, each later than the one before", help);
    }
    Ok(Period(steps.into()))
}

/// `HH:MM`, in seconds since midnight.
fn time_of_day(value: &DeValue<'_>) -> Option<u32> {
    let DeValue::String(text) = value else { return None };
    let (hours, minutes) = text.split_once(':')?;
    let number = |digits: &str, below: u32| {
        let is_written = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u32>().ok().filter(|number| is_written && *number < below)
    };
    Some(number(hours, 24)? * 3_600 + number(minutes, 60)? * 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_holds_from_its_time_of_day_until_the_next_ones_and_over_midnight() {
        let period = Period(Box::new([(3_600, 20_000), (8 * 3_600, 5_000)]));
        let at = |hour: u32| period.ms_at(hour * 3_600);
        assert_eq!([at(0), at(1), at(7), at(8), at(23)], [5_000, 20_000, 20_000, 5_000, 5_000]);
        assert_eq!((Period::always(7).ms_at(0), Period::always(7).ms_at(86_399)), (7, 7));
        assert!(period.is_by_time_of_day() && !Period::always(0).is_by_time_of_day());
    }
}
