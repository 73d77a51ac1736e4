//! Published workloads, each against one held server: what a server of a tenth of a processor
//! answers.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum as _;

use super::points::{Parameters, Point};
use super::run::{self, Measured};
use super::{Claim, Experiment, Extent, Figure, System, lines_of};
use crate::farm::Farm;
use crate::harness::held_machine::HeldMachine;
use crate::harness::process::Proc;
use crate::servers::other_web_servers::apache_prefork;
use crate::workloads::catalog::{self, Name};
use crate::workloads::load::{Clients, Schedule};
use crate::workloads::{self, Workload};

pub(super) static EXPERIMENT: Experiment = Experiment {
    name: "workloads",
    paper: "The workloads of the five papers",
    setup: "One server, without a balancer: Apache prefork with 64 processes, held to a tenth of a \
            processor, with its programs. Replies of the CGI workload use 2 ms of it each. SPECweb96's \
            requests come at Poisson times, as many in a second as others have clients. The access log's \
            mix and the server groups' pattern are ours where the papers don't give theirs.",
    figures: &[Figure {
        number: 1,
        title: "Requests of each workload",
        sweep: "workload",
        x: "clients",
        y: "requests per second, answered",
        digits: 1,
        lines: |points| lines_of(points, "requests_per_second"),
        claims,
    }],
    plan,
    clients: |parameters| parameters.x as usize,
    start,
};

/// Part of a processor that the server has, and its processes.
const PART: f64 = 0.1;
const PROCESSES: u16 = 64;

fn plan(extent: Extent) -> Vec<Parameters> {
    let (counts, seconds): (&[u32], f64) = match extent {
        Extent::Quick => (&[8], 2.0),
        Extent::Normal => (&[1, 8, 32], 5.0),
        Extent::Full => (&[1, 8, 32], 60.0),
    };
    let names = Name::value_variants().iter().filter_map(|name| name.to_possible_value());
    let point =
        |system: &str, count: u32| Parameters::new("workload", system, 1, count).lasting(1.0, seconds);
    let points = names.flat_map(|name| {
        let name = name.get_name().to_owned();
        counts.iter().map(move |count| point(&name, *count))
    });
    points.collect()
}

/// Held server with the files of a workload. Fields are dropped in order.
struct Held {
    name: Name,
    workload: Box<dyn Workload>,
    _apache: Proc,
    _machine: HeldMachine,
    farm: Farm,
}

fn start(parameters: &Parameters) -> Result<Box<dyn System>> {
    let name = Name::from_str(&parameters.system, false).map_err(anyhow::Error::msg)?;
    let settings = catalog::Parameters {
        seed: parameters.seed,
        rate: 100.0,
        pattern: 7,
        program_time: Duration::from_millis(2),
    };
    let workload = name.workload(&settings).context("There is no such pattern")?;
    let mut farm = Farm::builder().servers(1).offload_replies().build()?;
    farm.stop_web(0)?;
    workloads::write_files(&farm.page(""), &*workload)?;
    let machine = HeldMachine::new(PART)?;
    let apache = apache_prefork(farm.server(0), &farm, PROCESSES, &machine)?;
    Ok(Box::new(Held { name, workload, _apache: apache, _machine: machine, farm }))
}

impl System for Held {
    fn measure(&self, parameters: &Parameters) -> Result<Measured> {
        let (client, targets, workload) = (self.farm.client(0), self.farm.straight(), &*self.workload);
        run::measure(client, parameters, |warmup, duration| match self.name {
            Name::Specweb96 => {
                let (rate, seed) = (parameters.x, parameters.seed);
                Schedule { workload, targets, rate, duration, warmup, seed }.run_on(client)
            }
            _ => {
                let count = parameters.x as usize;
                Clients { count, warmup, duration, ..Clients::new(workload, targets) }.run_on(client)
            }
        })
    }
}

fn claims(points: &[&Point]) -> Vec<Claim> {
    let lines = lines_of(points, "requests_per_second");
    let all = lines.iter().flat_map(|line| &line.points);
    let (places, counting) = (all.clone().count(), all.filter(|point| point.counts).count());
    vec![Claim {
        paper: "(ours) The server answers each workload, with at most 1 of 1,000 requests failed",
        ours: format!("{counting} of {places} points count"),
        holds: Some(counting == places),
    }]
}
