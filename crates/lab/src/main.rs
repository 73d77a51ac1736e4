//! `evener-lab`: see a farm at work, measure one, or put load on any web server.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use evener_lab::benches::ab;
use evener_lab::benches::{self, Effort, What};
use evener_lab::demo;
use evener_lab::harness::limits;
use evener_lab::harness::verify_bpf;
use evener_lab::mutants::{self, Wanted};
use evener_lab::network::family::Family;
use evener_lab::papers::report::Report;
use evener_lab::papers::{self, EXPERIMENTS, Extent, Progress, Request};
use evener_lab::unit_files::{self, Unit};
use evener_lab::workloads::load::{Clients, Load, Schedule, ServerName};
use evener_lab::workloads::log_replay::{self, LogRing};
use evener_lab::workloads::{self, catalog};
use evener_sim as sim;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

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
    /// Measure a farm beside other ways to its servers, or one part alone; needs root
    Bench {
        /// Less exact, in a few minutes
        #[arg(long, global = true)]
        quick: bool,
        /// Print the result as JSON
        #[arg(long, global = true)]
        json: bool,
        #[command(subcommand)]
        what: Option<What>,
    },
    /// Repeat a paper's experiment, point by point; a second run goes on where the first stopped
    #[command(subcommand)]
    Paper(Paper),
    /// Ask web servers for as long or as often as wanted, and print what they did as JSON
    Load(LoadOptions),
    /// Read an access log, and show which of equal servers a policy would send its requests to
    Log {
        /// The log, in common or combined format
        file: PathBuf,
        #[arg(long, default_value = "hash")]
        policy: String,
        #[arg(long, value_name = "N", default_value_t = 3)]
        servers: u16,
        /// Print hits by minute and server as CSV
        #[arg(long)]
        by_minute: bool,
    },
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

#[derive(clap::Subcommand)]
enum Paper {
    /// Show the experiments, with their expected minutes
    List,
    /// Make figures of measured points: CSV, SVG, Markdown and HTML, beside them
    Report {
        /// The folder of the points
        #[arg(value_name = "DIR", default_value = POINTS)]
        folder: PathBuf,
    },
    /// Distributed Packet Rewriting, section 4; needs root
    Dpr(PaperOptions),
    /// Light-weight Cluster Control Protocol, section 5.2; needs root
    Lccp(PaperOptions),
    /// Web load balancing through more accurate server report, section 3; needs root
    Lba(PaperOptions),
    /// Distributed server groups, section 4; needs root
    Groups(PaperOptions),
    /// Policies on a simulated clock
    Policies(PaperOptions),
    /// Each published workload against one held server; needs root
    Workloads(PaperOptions),
}

/// Exit status of an interrupted run.
const INTERRUPTED: i32 = 130;
/// Folder of points unless another is named.
const POINTS: &str = "points";

#[derive(clap::Args)]
struct PaperOptions {
    /// Only the points of this figure of the paper
    #[arg(long, value_name = "N")]
    figure: Option<u8>,
    /// Few short points, for a first look
    #[arg(long)]
    quick: bool,
    /// As in the paper's own protocol, which takes hours
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Begin no point after this time; the same command goes on another day
    #[arg(long, value_name = "H")]
    hours: Option<f64>,
    /// The folder of the points
    #[arg(long = "out", value_name = "DIR", default_value = POINTS)]
    folder: PathBuf,
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
    /// Follow redirects with status 302
    #[arg(long)]
    follow: bool,
    /// Resolve this name for each connection, at --resolver; targets have the port alone
    #[arg(long, value_name = "NAME", requires = "resolver")]
    name: Option<String>,
    /// The DNS server
    #[arg(long, value_name = "IP:PORT", requires = "name")]
    resolver: Option<SocketAddr>,
    /// Ask for a published workload's files in place of --path, with --connections clients
    #[arg(long, value_enum, conflicts_with_all = ["path", "keep_alive", "requests", "pause_ms", "pace"])]
    workload: Option<catalog::Name>,
    /// Write the workload's files below this folder of a web server, and ask for nothing
    #[arg(long, value_name = "DIR", requires = "workload")]
    files: Option<PathBuf>,
    /// Seed of the workload
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Requests per second of specweb96, at random times whatever the servers do
    #[arg(long, value_name = "N", default_value_t = 100.0)]
    rate: f64,
    /// Pattern of groups
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=catalog::PATTERNS_MAX as u64))]
    pattern: usize,
    /// Processor time of each reply of cgi
    #[arg(long, value_name = "US", default_value_t = 2_000)]
    program_us: u64,
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Demo { stay: true, .. } => demo::stay().map(|()| ExitCode::SUCCESS),
        Command::Demo { json, .. } => show(json),
        Command::Bench { quick, json, what } => {
            measure(if quick { Effort::QUICK } else { Effort::FULL }, what.as_ref(), json)
        }
        Command::Paper(paper) => paper.run(),
        Command::Load(options) => load(options),
        Command::Log { file, policy, servers, by_minute } => replay(&file, &policy, servers, by_minute),
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

