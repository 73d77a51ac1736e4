//! Throughput and delay by offered rate (figures 2 and 3): two servers, in the paper's six set-ups.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::rate;
use super::system::{STATEFUL, STATELESS, System};
use crate::benches::Effort;
use crate::benches::plot::Line;
use crate::harness::table::Table;
use crate::workloads::load::{Report, Schedule};

/// Offered rates, relative to the capacity of two servers.
const PUNTED: [f64; 10] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1];
/// Delays are reported while at least this part of the requests is answered.
const NEARLY: f64 = 0.93;
const WARMUP: Duration = Duration::from_millis(500);

type Start = fn() -> Result<System>;

const SYSTEMS: [(&str, Start); 6] = [
    ("one host", || System::straight(1)),
    ("two hosts, no routing", || System::straight(2)),
    ("centralised", || System::centralised(2, STATEFUL)),
    ("stateless, imbalanced", || System::every_host(2, STATELESS, false)),
    ("stateful, imbalanced", || System::every_host(2, STATEFUL, false)),
    ("stateful, balanced", || System::every_host(2, STATEFUL, true)),
];

#[derive(Debug, Default, Serialize)]
pub(super) struct Outcome {
    /// Answered requests per second, by offered rate.
    pub(super) throughput: Vec<Line>,
    /// Average milliseconds from the scheduled time of a request to its reply, by offered rate.
    pub(super) delay: Vec<Line>,
    pub(super) errors: u64,
}

pub(super) fn run(effort: Effort) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for (name, start) in SYSTEMS {
        eprintln!("every host: {name}");
        let system = start()?;
        let mut throughput = Line { name: name.to_owned(), points: Vec::new() };
        let mut delay = throughput.clone();
        let (from, step) = if effort.few_points { (3, 3) } else { (0, 1) };
        for part in PUNTED.into_iter().skip(from).step_by(step) {
            let requested = part * 2.0 * rate();
            let report = measure(&system, requested, effort)?;
            outcome.errors += report.errors.total();
            throughput.points.push((requested, report.requests_per_second));
            if report.requests_per_second >= NEARLY * requested {
                delay.points.push((requested, report.mean_us / 1e3));
            }
        }
        outcome.throughput.push(throughput);
        outcome.delay.push(delay);
    }
    Ok(outcome)
}

fn measure(system: &System, rate: f64, effort: Effort) -> Result<Report> {
    let targets = system.targets.clone();
    Schedule { targets, rate, duration: effort.each_point, warmup: WARMUP }.run_on(&system.client)
}

impl Outcome {
    pub(super) fn print(&self) {
        println!("Answered, by requests per second that are asked of two servers (figure 2):");
        println!();
        print!("{}", self.table(&self.throughput, 0));
        println!();
        println!("Milliseconds on average, as long as about all are answered (figure 3):");
        println!();
        print!("{}", self.table(&self.delay, 1));
        if self.errors > 0 {
            println!("\n{} requests failed.", self.errors);
        }
    }

    fn table(&self, lines: &[Line], digits: usize) -> Table {
        let requested: Vec<f64> = self
            .throughput
            .first()
            .into_iter()
            .flat_map(|line| &line.points)
            .map(|(requested, _)| *requested)
            .collect();
        let heading: Vec<String> = std::iter::once("asked".to_owned())
            .chain(requested.iter().map(|requested| format!("{requested:.0}")))
            .collect();
        let mut table = Table::new(&heading.iter().map(String::as_str).collect::<Vec<_>>());
        for line in lines {
            let cell = |requested: &f64| {
                let point = line.points.iter().find(|(at, _)| at == requested);
                point.map_or_else(|| "-".to_owned(), |(_, found)| format!("{found:.digits$}"))
            };
            table.row(std::iter::once(line.name.clone()).chain(requested.iter().map(cell)));
        }
        table
    }
}
