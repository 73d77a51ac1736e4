//! SPECweb96: four classes of nine files, in directories whose number grows with the load.

use evener_sim::Random;

use super::distributions::Weights;
use super::{Shared, Step, Workload};

/// Classes: shortest file in bytes, and part of the requests.
const CLASSES: [(usize, f64); 4] = [(102, 0.35), (1_024, 0.5), (10_240, 0.14), (102_400, 0.01)];
/// Weights of the nine files of a class, of 1,000.
const WITHIN: [f64; 9] = [39.0, 59.0, 88.0, 177.0, 353.0, 118.0, 71.0, 50.0, 45.0];
const FILES: usize = WITHIN.len();

/// Requests of the set for a load. The order is that of a seed.
#[derive(Debug)]
pub struct SpecWeb96 {
    /// Directory and length of each request.
    sequence: Shared<(usize, usize)>,
    directories: usize,
}

/// Number of requests before the sequence begins anew.
const REQUESTS: usize = 100_000;

impl SpecWeb96 {
    /// Returns the requests for a load in requests per second.
    pub fn new(rate: f64, seed: u64) -> SpecWeb96 {
        let mut random = Random::new(seed);
        let (classes, files) = (Weights::new(CLASSES.map(|(_, part)| part)), Weights::new(WITHIN));
        let directories = Self::directories(rate);
        let mut request = || {
            let (class, file) = (classes.draw(&mut random), files.draw(&mut random));
            let shortest = CLASSES.get(class).map_or(0, |(shortest, _)| *shortest);
            (random.below(directories), shortest * (file + 1))
        };
        SpecWeb96 { sequence: Shared::new((0..REQUESTS).map(|_| request()).collect()), directories }
    }

    /// Number of directories for a load: ten times the root of a fifth of it.
    pub fn directories(rate: f64) -> usize {
        ((rate / 5.0).sqrt() * 10.0).ceil().max(1.0) as usize
    }
}

impl Workload for SpecWeb96 {
    fn files(&self) -> Vec<Step> {
        let lengths =
            || CLASSES.iter().flat_map(|(shortest, _)| (1..=FILES).map(move |file| shortest * file));
        let all = (0..self.directories).flat_map(|directory| lengths().map(move |len| (directory, len)));
        all.map(|(directory, len)| Step::RequestIn(directory, len)).collect()
    }

    fn steps(&self, _client: usize) -> Box<dyn Iterator<Item = Step> + Send + '_> {
        Box::new(std::iter::from_fn(|| {
            self.sequence.next().map(|(directory, len)| Step::RequestIn(directory, len))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_classes_and_files_are_the_published_ones() {
        let spec = SpecWeb96::new(500.0, 2);
        let part = |lens: &dyn Fn(usize) -> bool| {
            spec.sequence.all.iter().filter(|(_, len)| lens(*len)).count() as f64 / REQUESTS as f64
        };
        assert!((part(&|len| len < 1_000) / 0.35 - 1.0).abs() < 0.02);
        assert!((part(&|len| (1_000..10_000).contains(&len)) / 0.5 - 1.0).abs() < 0.02);
        assert!((part(&|len| len == 5 * 1_024) / (0.5 * 0.353) - 1.0).abs() < 0.02);
        assert_eq!((SpecWeb96::directories(5.0), SpecWeb96::directories(500.0)), (10, 100));
    }
}
