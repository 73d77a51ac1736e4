//! Limit on wrong SYN cookies per VIP.
//!
//! A client without timestamps returns a cookie of which 24 bits are unpredictable. An attacker who
//! sends enough segments with forged source addresses will guess a cookie. So each VIP has a budget
//! of wrong cookies, which time refills. While the budget is used up, segments without timestamps
//! are not checked, whether their cookie is right or wrong. Segments that may belong to an existing
//! session may use only half of the budget. Clients with timestamps return 56 bits
//! ([`crate::path::cookie`]) and are always checked.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::path::tables::{Tables, VIP_IDS};

/// Number of words of all VIPs.
pub const WORDS: usize = VIP_WORDS * VIP_IDS;
/// Number of words per VIP.
pub const VIP_WORDS: usize = 3;
/// Part of the budget that a wrong cookie costs, in ticks. So about 60 wrong cookies per second are
/// checked.
const TRY_TICKS: u32 = 1 << 4;
/// Full budget in ticks, which lasts for 4,096 wrong cookies.
pub const TRIES_TICKS: u32 = TRY_TICKS << 12;

/// Words that the engine's threads and the control plane share. For each VIP: the tick at which its
/// budget is full again, the number of segments with data and a wrong cookie, and the number of
/// segments left unchecked.
#[derive(Clone, Copy, Debug)]
pub struct Guesses<'a>(pub &'a [AtomicU64]);

impl Guesses<'_> {
    fn word(&self, vip: u16, at: usize) -> Option<&AtomicU64> {
        self.0.get(VIP_WORDS * usize::from(vip) + at)
    }

    fn add(&self, vip: u16, at: usize) {
        if let Some(word) = self.word(vip, at) {
            word.fetch_add(1, Relaxed);
        }
    }

    fn count(&self, vip: u16, at: usize) -> u64 {
        self.word(vip, at).map_or(0, |word| word.load(Relaxed))
    }

    /// True if a segment without timestamps may still be checked. If `is_session` is true, the
    /// cookie can only show that the client has begun another connection. Such checks leave half of
    /// the budget to new clients.
    pub fn may_try(&self, vip: u16, now: u32, is_session: bool) -> bool {
        let least = if is_session { TRIES_TICKS / 2 } else { TRIES_TICKS };
        used(self.count(vip, 0), now) + TRY_TICKS <= least
    }

    /// Charges the VIP's budget for a wrong cookie.
    pub fn failed(&self, vip: u16, now: u32) {
        let Some(word) = self.word(vip, 0) else { return };
        let was = word.load(Relaxed);
        let again = now.wrapping_add(used(was, now) + TRY_TICKS);
        // Another CPU has just charged a cookie, so this one is charged on top.
        if word.compare_exchange(was, again.into(), Relaxed, Relaxed).is_err() {
            word.fetch_add(TRY_TICKS.into(), Relaxed);
        }
    }

    /// Clears budgets that are full again. Ticks wrap after 52 days, after which an old word would
    /// count as used.
    pub fn forget_old(&self, now: u32) {
        for word in self.0.iter().step_by(VIP_WORDS) {
            let was = word.load(Relaxed);
            if was != 0 && used(was, now) == 0 {
                // A guess that was recorded in the meantime stays.
                let _ = word.compare_exchange(was, 0, Relaxed, Relaxed);
            }
        }
    }

    /// Uses up the budget of every VIP for half a minute, as a flood of wrong cookies would. For
    /// tests.
    pub fn use_up(&self, now: u32) {
        let again = now.wrapping_add(TRIES_TICKS + TRIES_TICKS / 2);
        self.0.iter().step_by(VIP_WORDS).for_each(|word| word.store(again.into(), Relaxed));
    }

    /// Counts a segment with data and a wrong cookie.
    pub fn count_bad(&self, vip: u16) {
        self.add(vip, 1);
    }

    /// Counts a segment that was not checked.
    pub fn count_unchecked(&self, vip: u16) {
        self.add(vip, 2);
    }

    /// Number of segments with data and a wrong cookie.
    pub fn bad(&self, vip: u16) -> u64 {
        self.count(vip, 1)
    }

    /// Number of segments that were not checked.
    pub fn unchecked(&self, vip: u16) -> u64 {
        self.count(vip, 2)
    }

    /// Clears the words of VIP numbers that are not in `tables`: another VIP may get the number.
    pub fn keep(&self, tables: &Tables) {
        for vip in (0..VIP_IDS as u16).filter(|vip| tables.vip_by_id(*vip).is_none()) {
            (0..VIP_WORDS).filter_map(|at| self.word(vip, at)).for_each(|word| word.store(0, Relaxed));
        }
    }
}

