//! Measures load: the time that a group's director takes to redirect clients (figure 8 of
//! CMU-CS-95-114), and the waiting time of clients with unequal servers, by policy.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::{Effort, redirect};
use crate::evener::Evener;
use crate::farm::Farm;
use crate::harness::plot::{Line, LinePoint, Plot};
use crate::harness::table::{Table, median, thousands};
use crate::harness::wait::LONG;
use crate::network::host::Host;
use crate::workloads::load::{Load, Report};
use crate::workloads::policy_comparison::{Contest, Sharing};

/// Maximum number of clients, as in the paper.
const CLIENTS_MAX: usize = 10;
/// Farms, with requests per second that each server can answer.
const FARMS: [(&str, [f64; 3]); 2] =
    [("equal, 40/s each", [40.0, 40.0, 40.0]), ("one at a tenth: 60, 60, 6/s", [60.0, 60.0, 6.0])];
const PER_SECOND: f64 = 80.0;
const SHARINGS: [(&str, Sharing); 4] = [
    ("nat, round-robin", Sharing::Nat("round-robin")),
    ("nat, least-connections", Sharing::Nat("least-connections")),
    ("nat, power-of-two", Sharing::Nat("power-of-two")),
    ("group, least-load", Sharing::Group),
];
/// Time until the group knows the slow server, and the slow server has answered its early clients.
const WARMUP: Duration = Duration::from_secs(45);
/// Timeout of a reply.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    dispatches: Vec<Dispatch>,
    waits: Vec<Wait>,
}

/// Director's replies to clients that each send one request after another: medians of rounds.
#[derive(Debug, Serialize)]
struct Dispatch {
    clients: usize,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    errors: u64,
}

/// Waiting times of clients for servers' replies.
#[derive(Debug, Serialize)]
struct Wait {
    servers: &'static str,
    sharing: &'static str,
    requests: u64,
    /// Failed requests, nearly all of them timeouts.
    failed: u64,
    p50_us: u64,
    /// `None` if more than one in a hundred failed.
    p99_us: Option<u64>,
    /// Percentage of requests that the last server answered.
    last_percent: f64,
}

pub(super) fn run(effort: Effort, plots: Option<&Path>) -> Result<Outcome> {
    let outcome = Outcome { dispatches: dispatches(effort)?, waits: waits(effort)? };
    if let Some(folder) = plots {
        fs::create_dir_all(folder).with_context(|| format!("Making {} failed", folder.display()))?;
        let path = folder.join("load-figure-8.svg");
        fs::write(&path, outcome.plot()?).with_context(|| format!("Writing {} failed", path.display()))?;
    }
    Ok(outcome)
}

fn dispatches(effort: Effort) -> Result<Vec<Dispatch>> {
    let farm = Farm::builder().bare().servers(1).build()?;
    let evener = Evener::start(farm.director(), &redirect::file(&farm, farm.director(), "least-load"))?;
    evener.wait_for_servers(1, LONG)?;
    let (client, address) = (farm.client(0), redirect::address(farm.director()));
    let mut reports = vec![Vec::new(); CLIENTS_MAX];
    for round in 0..effort.rounds {
        eprintln!("load: dispatches, round {} of {}", round + 1, effort.rounds);
        for (of_all, clients) in reports.iter_mut().zip(1..) {
            of_all.push(dispatch(client, address, clients, effort.each)?);
        }
    }
    let of = |reports: &[Report], figure: fn(&Report) -> f64| median(reports.iter().map(figure).collect());
    let all = reports.iter().zip(1..).map(|(reports, clients)| Dispatch {
        clients,
        per_second: of(reports, |report| report.requests_per_second),
        p50_us: of(reports, |report| report.p50_us as f64),
        p99_us: of(reports, |report| report.p99_us as f64),
        errors: reports.iter().map(|report| report.errors.total()).sum(),
    });
    Ok(all.collect())
}

