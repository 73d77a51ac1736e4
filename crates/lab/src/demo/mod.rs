//! Demonstration of a whole farm, in about half a minute.
//!
//! LSMAC as its authors intended, without a list of servers. While real clients use the farm, a
//! server joins, a server is drained, and the daemon is killed and restarted. No request may fail.

mod outcome;
mod stay;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::evener::{self, Evener, Server};
use crate::farm::Farm;
use crate::harness::table::{bytes, median, thousands};
use crate::network::faults::Traffic;
use crate::servers::proxies::HaProxy;
use crate::workloads::load::{Load, Running};
pub use outcome::{Clients, Outcome, Speed};
pub use stay::stay;

const SERVERS: usize = 3;
/// Duration of each event's observation.
const ACT: Duration = Duration::from_secs(3);
/// Time limit for the discovery of all servers.
const FOUND_WITHIN: Duration = Duration::from_secs(10);
/// Number of rounds of the comparison, and duration of each variant per round.
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_millis(700);
const CONNECTIONS: usize = 42;

/// Clients that use the farm throughout.
struct Audience {
    short: Running,
    kept: Running,
    downloads: Running,
}

/// Runs the demonstration, with progress on standard error.
pub fn run() -> Result<Outcome> {
    let stage = Stage { started: Instant::now() };
    evener::program()?;
    let mut farm = Farm::builder().servers(SERVERS as u8).directors(2).answering().build()?;
    stage.print_step(
        "a farm: a client, a router, a switch, directors and three nginx servers that share one address",
    );
    let config = evener::web_service(&farm, 0, "auto");
    config.lines().for_each(|line| eprintln!("          | {line}"));
    let mut evener = Evener::start(farm.director(), &config)?;
    let servers = evener.wait_for_servers(SERVERS, FOUND_WITHIN)?;
    stage.print_step("evener: ready; found by ARP, named by nobody:");
    stage.show(&servers);

    let mut outcome = Outcome { speeds: compare(&stage, &farm)?, ..Outcome::default() };

    let director_before = farm.director().traffic()?;
    let mut served_before = traffic_of_servers(&farm)?;
    let audience = Audience::arrive(&farm);
    stage.print_step("clients come: some with a connection for each request, some that keep theirs, some with long downloads");
    stage.watch(&audience, ACT);

    let added = farm.add_server()?;
    served_before.push(Traffic::default());
    evener.wait_for_servers(SERVERS + 1, FOUND_WITHIN)?;
    stage.print_step(&format!("a fourth server, {}, was plugged in and found", added.name()));
    stage.watch(&audience, ACT);

    outcome.taken_while_draining = drain_one(&stage, &evener, &audience)?;

    evener.daemon().kill9()?;
    stage.print_step("the daemon was killed (kill -9); who is there to send packets on?");
    let before = audience.requests();
    stage.watch(&audience, ACT);
    outcome.answered_without_daemon = audience.requests() - before;

    evener.start_again()?;
    stage.print_step("the daemon is back, and carries on with the sessions it finds");
    stage.watch(&audience, ACT);

    audience.leave(&mut outcome)?;
    outcome.director = farm.director().traffic()?.since(&director_before);
    let served = traffic_of_servers(&farm)?;
    outcome.served_bytes =
        served.iter().zip(&served_before).map(|(now, then)| now.since(then).sent_bytes).sum();
    outcome.servers = evener.servers()?;
    evener.stop().context("The daemon did not stop when told to")?;
    drop(farm);
    outcome.seconds = stage.started.elapsed().as_secs_f64();
    stage.print_step("everything is removed again");
    Ok(outcome)
}

