//! Periods: constant, or by time of day.

use std::ops::RangeInclusive;

use evener_core::pool::Period;
use toml::de::DeValue;

use super::section::Complaint;
use super::values;

/// Parses a time, or a list of times of day with a time each. `range` limits each time, in
/// milliseconds.
pub(super) fn period(value: &DeValue<'_>, range: RangeInclusive<u64>) -> Result<Period, Complaint> {
    let time = values::duration_ms(range);
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
    Ok(Period::new(steps))
}

/// Parses `HH:MM`, in seconds since midnight.
fn time_of_day(value: &DeValue<'_>) -> Option<u32> {
    let DeValue::String(text) = value else { return None };
    let (hours, minutes) = text.split_once(':')?;
    let number = |digits: &str, below: u32| {
        let is_written = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u32>().ok().filter(|number| is_written && *number < below)
    };
    Some(number(hours, 24)? * 3_600 + number(minutes, 60)? * 60)
}
