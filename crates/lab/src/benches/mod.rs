//! Benchmarks. All results are ratios within one run on one machine: absolute figures on shared
//! machines mean little.

pub mod ab;
mod dashboard;
mod director;
mod end_to_end;
mod handoff;
mod load;
mod packets;
mod redirect;
mod remote;
mod reports;
mod run_time;
mod session_table;

use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::harness::clock::utc_now;

pub use end_to_end::{Figure, Outcome};

/// Extent of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Number of rounds; results are medians.
    pub rounds: usize,
    /// Duration of each result of a round.
    pub each: Duration,
    /// True to measure waiting times for a shorter time.
    pub is_quick: bool,
}

/// Benchmark.
#[derive(Clone, Debug, PartialEq, Eq, clap::Subcommand)]
pub enum What {
    /// Only the kernel engine's packets and the session table; no farm is built
    Packets {
        /// Measure beside Katran instead: a checkout of its source, or its bare repository
        #[arg(long, value_name = "DIR")]
        katran: Option<PathBuf>,
    },
    /// Only requests from clients to servers, method by method
    EndToEnd,
    /// Only requests to servers by way of `handoff`, beside proxies
    Handoff,
    /// Only the control plane of a large farm: no farm is built
    Director,
    /// Only answers that send clients on
    Redirect,
    /// Only how long clients wait: for answers that send them on, and for servers, by the policy
    Load {
        /// Write a plot of the paper's figure to this folder, as SVG
        #[arg(long, value_name = "DIR")]
        plots: Option<PathBuf>,
    },
    /// Only what agents report of bytes to send, beside what clients lack, and what that costs
    Reports,
}

impl Effort {
    /// Short measurement for a first look.
    pub const QUICK: Effort = Effort { rounds: 5, each: Duration::from_millis(400), is_quick: true };
    /// Full measurement for figures to publish.
    pub const FULL: Effort = Effort { rounds: 7, each: Duration::from_millis(1500), is_quick: false };
}

/// Results of benchmarks, and their environment.
#[derive(Debug)]
pub struct Report {
    environment: Environment,
    sections: Vec<Section>,
}

/// Results of one benchmark.
struct Section {
    name: &'static str,
    json: Value,
    print: Box<dyn Fn()>,
    /// True if Evener answered every request.
    is_whole: bool,
}

impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Section").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Section {
    fn new<O: Serialize + 'static>(
        name: &'static str,
        outcome: O,
        print: fn(&O),
        is_whole: fn(&O) -> bool,
    ) -> Result<Section> {
        let (json, is_whole) = (serde_json::to_value(&outcome)?, is_whole(&outcome));
        Ok(Section { name, json, print: Box::new(move || print(&outcome)), is_whole })
    }
}

/// Machine, programs and date of a measurement.
#[derive(Debug, Serialize)]
pub struct Environment {
    /// Start time in UTC: `2026-01-31 12:00`.
    pub started: String,
    pub kernel: String,
    /// Number of processors that this program may use.
    pub cores: usize,
    /// Versions of the compared programs.
    pub programs: Vec<String>,
}

/// Runs one benchmark, or all, with progress on standard error.
pub fn run(effort: Effort, what: Option<&What>) -> Result<Report> {
    let environment = Environment::find()?;
    let all = [
        What::Packets { katran: None },
        What::Director,
        What::EndToEnd,
        What::Redirect,
        What::Load { plots: None },
        What::Reports,
    ];
    let wanted = what.map_or(&all[..], std::slice::from_ref);
    let sections: Vec<Vec<Section>> =
        wanted.iter().map(|what| sections(effort, what)).collect::<Result<_>>()?;
    Ok(Report { environment, sections: sections.into_iter().flatten().collect() })
}

fn sections(effort: Effort, what: &What) -> Result<Vec<Section>> {
    fn any<O>(_: &O) -> bool {
        true
    }
    let farms = |outcomes: Vec<Outcome>| {
        let print = |outcomes: &Vec<Outcome>| outcomes.iter().for_each(Outcome::print);
        let is_whole = |outcomes: &Vec<Outcome>| outcomes.iter().all(Outcome::is_whole);
        Section::new("end_to_end", outcomes, print, is_whole)
    };
    Ok(match what {
        What::Packets { katran } => {
            let costs = packets::run(effort.rounds, katran.as_deref())?;
            let costs = Section::new("packet_cost", costs, packets::Outcome::print, any)?;
            match katran {
                Some(_) => vec![costs],
                None => {
                    let table = session_table::run();
                    vec![costs, Section::new("session_table", table, session_table::Outcome::print, any)?]
                }
            }
        }
        What::Director => vec![
            Section::new("director", director::run()?, director::Outcome::print, any)?,
            Section::new("run_time", run_time::run()?, run_time::Outcome::print, any)?,
            Section::new("dashboard", dashboard::run()?, dashboard::Outcome::print, any)?,
        ],
        What::EndToEnd => vec![farms(vec![
            end_to_end::run(effort)?,
            remote::tunnel(effort)?,
            remote::nat(effort)?,
            handoff::run(effort)?,
        ])?],
        What::Handoff => vec![farms(vec![handoff::run(effort)?])?],
        What::Redirect => {
            let outcome = redirect::run(effort)?;
            vec![Section::new("redirect", outcome, redirect::Outcome::print, redirect::Outcome::is_whole)?]
        }
        What::Load { plots } => {
            let outcome = load::run(effort, plots.as_deref())?;
            vec![Section::new("load", outcome, load::Outcome::print, load::Outcome::is_whole)?]
        }
        What::Reports => vec![Section::new("reports", reports::run(effort)?, reports::Outcome::print, any)?],
    })
}

impl Report {
    /// True if Evener answered every request.
    pub fn is_whole(&self) -> bool {
        self.sections.iter().all(|section| section.is_whole)
    }

    pub fn print(&self) {
        let Environment { started, kernel, cores, programs } = &self.environment;
        println!("Measured on {started} UTC on Linux {kernel}, {cores} cores, with {}.", programs.join(", "));
        println!();
        self.sections.iter().for_each(|section| (section.print)());
    }

    /// Returns the results by benchmark.
    pub fn json(&self) -> Result<Value> {
        let mut all = Map::new();
        all.insert("environment".to_owned(), serde_json::to_value(&self.environment)?);
        all.extend(self.sections.iter().map(|section| (section.name.to_owned(), section.json.clone())));
        Ok(Value::Object(all))
    }
}

impl Environment {
    fn find() -> Result<Environment> {
        let kernel = nix::sys::utsname::uname()?.release().to_string_lossy().into_owned();
        let cores = std::thread::available_parallelism()?.get();
        let evener = crate::evener::program().map(|path| path.to_string_lossy().into_owned());
        let requested =
            [("nginx", "-v"), ("haproxy", "-v"), (evener.as_deref().unwrap_or("evener"), "--version")];
        let programs =
            requested.into_iter().filter_map(|(program, option)| version(program, option)).collect();
        Ok(Environment { started: utc_now()?, kernel, cores, programs })
    }
}

/// Returns the first line of a program's version, from either output.
fn version(program: &str, option: &str) -> Option<String> {
    let output = Command::new(program).arg(option).output().ok()?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let line = text.lines().next()?.trim_start_matches("nginx version: ");
    // HAProxy appends date and address
    Some(line.split_once(" 20").map_or(line, |(version, _)| version).to_owned())
}
