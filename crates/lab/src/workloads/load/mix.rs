//! Files that are requested: many lengths, as in SPECweb96.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Random;

/// SPECweb96's classes: shortest file in bytes, and percentage of requests. A class has nine files
/// with evenly spaced lengths.
const CLASSES: [(usize, usize); 4] = [(100, 35), (1_000, 50), (10_000, 14), (100_000, 1)];
const FILES: usize = 9;

/// Sequence of requests in random order. Each hundred requests contain the exact share of each
/// class, and all files occur equally often. Otherwise the number of long files would dominate a
/// short measurement.
#[derive(Debug)]
pub struct Mix {
    deck: Vec<usize>,
    next: AtomicUsize,
}

impl Mix {
    /// Lengths of all files in bytes.
    pub fn lengths() -> Vec<usize> {
        CLASSES.iter().flat_map(|(shortest, _)| (1..=FILES).map(move |file| shortest * file)).collect()
    }

    /// Mean length of the requested files in bytes.
    pub fn mean_len() -> f64 {
        let deck = hundreds().concat();
        deck.iter().sum::<usize>() as f64 / deck.len() as f64
    }

    /// Returns the requests in the order of a seed.
    pub fn new(seed: u64) -> Mix {
        let mut random = Random::new(seed);
        let mut hundreds = hundreds();
        for hundred in &mut hundreds {
            shuffle(hundred, &mut random);
        }
        shuffle(&mut hundreds, &mut random);
        Mix { deck: hundreds.concat(), next: AtomicUsize::new(0) }
    }

    /// Returns the next path.
    pub(super) fn next_path(&self) -> String {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let len = self.deck.get(turn % self.deck.len()).copied().unwrap_or_default();
        format!("/{}{len}", crate::servers::nginx::BY_LENGTH)
    }
}

/// Returns all requests in groups of a hundred, with the files of a class in turn.
fn hundreds() -> Vec<Vec<usize>> {
    let hundred = |number: usize| {
        let of = move |&(shortest, percent): &(usize, usize)| {
            (0..percent).map(move |turn| shortest * (1 + (number * percent + turn) % FILES))
        };
        CLASSES.iter().flat_map(of).collect()
    };
    (0..FILES).map(hundred).collect()
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for place in (1..items.len()).rev() {
        items.swap(place, random.below(place + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_hundred_requests_are_the_whole_mix() {
        assert_eq!(Mix::lengths().len(), 36);
        let mix = Mix::new(7);
        let mut paths: Vec<String> = (0..100 * FILES).map(|_| mix.next_path()).collect();
        assert_eq!(paths.iter().filter(|path| *path == "/bytes/900000").count(), 1);
        assert_ne!(paths.first(), paths.get(1));
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), 36);
        assert!((14_000.0..16_000.0).contains(&Mix::mean_len()), "{}", Mix::mean_len());
    }
}
