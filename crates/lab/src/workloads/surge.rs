//! SURGE (Barford and Crovella, 1998): users who request pages of several files, with pauses, from
//! a set of files with a few popular ones.
//!
//! A user's references are pages: a number of files (embedded references), a short pause between
//! them (active OFF), and a long one after them (inactive OFF). All users take their files from one
//! sequence, as SURGE prepares it: each file is in it as often as Zipf's law says, and the distance
//! between two requests of a file is lognormal, as far as these numbers allow it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use evener_sim::Random;

use super::distributions::{Distribution, Weights, zipf_exponent};
use super::{Shared, Step, Workload, files, shuffle};

/// Sizes of most files in bytes, and of the others.
const BODY: Distribution = Distribution::Lognormal { mu: 9.357, sigma: 1.318 };
const TAIL: Distribution = Distribution::Pareto { least: 133_000.0, shape: 1.1 };
const BODY_PART: f64 = 0.93;
/// Number of files of a page.
const REFERENCES: Distribution = Distribution::Pareto { least: 1.0, shape: 2.43 };
/// Pauses in seconds, within a page and between pages.
const ACTIVE_OFF: Distribution = Distribution::Weibull { scale: 1.46, shape: 0.382 };
const INACTIVE_OFF: Distribution = Distribution::Pareto { least: 1.0, shape: 1.5 };
/// Number of other files that were requested since the last request of a file.
const STACK_DISTANCE: Distribution = Distribution::Lognormal { mu: 1.5, sigma: 0.8 };

/// Greatest number of requests of a burst.
const BURST: usize = 32;
/// Time within which all users begin.
const BEGINNING: Duration = Duration::from_secs(10);
/// Number of requests in a sequence: a tenth of the LCCP paper's.
const REQUESTS: usize = 49_000;

/// Set of files with users.
#[derive(Debug)]
pub struct Surge {
    /// Lengths in bytes by rank: the first file is the most popular.
    lengths: Vec<usize>,
    /// Ranks of files in the order of requests; it begins anew at its end.
    sequence: Shared<usize>,
    /// False to send the next request at once.
    is_thinking: bool,
    seed: u64,
}

impl Surge {
    /// Returns a set with the published sizes, and popularity by Zipf's law. The heavy tail ends at
    /// `longest` bytes.
    pub fn new(files: usize, longest: usize, seed: u64) -> Surge {
        let mut random = Random::new(seed);
        let mut lengths: Vec<usize> = (0..files).map(|number| length(number, files, longest)).collect();
        // sizes and popularity are independent
        shuffle(&mut lengths, &mut random);
        let sequence = Shared::new(sequence(&counts(files, 1.0, REQUESTS), &mut random));
        Surge { lengths, sequence, is_thinking: true, seed }
    }

    /// Returns the set of the LCCP paper, section 5.1: 10,000 files with a sum of 187 MB, of 74
    /// bytes to 1.4 MB. Of 490,000 requests, 100,000 are for the first file. Users don't think.
    pub fn of_lccp(seed: u64) -> Surge {
        const FILES: usize = 10_000;
        const SUM: f64 = 187e6;
        let mut surge = Surge::new(FILES, 1_400_000, seed);
        // the published sizes have a greater sum, so all are smaller by the same part
        let sum: usize = surge.lengths.iter().sum();
        let part = SUM / sum as f64;
        surge.lengths.iter_mut().for_each(|len| *len = ((*len as f64 * part) as usize).max(74));
        let exponent = zipf_exponent(FILES, 100.0 / 490.0);
        let sequence = sequence(&counts(FILES, exponent, REQUESTS), &mut Random::new(seed));
        surge.sequence = Shared::new(sequence);
        Surge { is_thinking: false, ..surge }
    }

    /// Returns the first requests of so many users, by time in seconds, with their lengths in
    /// bytes, if each reply takes no time. Users begin one after another within [`BEGINNING`].
    pub fn arrivals(&self, users: usize, requests: usize) -> Vec<(f64, usize)> {
        let mut users: Vec<_> = (0..users.max(1)).map(|client| self.steps(client)).collect();
        let at = |user, time: Duration| Reverse((time, user));
        let mut due: BinaryHeap<_> = {
            let begin = |user: usize| BEGINNING.mul_f64(user as f64 / users.len() as f64);
            (0..users.len()).map(|user| at(user, begin(user))).collect()
        };
        let mut arrivals = Vec::with_capacity(requests);
        while let Some(Reverse((time, user))) = due.pop().filter(|_| arrivals.len() < requests) {
            let Some(step) = users.get_mut(user).and_then(Iterator::next) else { continue };
            match step {
                Step::Rest(rest) => due.push(at(user, time + rest)),
                Step::Request(len) => {
                    arrivals.push((time.as_secs_f64(), len));
                    due.push(at(user, time));
                }
                Step::RequestIn(..) | Step::Program(..) => {}
            }
        }
        arrivals
    }
}

/// Returns the length of one of all files: they are the distributions' quantiles, since a few draws
/// of the heavy tail would differ from seed to seed.
fn length(number: usize, files: usize, longest: usize) -> usize {
    let part = (number as f64 + 0.5) / files as f64;
    let len = if part < BODY_PART {
        BODY.quantile(part / BODY_PART)
    } else {
        TAIL.quantile((part - BODY_PART) / (1.0 - BODY_PART))
    };
    (len as usize).clamp(74, longest)
}

impl Workload for Surge {
    fn files(&self) -> Vec<Step> {
        files(self.lengths.clone())
    }

