//! Whole farms in one process: the directors are those of the product, everything around them is
//! played. A run depends on its seed alone, so a run that breaks a promise breaks it again, in as
//! few steps as can be found.
//!
//! The order of things is that of [`Step`]s, which a seed makes before anything runs; how long
//! things take, and what the network loses, comes from a second sequence of the same seed. So a
//! step can be left out, and the others mean the same still.

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

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// Facts that directors were told.
    pub facts: usize,
    /// Hosts of the farm: those that decide, and those that only serve.
    pub hosts: usize,
    /// Clients of the farm.
    pub clients: usize,
    /// How often an engine refused tables.
    pub refusals: usize,
    /// The promise that was broken, if one was.
    pub broken: Option<Broken>,
    /// The parts of a farm's life that it met.
    pub coverage: Counts,
    /// The kind of its farm, in a word.
    pub kind: &'static str,
    /// The events.
    pub history: Vec<Line>,
    steps: Vec<Step>,
}

impl Outcome {
    /// The steps that were taken.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// How much of that went wrong.
    pub fn faults(&self) -> usize {
        self.steps.iter().filter(|step| step.is_fault()).count()
    }
}

/// Runs the farm of a seed.
pub fn run(seed: u64) -> Outcome {
    play(seed, None, step::make(seed))
}

/// Runs the farm of a seed with a defect in it.
pub fn run_with(mutation: Mutation, seed: u64) -> Outcome {
    play(seed, Some(mutation), step::make(seed))
}

/// Runs the farm of a seed, and leaves out all steps that a broken promise doesn't need.
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

/// Has so many members join the group of a farm at once, from a host that serves nobody, while
/// clients come.
pub fn storm_of_joins(count: usize) -> Outcome {
    play(farms::WEB, None, step::storm(count))
}

/// Has the engine of a farm's first node refuse each write of each of some changes, one in each
/// run. How many refusals that were, or the first run that broke a promise.
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

/// Has the engine of a farm's first node refuse each of some changes, half-way or before anything
/// was written, while each other one waits; and a reload that has waited for both. How many
/// refusals that were, or the first run that broke a promise.
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
