//! Mutation tests: small defects in a copy of the tree. For each defect the first failing test of
//! core, or the first failing simulated farm, is recorded.
//!
//! Listed changes ([`LISTED`]) are diffs with a sentence each: changes that once no test found.
//! Others are drawn from cargo-mutants' by a seed.
//!
//! The copy is built once with all changes, and an environment variable selects one by its number
//! ([`gate`], [`compile`]). Changes that can't be built like that are applied and built alone
//! ([`tree`]). Each result is recorded, and the next run continues from the record ([`record`]).

mod compile;
mod gate;
mod record;
mod tree;

use std::fs;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use evener_sim::Random;
use serde::Deserialize;

use compile::GatedSources;
use record::{Line, Outcome, Record};
use tree::{Limits, Tree, output, root};

/// Folder of the listed changes, below the tree.
const LISTED: &str = "crates/lab/mutants";
/// Folders for the changes of cargo-mutants.
const DRAWN_FROM: [&str; 4] = [
    "crates/core/src/pool/**",
    "crates/core/src/director/**",
    "crates/core/src/farm/group/**",
    "crates/core/src/node/**",
];
/// Maximum number of changes tested in parallel: tests and farms have their own threads.
const SIDE_BY_SIDE: usize = 2;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Number of changes of cargo-mutants.
    pub drawn: usize,
    /// Seed that selects them.
    pub seed: u64,
    /// Number of simulated farms per change.
    pub farms: u64,
    /// True to skip core's tests.
    pub only_farms: bool,
    /// Folder of the tree's copy and of the record.
    pub directory: PathBuf,
}

#[derive(Clone, Debug)]
struct Mutant {
    name: String,
    diff: String,
}

/// Tests all wanted changes, and prints the test or farm that finds each.
///
/// # Errors
/// Fails if a change can't be tested, or if a test or farm fails without changes.
pub fn run(wanted: &Wanted) -> Result<()> {
    ensure!(wanted.farms > 0 || !wanted.only_farms, "without tests and farms nothing finds a change");
    let tree = Tree::of_head(&wanted.directory)?;
    let mut mutants = listed()?;
    let listed = mutants.len();
    mutants.extend(drawn(&tree, wanted)?);
    let mut record = Record::open(wanted, &tree.code)?;
    let trial = Trial { tree: &tree, wanted, total: mutants.len() };
    let left: Vec<(usize, &Mutant)> =
        (1..).zip(&mutants).filter(|(_, mutant)| record.line(mutant).is_none()).collect();
    trial.try_out(&left, &mut record)?;
    let lines: Vec<&Line> = mutants.iter().filter_map(|mutant| record.line(mutant)).collect();
    let (of_list, of_draw) = lines.split_at(listed.min(lines.len()));
    print(of_list, "that is listed");
    print(of_draw, &format!("of cargo-mutants, drawn by seed {}", wanted.seed));
    print_found_by_farms(&lines, wanted);
    Ok(())
}

fn print(lines: &[&Line], whence: &str) {
    println!("| change {whence} | found by |\n|---|---|");
    for line in lines {
        let found = match &line.outcome {
            Outcome::Test(name) => format!("test `{name}`"),
            Outcome::Farm(broken) => format!("farm {broken}"),
            Outcome::Survives => "nothing".to_owned(),
            Outcome::NotBuilt => "the compiler".to_owned(),
        };
        println!("| {} | {found} |", line.name.replace('|', "\\|"));
    }
    let survive = lines.iter().filter(|line| line.outcome == Outcome::Survives).count();
    println!("\n{survive} of {} survive\n", built(lines));
}

/// Number of changes that compile.
fn built(lines: &[&Line]) -> usize {
    lines.iter().filter(|line| line.outcome != Outcome::NotBuilt).count()
}

fn print_found_by_farms(lines: &[&Line], wanted: &Wanted) {
    let farms = lines.iter().filter(|line| matches!(line.outcome, Outcome::Farm(_))).count();
    let tests = if wanted.only_farms { "core's tests were skipped" } else { "no test of core finds them" };
    println!("farms alone find {farms} of {} that were built: {tests}", built(lines));
}

/// State of a run.
struct Trial<'a> {
    tree: &'a Tree,
    wanted: &'a Wanted,
    /// Number of all changes, including recorded ones.
    total: usize,
}

