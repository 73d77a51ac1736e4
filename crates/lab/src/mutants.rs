//! Small wrong changes, put into a copy of the tree one at a time: which test of core, or which
//! simulated farm, finds each.
//!
//! Some are listed ([`LISTED`]), each a diff with a sentence before it: changes that nothing had
//! noticed once. Others are those of cargo-mutants, drawn by a seed. The finding of each is written
//! down, and the next run goes on from there.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use evener_sim::Random;
use serde::{Deserialize, Serialize};

/// Where the listed ones are, below the tree.
const LISTED: &str = "crates/lab/mutants";
/// The folders whose code others are drawn from.
const DRAWN_FROM: [&str; 2] = ["crates/core/src/pool/**", "crates/core/src/director/**"];
/// A test that runs for so long hangs, in seconds.
const LIMIT_S: u32 = 900;

/// How many are tried, and where.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// How many of cargo-mutants' changes.
    pub drawn: usize,
    /// By which they are drawn.
    pub seed: u64,
    /// How many farms are simulated for each.
    pub farms: u64,
    /// Where the copy of the tree and the record are.
    pub directory: PathBuf,
}

/// A wrong change.
#[derive(Clone, Debug)]
struct Mutant {
    name: String,
    diff: String,
}

/// The result of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Outcome {
    /// A test of core fails, by its name; or hangs.
    Test(String),
    /// The farm of this seed breaks a promise.
    Farm(String),
    /// Nothing notices.
    Survives,
    /// It isn't a program: no change to speak of.
    NotBuilt,
}

/// A line of the record.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    name: String,
    diff: String,
    code: String,
    seconds: u64,
    outcome: Outcome,
}

/// Tries all that are wanted, and prints what found each.
///
/// # Errors
/// When one can't be tried.
pub fn run(wanted: &Wanted) -> Result<()> {
    let tree = Tree::of_head(&wanted.directory)?;
    let mut mutants = listed()?;
    let listed = mutants.len();
    mutants.extend(drawn(&tree, wanted)?);
    let record = wanted.directory.join("record.jsonl");
    let mut known = read_record(&record, &tree.code)?;
    let mut lines = Vec::new();
    for (number, mutant) in (1..).zip(&mutants) {
        let line = match known.remove(&mutant.diff) {
            Some(line) => line,
            None => {
                eprintln!("{number} of {}: {}", mutants.len(), mutant.name);
                let line = tree.try_out(mutant, wanted.farms)?;
                let mut file = fs::OpenOptions::new().create(true).append(true).open(&record)?;
                writeln!(file, "{}", serde_json::to_string(&line)?)?;
                line
            }
        };
        lines.push(line);
    }
    let (of_list, of_draw) = lines.split_at(listed.min(lines.len()));
    print(of_list, "that is listed");
    print(of_draw, &format!("of cargo-mutants, drawn by seed {}", wanted.seed));
    Ok(())
}

fn print(lines: &[Line], whence: &str) {
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
    let built = lines.iter().filter(|line| line.outcome != Outcome::NotBuilt).count();
    let survive = lines.iter().filter(|line| line.outcome == Outcome::Survives).count();
    println!("\n{survive} of {built} survive\n");
}

/// The listed ones, in the order of their files' names.
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

/// Those of cargo-mutants that the seed draws.
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
        // Behind the two lines that name what changes, which git reads otherwise.
        let hunks = diff.splitn(3, '\n').nth(2).unwrap_or_default();
        drawn.push(Mutant { name, diff: format!("--- a/{file}\n+++ b/{file}\n{hunks}") });
    }
    Ok(drawn)
}

/// Results of earlier runs for this code, by the changes' texts.
fn read_record(path: &Path, code: &str) -> Result<BTreeMap<String, Line>> {
    let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
    // A line may be cut.
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    Ok(lines.filter(|line| line.code == code).map(|line| (line.diff.clone(), line)).collect())
}

/// A copy of the tree, with a target folder of its own.
struct Tree {
    path: PathBuf,
    code: String,
}

impl Tree {
    /// The tree as it was committed last.
    fn of_head(directory: &Path) -> Result<Tree> {
        fs::create_dir_all(directory)?;
        let (root, path) = (root()?, directory.join("tree"));
        let commit = git(&root, &["rev-parse", "HEAD"], "")?;
        if !path.exists() {
            git(&root, &["clone", "-q", "--shared", ".", &path.to_string_lossy()], "")?;
        }
        git(&path, &["fetch", "-q", "origin"], "")?;
        git(&path, &["checkout", "-q", "--force", "--detach", &commit], "")?;
        let code = git(&root, &["rev-parse", "HEAD:crates/core", "HEAD:crates/sim"], "")?;
        Ok(Tree { path, code })
    }

    fn try_out(&self, mutant: &Mutant, farms: u64) -> Result<Line> {
        let started = Instant::now();
        self.restore()?;
        git(&self.path, &["apply", "-"], &mutant.diff)
            .with_context(|| format!("{} applies no more", mutant.name))?;
        let outcome = self.outcome(farms)?;
        self.restore()?;
        let Mutant { name, diff } = mutant.clone();
        Ok(Line { name, diff, code: self.code.clone(), seconds: started.elapsed().as_secs(), outcome })
    }

    /// Also from what proptest has noted of an earlier change's failures: else they would fail the
    /// next ones, too.
    fn restore(&self) -> Result<()> {
        git(&self.path, &["checkout", "-q", "--force", "."], "")?;
        git(&self.path, &["clean", "-fdq"], "")?;
        Ok(())
    }

    fn outcome(&self, farms: u64) -> Result<Outcome> {
        let tests = self.cargo(&["test", "-q", "-p", "evener-core", "--lib"])?;
        if !tests.status.success() {
            let output = String::from_utf8_lossy(&tests.stdout);
            let mut failed = output.lines().skip_while(|line| *line != "failures:").skip(1);
            let failed = failed.find_map(|line| line.strip_prefix("---- ")?.split(' ').next());
            return Ok(match failed {
                Some(name) => Outcome::Test(name.to_owned()),
                None if String::from_utf8_lossy(&tests.stderr).contains("could not compile") => {
                    Outcome::NotBuilt
                }
                None => Outcome::Test("they hang".to_owned()),
            });
        }
        let farms =
            self.cargo(&["run", "-q", "-p", "evener-sim", "--example", "first", "--", &farms.to_string()])?;
        Ok(match farms.status.success() {
            true => Outcome::Survives,
            // Tests of core have `std`; core itself doesn't.
            false if String::from_utf8_lossy(&farms.stderr).contains("could not compile") => {
                Outcome::NotBuilt
            }
            false => Outcome::Farm(String::from_utf8_lossy(&farms.stdout).trim().to_owned()),
        })
    }

    fn cargo(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new("timeout");
        command.arg(LIMIT_S.to_string()).arg("cargo").args(arguments).current_dir(&self.path);
        output(&mut command)
    }
}

/// The folder of this project.
fn root() -> Result<PathBuf> {
    Ok(fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))?)
}

fn git(folder: &Path, arguments: &[&str], input: &str) -> Result<String> {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(folder);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("no standard input")?.write_all(input.as_bytes())?;
    let done = child.wait_with_output()?;
    let words = arguments.join(" ");
    ensure!(done.status.success(), "git {words}: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(String::from_utf8(done.stdout)?.trim().to_owned())
}

fn output(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))
}

#[cfg(test)]
mod tests {
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
