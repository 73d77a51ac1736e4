//! Readings of all clocks that a director uses.

use crate::pool::ClockReading;

/// Time of an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Monotonic clock, in milliseconds.
    pub ms: u64,
    /// Wall clock, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Local time of day, in seconds since midnight.
    pub second_of_day: u32,
    /// True while the data plane's lease to answer for owned addresses holds.
    pub lease_holds: bool,
}

impl Moment {
    pub(super) fn clocks(self) -> ClockReading {
        let Moment { ms, unix_ms, second_of_day, .. } = self;
        ClockReading { now_ms: ms, unix_ms, second_of_day }
    }
}
