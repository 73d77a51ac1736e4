//! Copy of the tree, in which changes are built and run.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::record::Outcome;
use super::{Mutant, Wanted};

/// Environment variable with the number of the active change.
pub(super) const NUMBER: &str = "EVENER_MUTANT";
/// Timeout for building and running tests or farms.
const LIMIT: Duration = Duration::from_secs(900);
/// Timeout for running built tests or farms: this factor of the time without changes, plus this
/// base.
const LIMIT_FACTOR: u32 = 5;
const LIMIT_BASE: Duration = Duration::from_secs(30);
/// Address space limit of a process in KiB, which stops endless allocations.
const MEMORY_KIB: &str = "8388608";
/// Exit status of timeout(1) after a timeout.
const TIMED_OUT: i32 = 124;
/// Message of cargo after compile errors.
const NOT_COMPILED: &str = "could not compile";

pub(super) const TESTS: [&str; 3] = ["-p", "evener-core", "--lib"];
pub(super) const FARMS: [&str; 4] = ["-p", "evener-sim", "--example", "first"];

/// Timeouts of tests and farms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    tests: Duration,
    farms: Duration,
}

impl Limits {
    const ALONE: Limits = Limits { tests: LIMIT, farms: LIMIT };
}

/// Copy of the tree with a separate target folder.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) path: PathBuf,
    /// Hashes of core and of the simulator.
    pub(super) code: String,
}

impl Tree {
    /// Creates or updates a copy of the last commit.
    pub(super) fn of_head(directory: &Path) -> Result<Tree> {
        fs::create_dir_all(directory)?;
        let (root, path) = (root()?, directory.join("tree"));
        let commit = git(&root, &["rev-parse", "HEAD"], "")?;
        if !path.exists() {
            git(&root, &["clone", "-q", "--shared", ".", &path.to_string_lossy()], "")?;
        }
        let path = fs::canonicalize(path)?;
        git(&path, &["fetch", "-q", "origin"], "")?;
        git(&path, &["checkout", "-q", "--force", "--detach", &commit], "")?;
        let code = git(&root, &["rev-parse", "HEAD:crates/core", "HEAD:crates/sim"], "")?;
        let tree = Tree { path, code };
        tree.restore()?;
        Ok(tree)
    }

    /// Applies a change to the copy.
    pub(super) fn apply(&self, mutant: &Mutant) -> Result<()> {
        self.restore()?;
        git(&self.path, &["apply", "-"], &mutant.diff)
            .with_context(|| format!("{} applies no more", mutant.name))?;
        Ok(())
    }

    /// Removes all changes and new files from the copy.
    pub(super) fn restore(&self) -> Result<()> {
        git(&self.path, &["checkout", "-q", "--force", "."], "")?;
        git(&self.path, &["clean", "-fdq"], "")?;
        Ok(())
    }

    /// Applies a change alone, builds it and runs tests and farms.
    pub(super) fn try_alone(&self, mutant: &Mutant, wanted: &Wanted) -> Result<Outcome> {
        self.apply(mutant)?;
        let outcome = self.outcome(0, wanted, Limits::ALONE)?;
        self.restore()?;
        Ok(outcome)
    }

    /// Runs tests and farms without changes, and returns the timeouts for runs with one.
    ///
    /// # Errors
    /// Fails if a test fails or a farm violates a promise.
    pub(super) fn limits(&self, wanted: &Wanted) -> Result<Limits> {
        let (tests, farms) =
            (Wanted { farms: 0, ..wanted.clone() }, Wanted { only_farms: true, ..wanted.clone() });
        let limit = |wanted: &Wanted| {
            let started = Instant::now();
            match self.outcome(0, wanted, Limits::ALONE)? {
                Outcome::Survives => Ok(started.elapsed() * LIMIT_FACTOR + LIMIT_BASE),
                Outcome::Test(name) => bail!("without any change a test fails: {name}"),
                Outcome::Farm(broken) => bail!("without any change a farm breaks a promise: {broken}"),
                Outcome::NotBuilt => bail!("the copy does not compile without any change"),
            }
        };
        Ok(Limits { tests: limit(&tests)?, farms: limit(&farms)? })
    }

