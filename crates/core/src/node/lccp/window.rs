//! Which numbers of a sender were heard, so that none is believed twice.

/// How many numbers are remembered, down from the highest.
const LEN: u64 = u64::BITS as u64;

/// A replay window, as that of RFC 4303, section 3.4.3: numbers may come in another order than they were sent, within
/// 64 of the highest; each counts once. None was heard at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Window {
    highest: u64,
    /// Bit `i`: `highest - i` was heard.
    heard: u64,
}

impl Window {
    /// Whether this number is heard for the first time, as far as is remembered; it counts as heard from now on. There is
    /// no number 0.
    pub fn take(&mut self, number: u64) -> bool {
        if number == 0 {
            return false;
        }
        if let Some(ahead) = number.checked_sub(self.highest).filter(|ahead| *ahead > 0) {
            self.heard = if ahead < LEN { self.heard << ahead } else { 0 } | 1;
            self.highest = number;
            return true;
        }
        let behind = self.highest - number;
        let bit = if behind < LEN { 1 << behind } else { return false };
        let news = self.heard & bit == 0;
        self.heard |= bit;
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
        let mut window = Window::default();
        let taken = [5, 3, 5, 4, 3, 70, 6, 7, 7, 5, 0].map(|number| window.take(number));
        assert_eq!(taken, [true, true, false, true, false, true, false, true, false, false, false]);
        assert!(window.take(u64::MAX) && !window.take(70) && window.take(u64::MAX - 63));
        assert!(!window.take(u64::MAX - 64));
    }

    proptest! {
        #[test]
        fn it_takes_what_a_set_would(numbers in prop::collection::vec(1u64..300, 0..400)) {
            let (mut window, mut set) = (Window::default(), BTreeSet::new());
            for number in numbers {
                let late = set.last().is_some_and(|highest| number + LEN <= *highest);
                prop_assert_eq!(window.take(number), !late && set.insert(number));
            }
        }
    }
}
