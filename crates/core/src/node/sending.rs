//! Schedule of a node's datagrams. They are sent each interval, and sooner after a change, within a
//! rate limit.

/// Times of the last and the next datagrams, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendTimes {
    sent_ms: Option<u64>,
    due_ms: u64,
}

impl SendTimes {
    /// Returns a schedule whose first datagrams are due at once.
    pub(super) fn new(now_ms: u64) -> SendTimes {
        SendTimes { sent_ms: None, due_ms: now_ms }
    }

    /// Time of the next datagrams, in milliseconds.
    pub(super) fn due_ms(&self) -> u64 {
        self.due_ms
    }

    /// Records that datagrams are sent now.
    pub(super) fn sent(&mut self, now_ms: u64, interval_ms: u64) {
        self.sent_ms = Some(now_ms);
        self.due_ms = now_ms.saturating_add(interval_ms.max(1));
    }

    /// Schedules datagrams soon after a change, at most four times per interval.
    pub(super) fn send_soon(&mut self, interval_ms: u64) {
        let soonest = self.sent_ms.map_or(0, |sent_ms| sent_ms.saturating_add(pause_ms(interval_ms)));
        self.due_ms = self.due_ms.min(soonest);
    }
}

/// Returns the minimum time between two datagrams to a node because of changes, or between two
/// answers to it, in milliseconds.
pub(super) const fn pause_ms(interval_ms: u64) -> u64 {
    interval_ms / 4
}
