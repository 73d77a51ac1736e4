//! A server that works again, or is new, takes its share of new sessions little by little: its
//! caches are cold.

use super::FULL_WEIGHT;
use super::health::{HealthState, Transition};

/// How far a server is on the way to its whole weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowStart {
    /// When it began to work, in milliseconds; `None`: it has its whole weight.
    since_ms: Option<u64>,
    /// How much of its weight it has, in tenths.
    tenths: u16,
    /// Whether it came to a pool that was at work, and hasn't worked yet.
    is_new: bool,
}

impl SlowStart {
    /// Of a server that has its whole weight. A new one has it until it works.
    pub(super) fn whole(is_new: bool) -> SlowStart {
        SlowStart { since_ms: None, tenths: FULL_WEIGHT, is_new }
    }

    /// Follows what probes have found. Servers that work when a pool begins have worked before: it
    /// is only the director that is new.
    pub(super) fn changed(&mut self, transition: &Transition, now_ms: u64) {
        let is_new = core::mem::take(&mut self.is_new);
        let begins = transition.to == HealthState::Up && (is_new || transition.from == HealthState::Down);
        (self.since_ms, self.tenths) = if begins { (Some(now_ms), 1) } else { (None, FULL_WEIGHT) };
    }

    /// How much of its weight the server has, in tenths, as of the last [`SlowStart::rise`].
    pub(super) fn tenths(&self) -> u16 {
        self.tenths
    }

    /// The same in percent, at any moment: a tenth at least.
    pub(super) fn percent(&self, now_ms: u64, whole_ms: u64) -> u64 {
        let Some(since_ms) = self.since_ms else { return 100 };
        let percent = now_ms.saturating_sub(since_ms).saturating_mul(100).checked_div(whole_ms);
        percent.map_or(100, |percent| percent.clamp(10, 100))
    }

    /// Gives the server what is its by now. True if that is more than before.
    pub(super) fn rise(&mut self, now_ms: u64, whole_ms: u64) -> bool {
        let percent = self.percent(now_ms, whole_ms);
        if percent >= 100 {
            self.since_ms = None;
        }
        let tenths = u16::try_from(percent / 10).unwrap_or(FULL_WEIGHT);
        core::mem::replace(&mut self.tenths, tenths) != tenths
    }

    /// When there is more for it, in milliseconds.
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
