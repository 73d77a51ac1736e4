//! Measures clients and servers end to end: real nginx servers, a closed-loop client, and variants
//! between them. Each round measures all variants in turn, so other load on the machine affects all
//! alike.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::Effort;
use crate::evener::{self, Evener};
use crate::farm::{Farm, WEB_PORT};
use crate::harness::table::{Table, median, thousands};
use crate::network::bare_hop::{Hop, Method};
use crate::network::host::Host;
use crate::servers::proxies::{HaProxy, NginxProxy};
use crate::workloads::load::Load;

/// Number of connections, as in the measurements behind the targets.
const CONNECTIONS: usize = 42;
pub(super) const SERVERS: u8 = 3;

#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) name: &'static str,
    pub(super) path: &'static str,
    pub(super) connections: usize,
}

/// Reply lengths of the papers.
pub(super) const PAGES: [Page; 3] = [
    Page { name: "0 KB", path: "/0k", connections: CONNECTIONS },
    Page { name: "2 KB", path: "/2k", connections: CONNECTIONS },
    Page { name: "108 KB", path: "/108k", connections: CONNECTIONS },
];
/// Baseline without a balancer.
pub(super) const STRAIGHT: &str = "straight";
/// Minimal program in the director's position.
pub(super) const HOP: &str = "a bare hop";

/// Path from clients to servers.
pub(super) struct Way<'a> {
    pub(super) name: &'static str,
    pub(super) targets: Vec<SocketAddr>,
    pub(super) client: &'a Host,
    /// Host whose processor time is measured.
    pub(super) director: Option<&'a Host>,
}

/// All results, and variants that could not be measured.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    /// Method that reaches the servers.
    pub method: &'static str,
    /// Variant that all others are compared with.
    pub base: &'static str,
    /// Second variant for comparison.
    pub second: Option<&'static str>,
    /// Number of concurrent connections.
    pub connections: usize,
    /// Number of rounds; results are medians.
    pub rounds: usize,
    /// Results of each variant, for each kind of request.
    pub figures: Vec<Figure>,
    /// Variants that failed to start, with the cause.
    pub missing: Vec<String>,
    /// Descriptions of the engines.
    pub engines: Vec<String>,
}

/// Result of one variant, for one kind of request.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// Variant between clients and servers.
    pub way: &'static str,
    /// True if connections are reused.
    pub keep_alive: bool,
    /// Length of the replies.
    pub reply: &'static str,
    /// Median of the rounds.
    pub requests_per_second: f64,
    /// Requests per second relative to [`Outcome::base`] in the same round; median of the rounds.
    pub ratio: f64,
    /// Requests per second relative to [`Outcome::second`] in the same round; median of the rounds.
    pub to_second: Option<f64>,
    /// Median latency in microseconds; median of the rounds.
    pub p50_us: f64,
    /// 99th percentile of the latency in microseconds; median of the rounds.
    pub p99_us: f64,
    /// Processor time of the director per thousand requests, in seconds, over all rounds; `None` if
    /// not measured.
    pub director_s: Option<f64>,
    /// Failed requests of all rounds.
    pub errors: u64,
    #[serde(skip)]
    rounds: Vec<Round>,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    requests_per_second: f64,
    p50_us: u64,
    p99_us: u64,
    requests: u64,
    director: Option<Duration>,
}

/// Builds a farm with all variants and measures them.
pub(super) fn run(effort: Effort) -> Result<Outcome> {
    // The proxies and each engine have separate directors, so that no program of ours sees the
    // proxies' packets.
    let farm = Farm::builder().servers(SERVERS).directors(4).vips(3).silent().offload_replies().build()?;
    let mut outcome = Outcome::new("l2", STRAIGHT, Some(HOP), effort);
    let client = farm.client(0);
    let way = |name, targets| Way { name, targets, client, director: None };
    let haproxy = HaProxy::start(&farm.directors()[2], farm.servers())?;
    let nginx = NginxProxy::start(&farm.directors()[2], farm.servers())?;
    let _hop = Hop::start(&farm.directors()[3], &farm, 2, Method::Link)?;
    let mut ways = vec![way(STRAIGHT, farm.straight()), way(HOP, vec![(farm.vip(2), WEB_PORT).into()])];
    let mut running = Vec::new();
    for (number, (name, engine)) in (0..).zip([("evener xdp", "xdp"), ("evener packet", "packet")]) {
        match start_evener(&farm, number, engine) {
            Ok((evener, says)) => {
                running.push(evener);
                outcome.engines.push(format!("{name}: {says}"));
                ways.push(way(name, vec![(farm.vip(number), WEB_PORT).into()]));
            }
            Err(error) => outcome.missing.push(format!("{name}: {error:#}")),
        }
    }
    ways.push(way("HAProxy tcp", vec![haproxy.tcp]));
    ways.push(way("HAProxy http", vec![haproxy.http]));
    ways.push(way("nginx proxy", vec![nginx.http]));
    measure(&ways, &PAGES, &[false, true], effort, &mut outcome)?;
    Ok(outcome)
}

