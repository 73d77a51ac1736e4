//! The experiments of *A Scalable Web Cluster System using a Light-weight Cluster Control Protocol*, section 5.2: one
//! server with and without what hands over (figure 5), and farms of up to 14 servers beside as many that clients go
//! straight to (figure 6). As in the paper, requests come as soon as the ones before are answered, one on each
//! connection. One server is worth a fixed rate, that of its replies.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde::Serialize;

use crate::bench::Effort;
use crate::bench::plot::{self, Figure, Line};
use crate::evener::{Handoff, Offer, route};
use crate::family::Family;
use crate::farm::Farm;
use crate::load::{Mix, Report, Users};
use crate::table::Table;
use crate::web;

/// What a server replies with at most, in megabits a second.
const SERVER_MBITS: u32 = 30;
/// Clients of the one server (figure 5).
const CLIENTS: [usize; 7] = [10, 20, 40, 80, 120, 160, 200];
const FEW_CLIENTS: [usize; 3] = [10, 40, 160];
/// Servers (figure 6), and clients for each.
const SERVERS: [u8; 7] = [1, 2, 4, 6, 8, 11, 14];
const FEW_SERVERS: [u8; 4] = [1, 4, 8, 14];
const CLIENTS_EACH: usize = 60;
const WARMUP: Duration = Duration::from_millis(1500);

/// Both figures. Of two lines, the first is without what hands over.
#[derive(Debug, Default, Serialize)]
pub(in crate::bench) struct Outcome {
    /// Connections per second, by clients of one server.
    stability: Vec<Line>,
    /// Megabits per second that came to the clients, by servers.
    scaling: Vec<Line>,
    /// Connections per second, by servers.
    connections: Vec<Line>,
    /// Requests that failed.
    errors: u64,
}

/// What was found at one point.
struct Point {
    report: Report,
    megabits: f64,
}

/// Measures both, and writes plots to a folder, if one is named.
pub(in crate::bench) fn run(effort: Effort, plots: Option<&Path>) -> Result<Outcome> {
    let lines = || ["straight", "handed over"].map(|name| Line { name: name.to_owned(), points: Vec::new() });
    let mut outcome = Outcome {
        stability: lines().into(),
        scaling: lines().into(),
        connections: lines().into(),
        errors: 0,
    };
    let (clients, servers) =
        if effort.few_points { (&FEW_CLIENTS[..], &FEW_SERVERS[..]) } else { (&CLIENTS[..], &SERVERS[..]) };
    let single = start(1)?;
    for count in clients {
        eprintln!("handoff: {count} clients");
        for (line, found) in both(&single, *count, effort)?.into_iter().enumerate() {
            outcome.errors += found.report.errors.total();
            outcome.stability[line].points.push((*count as f64, found.report.requests_per_second));
        }
    }
    drop(single);
    for count in servers {
        eprintln!("handoff: {count} servers");
        let found = both(&start(*count)?, CLIENTS_EACH * usize::from(*count), effort)?;
        for (line, found) in found.into_iter().enumerate() {
            outcome.errors += found.report.errors.total();
            let count = f64::from(*count);
            outcome.scaling[line].points.push((count, found.megabits));
            outcome.connections[line].points.push((count, found.report.requests_per_second));
        }
    }
    if let Some(folder) = plots {
        outcome.figures().iter().try_for_each(|figure| plot::write(folder, figure))?;
    }
    Ok(outcome)
}

/// So many servers that are held to their rate, and a director that chooses them in turn by a path.
fn start(servers: u8) -> Result<Handoff> {
    let farm = Farm::builder().bare().servers(servers).offload_replies().build()?;
    web::write_by_length(&farm, &Mix::lengths())?;
    farm.servers().iter().try_for_each(|host| host.limit_replies(SERVER_MBITS))?;
    let all: Vec<&str> = farm.servers().iter().map(|server| server.name()).collect();
    let routes = [route("path = \"/other/*\"", &all[..1]), route("path = \"/*\"", &all)];
    // servers that are saturated are late with everything
    let health = "[service.health]\nkind = \"none\"\n".to_owned();
    let keys = "policy = \"round-robin\"\n".to_owned();
    Handoff::start(farm, Offer { health, keys, ..Offer::new("auto", servers.into(), &routes) })
}

/// What so many clients find on the same servers, straight and by way of the director.
fn both(handoff: &Handoff, count: usize, effort: Effort) -> Result<[Point; 2]> {
    let ask = |targets| -> Result<Point> {
        let users = Users { targets, count, thinking: false, duration: effort.each_point, warmup: WARMUP };
        let client = handoff.client();
        thread::scope(|scope| {
            let running = scope.spawn(|| users.run_on(client));
            thread::sleep(WARMUP);
            let (before, begun) = (client.traffic()?, Instant::now());
            thread::sleep(effort.each_point);
            let (traffic, took) = (client.traffic()?.since(&before), begun.elapsed());
            let report = running.join().map_err(|_| anyhow!("The clients' thread panicked"))??;
            let megabits = traffic.received_bytes as f64 * 8.0 / 1e6 / took.as_secs_f64();
            Ok(Point { report, megabits })
        })
    };
    Ok([ask(handoff.farm.straight())?, ask(vec![handoff.service(Family::V4)])?])
}

impl Outcome {
    pub(in crate::bench) fn is_whole(&self) -> bool {
        self.errors == 0
    }

    pub(in crate::bench) fn print(&self) {
        println!(
            "Handed over or straight: servers that reply with {SERVER_MBITS} Mbit/s each, SPECweb96's mix of files,"
        );
        println!(
            "a new connection for each, clients that ask again at once. Connections per second, by clients of"
        );
        println!("one server (figure 5 of the LCCP paper):");
        println!();
        print!("{}", table("clients", &self.stability, 0));
        println!();
        println!("Megabits per second to {CLIENTS_EACH} clients for each server, by servers (figure 6):");
        println!();
        print!("{}", table("servers", &self.scaling, 1));
        println!();
        println!("and connections per second:");
        println!();
        print!("{}", table("servers", &self.connections, 0));
        if self.errors > 0 {
            println!("\n{} requests failed.", self.errors);
        }
        println!();
    }

    fn figures(&self) -> [Figure<'_>; 2] {
        [
            Figure {
                file: "lccp-figure-5.svg",
                title: "One server, with and without handoff",
                x: "clients",
                y: "connections per second",
                lines: &self.stability,
            },
            Figure {
                file: "lccp-figure-6.svg",
                title: "Throughput by farm size",
                x: "servers",
                y: "connections per second",
                lines: &self.connections,
            },
        ]
    }
}

/// Both lines, and the ratio of the second to the first.
fn table(of: &str, lines: &[Line], digits: usize) -> Table {
    let mut table = Table::new(&[of, "straight", "handed over", ""]);
    let [straight, handed] = lines else { return table };
    for ((at, straight), (_, handed)) in straight.points.iter().zip(&handed.points) {
        let cells = [straight, handed].map(|found| format!("{found:.digits$}"));
        let ratio = format!("{:.3}x", handed / straight);
        table.row([format!("{at:.0}")].into_iter().chain(cells).chain([ratio]));
    }
    table
}
