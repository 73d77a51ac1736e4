//! Simulated farms, by seed.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::thread;

use evener_lab::sim::{run, shrink};

/// Farms that run in each test run; `evener-lab simulate --seeds N` runs as many as wanted.
const SEEDS: u64 = 1_000;
const THREADS: u64 = 2;

#[test]
fn farms_keep_every_promise() {
    let failing =
        |first: u64| (first..=SEEDS).step_by(THREADS as usize).find(|seed| run(*seed).broken.is_some());
    let found = thread::scope(|scope| {
        let threads: Vec<_> = (1..=THREADS).map(|first| scope.spawn(move || failing(first))).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).min()
    });
    if let Some(seed) = found {
        panic!("{}\nreplay it: evener-lab simulate --seed {seed}", shrink(seed));
    }
}

#[test]
fn a_run_depends_on_its_seed_alone() {
    for seed in 1..=4 {
        let [one, other] = [run(seed), run(seed)];
        assert_eq!((one.history, one.facts), (other.history, other.facts));
        assert!(one.facts >= 300, "seed {seed} has but {} facts", one.facts);
    }
}
