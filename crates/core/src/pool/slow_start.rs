//! Slow start: a recovered or new server takes its share of new sessions gradually, because its
//! caches are cold.

use super::FULL_WEIGHT;
use super::health::{HealthState, Transition};

/// Progress of a server's slow start.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowStart {
    /// Start of the slow start, in milliseconds; `None` while the server has its whole weight.
    since_ms: Option<u64>,
    /// Tenths of the weight that the server has.
    tenths: u16,
    /// True if the server was added to a running pool and has not been up yet.
    is_new: bool,
}

impl SlowStart {
    /// Returns the state of a server with its whole weight. A new server starts slowly once it is
    /// up.
    pub(super) fn whole(is_new: bool) -> SlowStart {
        SlowStart { since_ms: None, tenths: FULL_WEIGHT, is_new }
    }

    /// Applies a change of health. Servers that are up when a pool starts need no slow start, since
    /// only the director is new then.
    pub(super) fn changed(&mut self, transition: &Transition, now_ms: u64) {
        let is_new = core::mem::take(&mut self.is_new);
        let begins = transition.to == HealthState::Up && (is_new || transition.from == HealthState::Down);
        (self.since_ms, self.tenths) = if begins { (Some(now_ms), 1) } else { (None, FULL_WEIGHT) };
    }

    /// Tenths of its weight that the server has since the last [`SlowStart::rise`].
    pub(super) fn tenths(&self) -> u16 {
        self.tenths
    }

    /// Percentage of its weight that the server has at this time, at least 10.
    pub(super) fn percent(&self, now_ms: u64, whole_ms: u64) -> u64 {
        let Some(since_ms) = self.since_ms else { return 100 };
        let percent = now_ms.saturating_sub(since_ms).saturating_mul(100).checked_div(whole_ms);
        percent.map_or(100, |percent| percent.clamp(10, 100))
    }

    /// Raises the weight to the current value. Returns true if the weight changed.
    pub(super) fn rise(&mut self, now_ms: u64, whole_ms: u64) -> bool {
        let percent = self.percent(now_ms, whole_ms);
        if percent >= 100 {
            self.since_ms = None;
        }
        let tenths = u16::try_from(percent / 10).unwrap_or(FULL_WEIGHT);
        core::mem::replace(&mut self.tenths, tenths) != tenths
    }

    /// Returns the time of the next rise, in milliseconds.
    pub(super) fn next_at(&self, whole_ms: u64) -> u64 {
        let next = (u64::from(self.tenths) + 1).saturating_mul(whole_ms).div_ceil(u64::from(FULL_WEIGHT));
        self.since_ms.map_or(u64::MAX, |since_ms| since_ms.saturating_add(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(from: HealthState, to: HealthState) -> Transition {
        Transition { from, to, reason: None }
    }

    #[test]
    fn a_server_that_works_again_has_a_tenth_and_one_more_with_each_tenth_of_the_time() {
        let mut server = SlowStart::whole(false);
        assert_eq!((server.tenths(), server.percent(0, 1_000), server.next_at(1_000)), (10, 100, u64::MAX));
        server.changed(&turns(HealthState::Down, HealthState::Up), 5_000);
        assert_eq!((server.tenths(), server.percent(5_000, 1_000), server.next_at(1_000)), (1, 10, 5_200));
        assert!(!server.rise(5_199, 1_000) && server.rise(5_200, 1_000));
        assert_eq!((server.tenths(), server.next_at(1_000)), (2, 5_300));
        assert!(server.rise(5_999, 1_000));
        assert_eq!((server.tenths(), server.percent(5_999, 1_000)), (9, 99));
        assert!(server.rise(6_000, 1_000) && !server.rise(7_000, 1_000));
        assert_eq!((server.tenths(), server.next_at(1_000)), (10, u64::MAX));
    }

    #[test]
    fn slow_start_is_for_failed_and_new_servers_alone() {
        for (is_new, from, to, tenths) in [
            (false, HealthState::Unknown, HealthState::Up, 10),
            (true, HealthState::Unknown, HealthState::Up, 1),
            (false, HealthState::Down, HealthState::Up, 1),
            (true, HealthState::Down, HealthState::Up, 1),
            (true, HealthState::Unknown, HealthState::Down, 10),
            (false, HealthState::Up, HealthState::Down, 10),
        ] {
            let mut server = SlowStart::whole(is_new);
            server.changed(&turns(from, to), 7);
            assert_eq!(server.tenths(), tenths, "{is_new}, {from:?} to {to:?}");
        }
    }

    #[test]
    fn a_new_server_that_fails_at_first_is_new_no_more_and_begins_slowly_all_the_same() {
        let mut server = SlowStart::whole(true);
        server.changed(&turns(HealthState::Unknown, HealthState::Down), 1);
        server.changed(&turns(HealthState::Down, HealthState::Up), 2);
        assert_eq!(server.tenths(), 1);
        server.changed(&turns(HealthState::Up, HealthState::Down), 3);
        assert_eq!(
            (server.tenths(), server.next_at(1_000)),
            (10, u64::MAX),
            "and waits for nothing while it is down"
        );
    }

    #[test]
    fn without_slow_start_a_server_has_its_whole_weight_at_once() {
        let mut server = SlowStart::whole(false);
        server.changed(&turns(HealthState::Down, HealthState::Up), 7);
        assert!(server.rise(7, 0));
        assert_eq!((server.tenths(), server.next_at(0)), (10, u64::MAX));
    }
}
