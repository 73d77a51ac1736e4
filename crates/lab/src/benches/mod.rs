//! Benchmarks. All results are ratios within one run on one machine: absolute figures on shared
//! machines mean little.

pub mod ab;
mod dashboard;
mod director;
mod end_to_end;
mod every_host;
mod handoff;
mod load;
mod packets;
mod plot;
mod redirect;
mod remote;
mod reports;
mod run_time;
mod session_table;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

pub use end_to_end::{Figure, Outcome};

/// Extent of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Number of rounds; results are medians.
    pub rounds: usize,
    /// Duration of each result of a round.
    pub each: Duration,
    /// Duration of each point of the papers' figures.
    pub each_point: Duration,
    /// True to skip most of these points.
    pub few_points: bool,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    All,
    /// Only the cost of packets, without a farm.
    Packets,
    /// Only requests from clients to servers, by method.
    EndToEnd,
    EveryHost,
    Handoff,
    /// Only the control plane of a large farm.
    Director,
    Redirect,
    /// Only waiting times of clients, by policy.
    Load,
    /// Only agents' reports, compared with the true load.
    Reports,
}

impl Effort {
    /// Short measurement for a first look.
    pub const QUICK: Effort = Effort {
        rounds: 5,
        each: Duration::from_millis(400),
        each_point: Duration::from_millis(1500),
        few_points: true,
        what: What::All,
    };
    /// Full measurement for figures to publish.
    pub const FULL: Effort = Effort {
        rounds: 7,
        each: Duration::from_millis(1500),
        each_point: Duration::from_secs(5),
        few_points: false,
        what: What::All,
    };
}

/// Results of all benchmarks, and their environment.
#[derive(Debug, Serialize)]
pub struct Report {
    pub environment: Environment,
    packet_cost: Option<packets::Outcome>,
    session_table: Option<session_table::Outcome>,
    director: Option<director::Outcome>,
    run_time: Option<run_time::Outcome>,
    dashboard: Option<dashboard::Outcome>,
    /// Requests from clients to servers, by method.
    pub end_to_end: Vec<Outcome>,
    every_host: Option<every_host::Outcome>,
    handoff_scaling: Option<handoff::Scaling>,
    redirect: Option<redirect::Outcome>,
    load: Option<load::Outcome>,
    reports: Option<reports::Outcome>,
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

/// Runs the benchmarks, with progress on standard error. Plots are written to a folder if one is
/// given. With a folder of Katran's source, only packets are measured, and compared with Katran.
pub fn run(effort: Effort, plots: Option<&Path>, katran: Option<&Path>) -> Result<Report> {
    let environment = Environment::find()?;
    let packets = matches!(effort.what, What::All | What::Packets);
    Ok(Report {
        environment,
        packet_cost: packets.then(|| packets::run(effort.rounds, katran)).transpose()?,
        session_table: (packets && katran.is_none()).then(session_table::run),
        director: matches!(effort.what, What::All | What::Director).then(director::run).transpose()?,
        run_time: matches!(effort.what, What::All | What::Director).then(run_time::run).transpose()?,
        dashboard: matches!(effort.what, What::All | What::Director).then(dashboard::run).transpose()?,
        end_to_end: match effort.what {
            What::All | What::EndToEnd => vec![
                end_to_end::run(effort)?,
                remote::tunnel(effort)?,
                remote::nat(effort)?,
                handoff::run(effort)?,
            ],
            What::Handoff => vec![handoff::run(effort)?],
            What::Packets
            | What::EveryHost
            | What::Director
            | What::Redirect
            | What::Load
            | What::Reports => Vec::new(),
        },
        every_host: match effort.what {
            What::Packets
            | What::EndToEnd
            | What::Handoff
            | What::Director
            | What::Redirect
            | What::Load
            | What::Reports => None,
            What::All | What::EveryHost => Some(every_host::run(effort, plots)?),
        },
        handoff_scaling: match effort.what {
            What::Packets
            | What::EndToEnd
            | What::EveryHost
            | What::Director
            | What::Redirect
            | What::Load
            | What::Reports => None,
            What::All | What::Handoff => Some(handoff::scaling(effort, plots)?),
        },
        redirect: matches!(effort.what, What::All | What::Redirect)
            .then(|| redirect::run(effort))
            .transpose()?,
        load: matches!(effort.what, What::All | What::Load).then(|| load::run(effort, plots)).transpose()?,
        reports: matches!(effort.what, What::All | What::Load | What::Reports)
            .then(|| reports::run(effort))
            .transpose()?,
    })
}

impl Report {
    /// True if Evener answered every request.
    pub fn is_whole(&self) -> bool {
        self.end_to_end.iter().all(Outcome::is_whole)
            && self.every_host.as_ref().is_none_or(every_host::Outcome::is_whole)
            && self.handoff_scaling.as_ref().is_none_or(handoff::Scaling::is_whole)
            && self.redirect.as_ref().is_none_or(redirect::Outcome::is_whole)
            && self.load.as_ref().is_none_or(load::Outcome::is_whole)
    }

    pub fn print(&self) {
        let Environment { started, kernel, cores, programs } = &self.environment;
        println!("Measured on {started} UTC on Linux {kernel}, {cores} cores, with {}.", programs.join(", "));
        println!();
        if let Some(outcome) = &self.packet_cost {
            outcome.print();
        }
        if let Some(outcome) = &self.session_table {
            outcome.print();
        }
        if let Some(outcome) = &self.director {
            outcome.print();
        }
        if let Some(outcome) = &self.run_time {
            outcome.print();
        }
        if let Some(outcome) = &self.dashboard {
            outcome.print();
        }
        self.end_to_end.iter().for_each(Outcome::print);
        if let Some(outcome) = &self.every_host {
            outcome.print();
        }
        if let Some(outcome) = &self.handoff_scaling {
            outcome.print();
        }
        if let Some(outcome) = &self.redirect {
            outcome.print();
        }
        if let Some(outcome) = &self.load {
            outcome.print();
        }
        if let Some(outcome) = &self.reports {
            outcome.print();
        }
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
        Ok(Environment { started: now()?, kernel, cores, programs })
    }
}

/// Current time in UTC, as date(1) prints it.
fn now() -> Result<String> {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the first line of a program's version, from either output.
fn version(program: &str, option: &str) -> Option<String> {
    let output = Command::new(program).arg(option).output().ok()?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let line = text.lines().next()?.trim_start_matches("nginx version: ");
    // HAProxy appends date and address
    Some(line.split_once(" 20").map_or(line, |(version, _)| version).to_owned())
}
