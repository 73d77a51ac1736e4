//! Experiments of *A Scalable Web Cluster System using a Light-weight Cluster Control Protocol*,
//! section 5.2: one server with and without handoff (figure 5), and farms of up to 14 servers
//! compared with as many direct servers (figure 6). As in the paper, clients send a new request on
//! a new connection as soon as the previous one is answered. A server has a fixed rate: a limit of
//! its replies.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde::Serialize;

use crate::benches::Effort;
use crate::benches::plot::{self, Figure, Line};
use crate::evener::{Handoff, Offer, route};
use crate::farm::Farm;
use crate::harness::table::Table;
use crate::network::family::Family;
use crate::servers::nginx;
use crate::workloads::load::{Mix, Report, Users};

/// Limit of a server's replies, in megabits per second.
const SERVER_MBITS: u32 = 30;
/// Numbers of clients of the single server (figure 5).
const CLIENTS: [usize; 7] = [10, 20, 40, 80, 120, 160, 200];
const FEW_CLIENTS: [usize; 3] = [10, 40, 160];
/// Numbers of servers (figure 6), and clients per server.
const SERVERS: [u8; 7] = [1, 2, 4, 6, 8, 11, 14];
const FEW_SERVERS: [u8; 4] = [1, 4, 8, 14];
const CLIENTS_EACH: usize = 60;
/// Time until the share of long replies in progress is stable.
const WARMUP: Duration = Duration::from_secs(3);
/// Factor of the duration of points relative to other figures: one reply in a hundred has a third
/// of all bytes.
const LONGER: u32 = 2;
/// Names of the two variants.
const NAMES: [&str; 2] = ["straight", "handed over"];

#[derive(Debug, Serialize)]
pub(in crate::benches) struct Outcome {
    /// Results by number of clients of one server.
    stability: Comparison,
    /// Results by number of servers.
    scaling: Comparison,
    errors: u64,
}

/// Results of both variants; the first line is without handoff.
#[derive(Debug, Serialize)]
struct Comparison {
    connections: [Line; 2],
    /// Megabits per second received by clients, counted on the wire, because one long reply at the
    /// end would distort the number of connections.
    megabits: [Line; 2],
}

/// Results at one point.
struct Point {
    report: Report,
    megabits: f64,
}

/// Measures both figures, and writes plots to a folder if one is given.
pub(in crate::benches) fn run(effort: Effort, plots: Option<&Path>) -> Result<Outcome> {
    let mut outcome = Outcome { stability: Comparison::new(), scaling: Comparison::new(), errors: 0 };
    let (clients, servers) =
        if effort.few_points { (&FEW_CLIENTS[..], &FEW_SERVERS[..]) } else { (&CLIENTS[..], &SERVERS[..]) };
    let single = start(1)?;
    for count in clients {
        eprintln!("handoff: {count} clients");
        let found = both(&single, *count, effort)?;
        outcome.note_errors(&found);
        outcome.stability.add(*count as f64, &found);
    }
    drop(single);
    for count in servers {
        eprintln!("handoff: {count} servers");
        let found = both(&start(*count)?, CLIENTS_EACH * usize::from(*count), effort)?;
        outcome.note_errors(&found);
        outcome.scaling.add((*count).into(), &found);
    }
    if let Some(folder) = plots {
        outcome.figures().iter().try_for_each(|figure| plot::write(folder, figure))?;
    }
    Ok(outcome)
}

/// Starts a number of rate-limited servers, and a director that selects the server with the fewest
/// connections by a path route. Round robin would accumulate long connections at one server, which
/// does not happen with direct connections.
fn start(servers: u8) -> Result<Handoff> {
    let farm = Farm::builder().bare().servers(servers).offload_replies().build()?;
    nginx::write_by_length(&farm, &Mix::lengths())?;
    farm.servers().iter().try_for_each(|host| host.limit_replies(SERVER_MBITS))?;
    let all: Vec<&str> = farm.servers().iter().map(|server| server.name()).collect();
    let routes = [route("path = \"/other/*\"", &all[..1]), route("path = \"/*\"", &all)];
    // saturated servers would fail probes
    let health = "[service.health]\nkind = \"none\"\n".to_owned();
    let keys = "policy = \"least-connections\"\n".to_owned();
    Handoff::start(farm, Offer { health, keys, ..Offer::new("auto", servers.into(), &routes) })
}

