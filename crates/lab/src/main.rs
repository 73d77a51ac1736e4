//! `evener-lab`: see a farm at work, measure one, or put load on any web server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;
use evener_lab::benches::ab;
use evener_lab::benches::{self, Effort, What};
use evener_lab::demo;
use evener_lab::harness::verify_bpf;
use evener_lab::mutants::{self, Wanted};
use evener_lab::unit_files::{self, Unit};
use evener_lab::workloads::load::Load;
use evener_sim as sim;

/// Evener's testbed: farms of network namespaces with real servers and real clients.
#[derive(Parser)]
#[command(name = "evener-lab", version, max_term_width = 100)]
enum Command {
    /// Show a whole farm at work, in about half a minute; needs root
    Demo {
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
        /// Keep the farm under load, to play with, until ^C
        #[arg(long, conflicts_with = "json")]
        stay: bool,
    },
    /// Measure a farm beside other ways to its servers; needs root
    Bench {
        /// Less exact, in a few minutes
        #[arg(long)]
        quick: bool,
        /// Only the kernel engine's packets and the session table; no farm is built
        #[arg(long)]
        packets: bool,
        /// Only requests from clients to servers, method by method
        #[arg(long, conflicts_with = "packets")]
        end_to_end: bool,
        /// Only farms whose every host is a director
        #[arg(long, conflicts_with_all = ["packets", "end_to_end"])]
        every_host: bool,
        /// Only farms where connections are handed over
        #[arg(long, conflicts_with_all = ["packets", "end_to_end", "every_host"])]
        handoff: bool,
        /// Only the control plane of a large farm: no farm is built
        #[arg(long, conflicts_with_all = ["packets", "end_to_end", "every_host", "handoff"])]
        director: bool,
        /// Only answers that send clients on
        #[arg(long, conflicts_with_all = ["packets", "end_to_end", "every_host", "handoff", "director"])]
        redirect: bool,
        /// Only how long clients wait: for answers that send them on, and for servers, by the
        /// policy
        #[arg(long, conflicts_with_all = ["packets", "end_to_end", "every_host", "handoff", "director", "redirect"])]
        load: bool,
        /// Only what agents report of bytes to send, beside what clients lack, and what that costs;
        /// `--load` has it too
        #[arg(long, conflicts_with_all = ["packets", "end_to_end", "every_host", "handoff", "director", "redirect", "load"])]
        reports: bool,
        /// Only the kernel engine's packets, beside Katran: a checkout of its source, or its bare
        /// repository
        #[arg(long, value_name = "DIR", conflicts_with_all = ["end_to_end", "every_host", "handoff", "director", "redirect", "load", "reports"])]
        katran: Option<PathBuf>,
        /// Write plots of the papers' figures for these farms to this folder, as SVG
        #[arg(long, value_name = "DIR")]
        plots: Option<PathBuf>,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Ask web servers for as long or as often as wanted, and print what they did as JSON
    Load(LoadOptions),
    /// Run farms that are simulated, one for each seed, until a promise is broken; needs no
    /// privileges
    Simulate {
        /// The first seed
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many, one after the other
        #[arg(long, default_value_t = 1)]
        seeds: u64,
        /// Print what they met, by kind of farm: promises that had something to decide, what
        /// directors were told and ordered, and for what false datagrams were found
        #[arg(long)]
        coverage: bool,
    },
    /// Put small wrong changes into a copy of this tree, run each, and print which test or farm
    /// finds it; goes on where it stopped
    Mutants {
        /// How many of cargo-mutants' changes, beside those that are listed
        #[arg(long, default_value_t = 40)]
        drawn: usize,
        /// By which they are drawn
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Farms that are simulated for each
        #[arg(long, default_value_t = 1_000)]
        farms: u64,
        /// Skip core's tests: count the changes that farms alone find
        #[arg(long)]
        only_farms: bool,
        /// Where the copy and the record are
        #[arg(long, value_name = "DIR", default_value = "target/mutants")]
        directory: PathBuf,
    },
    /// Have ab(1) ask farms that hand connections over, and a server alone, and compare what broke;
    /// needs root
    Ab {
        /// Requests of each
        #[arg(long, default_value_t = 300_000)]
        requests: u64,
    },
    /// Load each BPF program of the objects in these folders, and print the verified instructions;
    /// needs root
    #[command(hide = true)]
    Verify {
        /// Folders of objects, one for each compiler
        #[arg(required = true, value_name = "DIR")]
        folders: Vec<PathBuf>,
    },
    /// Run a program inside what a unit file says, without a service manager; needs root
    Unit {
        /// A folder that stays in its view, whatever the unit hides
        #[arg(long, value_name = "DIR")]
        show: Vec<PathBuf>,
        /// The unit
        file: PathBuf,
        /// The program and its arguments
        #[arg(required = true, last = true)]
        words: Vec<String>,
    },
}

#[derive(clap::Args)]
struct LoadOptions {
    /// The targets; connections take turns
    #[arg(required = true, value_name = "IP:PORT")]
    targets: Vec<SocketAddr>,
    /// The path to ask for
    #[arg(long, default_value = "/who")]
    path: String,
    /// Connections at a time
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Use connections again
    #[arg(long)]
    keep_alive: bool,
    /// Requests of each connection, at most
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// How long, at most
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Rest after each reply
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pause_ms: u64,
    /// Bytes that each connection reads in a second, at most
    #[arg(long, value_name = "BYTES")]
    pace: Option<u64>,
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Demo { stay: true, .. } => demo::stay().map(|()| ExitCode::SUCCESS),
        Command::Demo { json, .. } => show(json),
        Command::Bench {
            quick,
            packets,
            end_to_end,
            every_host,
            handoff,
            director,
            redirect,
            load,
            reports,
            katran,
            plots,
            json,
        } => {
            let what = match (packets || katran.is_some(), every_host, handoff) {
                _ if end_to_end => What::EndToEnd,
                _ if director => What::Director,
                _ if redirect => What::Redirect,
                _ if load => What::Load,
                _ if reports => What::Reports,
                (true, ..) => What::Packets,
                (_, true, _) => What::EveryHost,
                (_, _, true) => What::Handoff,
                _ => What::All,
            };
            let effort = Effort { what, ..if quick { Effort::QUICK } else { Effort::FULL } };
            measure(effort, plots.as_deref(), katran.as_deref(), json)
        }
        Command::Load(options) => load(options),
        Command::Simulate { seed, seeds, coverage } => Ok(simulate(seed, seeds, coverage)),
        Command::Mutants { drawn, seed, farms, only_farms, directory } => {
            mutants::run(&Wanted { drawn, seed, farms, only_farms, directory }).map(|()| ExitCode::SUCCESS)
        }
        Command::Ab { requests } => compare(requests),
        Command::Verify { folders } => verify_bpf::print(&folders)
            .map(|passed| if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
        Command::Unit { show, file, words } => Unit::read(&file)
            .and_then(|unit| unit_files::exec_restricted(&unit, &show, &words))
            .map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("evener-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn simulate(first: u64, seeds: u64, shows_coverage: bool) -> ExitCode {
    let (mut facts, mut covered) = (0, BTreeMap::<_, BTreeMap<_, u64>>::new());
    for seed in first..first.saturating_add(seeds) {
        let outcome = sim::run(seed);
        if outcome.broken.is_some() {
            let least = sim::shrink(seed);
            println!("{least}");
            println!("replay it: evener-lab simulate --seed {seed}; it takes {} steps:", least.steps().len());
            println!("{:?}", least.steps());
            return ExitCode::FAILURE;
        }
        facts += outcome.facts;
        for (what, count) in &outcome.coverage {
            *covered.entry(*what).or_default().entry(outcome.kind).or_default() += count;
        }
        if seeds == 1 {
            println!("{outcome}");
        }
    }
    if shows_coverage {
        for ((topic, name), counts) in covered {
            let counts = counts.iter().map(|(kind, count)| format!("{kind} {count}"));
            println!("{:<10} {name:<16} {}", format!("{topic:?}"), counts.collect::<Vec<_>>().join(", "));
        }
    }
    println!("{seeds} farms kept every promise; {facts} facts");
    ExitCode::SUCCESS
}

fn compare(requests: u64) -> Result<ExitCode> {
    let broken = ab::run(requests)?;
    println!("{broken}");
    Ok(if broken.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(json: bool) -> Result<ExitCode> {
    let outcome = demo::run()?;
    if json {
        println!("{}", serde_json::to_string_pretty(&outcome)?)
    } else {
        outcome.print()
    }
    Ok(if outcome.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(effort: Effort, plots: Option<&Path>, katran: Option<&Path>, json: bool) -> Result<ExitCode> {
    let report = benches::run(effort, plots, katran)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?)
    } else {
        report.print()
    }
    Ok(if report.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn load(options: LoadOptions) -> Result<ExitCode> {
    let Some(first) = options.targets.first() else { bail!("No target was given") };
    if options.requests.is_none() && options.seconds.is_none() {
        bail!("A load needs a bound: --requests or --seconds");
    }
    let load = Load {
        path: options.path,
        connections: options.connections,
        keep_alive: options.keep_alive,
        requests: options.requests,
        duration: options.seconds.map(Duration::try_from_secs_f64).transpose()?,
        pause: Duration::from_millis(options.pause_ms),
        pace: options.pace,
        ..Load::to(*first)
    };
    let report = Load { targets: options.targets, ..load }.run();
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(if report.errors.total() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
