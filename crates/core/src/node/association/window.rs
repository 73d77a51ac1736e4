//! Replay window: the numbers of received messages.

/// Maximum number of sequence numbers in the window, down from the highest.
pub(super) const REACH_MAX: u64 = u64::BITS as u64;

/// A replay window as in RFC 4303, section 3.4.3. Numbers may arrive out of order, within `reach`
/// of the highest, and each number is accepted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct ReplayWindow {
    highest: u64,
    /// Bit `i` is set if `highest - i` was received.
    received: u64,
}

impl ReplayWindow {
    pub(super) fn highest(&self) -> u64 {
        self.highest
    }

    /// True if the number was not received before, and is less than `reach` below the highest.
    /// `reach` is at most [`REACH_MAX`]. Number 0 is invalid.
    pub(super) fn accept(&mut self, number: u64, reach: u64) -> bool {
        if number == 0 {
            return false;
        }
        if let Some(ahead) = number.checked_sub(self.highest).filter(|ahead| *ahead > 0) {
            self.received = if ahead < REACH_MAX { self.received << ahead } else { 0 } | 1;
            self.highest = number;
            return true;
        }
        let behind = self.highest - number;
        let bit = if behind < reach.min(REACH_MAX) { 1 << behind } else { return false };
        let news = self.received & bit == 0;
        self.received |= bit;
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_in_another_order_count_once() {
        let mut window = ReplayWindow::default();
        let mut take = |number| window.accept(number, REACH_MAX);
        let taken = [5, 3, 5, 4, 3, 70, 6, 7, 7, 5, 0].map(&mut take);
        assert_eq!(taken, [true, true, false, true, false, true, false, true, false, false, false]);
        assert!(take(u64::MAX) && !take(70) && take(u64::MAX - 63));
        assert!(!take(u64::MAX - 64));
    }

    proptest! {
        #[test]
        fn replay_window_accepts_like_a_set(
            numbers in prop::collection::vec(1u64..300, 0..400), reach in prop::sample::select(std::vec![1, 2, 63, 64]),
        ) {
            let (mut window, mut set) = (ReplayWindow::default(), BTreeSet::new());
            for number in numbers {
                let late = set.last().is_some_and(|highest| number + reach <= *highest);
                prop_assert_eq!(window.accept(number, reach), !late && set.insert(number));
                prop_assert_eq!(Some(&window.highest()), set.last());
            }
        }
    }
}
