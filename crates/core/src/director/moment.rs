//! When a director learns something: all clocks that it knows.

use crate::farm::group;

/// When something is learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The monotonic clock, in milliseconds.
    pub ms: u64,
    /// The wall's clock, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The time of day where this host is, in seconds since midnight.
    pub second_of_day: u32,
    /// Whether the data plane may answer for the addresses that this host owns: its lease ends by
    /// itself.
    pub lease_holds: bool,
}

impl Moment {
    pub(super) fn for_groups(self) -> group::ClockReading {
        group::ClockReading { now_ms: self.ms, unix_ms: self.unix_ms }
    }
}
