//! WebStone 2.x: clients that each request one file after another, by a list of files with weights.

use std::time::Duration;

use evener_sim::Random;

use super::{Shared, Step, Workload, files, shuffle};

/// WebStone's own list: lengths in bytes, and requests of 1,000.
pub const STATIC: [(usize, usize); 5] =
    [(500, 350), (5_125, 500), (51_250, 140), (512_500, 9), (5_248_000, 1)];
/// Mean length of the log's mix of the LSMAC paper, section 4.2.2, in bytes. The paper does not
/// give its files; they are WebStone's with all lengths multiplied.
pub const LOG_MEAN: f64 = 108_500.0;

/// Number of thousands of requests until the order repeats. In a repeated thousand, each file would
/// fall to the same of two, four or five servers that take turns.
const THOUSANDS: usize = 32;

/// List of files, and clients that don't think.
#[derive(Debug)]
pub struct WebStone {
    deck: Shared<usize>,
    /// Processor time of a program that writes the replies; `None` for files.
    program: Option<Duration>,
}

impl WebStone {
    /// Returns the requests of a list in the order of a seed. Each thousand has the exact weights.
    pub fn new(list: &[(usize, usize)], seed: u64) -> WebStone {
        let mut random = Random::new(seed);
        let thousand: Vec<usize> =
            list.iter().flat_map(|(len, weight)| std::iter::repeat_n(*len, *weight)).collect();
        let shuffled = (0..THOUSANDS).flat_map(|_| {
            let mut thousand = thousand.clone();
            shuffle(&mut thousand, &mut random);
            thousand
        });
        let deck = shuffled.collect();
        WebStone { deck: Shared::new(deck), program: None }
    }

    /// Returns the list of the log's mix.
    pub fn log_mix() -> [(usize, usize); 5] {
        let mean = STATIC.iter().map(|(len, weight)| len * weight).sum::<usize>() as f64 / 1_000.0;
        STATIC.map(|(len, weight)| ((len as f64 * LOG_MEAN / mean).round() as usize, weight))
    }

    /// Has a program write all replies, which uses so much processor time for each.
    pub fn by_program(self, time: Duration) -> WebStone {
        WebStone { program: Some(time), ..self }
    }
}

impl Workload for WebStone {
    fn files(&self) -> Vec<Step> {
        files(self.deck.all.clone())
    }

    fn steps(&self, _client: usize) -> Box<dyn Iterator<Item = Step> + Send + '_> {
        let step = |len| match self.program {
            Some(time) => Step::Program(len, time),
            None => Step::Request(len),
        };
        Box::new(std::iter::from_fn(move || self.deck.next().map(step)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thousand_requests_have_the_weights() {
        let stone = WebStone::new(&STATIC, 4);
        let steps: Vec<Step> = stone.steps(0).take(2_000).collect();
        for (len, weight) in STATIC {
            assert_eq!(steps.iter().filter(|step| **step == Step::Request(len)).count(), 2 * weight);
        }
        let again: Vec<Step> = WebStone::new(&STATIC, 4).steps(7).take(2_000).collect();
        assert_eq!(steps, again);
    }

    #[test]
    fn log_mix_has_mean_of_paper() {
        let sum: usize = WebStone::log_mix().iter().map(|(len, weight)| len * weight).sum();
        assert!((sum as f64 / 1_000.0 / LOG_MEAN - 1.0).abs() < 0.001, "{sum}");
    }
}
