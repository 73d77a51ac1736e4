//! Time, as read from all clocks.

/// A time, as read from all clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockReading {
    /// Monotonic clock, in milliseconds.
    pub now_ms: u64,
    /// Wall clock, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Local time of day, in seconds since midnight.
    pub second_of_day: u32,
}

#[cfg(test)]
impl ClockReading {
    /// Returns a time at midnight by the monotonic clock.
    pub(crate) fn at(now_ms: u64) -> ClockReading {
        ClockReading { now_ms, ..ClockReading::default() }
    }
}