impl Trial<'_> {
    /// Tests numbered changes: first those that can be built together, then the others alone.
    fn try_out(&self, mutants: &[(usize, &Mutant)], record: &mut Record) -> Result<()> {
        if mutants.is_empty() {
            return Ok(());
        }
        let mut sources = GatedSources::new(self.tree, mutants)?;
        sources.build(self.tree, self.wanted)?;
        let limits = self.tree.limits(self.wanted)?;
        let (together, alone): (Vec<_>, Vec<_>) =
            mutants.iter().copied().partition(|(number, _)| sources.numbers.contains(number));
        eprintln!("{} changes are built together, {} alone", together.len(), alone.len());
        self.try_together(&together, limits, record)?;
        for (number, mutant) in alone {
            eprintln!("{number} of {}, alone: {}", self.total, mutant.name);
            let started = Instant::now();
            let outcome = self.tree.try_alone(mutant, self.wanted)?;
            record.add(mutant, outcome, started.elapsed().as_secs())?;
        }
        Ok(())
    }

    /// Runs tests and farms of the built copy, for each change.
    fn try_together(&self, mutants: &[(usize, &Mutant)], limits: Limits, record: &mut Record) -> Result<()> {
        let (queue, record) = (Mutex::new(mutants.iter()), Mutex::new(record));
        let next = || {
            let mut queue = lock(&queue);
            let (number, mutant) = queue.next()?;
            eprintln!("{number} of {}: {}", self.total, mutant.name);
            Some((*number, *mutant))
        };
        let work = || -> Result<()> {
            while let Some((number, mutant)) = next() {
                let started = Instant::now();
                let outcome = self.tree.outcome(number, self.wanted, limits)?;
                lock(&record).add(mutant, outcome, started.elapsed().as_secs())?;
            }
            Ok(())
        };
        let workers = thread::available_parallelism().map_or(1, NonZero::get).min(SIDE_BY_SIDE);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            for worker in workers {
                match worker.join() {
                    Ok(result) => result?,
                    Err(_) => bail!("a thread that tries changes has panicked"),
                }
            }
            Ok(())
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the listed changes in the order of their file names.
fn listed() -> Result<Vec<Mutant>> {
    let root = root()?;
    let mut files: Vec<PathBuf> =
        fs::read_dir(root.join(LISTED))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path)?;
        let at = text.find("--- ").with_context(|| format!("{} has no diff", path.display()))?;
        Ok(Mutant { name: text[..at].trim().to_owned(), diff: text[at..].to_owned() })
    };
    files.iter().map(read).collect()
}

/// Returns the changes of cargo-mutants that the seed selects.
fn drawn(tree: &Tree, wanted: &Wanted) -> Result<Vec<Mutant>> {
    #[derive(Deserialize)]
    struct Found {
        name: String,
        file: String,
        diff: String,
    }
    if wanted.drawn == 0 {
        return Ok(Vec::new());
    }
    let files = DRAWN_FROM.iter().flat_map(|folder| ["-f", folder]);
    let mut list = Command::new("cargo");
    list.args(["mutants", "--list", "--json", "--diff"]).args(files).current_dir(&tree.path);
    let list = output(&mut list).context("cargo install cargo-mutants")?;
    ensure!(list.status.success(), "cargo mutants: {}", String::from_utf8_lossy(&list.stderr));
    let mut all: Vec<Found> = serde_json::from_slice(&list.stdout)?;
    all.sort_by(|one, other| (&one.name, &one.diff).cmp(&(&other.name, &other.diff)));
    let mut random = Random::new(wanted.seed);
    let mut drawn = Vec::new();
    while drawn.len() < wanted.drawn && !all.is_empty() {
        let Found { name, file, diff } = all.swap_remove(random.below(all.len()));
        // The two lines before the hunks contain no path that git can use.
        let hunks = diff.splitn(3, '\n').nth(2).unwrap_or_default();
        drawn.push(Mutant { name, diff: format!("--- a/{file}\n+++ b/{file}\n{hunks}") });
    }
    Ok(drawn)
}

#[cfg(test)]
mod tests {
    use super::tree::git;
    use super::*;

    #[test]
    fn every_listed_change_applies_to_this_tree() -> Result<()> {
        let (root, mutants) = (root()?, listed()?);
        assert!(mutants.len() >= 13);
        for mutant in mutants {
            git(&root, &["apply", "--check", "-"], &mutant.diff)?;
        }
        Ok(())
    }
}