    /// Runs tests, then farms, with the change of this number active; 0 for no change.
    pub(super) fn outcome(&self, number: usize, wanted: &Wanted, limits: Limits) -> Result<Outcome> {
        if !wanted.only_farms {
            let outcome = self.test(number, limits.tests)?;
            if outcome != Outcome::Survives {
                return Ok(outcome);
            }
        }
        if wanted.farms == 0 {
            return Ok(Outcome::Survives);
        }
        self.simulate(number, wanted.farms, limits.farms)
    }

    /// Runs core's tests until the first failure. If several tests fail, the result may differ
    /// between runs, since tests run in threads.
    fn test(&self, number: usize, limit: Duration) -> Result<Outcome> {
        let mut command = self.limited("2>&1", &[&["test"], &TESTS[..]].concat(), number, limit);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("no standard output")?);
        let (mut failed, mut is_built) = (None, true);
        for line in output.split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            is_built &= !line.contains(NOT_COMPILED);
            if let (None, Some(name)) = (&failed, failed_test(&line)) {
                failed = Some(name.to_owned());
                // timeout(1) forwards the signal to cargo and to the tests.
                kill(Pid::from_raw(child.id().try_into()?), Signal::SIGTERM)?;
            }
        }
        let status = child.wait()?;
        Ok(match failed {
            Some(name) => Outcome::Test(name),
            None if !is_built => Outcome::NotBuilt,
            None if status.success() => Outcome::Survives,
            None => Outcome::Test(end_of(status).to_owned()),
        })
    }

    /// Simulates farms until one violates a promise.
    fn simulate(&self, number: usize, farms: u64, limit: Duration) -> Result<Outcome> {
        let seeds = farms.to_string();
        let arguments = [&["run", "-q"], &FARMS[..], &["--", &seeds]].concat();
        let farms = output(&mut self.limited("", &arguments, number, limit))?;
        let broken = String::from_utf8_lossy(&farms.stdout).trim().to_owned();
        Ok(match farms.status {
            status if status.success() => Outcome::Survives,
            // Tests of core have `std`, but core itself does not.
            _ if String::from_utf8_lossy(&farms.stderr).contains(NOT_COMPILED) => Outcome::NotBuilt,
            status if broken.is_empty() => Outcome::Farm(end_of(status).to_owned()),
            _ => Outcome::Farm(broken),
        })
    }

    /// Returns a cargo command with limits of time and memory, and with a shell redirection of its
    /// output.
    fn limited(&self, redirection: &str, arguments: &[&str], number: usize, limit: Duration) -> Command {
        let mut command = Command::new("timeout");
        let script = format!("ulimit -v $0 && exec cargo \"$@\" {redirection}");
        command.arg(limit.as_secs().to_string()).args(["sh", "-c", &script, MEMORY_KIB]).args(arguments);
        command.env(NUMBER, number.to_string());
        self.set_environment(&mut command);
        command
    }

    /// Runs cargo without a timeout.
    pub(super) fn cargo(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new("cargo");
        command.args(arguments);
        self.set_environment(&mut command);
        output(&mut command)
    }

    /// Sets the environment of cargo. Failures persisted by proptest would also fail the tests of
    /// later changes.
    fn set_environment(&self, command: &mut Command) {
        command
            .current_dir(&self.path)
            .env("CARGO_TARGET_DIR", self.path.join("target"))
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
            .env_remove("RUSTC_WORKSPACE_WRAPPER");
    }
}

/// Returns the name of the failed test in a line of the test program's output.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.split(' ').next()
}

/// Describes the end of a run without a named failure.
fn end_of(status: ExitStatus) -> &'static str {
    if status.code() == Some(TIMED_OUT) { "(hangs)" } else { "(aborts)" }
}

/// Folder of this project.
pub(super) fn root() -> Result<PathBuf> {
    Ok(fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))?)
}

pub(super) fn git(folder: &Path, arguments: &[&str], input: &str) -> Result<String> {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(folder);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("no standard input")?.write_all(input.as_bytes())?;
    let done = child.wait_with_output()?;
    let words = arguments.join(" ");
    ensure!(done.status.success(), "git {words}: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(String::from_utf8(done.stdout)?.trim().to_owned())
}

pub(super) fn output(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))
}
