//! Keys for the tags of messages. The keys change every hour.

use alloc::format;

use crate::node::secret::{Key, Secret};

/// Time for which a key is used for sending, in seconds.
pub const EPOCH_S: u64 = 3_600;

/// The two keys that are valid at one time: those of this hour and of the previous hour. The
/// sending key changes at half past each hour. So hosts accept each other's sending key if their
/// clocks differ by up to half an hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HourlyKeys {
    secret: Secret,
    /// The keys with their epochs. An epoch is the number of the key in messages.
    live: [(u32, Key); 2],
    write: usize,
}

impl HourlyKeys {
    /// Returns the keys at this time, in seconds since 1970.
    pub fn at(secret: &Secret, unix_s: u64) -> HourlyKeys {
        let epoch = unix_s / EPOCH_S;
        let early = unix_s % EPOCH_S < EPOCH_S / 2;
        let key = |epoch: u64| (epoch as u32, key(secret, epoch as u32));
        HourlyKeys {
            secret: secret.clone(),
            live: [key(epoch.saturating_sub(1)), key(epoch)],
            write: usize::from(!early),
        }
    }

    /// Returns the sending key and its number.
    pub fn own(&self) -> (u32, &Key) {
        let [older, newer] = &self.live;
        let (number, key) = if self.write == 0 { older } else { newer };
        (*number, key)
    }

    /// Returns the key with this number. If the key is not valid now, also returns the number of
    /// hours by which its epoch is ahead (negative if it is behind).
    pub(super) fn of(&self, number: u32) -> (Key, Option<i64>) {
        match self.live.iter().find(|(epoch, _)| *epoch == number) {
            Some((_, key)) => (*key, None),
            None => (key(&self.secret, number), Some(i64::from(number) - i64::from(self.own().0))),
        }
    }
}

fn key(secret: &Secret, epoch: u32) -> Key {
    Key(secret.derive(&format!("evener lccp {epoch}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_hour_clock_skew_still_authenticates() {
        let secret = Secret::new([3; 32]);
        let base = 500_000 * EPOCH_S;
        for at_s in (base..base + 2 * EPOCH_S).step_by(300) {
            let keys = HourlyKeys::at(&secret, at_s);
            let (number, key) = keys.own();
            for other_s in [at_s - 1_800, at_s - 1, at_s, at_s + 900, at_s + 1_800] {
                assert_eq!(HourlyKeys::at(&secret, other_s).of(number), (*key, None), "{at_s} {other_s}");
            }
            let (same, ahead_h) = HourlyKeys::at(&secret, at_s + 2 * EPOCH_S).of(number);
            assert_eq!((same, ahead_h), (*key, Some(-2)), "old keys die");
            let (same, ahead_h) = HourlyKeys::at(&secret, at_s - 24 * EPOCH_S).of(number);
            assert_eq!((same, ahead_h), (*key, Some(24)), "and those of tomorrow aren't born");
        }
    }

    #[test]
    fn every_time_of_day_has_keys() {
        let secret = Secret::new([3; 32]);
        let base = 500_000 * EPOCH_S;
        assert_eq!(HourlyKeys::at(&secret, base + 1_800).own().0, 500_000);
        assert_eq!(HourlyKeys::at(&secret, base).own().0, 499_999);
        assert_eq!(HourlyKeys::at(&secret, 0).own().0, 0);
        assert_ne!(
            HourlyKeys::at(&Secret::new([4; 32]), base).own().1,
            HourlyKeys::at(&secret, base).own().1
        );
        let wrong = HourlyKeys::at(&secret, u64::MAX);
        assert!(
            wrong.of(wrong.own().0).1.is_none() && wrong.of(500_000).1.is_some(),
            "no clock is too wrong"
        );
    }
}
