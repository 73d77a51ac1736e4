//! Users who request pages and think in between, in short measurements: as in SURGE (Barford and
//! Crovella, 1998), but with pauses twelve times as short, and SPECweb96's classes of files.

use std::time::Duration;

use evener_sim::Random;

use super::distributions::Distribution;
use super::load::Mix;
use super::{Step, Workload, files};

/// Number of files of a page, with an upper limit.
const FILES: Distribution = Distribution::Pareto { least: 1.0, shape: 2.43 };
const FILES_MAX: f64 = 20.0;
/// Seconds between pages, with an upper limit.
const THINKING: Distribution = Distribution::Pareto { least: 0.08, shape: 1.5 };
const THINKING_MAX_S: f64 = 0.8;

#[derive(Debug)]
pub struct PageUsers {
    mix: Mix,
    /// False to send the next request at once.
    is_thinking: bool,
    seed: u64,
}

impl PageUsers {
    pub fn new(is_thinking: bool, seed: u64) -> PageUsers {
        PageUsers { mix: Mix::new(seed), is_thinking, seed }
    }
}

impl Workload for PageUsers {
    fn files(&self) -> Vec<Step> {
        files(Mix::lengths())
    }

    fn steps(&self, client: usize) -> Box<dyn Iterator<Item = Step> + Send + '_> {
        let mut random = Random::new((self.seed << 32) + client as u64 + 1);
        // users start at files times
        let first = Step::Rest(Duration::from_secs_f64(random.unit()));
        let mut left = 0;
        let step = move || {
            if left == 0 {
                left = FILES.draw(&mut random).min(FILES_MAX).round() as usize + 1;
            }
            left -= 1;
            Some(match left {
                0 if self.is_thinking => {
                    Step::Rest(Duration::from_secs_f64(THINKING.draw(&mut random).min(THINKING_MAX_S)))
                }
                0 => Step::Rest(Duration::ZERO),
                _ => Step::Request(self.mix.next_len()),
            })
        };
        Box::new(std::iter::once(first).chain(std::iter::from_fn(step)))
    }
}