/// Measures a number of clients on the same servers, direct and through the director.
fn both(handoff: &Handoff, count: usize, effort: Effort) -> Result<[Point; 2]> {
    let duration = LONGER * effort.each_point;
    let measure_point = |targets| -> Result<Point> {
        let users = Users { targets, count, thinking: false, duration, warmup: WARMUP };
        let client = handoff.client();
        thread::scope(|scope| {
            let running = scope.spawn(|| users.run_on(client));
            thread::sleep(WARMUP);
            let (before, started) = (client.traffic()?, Instant::now());
            thread::sleep(duration);
            let (traffic, elapsed) = (client.traffic()?.since(&before), started.elapsed());
            let report = running.join().map_err(|_| anyhow!("The clients' thread panicked"))??;
            let megabits = traffic.received_bytes as f64 * 8.0 / 1e6 / elapsed.as_secs_f64();
            Ok(Point { report, megabits })
        })
    };
    Ok([measure_point(handoff.farm.straight())?, measure_point(vec![handoff.service(Family::V4)])?])
}

impl Outcome {
    fn note_errors(&mut self, found: &[Point; 2]) {
        for (point, name) in found.iter().zip(NAMES) {
            self.errors += point.report.errors.total();
            point.report.examples.iter().for_each(|example| eprintln!("{name}: {example}"));
        }
    }

    pub(in crate::benches) fn is_whole(&self) -> bool {
        self.errors == 0
    }

    pub(in crate::benches) fn print(&self) {
        println!(
            "Handed over or straight: servers that reply with {SERVER_MBITS} Mbit/s each, SPECweb96's mix of"
        );
        println!(
            "files, a new connection for each, clients that ask again at once. Connections per second and"
        );
        println!("megabits per second, by clients of one server (figure 5 of the LCCP paper):");
        println!();
        print!("{}", self.stability.table("clients"));
        println!();
        println!("By servers, with {CLIENTS_EACH} clients for each (figure 6):");
        println!();
        print!("{}", self.scaling.table("servers"));
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
                lines: &self.stability.connections,
            },
            Figure {
                file: "lccp-figure-6.svg",
                title: "Throughput by farm size",
                x: "servers",
                y: "megabits per second",
                lines: &self.scaling.megabits,
            },
        ]
    }
}

impl Comparison {
    fn new() -> Comparison {
        let lines = || NAMES.map(|name| Line { name: name.to_owned(), points: Vec::new() });
        Comparison { connections: lines(), megabits: lines() }
    }

    fn add(&mut self, at: f64, found: &[Point; 2]) {
        for (line, point) in self.connections.iter_mut().zip(found) {
            line.points.push((at, point.report.requests_per_second));
        }
        for (line, point) in self.megabits.iter_mut().zip(found) {
            line.points.push((at, point.megabits));
        }
    }

    /// Returns the table of both variants for both measures, with ratios.
    fn table(&self, of: &str) -> Table {
        let mut table =
            Table::new(&[of, "conn/s straight", "handed over", "", "Mbit/s straight", "handed over", ""]);
        let points = |lines: &[Line; 2]| {
            let [straight, handed] = lines.each_ref().map(|line| line.points.clone());
            straight.into_iter().zip(handed)
        };
        for (connections, megabits) in points(&self.connections).zip(points(&self.megabits)) {
            let cells = [(connections, 0), (megabits, 1)].map(|(((_, straight), (_, handed)), digits)| {
                let [first, second] = [straight, handed].map(|found| format!("{found:.digits$}"));
                [first, second, format!("{:.3}x", handed / straight)]
            });
            let ((at, _), _) = connections;
            table.row([format!("{at:.0}")].into_iter().chain(cells.concat()));
        }
        table
    }
}