impl Paper {
    fn run(self) -> Result<ExitCode> {
        let (name, options) = match self {
            Paper::List => {
                print!("{}", papers::list());
                return Ok(ExitCode::SUCCESS);
            }
            Paper::Report { folder } => {
                let report = Report::of(&folder)?;
                report.write(&folder)?;
                report.verdicts.iter().for_each(|verdict| println!("{verdict}"));
                report.files.keys().for_each(|name| println!("{}", folder.join(name).display()));
                return Ok(ExitCode::SUCCESS);
            }
            Paper::Dpr(options) => ("dpr", options),
            Paper::Lccp(options) => ("lccp", options),
            Paper::Lba(options) => ("lba", options),
            Paper::Groups(options) => ("groups", options),
            Paper::Policies(options) => ("policies", options),
            Paper::Workloads(options) => ("workloads", options),
        };
        let experiment = EXPERIMENTS.into_iter().find(|experiment| experiment.name == name);
        let Some(experiment) = experiment else { bail!("No experiment is called {name}") };
        let limit = options.hours.map(|hours| Duration::try_from_secs_f64(hours * 3600.0));
        let request = Request {
            figure: options.figure,
            extent: match (options.quick, options.full) {
                (true, _) => Extent::Quick,
                (_, true) => Extent::Full,
                _ => Extent::Normal,
            },
            limit: limit.transpose().context("--hours has no number of hours")?,
            folder: options.folder,
        };
        stop_on_signal(&request.folder)?;
        let Progress { measured, found, left, excluded } = papers::run(experiment, &request)?;
        println!(
            "{measured} measurements; {found} points were there, {left} are left, {excluded} don't count."
        );
        println!("`evener-lab paper report {}` shows them.", request.folder.display());
        Ok(ExitCode::SUCCESS)
    }
}

/// Ends the program at once when it is interrupted. The guardian removes what it leaves.
fn stop_on_signal(folder: &Path) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("No signal can be waited for")?;
    let folder = folder.display().to_string();
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            eprintln!("evener-lab: stopped; measured points are in {folder}, and the same command goes on");
            std::process::exit(INTERRUPTED)
        }
    });
    Ok(())
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

fn measure(effort: Effort, what: Option<&What>, json: bool) -> Result<ExitCode> {
    let report = benches::run(effort, what)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report.json()?)?)
    } else {
        report.print()
    }
    Ok(if report.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn load(options: LoadOptions) -> Result<ExitCode> {
    let Some(first) = options.targets.first().copied() else { bail!("No target was given") };
    let duration = options.seconds.map(Duration::try_from_secs_f64).transpose()?;
    if let Some(name) = options.workload {
        return run_workload(name, first, duration, options);
    }
    if options.requests.is_none() && duration.is_none() {
        bail!("A load needs a bound: --requests or --seconds");
    }
    let name = options.server_name(first);
    let load = Load {
        path: options.path,
        connections: options.connections,
        keep_alive: options.keep_alive,
        requests: options.requests,
        duration,
        pause: Duration::from_millis(options.pause_ms),
        pace: options.pace,
        follow: options.follow,
        name,
        ..Load::to(first)
    };
    finish(&Load { targets: options.targets, ..load }.run())
}

fn run_workload(
    name: catalog::Name,
    first: SocketAddr,
    duration: Option<Duration>,
    options: LoadOptions,
) -> Result<ExitCode> {
    let parameters = catalog::Parameters {
        seed: options.seed,
        rate: options.rate,
        pattern: options.pattern,
        program_time: Duration::from_micros(options.program_us),
    };
    let workload = name.workload(&parameters).context("There is no such pattern")?;
    if let Some(folder) = &options.files {
        workloads::write_files(folder, &*workload)?;
        println!("The files are in {}.", folder.display());
        return Ok(ExitCode::SUCCESS);
    }
    let Some(duration) = duration else { bail!("A workload needs a bound: --seconds") };
    let is_open = name == catalog::Name::Specweb96;
    let count = if is_open { Schedule::CONNECTIONS_MAX } else { options.connections };
    limits::allow_clients(count)?;
    limits::check_ports(count)?;
    let (server_name, follow, targets) = (options.server_name(first), options.follow, options.targets);
    finish(&if is_open {
        let (rate, seed, warmup) = (options.rate, options.seed, Duration::ZERO);
        Schedule { workload: &*workload, targets, rate, duration, warmup, seed }.run()
    } else {
        Clients { count, duration, follow, name: server_name, ..Clients::new(&*workload, targets) }.run()
    })
}

impl LoadOptions {
    fn server_name(&self, target: SocketAddr) -> Option<ServerName> {
        let (name, resolver) = (self.name.clone()?, self.resolver?);
        Some(ServerName { name, resolver, family: Family::of(target.ip()) })
    }
}

fn replay(file: &Path, policy: &str, servers: u16, by_minute: bool) -> Result<ExitCode> {
    let mut ring = LogRing::new(policy, servers)?;
    let log = File::open(file).with_context(|| format!("Opening {} failed", file.display()))?;
    let counts = log_replay::read(BufReader::new(log), |logged| ring.send(&logged));
    let counts = counts.with_context(|| file.display().to_string())?;
    if by_minute {
        println!("minute,server,hits");
        for ((minute, server), hits) in &ring.hits().by_minute {
            println!("{:02}:{:02},{},{hits}", minute / 60, minute % 60, server + 1);
        }
    } else {
        for (server, hits) in ring.hits().totals() {
            println!("server {}: {hits} ({:.1} %)", server + 1, hits as f64 * 100.0 / counts.requests as f64);
        }
    }
    if counts.unread > 0 {
        eprintln!("evener-lab: {} lines are no requests", counts.unread);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a load's report. Returns failure if a request failed.
fn finish(report: &workloads::load::Report) -> Result<ExitCode> {
    println!("{}", serde_json::to_string_pretty(report)?);
    Ok(if report.errors.total() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