    fn steps(&self, client: usize) -> Box<dyn Iterator<Item = Step> + Send + '_> {
        let random = Random::new((self.seed << 32) + client as u64 + 1);
        Box::new(User { surge: self, random, left: 0, is_between: false })
    }
}

/// Returns the number of requests of each file, by rank. Rounding keeps the sum: of rare files,
/// some have a request and some have none.
fn counts(files: usize, exponent: f64, requests: usize) -> Vec<usize> {
    let popularity = Weights::zipf(files, exponent);
    let mut sum = 0.0;
    let mut before = 0;
    let mut count = |rank: usize| {
        sum += popularity.share(rank) * requests as f64;
        let until = sum.round() as usize;
        let count = until - before;
        before = until;
        count
    };
    (0..files).map(&mut count).collect()
}

/// Returns a sequence that has each rank as often as its count says. A file's requests come in
/// bursts that begin at any time; between two requests of a burst are as many others as the drawn
/// distance.
fn sequence(counts: &[usize], random: &mut Random) -> Vec<usize> {
    let len: usize = counts.iter().sum();
    let mut requests: Vec<(f64, usize)> = Vec::with_capacity(len);
    for (rank, count) in counts.iter().enumerate() {
        let mut time = 0.0;
        for number in 0..*count {
            time = match number % BURST {
                0 => random.unit() * len as f64,
                _ => time + 1.0 + STACK_DISTANCE.draw(random),
            };
            requests.push((time, rank));
        }
    }
    requests.sort_by(|one, other| one.0.total_cmp(&other.0));
    requests.into_iter().map(|(_, rank)| rank).collect()
}

/// User of the set.
struct User<'a> {
    surge: &'a Surge,
    random: Random,
    /// Number of files that are left of the page.
    left: u32,
    /// True if a pause follows.
    is_between: bool,
}

impl Iterator for User<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let pause = |distribution: Distribution, random: &mut Random| {
            // the heavy tail has pauses of days
            Step::Rest(Duration::from_secs_f64(distribution.draw(random).min(3600.0)))
        };
        if self.is_between {
            self.is_between = false;
            let distribution = if self.left == 0 { INACTIVE_OFF } else { ACTIVE_OFF };
            return Some(pause(distribution, &mut self.random));
        }
        if self.left == 0 {
            self.left = REFERENCES.draw(&mut self.random).min(100.0) as u32;
        }
        self.left -= 1;
        self.is_between = self.surge.is_thinking;
        let rank = self.surge.sequence.next()?;
        self.surge.lengths.get(rank).map(|len| Step::Request(*len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_of_lccp_has_published_sizes_and_popularity() {
        let surge = Surge::of_lccp(1);
        assert_eq!(surge.lengths.len(), 10_000);
        let sum = surge.lengths.iter().sum::<usize>() as f64;
        assert!((sum / 187e6 - 1.0).abs() < 0.02, "{sum}");
        let (least, most) = (surge.lengths.iter().min(), surge.lengths.iter().max());
        assert!(least.is_some_and(|len| *len >= 74) && most.is_some_and(|len| *len <= 1_400_000));
        let first = surge.sequence.all.iter().filter(|rank| **rank == 0).count() as f64;
        assert!((first / surge.sequence.all.len() as f64 / 0.204 - 1.0).abs() < 0.02, "{first}");
        // as often in each part of the sequence, within what chance allows
        let quarters = surge.sequence.all.chunks(surge.sequence.all.len().div_ceil(4));
        for quarter in quarters {
            let first = quarter.iter().filter(|rank| **rank == 0).count() as f64 / quarter.len() as f64;
            assert!((0.14..0.27).contains(&first), "{first}");
        }
    }

    #[test]
    fn sequence_has_each_file_as_often_as_its_law_says() {
        let surge = Surge::new(2_000, 1_000_000, 3);
        let expected = counts(2_000, 1.0, REQUESTS);
        let mut found = vec![0; 2_000];
        surge.sequence.all.iter().for_each(|rank| found[*rank] += 1);
        assert_eq!(found, expected);
    }

    /// The distance of a request is the number of other files since the last one of its file.
    #[test]
    fn distances_are_short_as_measured_by_surge() {
        let sequence = sequence(&counts(2_000, 1.0, REQUESTS), &mut Random::new(5));
        let mut list: Vec<usize> = Vec::new();
        let mut distances = Vec::new();
        for rank in sequence {
            if let Some(place) = list.iter().position(|other| *other == rank) {
                distances.push(place);
                list.remove(place);
            }
            list.insert(0, rank);
        }
        distances.sort_unstable();
        let quantile = |part: f64| distances[(part * distances.len() as f64) as usize] as f64;
        let (half, most) = (quantile(0.5), quantile(0.9));
        assert!((2.0..=7.0).contains(&half) && (8.0..=25.0).contains(&most), "{half} {most}");
    }

    #[test]
    fn equal_seeds_request_equal_files() {
        let steps = |seed| -> Vec<Step> { Surge::new(500, 1_000_000, seed).steps(3).take(2_000).collect() };
        assert_eq!(steps(1), steps(1));
        assert_ne!(steps(1), steps(2));
    }

    #[test]
    fn users_think_between_files_and_pages() {
        let surge = Surge::new(100, 1_000_000, 1);
        let steps: Vec<Step> = surge.steps(0).take(1_000).collect();
        let requests = steps.iter().filter(|step| matches!(step, Step::Request(_))).count();
        assert_eq!(requests, 500);
        let flood = Surge::of_lccp(1);
        assert!(flood.steps(0).take(100).all(|step| matches!(step, Step::Request(_))));
    }
}
