//! Number and seed of random cases.

use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestRunner};

/// Returns a runner of `count` cases, multiplied by the number in `EVENER_VOLUME`.
///
/// The cases are the same in every run, unless `PROPTEST_RNG_SEED` sets another seed. Each round of
/// a test has different cases.
pub fn runner(count: u32, round: u64) -> TestRunner {
    let volume = std::env::var("EVENER_VOLUME").map_or(1, |times| times.parse().expect("EVENER_VOLUME"));
    let default = Config::default();
    let seed = match default.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => 1,
    };
    let rng_seed = RngSeed::Fixed(seed.wrapping_add(round << 32));
    TestRunner::new(Config {
        cases: count * volume,
        failure_persistence: None,
        rng_seed,
        rng_algorithm: RngAlgorithm::XorShift,
        ..default
    })
}
