//! A server that works again, or is new, takes its share of new sessions little by little: its caches are cold.

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

    /// Follows what probes have found. Servers that work when a pool begins have worked before: it is only the director that is new.
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
