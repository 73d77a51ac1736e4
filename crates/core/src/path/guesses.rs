//! Guesses at cookies.
//!
//! The part of a cookie that a client without timestamps sends back has 24 bits that can't be
//! foretold, and a sender of enough segments in the names of others hits them. So a VIP looks at so
//! many wrong ones only: when those are used up, at no further segment of that kind, right or
//! wrong, until time has given it another try. Clients with timestamps send back 56 bits
//! ([`crate::path::cookie`]), and are always looked at; so is what has a session, as long as half
//! of the tries are left.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::path::tables::{Tables, VIP_IDS};

/// Words of all VIPs.
pub const WORDS: usize = VIP_WORDS * VIP_IDS;
/// Words of each VIP, by its number.
pub const VIP_WORDS: usize = 3;
/// For so many ticks one wrong cookie uses up a try: some 60 wrong ones a second are looked at.
const TRY_TICKS: u32 = 1 << 4;
/// Tries that are there at first, in ticks: 4,096 of them.
pub const TRIES_TICKS: u32 = TRY_TICKS << 12;

/// Words that the engine's threads and the control plane share. Of each VIP: the tick at which it
/// has all tries again, how many segments with data had a wrong cookie, and how many were not
/// looked at.
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

    /// True if a segment without timestamps may still be checked. With `is_session` the cookie
    /// would only tell that the client has begun another connection; the tries that new clients
    /// need are left to these.
    pub fn may_try(&self, vip: u16, now: u32, is_session: bool) -> bool {
        let least = if is_session { TRIES_TICKS / 2 } else { TRIES_TICKS };
        used(self.count(vip, 0), now) + TRY_TICKS <= least
    }

    /// A cookie was wrong: that uses up a try.
    pub fn failed(&self, vip: u16, now: u32) {
        let Some(word) = self.word(vip, 0) else { return };
        let was = word.load(Relaxed);
        let again = now.wrapping_add(used(was, now) + TRY_TICKS);
        // Another CPU has just noted one: this one is noted behind that.
        if word.compare_exchange(was, again.into(), Relaxed, Relaxed).is_err() {
            word.fetch_add(TRY_TICKS.into(), Relaxed);
        }
    }

    /// Forgets what time has given back: left alone for 52 days, it would look as if it were to
    /// come.
    pub fn forget_old(&self, now: u32) {
        for word in self.0.iter().step_by(VIP_WORDS) {
            let was = word.load(Relaxed);
            if was != 0 && used(was, now) == 0 {
                // A guess recorded meanwhile stays.
                let _ = word.compare_exchange(was, 0, Relaxed, Relaxed);
            }
        }
    }

    /// Leaves no VIP a try for half a minute, as many wrong cookies would: for who needs to know
    /// that beforehand.
    pub fn use_up(&self, now: u32) {
        let again = now.wrapping_add(TRIES_TICKS + TRIES_TICKS / 2);
        self.0.iter().step_by(VIP_WORDS).for_each(|word| word.store(again.into(), Relaxed));
    }

    /// Counts a segment with data whose cookie was wrong.
    pub fn count_bad(&self, vip: u16) {
        self.add(vip, 1);
    }

    /// Counts one that was not looked at.
    pub fn count_unchecked(&self, vip: u16) {
        self.add(vip, 2);
    }

    /// Segments with data whose cookie was wrong.
    pub fn bad(&self, vip: u16) -> u64 {
        self.count(vip, 1)
    }

    /// Number of segments left unchecked.
    pub fn unchecked(&self, vip: u16) -> u64 {
        self.count(vip, 2)
    }

    /// Forgets the numbers that no VIP of these tables has: they may become others'.
    pub fn keep(&self, tables: &Tables) {
        for vip in (0..VIP_IDS as u16).filter(|vip| tables.vip_by_id(*vip).is_none()) {
            (0..VIP_WORDS).filter_map(|at| self.word(vip, at)).for_each(|word| word.store(0, Relaxed));
        }
    }
}

/// Tries that are used up at tick `now`, in ticks, where all are there again at tick `again`; none
/// at 0. Ticks wrap after 52 days: what is further ahead than tries can be is long ago.
fn used(again: u64, now: u32) -> u32 {
    let ahead = (again as u32).wrapping_sub(now);
    if again != 0 && ahead < 2 * TRIES_TICKS { ahead } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIES: u32 = TRIES_TICKS / TRY_TICKS;

    /// Wrong cookies that are looked at, one after the other in no time.
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
