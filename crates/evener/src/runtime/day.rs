//! Local time of day.

use jiff::Zoned;

/// Returns the seconds since midnight in this host's time zone.
pub(crate) fn second_of_day() -> u32 {
    let now = Zoned::now().time();
    let [hour, minute, second] =
        [now.hour(), now.minute(), now.second()].map(|part| u32::try_from(part).unwrap_or_default());
    hour * 3_600 + minute * 60 + second
}

#[cfg(test)]
mod tests {
    use super::second_of_day;

    #[test]
    fn a_day_has_so_many_seconds() {
        assert!(second_of_day() < 86_400);
    }
}
