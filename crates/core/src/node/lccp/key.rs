//! The keys of the messages' tags, which change with the hour.

use alloc::format;

use crate::node::peers::{Key, Secret};

/// Time for which one key is written with, in seconds.
pub const EPOCH_S: u64 = 3_600;

/// The two keys that are believed: that of this hour and that of the hour before. Which of them is written with
/// changes half an hour later than they do, so that hosts whose clocks differ by as much have the same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The epoch of each key, which is its number in messages.
    live: [(u32, Key); 2],
    write: usize,
    until_s: u64,
}

impl Keys {
    /// The keys at this time of day, in seconds since 1970.
    pub fn at(secret: &Secret, unix_s: u64) -> Keys {
        let key = |epoch: u64| (epoch as u32, Key(secret.derive(&format!("evener lccp {epoch}"))));
        let epoch = unix_s / EPOCH_S;
        let early = unix_s % EPOCH_S < EPOCH_S / 2;
        let half = EPOCH_S / 2;
        Keys {
            live: [key(epoch.saturating_sub(1)), key(epoch)],
            write: usize::from(!early),
            until_s: (unix_s / half).saturating_add(1).saturating_mul(half),
        }
    }

    /// When they are to be made anew, in seconds since 1970.
    pub fn until_s(&self) -> u64 {
        self.until_s
    }

    /// The key of this number, if it is believed.
    pub fn get(&self, number: u32) -> Option<&Key> {
        self.live.iter().find(|(epoch, _)| *epoch == number).map(|(_, key)| key)
    }

    /// The key to write with, and its number.
    pub fn own(&self) -> (u32, &Key) {
        let [older, newer] = &self.live;
        let (number, key) = if self.write == 0 { older } else { newer };
        (*number, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_whose_clocks_differ_by_half_an_hour_read_each_other() {
        let secret = Secret::new([3; 32]);
        let base = 500_000 * EPOCH_S;
        for at_s in (base..base + 2 * EPOCH_S).step_by(300) {
            let keys = Keys::at(&secret, at_s);
            let (number, key) = keys.own();
            for other_s in [at_s - 1_800, at_s - 1, at_s, at_s + 900, at_s + 1_800] {
                assert_eq!(Keys::at(&secret, other_s).get(number), Some(key), "{at_s} {other_s}");
            }
            assert_eq!(Keys::at(&secret, at_s + 2 * EPOCH_S).get(number), None, "old keys die");
        }
    }

    #[test]
    fn keys_are_made_anew_before_they_are_wrong() {
        let secret = Secret::new([3; 32]);
        let base = 500_000 * EPOCH_S;
        for at_s in [base, base + 1, base + 1_799, base + 1_800, base + 3_599] {
            let keys = Keys::at(&secret, at_s);
            assert_eq!(Keys::at(&secret, keys.until_s() - 1), keys);
            assert_ne!(Keys::at(&secret, keys.until_s()), keys);
        }
        assert_eq!(Keys::at(&secret, base + 1_800).own().0, 500_000);
        assert_eq!(Keys::at(&secret, base).own().0, 499_999);
        assert_eq!(Keys::at(&secret, 0).own().0, 0);
        assert_ne!(Keys::at(&Secret::new([4; 32]), base).own().1, Keys::at(&secret, base).own().1);
        assert!(Keys::at(&secret, u64::MAX).until_s() > 0, "no clock is too wrong");
    }
}
