//! Probability distributions of published workloads. A seed's numbers are the same in every run.

use evener_sim::Random;
use statrs::distribution::{ContinuousCDF as _, Normal};

/// Distribution of positive numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Logarithms are normal with this mean and standard deviation.
    Lognormal {
        mu: f64,
        sigma: f64,
    },
    /// Numbers of at least `least`.
    Pareto {
        least: f64,
        shape: f64,
    },
    Weibull {
        scale: f64,
        shape: f64,
    },
}

impl Distribution {
    /// Returns the number that a part of all numbers doesn't exceed. The part is above 0 and below
    /// 1.
    pub fn quantile(self, part: f64) -> f64 {
        match self {
            Distribution::Lognormal { mu, sigma } => {
                // the standard normal has valid parameters
                Normal::new(mu, sigma).map_or(f64::NAN, |normal| normal.inverse_cdf(part).exp())
            }
            Distribution::Pareto { least, shape } => least * (1.0 - part).powf(-1.0 / shape),
            Distribution::Weibull { scale, shape } => scale * (-(1.0 - part).ln()).powf(1.0 / shape),
        }
    }

    /// Returns the next number of a sequence.
    pub fn draw(self, random: &mut Random) -> f64 {
        // neither 0 nor 1 has a quantile
        self.quantile((1.0 - random.unit()).max(f64::EPSILON))
    }
}

/// Choice among things by weight.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Sums of the weights up to each thing.
    sums: Vec<f64>,
}

impl Weights {
    pub fn new(weights: impl IntoIterator<Item = f64>) -> Weights {
        let sums = weights.into_iter().scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Weights { sums: sums.collect() }
    }

    /// Returns weights of Zipf's law: the thing of rank `r` has `r` to the power of `-exponent`.
    pub fn zipf(count: usize, exponent: f64) -> Weights {
        Weights::new((1..=count).map(|rank| (rank as f64).powf(-exponent)))
    }

    /// Returns the number of a thing, from 0.
    pub fn draw(&self, random: &mut Random) -> usize {
        let point = random.unit() * self.sums.last().copied().unwrap_or_default();
        self.sums.partition_point(|sum| *sum < point).min(self.sums.len().saturating_sub(1))
    }

    /// Part of the choices that a thing has.
    pub fn share(&self, number: usize) -> f64 {
        let before =
            number.checked_sub(1).and_then(|number| self.sums.get(number)).copied().unwrap_or_default();
        match (self.sums.get(number), self.sums.last()) {
            (Some(sum), Some(all)) => (sum - before) / all,
            _ => 0.0,
        }
    }
}

/// Returns the exponent of Zipf's law by which the first of `count` things has this share.
pub fn zipf_exponent(count: usize, share: f64) -> f64 {
    let (mut low, mut high) = (0.0, 8.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if Weights::zipf(count, middle).share(0) < share { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 1_000_000;

    fn drawn(seed: u64, mut next: impl FnMut(&mut Random) -> f64) -> Vec<f64> {
        let mut random = Random::new(seed);
        let mut all: Vec<f64> = (0..DRAWS).map(|_| next(&mut random)).collect();
        all.sort_by(f64::total_cmp);
        all
    }

    /// Quantiles of the formulas, computed by hand; z is the standard normal's.
    #[test]
    fn quantiles_of_a_million_draws_are_those_of_the_formulas() {
        let z =
            [(0.1, -1.281_551_6), (0.5, 0.0), (0.9, 1.281_551_6), (0.99, 2.326_347_9), (0.999, 3.090_232_3)];
        let lognormal = z.map(|(part, z): (f64, f64)| (part, (9.357 + 1.318 * z).exp()));
        let heavy = z.map(|(part, _)| (part, 133_000.0 / (1.0 - part).powf(1.0 / 1.1)));
        let off = z.map(|(part, _)| (part, 1.0 / (1.0 - part).powf(1.0 / 1.5)));
        let references = z.map(|(part, _)| (part, 1.0 / (1.0 - part).powf(1.0 / 2.43)));
        let active = z.map(|(part, _)| (part, 1.46 * (1.0_f64 / (1.0 - part)).ln().powf(1.0 / 0.382)));
        let cases = [
            (Distribution::Lognormal { mu: 9.357, sigma: 1.318 }, lognormal),
            (Distribution::Pareto { least: 133_000.0, shape: 1.1 }, heavy),
            (Distribution::Pareto { least: 1.0, shape: 1.5 }, off),
            (Distribution::Pareto { least: 1.0, shape: 2.43 }, references),
            (Distribution::Weibull { scale: 1.46, shape: 0.382 }, active),
        ];
        for (distribution, expected) in cases {
            // with some seeds, a thousandth of a million draws is off by up to 6 % by chance
            let all = drawn(12, |random| distribution.draw(random));
            for (part, expected) in expected {
                let found = all[(part * DRAWS as f64) as usize];
                assert!(
                    (found / expected - 1.0).abs() < 0.02,
                    "{distribution:?} {part}: {found}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn shares_of_a_million_choices_are_the_weights() {
        let weights = Weights::new([350.0, 500.0, 140.0, 9.0, 1.0]);
        let mut random = Random::new(1);
        let mut counts = [0; 5];
        (0..DRAWS).for_each(|_| counts[weights.draw(&mut random)] += 1);
        for (number, part) in [0.35, 0.5, 0.14, 0.009, 0.001].into_iter().enumerate() {
            let found = f64::from(counts[number]) / DRAWS as f64;
            // a million draws have a rare thing's share within a few percent alone
            assert!(part < 0.1 || (found / part - 1.0).abs() < 0.02, "{number}: {found}");
            assert!((weights.share(number) / part - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn zipf_exponent_gives_the_first_its_share() {
        let exponent = zipf_exponent(10_000, 100_000.0 / 490_000.0);
        assert!((1.1..1.4).contains(&exponent), "{exponent}");
        assert!((Weights::zipf(10_000, exponent).share(0) - 0.204_08).abs() < 1e-4);
    }
}