/// Starts the daemon with one of its engines on a director. Returns its description of the engine.
fn start_evener(farm: &Farm, number: u8, engine: &str) -> Result<(Evener, String)> {
    let host = &farm.directors()[usize::from(number)];
    start(farm, host, &evener::web_service(farm, number, engine), engine)
}

/// Starts the daemon with a configuration. Returns its description of the engine.
pub(super) fn start(farm: &Farm, host: &Host, file: &str, engine: &str) -> Result<(Evener, String)> {
    let evener = Evener::start(host, file)?;
    evener.wait_for_servers(farm.servers().len(), Duration::from_secs(10))?;
    let says = engine_of(&evener, engine)?;
    Ok((evener, says))
}

/// Returns the daemon's description of its engine.
pub(super) fn engine_of(evener: &Evener, engine: &str) -> Result<String> {
    let status: serde_json::Value = serde_json::from_str(&evener.command(&["status", "--json"])?)?;
    let says = status.get("engine_detail");
    Ok(says.map_or_else(|| engine.to_owned(), |says| says.to_string().replace('"', "")))
}

/// Measures all variants in turn, for the kinds of connections in `keep_alive`.
pub(super) fn measure(
    ways: &[Way<'_>],
    pages: &[Page],
    keep_alive: &[bool],
    effort: Effort,
    outcome: &mut Outcome,
) -> Result<()> {
    for round in 0..effort.rounds {
        eprintln!("round {} of {}", round + 1, effort.rounds);
        let kinds =
            keep_alive.iter().flat_map(|keep_alive| pages.iter().map(move |page| (*keep_alive, page)));
        for (keep_alive, page) in kinds {
            for turn in 0..ways.len() {
                // each round starts with another variant
                let Some(way) = ways.get((turn + round) % ways.len()) else { continue };
                let load = Load {
                    targets: way.targets.clone(),
                    path: page.path.to_owned(),
                    connections: page.connections,
                    keep_alive,
                    duration: Some(effort.each),
                    ..Load::to(*way.targets.first().context("A way without an end")?)
                };
                let before = way.director.map(Host::processor_time).transpose()?;
                let report = load.run_on(way.client)?;
                let after = way.director.map(Host::processor_time).transpose()?;
                if way.name == outcome.base && report.errors.total() > 0 {
                    bail!("Even with {}, requests fail: {:?}", way.name, report.examples);
                }
                let result = Round {
                    requests_per_second: report.requests_per_second,
                    p50_us: report.p50_us,
                    p99_us: report.p99_us,
                    requests: report.requests,
                    director: after.zip(before).map(|(after, before)| after.saturating_sub(before)),
                };
                outcome.figure(way.name, keep_alive, page.name).add(result, report.errors.total());
            }
        }
    }
    outcome.settle();
    Ok(())
}

impl Outcome {
    pub(super) fn new(
        method: &'static str,
        base: &'static str,
        second: Option<&'static str>,
        effort: Effort,
    ) -> Outcome {
        Outcome {
            method,
            base,
            second,
            connections: CONNECTIONS,
            rounds: effort.rounds,
            ..Outcome::default()
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        let ours = |figure: &&Figure| figure.way.starts_with("evener");
        self.missing.is_empty() && self.figures.iter().filter(ours).all(|figure| figure.errors == 0)
    }

    fn figure(&mut self, way: &'static str, keep_alive: bool, reply: &'static str) -> &mut Figure {
        let same = |it: &Figure| it.way == way && it.keep_alive == keep_alive && it.reply == reply;
        let index = self.figures.iter().position(same).unwrap_or_else(|| {
            self.figures.push(Figure {
                way,
                keep_alive,
                reply,
                requests_per_second: 0.0,
                ratio: 0.0,
                to_second: None,
                p50_us: 0.0,
                p99_us: 0.0,
                director_s: None,
                errors: 0,
                rounds: Vec::new(),
            });
            self.figures.len() - 1
        });
        &mut self.figures[index]
    }

    /// Computes the medians of the rounds.
    fn settle(&mut self) {
        let of = |way, figure: &Figure| {
            let same =
                |it: &&Figure| (it.way, it.keep_alive, it.reply) == (way, figure.keep_alive, figure.reply);
            self.figures.iter().find(same).map(|figure| figure.rounds.clone()).unwrap_or_default()
        };
        let both = |figure| (of(self.base, figure), self.second.map(|second| of(second, figure)));
        let bases: Vec<_> = self.figures.iter().map(both).collect();
        for (figure, (base, second)) in self.figures.iter_mut().zip(bases) {
            let rounds = &figure.rounds;
            figure.requests_per_second =
                median(rounds.iter().map(|round| round.requests_per_second).collect());
            figure.p50_us = median(rounds.iter().map(|round| round.p50_us as f64).collect());
            figure.p99_us = median(rounds.iter().map(|round| round.p99_us as f64).collect());
            let (time, requests) = (
                rounds.iter().map(|round| round.director).sum(),
                rounds.iter().map(|round| round.requests).sum(),
            );
            figure.director_s = per_thousand(time, requests);
            let to = |base: &[Round]| {
                let pairs = rounds.iter().zip(base);
                median(pairs.map(|(own, base)| own.requests_per_second / base.requests_per_second).collect())
            };
            (figure.ratio, figure.to_second) = (to(&base), second.map(|second| to(&second)));
        }
    }

    pub(super) fn print(&self) {
        println!(
            "{} end to end: {SERVERS} nginx servers, {} connections, requests per second, median of {} rounds;",
            self.method, self.connections, self.rounds
        );
        let second = self.second.map(|second| format!(", and then to \"{second}\"")).unwrap_or_default();
        println!("behind it the ratio to \"{}\" in the same round{second}.", self.base);
        for engine in &self.engines {
            println!("  {engine}");
        }
        for keep_alive in [false, true] {
            if self.figures.iter().all(|figure| figure.keep_alive != keep_alive) {
                continue;
            }
            println!();
            println!(
                "{}",
                if keep_alive { "Connections kept:" } else { "A new connection for each request:" }
            );
            print!("{}", self.table(keep_alive));
            println!("\nMilliseconds in which half of the requests were answered, and 99 of 100:");
            print!("{}", self.times(keep_alive));
            if self.figures.iter().any(|figure| figure.director_s.is_some()) {
                println!("\nMilliseconds of processor time on the director for 1000 requests:");
                print!("{}", self.director(keep_alive));
            }
        }
        for missing in &self.missing {
            println!("\nNot measured: {missing}");
        }
        println!();
    }

    fn table(&self, keep_alive: bool) -> Table {
        self.table_of(keep_alive, |it| {
            let failed = if it.errors > 0 { format!("{} failed", it.errors) } else { String::new() };
            let ratios =
                [Some(it.ratio), it.to_second].into_iter().flatten().map(|ratio| format!("{ratio:.2}x"));
            let rate = thousands(it.requests_per_second as u64);
            [rate].into_iter().chain(ratios).chain([failed]).collect()
        })
    }

    fn times(&self, keep_alive: bool) -> Table {
        let milliseconds = |microseconds: f64| format!("{:.2}", microseconds / 1e3);
        self.table_of(keep_alive, |it| vec![milliseconds(it.p50_us), milliseconds(it.p99_us)])
    }

    fn director(&self, keep_alive: bool) -> Table {
        let cell = |time: f64| format!("{:.1}", time * 1e3);
        self.table_of(keep_alive, |it| it.director_s.map(cell).into_iter().collect())
    }

    /// Returns a table with a row for each variant. `cells` returns the cells of a figure: none, or
    /// the same number for all figures.
    fn table_of(&self, keep_alive: bool, cells: impl Fn(&Figure) -> Vec<String>) -> Table {
        let own = |figure: &&Figure| figure.keep_alive == keep_alive && !cells(figure).is_empty();
        let (mut ways, mut heading): (Vec<&str>, Vec<&str>) = (Vec::new(), vec![""]);
        for figure in self.figures.iter().filter(own) {
            if !ways.contains(&figure.way) {
                ways.push(figure.way);
            }
            if !heading.contains(&figure.reply) {
                heading.push(figure.reply);
                heading.extend(cells(figure).iter().skip(1).map(|_| ""));
            }
        }
        let mut table = Table::new(&heading);
        // rounds start with different variants, but the first round has the intended order
        for way in ways {
            let figures = self.figures.iter().filter(own).filter(|it| it.way == way);
            table.row([way.to_owned()].into_iter().chain(figures.flat_map(&cells)));
        }
        table
    }
}

/// Seconds per thousand requests.
fn per_thousand(time: Option<Duration>, requests: u64) -> Option<f64> {
    let time = time.filter(|_| requests > 0)?;
    Some(time.as_secs_f64() * 1e3 / requests as f64)
}

impl Figure {
    fn add(&mut self, round: Round, errors: u64) {
        self.rounds.push(round);
        self.errors += errors;
    }
}