fn dispatch(client: &Host, address: SocketAddr, connections: usize, each: Duration) -> Result<Report> {
    // one connection per request, as in HTTP/1.0
    let path = "/a/page?of=some&length".to_owned();
    let load = Load { path, connections, duration: Some(each), status: 302, ..Load::to(address) };
    let report = load.run_on(client)?;
    ensure!(report.requests > 0, "nothing was answered: {:?}", report.examples);
    Ok(report)
}

fn waits(effort: Effort) -> Result<Vec<Wait>> {
    let duration = Duration::from_secs(if effort.is_quick { 15 } else { 60 });
    let mut waits = Vec::new();
    for (servers, rates) in FARMS {
        let (per_second, warmup, timeout) = (PER_SECOND, WARMUP, TIMEOUT);
        let contest = Contest { rates: rates.to_vec(), per_second, warmup, duration, timeout };
        let farm = contest.farm()?;
        for (name, sharing) in SHARINGS {
            eprintln!("load: servers {servers}; {name}");
            let report = contest.run(&farm, sharing)?;
            if let Some(first) = report.examples.first() {
                eprintln!("load: the first that failed: {first}");
            }
            waits.push(wait(servers, name, &report));
        }
    }
    Ok(waits)
}

fn wait(servers: &'static str, sharing: &'static str, report: &Report) -> Wait {
    let failed = report.errors.total();
    let last = report.servers.get("web3").map_or(0, |share| share.requests);
    Wait {
        servers,
        sharing,
        requests: report.requests + failed,
        failed,
        p50_us: report.p50_us,
        p99_us: (failed * 100 <= report.requests + failed).then_some(report.p99_us),
        last_percent: last as f64 * 100.0 / report.requests.max(1) as f64,
    }
}

impl Outcome {
    /// True if every request was answered, except requests to overloaded servers.
    pub(super) fn is_whole(&self) -> bool {
        let group = self.waits.iter().filter(|wait| wait.sharing.starts_with("group"));
        self.dispatches.iter().all(|dispatch| dispatch.errors == 0)
            && group.map(|wait| wait.failed).sum::<u64>() == 0
    }

    fn plot(&self) -> Result<String> {
        let line = |name: &str, figure: fn(&Dispatch) -> f64| {
            let point = |one: &Dispatch| LinePoint::single(one.clients as f64, figure(one) / 1e3);
            Line { name: name.to_owned(), points: self.dispatches.iter().map(point).collect() }
        };
        let lines = [line("half", |one| one.p50_us), line("99 of 100", |one| one.p99_us)];
        Plot { title: "Time of a dispatch", x: "clients", y: "milliseconds", lines: &lines }.svg()
    }

    pub(super) fn print(&self) {
        println!(
            "A group's answers that send on, by clients that ask one after the other, a connection for each."
        );
        println!();
        let mut table = Table::new(&["clients", "answers/s", "p50 us", "p99 us", "errors"]);
        for Dispatch { clients, per_second, p50_us, p99_us, errors } in &self.dispatches {
            let cells = [*clients as u64, *per_second as u64, *p50_us as u64, *p99_us as u64, *errors];
            table.row(cells.map(thousands));
        }
        println!("{table}");
        println!(
            "Three servers that answer one request after the other, {PER_SECOND:.0} requests/s at Poisson times."
        );
        println!();
        let mut table = Table::new(&["servers, policy", "requests", "p50 ms", "p99 ms", "web3 %", "failed"]);
        for wait in &self.waits {
            let ms = |us: u64| format!("{:.0}", us as f64 / 1e3);
            table.row([
                format!("{}; {}", wait.servers, wait.sharing),
                thousands(wait.requests),
                ms(wait.p50_us),
                wait.p99_us.map_or_else(|| format!("> {}", TIMEOUT.as_millis()), ms),
                format!("{:.1}", wait.last_percent),
                thousands(wait.failed),
            ]);
        }
        println!("{table}");
    }
}
