//! Scores by load. A score has one byte, by which the data plane weighs the sessions of a server
//! (see [`crate::path::select`]).
//!
//! A report that is seconds old says little about the current load. The data plane therefore
//! multiplies the score with its own session count, so that a server that reported itself idle
//! fills up like any other server. Loads rise at once and fall slowly, as latency does in
//! peak-EWMA. A server without a report gets the median.

use alloc::vec::Vec;

use crate::path::select::{GAIN_UNIT, SCORE_UNIT};

/// Time constant of a falling load, in milliseconds. In a tenth of this time the load falls by a
/// tenth of the difference to the new value.
const DECAY_MS: u64 = 10_000;

/// Smoothed load of a server, which rises at once and falls slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Smoothed {
    load: u64,
    at_ms: u64,
}

impl Smoothed {
    /// Returns the smoothed load after its first value.
    pub fn new(load: u64, now_ms: u64) -> Smoothed {
        Smoothed { load, at_ms: now_ms }
    }

    /// Updates the load with a new value. A rise counts at once, a fall gradually.
    pub fn follow(&mut self, load: u64, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.at_ms).min(DECAY_MS);
        let fall = u128::from(self.load.saturating_sub(load)) * u128::from(passed_ms) / u128::from(DECAY_MS);
        // The fall never exceeds the difference.
        self.load = load.max(self.load - fall as u64);
        self.at_ms = now_ms;
    }

    pub fn load(self) -> u64 {
        self.load
    }
}

/// Returns the scores of a service's servers from their loads, in the same order. A score is the
/// number of [`SCORE_UNIT`]ths by which the load exceeds the least load. All scores are 0 if fewer
/// than two loads are known, since there is nothing to compare.
pub fn scores(loads: &[Option<u64>]) -> Vec<u8> {
    let mut known: Vec<u64> = loads.iter().flatten().copied().collect();
    known.sort_unstable();
    let (Some(least), Some(median), true) = (known.first(), known.get(known.len() / 2), known.len() > 1)
    else {
        return alloc::vec![0; loads.len()];
    };
    let least = u128::from(*least).max(1);
    let score = |load: u64| u128::from(load).saturating_sub(least) * u128::from(SCORE_UNIT) / least;
    loads.iter().map(|load| u8::try_from(score(load.unwrap_or(*median))).unwrap_or(u8::MAX)).collect()
}

/// Limit of the new sessions that a server gains by its report, in percent of its fair share by
/// weight.
pub const GAIN_PERCENT: u64 = 150;

/// Returns the limit of sessions that each server gains by its load, as
/// [`crate::path::select::Score::gain`]. `servers` has the weight and the load of each server. A
/// server with less load than others gains at most `percent` of its fair share by weight.
///
/// The limit is needed because reports are unverified. Let the server have weight w, all servers
/// together W, and another server v. Then the server is the second candidate behind the other
/// server with the probability v / W times w / (W - v). The sum of these probabilities over all
/// servers with more load is the gain of a server that wins every comparison.
pub fn gains(servers: &[(u16, u64)], percent: u64) -> Vec<u8> {
    const ONE: u64 = 1 << 20;
    let all: u64 = servers.iter().map(|(weight, _)| u64::from(*weight)).sum();
    let wins = |load: u64| -> u64 {
        let beaten = servers.iter().filter(|(_, other)| *other > load).map(|(weight, _)| u64::from(*weight));
        beaten.filter_map(|weight| (weight * ONE).checked_div(all - weight)).sum()
    };
    let more = percent.saturating_sub(100).saturating_mul(ONE) / 100;
    let gain = |(_, load): &(u16, u64)| match more.saturating_mul(GAIN_UNIT).checked_div(wins(*load)) {
        Some(gain) => u8::try_from(gain.saturating_sub(1)).unwrap_or(u8::MAX),
        None => u8::MAX,
    };
    servers.iter().map(gain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_least_loaded_is_the_measure() {
        assert_eq!(scores(&[Some(100), Some(200), Some(150)]), [0, 16, 8]);
        assert_eq!(scores(&[Some(100), Some(1_000_000)]), [0, 255]);
        assert_eq!(scores(&[Some(100), None, Some(300)]), [0, 32, 32], "who says nothing has the median");
        assert_eq!(scores(&[Some(0), Some(1)]), [0, 0]);
        assert_eq!(scores(&[None, Some(5), None]), [0, 0, 0], "there is nothing to compare");
        assert!(scores(&[]).is_empty());
    }

    #[test]
    fn score_gain_is_capped() {
        let even = |loads: &[u64]| gains(&loads.iter().map(|load| (1, *load)).collect::<Vec<_>>(), 150);
        assert_eq!(even(&[0, 9, 9, 9]), [127, 255, 255, 255], "half of what would double its share");
        assert_eq!(
            even(&[9, 5, 5, 5]),
            [255, 255, 255, 255],
            "what one sheds is little for each of the others"
        );
        assert_eq!(even(&[0, 9]), [127, 255]);
        assert_eq!(gains(&[(1, 0), (3, 9)], 150), [41, 255], "a sixth, of three quarters, is an eighth more");
        assert_eq!(gains(&[(3, 0), (1, 9)], 150), [255, 255]);
        assert_eq!(gains(&[(1, 0), (1, 9)], 100), [0, 255]);
        assert_eq!(gains(&[(1, 0), (0, 9), (1, 7)], u64::MAX), [255; 3]);
        assert_eq!(gains(&[(1, 0)], 150), [255]);
        assert!(gains(&[], 150).is_empty());
    }

    #[test]
    fn loads_rise_at_once_and_fall_slowly() {
        let mut load = Smoothed::new(100, 0);
        load.follow(900, 10);
        assert_eq!(load.load(), 900);
        load.follow(100, 1_010);
        assert_eq!(load.load(), 820, "a tenth of the way in a tenth of the time");
        load.follow(100, 2_010);
        assert_eq!(load.load(), 748);
        load.follow(100, 60_000);
        assert_eq!(load.load(), 100);
    }

    proptest! {
        #[test]
        fn some_score_is_always_lowest(loads in prop::collection::vec(prop::option::of(any::<u64>()), 1..20)) {
            let scores = scores(&loads);
            prop_assert_eq!(scores.len(), loads.len());
            prop_assert!(scores.contains(&0));
        }

        #[test]
        fn smoothed_load_lies_between_old_and_new(was: u64, now: u64, after_ms: u64) {
            let mut load = Smoothed::new(was, 0);
            load.follow(now, after_ms);
            prop_assert!(load.load() >= now && load.load() <= was.max(now));
        }
    }
}