/// Returns the used part of the budget at tick `now`, in ticks. `again` is the tick at which the
/// budget will be full; 0 stands for a full budget. Ticks wrap after 52 days, so a tick too far
/// ahead is long past.
fn used(again: u64, now: u32) -> u32 {
    let ahead = (again as u32).wrapping_sub(now);
    if again != 0 && ahead < 2 * TRIES_TICKS { ahead } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIES: u32 = TRIES_TICKS / TRY_TICKS;

    /// Returns the number of wrong cookies that are checked in a flood at tick `now`.
    fn looked_at(guesses: &Guesses<'_>, vip: u16, now: u32, is_session: bool) -> u32 {
        let tries = (0..2 * TRIES).take_while(|_| {
            let may = guesses.may_try(vip, now, is_session);
            if may {
                guesses.failed(vip, now);
            }
            may
        });
        tries.count() as u32
    }

    #[test]
    fn wrong_guesses_are_limited_and_refilled_by_time() {
        for begin in [7, u32::MAX - 100, 1 << 31] {
            let words = [const { AtomicU64::new(0) }; WORDS];
            let guesses = Guesses(&words);
            assert_eq!(looked_at(&guesses, 3, begin, false), TRIES);
            assert_eq!(looked_at(&guesses, 3, begin, false), 0);
            assert_eq!(looked_at(&guesses, 4, begin, false), TRIES, "each VIP has its own");
            let later = |ticks: u32| begin.wrapping_add(ticks);
            assert!(!guesses.may_try(3, later(TRY_TICKS - 1), false));
            assert_eq!(looked_at(&guesses, 3, later(TRY_TICKS), false), 1);
            assert_eq!(looked_at(&guesses, 3, later(11 * TRY_TICKS), false), 10);
            assert_eq!(
                looked_at(&guesses, 3, later(3 * TRIES_TICKS), false),
                TRIES,
                "and no more than at first"
            );
        }
    }

    #[test]
    fn known_flow_leaves_half_of_guesses_to_others() {
        let words = [const { AtomicU64::new(0) }; WORDS];
        let guesses = Guesses(&words);
        assert_eq!(looked_at(&guesses, 0, 9, true), TRIES / 2);
        assert_eq!(looked_at(&guesses, 0, 9, false), TRIES / 2);
    }

    #[test]
    fn correct_cookies_use_no_guesses_and_empty_words_allow_all() {
        let words = [const { AtomicU64::new(0) }; WORDS];
        assert!((0..2 * TRIES).all(|_| Guesses(&words).may_try(1, 5, false)));
        assert!(Guesses(&[]).may_try(1, 5, false));
        Guesses(&[]).failed(1, 5);
    }

    #[test]
    fn old_guesses_are_forgotten_after_clock_wrap() {
        let words = [const { AtomicU64::new(0) }; WORDS];
        let guesses = Guesses(&words);
        assert_eq!(looked_at(&guesses, 0, 5, false), TRIES);
        assert!(guesses.may_try(0, 5 + (1 << 31), false));
        guesses.forget_old(5 + TRIES_TICKS - 1);
        assert!(!guesses.may_try(0, 5, false), "it is not old yet");
        guesses.forget_old(5 + TRIES_TICKS + 1);
        assert_eq!(looked_at(&guesses, 0, 5, false), TRIES, "and not after 52 days");
    }

    #[test]
    fn numbers_of_no_vip_are_forgotten() {
        let words = [const { AtomicU64::new(0) }; WORDS];
        let guesses = Guesses(&words);
        guesses.count_bad(2);
        guesses.count_unchecked(2);
        assert_eq!((guesses.bad(2), guesses.unchecked(2), guesses.bad(1)), (1, 1, 0));
        guesses.keep(&Tables::default());
        assert_eq!((guesses.bad(2), guesses.unchecked(2)), (0, 0));
    }
}
