//! Readings of all clocks that a director uses.

use crate::farm::group;

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
    pub(super) fn for_groups(self) -> group::ClockReading {
        group::ClockReading { now_ms: self.ms, unix_ms: self.unix_ms }
    }
}
