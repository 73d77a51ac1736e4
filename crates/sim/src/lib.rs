//! Simulates whole farms in one process. The directors are Evener's; everything around them is
//! simulated. A run depends only on its seed, so a run that violates a promise is reproducible and
//! can be reduced to few steps.
//!
//! The seed determines the sequence of [`Step`]s before the run. A second random sequence of the
//! same seed determines delays and losses. So steps can be left out without changing the meaning of
//! the other steps.

mod check;
mod coverage;
mod engine;
mod farms;
mod forgery;
mod handoff;
mod healing;
mod history;
mod hosts;
mod link;
mod mutation;
mod node;
mod random;
mod rest;
mod rings;
mod router;
mod segment;
mod step;
mod streaks;
mod web;
mod world;

use std::fmt;

pub use check::{Broken, Promise};
pub use coverage::{Counts, INPUTS, OUTPUTS, Topic};
pub use history::Line;
pub use mutation::Mutation;
pub use random::Random;
pub use step::Step;
use world::World;

#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    /// Number of inputs of directors.
    pub facts: usize,
    /// Number of hosts of the farm, directors included.
    pub hosts: usize,
    pub clients: usize,
    /// Number of changes that engines refused.
    pub refusals: usize,
    /// Violated promise; `None` if the run passed.
    pub broken: Option<Broken>,
    pub coverage: Counts,
    /// Kind of the farm.
    pub kind: &'static str,
    pub history: Vec<Line>,
    steps: Vec<Step>,
}

impl Outcome {
    /// Steps that were taken.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Number of these steps that are faults.
    pub fn faults(&self) -> usize {
        self.steps.iter().filter(|step| step.is_fault()).count()
    }
}

/// Runs the farm of a seed.
pub fn run(seed: u64) -> Outcome {
    play(seed, None, step::make(seed))
}

/// Runs the farm of a seed with a defect.
pub fn run_with(mutation: Mutation, seed: u64) -> Outcome {
    play(seed, Some(mutation), step::make(seed))
}

/// Runs the farm of a seed. If a promise is violated, removes all steps that are not needed for the
/// violation.
pub fn shrink(seed: u64) -> Outcome {
    let mut least = run(seed);
    let Some(kind) = least.broken.as_ref().map(Broken::kind) else { return least };
    let mut chunk = least.steps.len().div_ceil(2);
    while chunk > 0 {
        let mut from = 0;
        while from < least.steps.len() {
            let mut fewer = least.steps.clone();
            fewer.drain(from..(from + chunk).min(fewer.len()));
            let tried = play(seed, None, fewer);
            match tried.broken.as_ref().map(Broken::kind) {
                Some(found) if found == kind => least = tried,
                _ => from += chunk,
            }
        }
        chunk /= 2;
    }
    least
}

fn play(seed: u64, mutation: Option<Mutation>, steps: Vec<Step>) -> Outcome {
    let mut world = World::new(seed, mutation);
    let broken = steps.iter().try_for_each(|step| world.take(step)).and_then(|()| world.heal()).err();
    let (hosts, clients) = (world.kind.hosts(), step::clients(&steps));
    let (refusals, coverage, kind) = (world.refusals(), world.coverage.counts(), world.kind.name());
    let World { facts, history, .. } = world;
    Outcome { seed, facts, hosts, clients, refusals, broken, coverage, kind, history, steps }
}

/// Lets `count` members join a farm's group at once, from a host without other members, while
/// clients connect.
pub fn storm_of_joins(count: usize) -> Outcome {
    play(farms::WEB, None, step::storm(count))
}

/// Refuses each write of each of some changes in the engine of a farm's first node, one per run.
/// Returns the number of refusals, or the first run that violates a promise.
pub fn refuse_every_write(seed: u64) -> Result<usize, Box<Outcome>> {
    let mut refusals = 0;
    for change in 0..step::CHANGES.len() {
        for write in 0.. {
            let outcome = play(seed, None, step::refused_at(change, write));
            if outcome.broken.is_some() {
                return Err(Box::new(outcome));
            }
            if outcome.refusals == 0 {
                break;
            }
            refusals += outcome.refusals;
        }
    }
    Ok(refusals)
}

/// Refuses each of some changes in the engine of a farm's first node, before or between writes.
/// Each other change waits meanwhile, in some runs together with a reload. Returns the number of
/// refusals, or the first run that violates a promise.
pub fn refuse_before_another(seed: u64) -> Result<usize, Box<Outcome>> {
    let (mut refusals, count) = (0, step::CHANGES.len());
    for (change, other) in (0..count).flat_map(|change| (0..count).map(move |other| (change, other))) {
        for is_reload in [false, true] {
            let steps = step::refused_before(change, other, (change + other) % 2, is_reload);
            let outcome = play(seed, None, steps);
            if outcome.broken.is_some() {
                return Err(Box::new(outcome));
            }
            refusals += outcome.refusals;
        }
    }
    Ok(refusals)
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.history {
            writeln!(f, "{line}")?;
        }
        match &self.broken {
            Some(broken) => write!(f, "seed {}: {broken}", self.seed),
            None => write!(f, "seed {}: every promise was kept, {} facts", self.seed, self.facts),
        }
    }
}
