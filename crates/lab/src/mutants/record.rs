//! Record of results, from which an interrupted run continues.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{Mutant, Wanted};

/// Result of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// Name of a failing test of core, or the kind of failure without a name.
    Test(String),
    /// Seed of the farm that violates a promise, and the promise.
    Farm(String),
    /// No test fails and no promise is violated.
    Survives,
    /// The changed program does not compile.
    NotBuilt,
}

/// Line of the record: a change and its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) name: String,
    diff: String,
    code: String,
    /// True if core's tests were skipped.
    #[serde(default)]
    only_farms: bool,
    /// Number of simulated farms.
    #[serde(default)]
    farms: u64,
    seconds: u64,
    pub(super) outcome: Outcome,
}

impl Line {
    /// True if a run with these options would have the same result.
    fn is_for(&self, code: &str, wanted: &Wanted) -> bool {
        let is_same = match self.outcome {
            // Tests have `std`, so they may compile if farms don't.
            Outcome::NotBuilt => wanted.only_farms || !self.only_farms,
            Outcome::Test(_) => !wanted.only_farms,
            Outcome::Farm(_) | Outcome::Survives => {
                self.farms == wanted.farms && self.only_farms == wanted.only_farms
            }
        };
        self.code == code && is_same
    }
}

/// Results for this code and these options, in a file with one JSON line for each.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    code: String,
    wanted: Wanted,
    /// Lines by the diff of the change.
    lines: BTreeMap<String, Line>,
}

impl Record {
    /// Reads the results of earlier runs.
    pub(super) fn open(wanted: &Wanted, code: &str) -> Result<Record> {
        let path = wanted.directory.join("record.jsonl");
        let text = if path.exists() { fs::read_to_string(&path)? } else { String::new() };
        // The last line is incomplete if a run was killed while writing.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        let lines = lines.filter(|line| line.is_for(code, wanted));
        let lines = lines.map(|line| (line.diff.clone(), line)).collect();
        Ok(Record { path, code: code.to_owned(), wanted: wanted.clone(), lines })
    }

    pub(super) fn line(&self, mutant: &Mutant) -> Option<&Line> {
        self.lines.get(&mutant.diff)
    }

    pub(super) fn add(&mut self, mutant: &Mutant, outcome: Outcome, seconds: u64) -> Result<()> {
        let Mutant { name, diff } = mutant.clone();
        let Wanted { only_farms, farms, .. } = self.wanted;
        let line = Line { name, diff, code: self.code.clone(), only_farms, farms, seconds, outcome };
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&self.path)?;
        writeln!(file, "{}", serde_json::to_string(&line)?)?;
        self.lines.insert(line.diff.clone(), line);
        Ok(())
    }
}
