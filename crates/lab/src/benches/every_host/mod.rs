//! Measures every-host farms, in the experiments of Distributed Packet Rewriting, section 4:
//! throughput and delay of the variants (figures 2 and 3), and scaling (figures 4 and 5). As in the
//! paper, a server has a fixed rate, here a limit of its replies. Forwarding to other hosts is not
//! limited.

mod scaling;
mod system;
mod variants;

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use super::Effort;
use super::plot::{self, Figure};
use crate::workloads::load::Mix;

/// Limit of a server's replies, in megabits per second.
const SERVER_MBITS: u32 = 30;

#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    variants: variants::Outcome,
    scaling: scaling::Outcome,
}

pub(super) fn run(effort: Effort, plots: Option<&Path>) -> Result<Outcome> {
    let outcome = Outcome { variants: variants::run(effort)?, scaling: scaling::run(effort)? };
    if let Some(folder) = plots {
        outcome.figures().iter().try_for_each(|figure| plot::write(folder, figure))?;
    }
    Ok(outcome)
}

impl Outcome {
    pub(super) fn is_whole(&self) -> bool {
        self.variants.errors + self.scaling.errors == 0
    }

    pub(super) fn print(&self) {
        println!(
            "Every host a director: servers that reply with {SERVER_MBITS} Mbit/s each (about {:.0} requests",
            rate()
        );
        println!("per second), SPECweb96's mix of files, a new connection for each.");
        println!();
        self.variants.print();
        println!();
        self.scaling.print();
        println!();
    }

    fn figures(&self) -> [Figure<'_>; 4] {
        let figure = |file, title, x, y, lines| Figure { file, title, x, y, lines };
        let (variants, scaling) = (&self.variants, &self.scaling);
        let (requested, answered) = ("requests per second, asked", "requests per second, answered");
        [
            figure("figure-2.svg", "Throughput of variants", requested, answered, &variants.throughput),
            figure("figure-3.svg", "Delay of variants", requested, "milliseconds, mean", &variants.delay),
            figure(
                "figure-4.svg",
                "Throughput by population",
                "users per server",
                answered,
                &scaling.throughput,
            ),
            figure(
                "figure-5.svg",
                "Peak throughput by farm size",
                "servers",
                "megabits per second",
                &scaling.peaks,
            ),
        ]
    }
}

/// Requests per second that a server can answer.
fn rate() -> f64 {
    f64::from(SERVER_MBITS) * 1e6 / 8.0 / Mix::mean_len()
}
