//! Simulated farms, by seed.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use evener_sim::{
    Counts, INPUTS, Mutation, OUTPUTS, Outcome, Promise, Topic, refuse_before_another, refuse_every_write,
    run, run_with, shrink, storm_of_joins,
};

/// Number of farms of a test run, multiplied by `EVENER_VOLUME`. docs/developers/proof.md has the
/// measurement.
const SEEDS: u64 = 1_000;
/// Maximum number of farms that are run until a defect shows.
const SEEDS_OF_A_DEFECT: u64 = 1_000;

/// Number of consecutive seeds that cover all kinds of farms.
const KINDS: u64 = 6;

/// Returns the first seed, up to `seeds`, whose farm is wrong. Runs farms on all processors.
fn first(seeds: u64, is_wrong: impl Fn(u64) -> bool + Sync) -> Option<u64> {
    let (next, found) = (AtomicU64::new(1), AtomicU64::new(u64::MAX));
    let look = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > seeds.min(found.load(Ordering::Relaxed)) {
                return;
            }
            if is_wrong(seed) {
                found.fetch_min(seed, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(look);
        }
    });
    Some(found.into_inner()).filter(|seed| *seed <= seeds)
}

/// True if too little has happened in a run for its result to count.
fn is_small(outcome: &Outcome) -> bool {
    outcome.hosts < 4 || outcome.clients < 20 || outcome.facts < 500 || outcome.faults() < 3
}

/// Checks that each promise was tested in a relevant state, and that directors got all kinds of
/// inputs and gave all kinds of outputs.
fn all_is_met(covered: &Counts) {
    let promises = Promise::ALL.iter().map(|promise| (Topic::Promise, promise.name()));
    let inputs = INPUTS.iter().map(|name| (Topic::Input, *name));
    let outputs = OUTPUTS.iter().map(|name| (Topic::Output, *name));
    let missed: Vec<_> =
        promises.chain(inputs).chain(outputs).filter(|what| !covered.contains_key(what)).collect();
    assert!(missed.is_empty(), "no farm has met {missed:?}");
    let known = |topic, name| match topic {
        Topic::Input => INPUTS.contains(&name),
        Topic::Output => OUTPUTS.contains(&name),
        Topic::Promise | Topic::Forgery => true,
    };
    let unlisted: Vec<_> = covered.keys().filter(|(topic, name)| !known(*topic, name)).collect();
    assert!(unlisted.is_empty(), "list them: {unlisted:?}");
}

fn volume() -> u64 {
    std::env::var("EVENER_VOLUME").map_or(1, |times| times.parse().expect("EVENER_VOLUME"))
}

#[test]
fn simulated_farms_keep_every_promise() {
    let (large, covered) = (AtomicU64::new(0), Mutex::new(Counts::new()));
    let is_wrong = |seed| {
        let outcome = run(seed);
        let mut all = covered.lock().unwrap();
        outcome.coverage.iter().for_each(|(what, count)| *all.entry(*what).or_default() += count);
        drop(all);
        large.fetch_add(u64::from(outcome.hosts > 30), Ordering::Relaxed);
        outcome.broken.is_some() || is_small(&outcome)
    };
    let seeds = SEEDS * volume();
    let Some(seed) = first(seeds, is_wrong) else {
        assert!(large.into_inner() >= seeds / 50, "too few farms have many servers");
        return all_is_met(&covered.into_inner().unwrap());
    };
    let Outcome { hosts, clients, facts, broken, .. } = run(seed);
    assert!(
        broken.is_some(),
        "seed {seed} has but {hosts} hosts, {clients} clients, {facts} facts, or few faults"
    );
    panic!("{}\nreplay it: evener-lab simulate --seed {seed}", shrink(seed));
}

#[test]
fn each_defect_breaks_a_promise() {
    for mutation in Mutation::ALL {
        let found = first(SEEDS_OF_A_DEFECT, |seed| run_with(*mutation, seed).broken.is_some());
        let seed = found.unwrap_or_else(|| panic!("{mutation:?} was not found"));
        if let Some(broken) = run_with(*mutation, seed).broken {
            println!("{mutation:?} is found by seed {seed}: {broken}");
        }
    }
}

/// Refuses each write in turn, of each of twelve changes, in farms of every kind.
#[test]
fn engine_that_fails_at_any_write_breaks_no_promise() {
    for seed in 1..=KINDS {
        let refusals = refuse_every_write(seed).unwrap_or_else(|outcome| panic!("{outcome}"));
        println!("the farm of seed {seed} met {refusals} refusals");
        assert!(refusals >= 20, "the farm of seed {seed} met {refusals} refusals only");
    }
}

#[test]
fn change_that_comes_while_another_one_is_refused_breaks_no_promise() {
    for seed in 1..=KINDS {
        let refusals = refuse_before_another(seed).unwrap_or_else(|outcome| panic!("{outcome}"));
        println!("the farm of seed {seed} met {refusals} refusals");
        assert!(refusals >= 50, "the farm of seed {seed} met {refusals} refusals only");
    }
}

#[test]
fn same_seed_gives_the_same_run() {
    for seed in 1..=KINDS {
        let [one, other] = [run(seed), run(seed)];
        assert_eq!((one.history, one.facts), (other.history, other.facts));
    }
}

/// A group accepts at most 1,024 members that join.
#[test]
fn storm_of_ten_thousand_joins_takes_no_client_from_working_members() {
    let outcome = storm_of_joins(10_000);
    assert!(outcome.broken.is_none(), "{outcome}");
    assert!(outcome.facts > 10_000, "{} facts only", outcome.facts);
}
