//! Files that are requested: many lengths, as in SPECweb96.

use evener_sim::Random;

use crate::workloads::{Shared, Step, Workload, files, shuffle};

/// SPECweb96's classes: shortest file in bytes, and percentage of requests. A class has nine files
/// with evenly spaced lengths.
const CLASSES: [(usize, usize); 4] = [(100, 35), (1_000, 50), (10_000, 14), (100_000, 1)];
const FILES: usize = 9;

/// Sequence of requests in random order. Each hundred requests contain the exact share of each
/// class, and all files occur equally often. Otherwise the number of long files would dominate a
/// short measurement.
#[derive(Debug)]
pub struct Mix {
    deck: Shared<usize>,
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
        Mix { deck: Shared::new(hundreds.concat()) }
    }

    /// Returns the length of the next file.
    pub(crate) fn next_len(&self) -> usize {
        self.deck.next().unwrap_or_default()
    }
}

impl Workload for Mix {
    fn files(&self) -> Vec<Step> {
        files(Mix::lengths())
    }

    fn steps(&self, _client: usize) -> Box<dyn Iterator<Item = Step> + Send + '_> {
        Box::new(std::iter::repeat_with(|| Step::Request(self.next_len())))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_hundred_requests_are_the_whole_mix() {
        assert_eq!(Mix::lengths().len(), 36);
        let mix = Mix::new(7);
        let mut lens: Vec<usize> = (0..100 * FILES).map(|_| mix.next_len()).collect();
        assert_eq!(lens.iter().filter(|len| **len == 900_000).count(), 1);
        assert_ne!(lens.first(), lens.get(1));
        lens.sort();
        lens.dedup();
        assert_eq!(lens.len(), 36);
        assert!((14_000.0..16_000.0).contains(&Mix::mean_len()), "{}", Mix::mean_len());
    }
}