/// Returns the requests per second of direct connections, HAProxy and Evener, measured in turn.
fn compare(stage: &Stage, farm: &Farm) -> Result<Vec<Speed>> {
    // on a separate host, where no program of ours sees its packets
    let haproxy = HaProxy::start(&farm.directors()[1], farm.servers())?;
    let ways = [
        ("straight to the servers", farm.straight()),
        ("evener", vec![farm.service()]),
        ("HAProxy, mode tcp", vec![haproxy.tcp]),
        ("HAProxy, mode http", vec![haproxy.http]),
    ];
    let mut figures = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        for ((_, targets), figures) in ways.iter().zip(&mut figures) {
            let load = Load {
                targets: targets.clone(),
                path: "/2k".to_owned(),
                connections: CONNECTIONS,
                duration: Some(ROUND),
                ..Load::to(farm.service())
            };
            let report = load.run_on(farm.client(0))?;
            if report.errors.total() > 0 {
                bail!("In the comparison, requests failed: {:?}", report.examples);
            }
            figures.push(report.requests_per_second);
        }
    }
    let speeds = ways.into_iter().zip(figures);
    let speeds = speeds.map(|((way, _), figures)| Speed { way, requests_per_second: median(figures) });
    let speeds: Vec<_> = speeds.collect();
    stage.print_step("how fast, with a new connection for each request of 2 KB: measured");
    Ok(speeds)
}

/// Drains the first server. Returns the number of its new connections afterwards.
fn drain_one(stage: &Stage, evener: &Evener, audience: &Audience) -> Result<u64> {
    let chosen = evener.servers()?.into_iter().next().context("There is no server left to drain")?;
    let name = format!("{}/{}", chosen.service, chosen.name);
    evener.command(&["drain", &name])?;
    let connections = || -> Result<u64> {
        let server = evener.servers()?.into_iter().find(|server| server.name == chosen.name);
        Ok(server.with_context(|| format!("{name} is gone, though it was only drained"))?.connections)
    };
    let before = connections()?;
    stage.print_step(&format!("evener drain {name}: no new connections for it; those it has go on"));
    stage.watch(audience, ACT);
    Ok(connections()? - before)
}

fn traffic_of_servers(farm: &Farm) -> Result<Vec<Traffic>> {
    farm.servers().iter().map(|server| server.traffic()).collect()
}

impl Audience {
    /// Starts a light load: the clients must show that no request fails, and not the maximum
    /// throughput.
    fn arrive(farm: &Farm) -> Audience {
        let client = farm.client(0);
        let visit = Load { connections: 8, pause: Duration::from_millis(5), ..Load::to(farm.service()) };
        let kept = Load { keep_alive: true, path: "/2k".to_owned(), ..visit.clone() };
        let download =
            Load { connections: 3, path: "/big".to_owned(), pace: Some(2_000_000), ..visit.clone() };
        Audience {
            short: visit.start_on(client),
            kept: kept.start_on(client),
            downloads: download.start_on(client),
        }
    }

    fn requests(&self) -> u64 {
        self.short.requests() + self.kept.requests() + self.downloads.requests()
    }

    fn errors(&self) -> u64 {
        self.short.errors() + self.kept.errors() + self.downloads.errors()
    }

    fn leave(self, outcome: &mut Outcome) -> Result<()> {
        outcome.clients = vec![
            Clients { who: "a connection for each request", report: self.short.stop()? },
            Clients { who: "connections kept", report: self.kept.stop()? },
            Clients { who: "long downloads", report: self.downloads.stop()? },
        ];
        Ok(())
    }
}

/// Printer of events with their time.
struct Stage {
    started: Instant,
}

impl Stage {
    fn print_step(&self, what: &str) {
        eprintln!("{:5.1} s   {what}", self.started.elapsed().as_secs_f64());
    }

    fn show(&self, servers: &[Server]) {
        for server in servers {
            eprintln!("          {}/{} is {}", server.service, server.name, server.state);
        }
    }

    /// Lets clients continue for a while and prints their results.
    fn watch(&self, audience: &Audience, time: Duration) {
        let (started, before) = (Instant::now(), audience.requests());
        thread::sleep(time);
        let rate = (audience.requests() - before) as f64 / started.elapsed().as_secs_f64();
        eprintln!(
            "          {} requests a second, {} broken so far",
            thousands(rate as u64),
            audience.errors()
        );
    }
}
