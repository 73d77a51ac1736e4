//! Pseudo-random numbers, equal in every run, so that variants are compared under the same load.

/// xorshift64* (Vigna 2016).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator with a separate sequence for each seed.
    pub fn new(seed: u64) -> Random {
        // Mixes the seed, since neighbouring seeds must not start alike, and avoids zero.
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number above 0 and at most 1.
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// Returns a Pareto-distributed number of at least 1.
    pub fn pareto(&mut self, shape: f64) -> f64 {
        self.unit().powf(-1.0 / shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_as_they_must_be() {
        const COUNT: usize = 100_000;
        let mut random = Random::new(1);
        let mean = (0..COUNT).map(|_| random.unit()).sum::<f64>() / COUNT as f64;
        assert!((0.49..0.51).contains(&mean), "{mean}");
        let mean = (0..COUNT).map(|_| random.pareto(3.0)).sum::<f64>() / COUNT as f64;
        assert!((1.48..1.52).contains(&mean), "{mean}");
        assert!((0..100).all(|_| random.below(3) < 3));
    }
}
