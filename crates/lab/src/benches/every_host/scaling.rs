//! Throughput by number of users and by number of servers (figures 4 and 5).

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde::Serialize;

use super::system::{STATEFUL, System};
use crate::benches::Effort;
use crate::benches::plot::Line;
use crate::harness::table::Table;
use crate::workloads::load::{Report, Users};

const SERVERS_MAX: u8 = 5;
/// Users per server. The peak is the result of the last two, where all servers are saturated.
const USERS: [usize; 6] = [10, 20, 30, 40, 60, 80];
const SATURATED: usize = 60;
const WARMUP: Duration = Duration::from_millis(1500);

#[derive(Debug, Default, Serialize)]
pub(super) struct Outcome {
    /// Answered requests per second, by users per server.
    pub(super) throughput: Vec<Line>,
    /// Megabits per second received by clients under saturation, by number of servers: ideal,
    /// every-host, centralised.
    pub(super) peaks: Vec<Line>,
    pub(super) errors: u64,
}

pub(super) fn run(effort: Effort) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let single = outcome.measure("one host".to_owned(), &System::straight(1)?, 1, effort)?;
    let line = |name: &str| Line { name: name.to_owned(), points: Vec::new() };
    let [mut ideal, mut every_host, mut centralised] = ["ideal", "every host", "centralised"].map(line);
    for servers in 1..=SERVERS_MAX {
        let count = f64::from(servers);
        ideal.points.push((count, count * single));
        let system = System::every_host(servers, STATEFUL, true)?;
        let peak = outcome.measure(format!("every host, {servers}"), &system, servers, effort)?;
        every_host.points.push((count, peak));
        drop(system);
        let system = System::centralised(servers, STATEFUL)?;
        let peak = outcome.measure(format!("centralised, {servers} + 1"), &system, servers, effort)?;
        centralised.points.push((count, peak));
    }
    outcome.peaks = vec![ideal, every_host, centralised];
    Ok(outcome)
}

impl Outcome {
    /// Adds a line of figure 4. Returns the peak in megabits per second.
    fn measure(&mut self, name: String, system: &System, servers: u8, effort: Effort) -> Result<f64> {
        eprintln!("every host: {name}");
        let mut line = Line { name, points: Vec::new() };
        let mut peaks = Vec::new();
        let (from, step) = if effort.few_points { (1, 3) } else { (0, 1) };
        for users in USERS.into_iter().skip(from).step_by(step) {
            let (report, megabits) = populate(system, users * usize::from(servers), effort)?;
            self.errors += report.errors.total();
            line.points.push((users as f64, report.requests_per_second));
            if users >= SATURATED {
                peaks.push(megabits);
            }
        }
        self.throughput.push(line);
        Ok(peaks.iter().sum::<f64>() / peaks.len().max(1) as f64)
    }

    pub(super) fn print(&self) {
        println!("Requests per second, by users for each server (figure 4):");
        println!();
        print!("{}", self.populations());
        println!();
        println!(
            "Megabits per second to the clients with {SATURATED} users or more for each server, and the part of"
        );
        println!("what as many times one server would do (figure 5):");
        println!();
        print!("{}", self.farms());
        if self.errors > 0 {
            println!("\n{} requests failed.", self.errors);
        }
    }

    fn populations(&self) -> Table {
        let users = self.throughput.first().into_iter().flat_map(|line| &line.points);
        let heading: Vec<String> = std::iter::once("users".to_owned())
            .chain(users.map(|(users, _)| format!("{users:.0}")))
            .collect();
        let mut table = Table::new(&heading.iter().map(String::as_str).collect::<Vec<_>>());
        for line in &self.throughput {
            let cells = line.points.iter().map(|(_, found)| format!("{found:.0}"));
            table.row(std::iter::once(line.name.clone()).chain(cells));
        }
        table
    }

    fn farms(&self) -> Table {
        let mut table = Table::new(&["servers", "ideal", "every host", "", "centralised", ""]);
        let [ideal, every_host, centralised] = self.peaks.as_slice() else { return table };
        let points = ideal.points.iter().zip(&every_host.points).zip(&centralised.points);
        for (((servers, ideal), (_, every_host)), (_, centralised)) in points {
            let part = |peak: &f64| [format!("{peak:.1}"), format!("{:.3}x", peak / ideal)];
            let cells = [part(every_host), part(centralised)].concat();
            table.row([format!("{servers:.0}"), format!("{ideal:.1}")].into_iter().chain(cells));
        }
        table
    }
}

/// Runs a number of users. Returns their report and the megabits per second that they received. The
/// bytes are counted on the wire. The number of requests would be distorted by one long reply at
/// the end of a short measurement.
fn populate(system: &System, count: usize, effort: Effort) -> Result<(Report, f64)> {
    let (targets, client) = (system.targets.clone(), &system.client);
    let users = Users { targets, count, thinking: true, duration: effort.each_point, warmup: WARMUP };
    thread::scope(|scope| {
        let running = scope.spawn(|| users.run_on(client));
        thread::sleep(WARMUP);
        let (before, started) = (client.traffic()?, Instant::now());
        thread::sleep(effort.each_point);
        let (traffic, elapsed) = (client.traffic()?.since(&before), started.elapsed());
        let report = running.join().map_err(|_| anyhow!("The population's thread panicked"))??;
        Ok((report, traffic.received_bytes as f64 * 8.0 / 1e6 / elapsed.as_secs_f64()))
    })
}
