//! An agent's report of pending responses, beside the truth (figures 2.2 and 2.3).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::super::machine::{Usage, Use};
use super::super::points::{Parameters, Point};
use super::super::run::Measured;
use super::super::{Claim, Extent, System, line, lines_of};
use crate::clients::downloads::Downloads;
use crate::evener::Agent;
use crate::farm::{Farm, WEB_PORT};
use crate::harness::plot::Line;
use crate::servers::nginx::write_by_length;
use crate::workloads::load::Report;

pub(super) const SWEEP: &str = "views";
/// Downloads at once, of this many bytes each, and the rate that they share.
const DOWNLOADS: [u8; 3] = [1, 4, 8];
const LENGTH: usize = 5 << 20;
const LINK_MBIT: u32 = 4;
/// Looks at each system, and the seconds between two with one download.
const LOOKS: u32 = 5;
const STEP: u32 = 2;
/// Greatest time of all downloads, so that a broken one ends.
const LIMIT: Duration = Duration::from_secs(180);
/// System whose agent has the paper's formula of the time left (eq. 2.5); the others have
/// Evener's own.
const PAPER: &str = "8 downloads, paper's formula";

/// Returns the points: for each number of downloads, and for the greatest one also with the
/// paper's formula.
pub(super) fn plan(extent: Extent) -> Vec<Parameters> {
    let downloads = if extent == Extent::Quick { &DOWNLOADS[..1] } else { &DOWNLOADS };
    let mut systems: Vec<(String, u8)> =
        downloads.iter().map(|count| (format!("{count} downloads"), *count)).collect();
    if extent != Extent::Quick {
        systems.push((PAPER.to_owned(), 8));
    }
    let points = systems.iter().flat_map(|(system, count)| {
        let x = move |look| f64::from(look * STEP * u32::from(*count));
        (1..=LOOKS).map(move |look| Parameters::new(SWEEP, system, 1, x(look)).lasting(0.0, x(look)))
    });
    points.collect()
}

pub(super) fn clients(parameters: &Parameters) -> usize {
    let count = parameters.system.split(' ').next().and_then(|count| count.parse().ok());
    count.unwrap_or_default()
}

/// Reported and true values at one time.
struct Look {
    second: f64,
    bytes_reported: f64,
    bytes_true: f64,
    seconds_reported: Option<f64>,
}

/// Ended downloads, with the looks at them.
struct Views {
    looks: Vec<Look>,
    end_second: f64,
    downloads: usize,
    used: Use,
}

/// Runs the downloads to their end, and looks at them meanwhile: only the end tells the true time
/// left.
pub(super) fn start(parameters: &Parameters) -> Result<Box<dyn System>> {
    let farm = Farm::builder().build()?;
    write_by_length(&farm, &[LENGTH])?;
    let host = farm.server(0);
    let to = SocketAddr::from((host.address(), WEB_PORT));
    let delay = if parameters.system == PAPER { "paper" } else { "corrected" };
    let _agent = Agent::start(host, &super::agent_file(delay, host))?;
    host.limit_replies(LINK_MBIT)?;
    let count = clients(parameters);
    let (before, began) = (Usage::read()?, Instant::now());
    let path = format!("/bytes/{LENGTH}");
    let running = Downloads::start(farm.client(0), to, count, &path, LENGTH)?;
    let mut looks = Vec::new();
    for number in 1..=LOOKS {
        let second = f64::from(number * STEP) * count as f64;
        thread::sleep(Duration::from_secs_f64(second).saturating_sub(began.elapsed()));
        let load = host.curl(&["http://127.0.0.1:9183/v1/load"])?;
        let lacks: u64 = running.lacks().iter().sum();
        let load: serde_json::Value = serde_json::from_str(&load)?;
        looks.push(Look {
            second: began.elapsed().as_secs_f64(),
            bytes_reported: load["bytes_to_send"].as_f64().context("The agent reports no bytes to send")?,
            bytes_true: lacks as f64,
            seconds_reported: load["delay_seconds"].as_f64(),
        });
    }
    while running.lacks().iter().any(|lacks| *lacks > 0) {
        if began.elapsed() > LIMIT {
            bail!("The downloads didn't end within {} s", LIMIT.as_secs());
        }
        thread::sleep(Duration::from_millis(20));
    }
    let end_second = began.elapsed().as_secs_f64();
    Ok(Box::new(Views { looks, end_second, downloads: count, used: Usage::read()?.since(&before)? }))
}

impl System for Views {
    fn measure(&self, parameters: &Parameters) -> Result<Measured> {
        let near = |look: &&Look| (look.second - parameters.x).abs();
        let look = self.looks.iter().min_by(|one, other| near(one).total_cmp(&near(other)));
        let look = look.context("Nobody looked at the downloads")?;
        let mut values = BTreeMap::from([
            ("megabytes_reported".to_owned(), look.bytes_reported / 1e6),
            ("megabytes_true".to_owned(), look.bytes_true / 1e6),
            ("seconds_true".to_owned(), self.end_second - look.second),
        ]);
        values.extend(look.seconds_reported.map(|seconds| ("seconds_reported".to_owned(), seconds)));
        let report = Report { requests: self.downloads as u64, ..Report::default() };
        Ok(Measured { report, used: self.used, values })
    }
}

/// Returns the lines of reported and of true values.
fn beside(points: &[&Point], unit: &str) -> Vec<Line> {
    let lines = |kind: &str| {
        let lines = lines_of(points, &format!("{unit}_{kind}")).into_iter();
        lines.map(|line| Line { name: format!("{}, {kind}", line.name), ..line }).collect::<Vec<_>>()
    };
    [lines("reported"), lines("true")].concat()
}

pub(super) fn bytes(points: &[&Point]) -> Vec<Line> {
    beside(points, "megabytes")
}

pub(super) fn seconds(points: &[&Point]) -> Vec<Line> {
    beside(points, "seconds")
}

pub(super) fn bytes_claims(points: &[&Point]) -> Vec<Claim> {
    let value = |point: &Point, name: &str| point.values.get(name).copied();
    let off = points.iter().filter(|point| point.counts()).filter_map(|point| {
        let (reported, lacked) = (value(point, "megabytes_reported")?, value(point, "megabytes_true")?);
        Some((reported - lacked).abs() * 1e3)
    });
    let off = off.reduce(f64::max);
    vec![Claim {
        paper: "Any time the report is read, it has the most recent bytes left (within 64 KB)",
        ours: off.map_or_else(|| "not measured".to_owned(), |off| format!("{off:.0} KB off at most")),
        holds: off.map(|off| off <= 64.0),
    }]
}

pub(super) fn seconds_claims(points: &[&Point]) -> Vec<Claim> {
    let lines = seconds(points);
    let ratios = |system: &str| -> Option<[f64; 2]> {
        let reported = line(&lines, &format!("{system}, reported"))?;
        let true_line = line(&lines, &format!("{system}, true"))?;
        let ratios = super::super::ratios(reported, true_line);
        let least = ratios.iter().copied().reduce(f64::min)?;
        Some([least, ratios.into_iter().reduce(f64::max)?])
    };
    let claim = |paper, system| {
        let ratios = ratios(system);
        Claim {
            paper,
            ours: ratios.map_or_else(
                || "not measured".to_owned(),
                |[least, most]| format!("{least:.2} to {most:.2} times the true time"),
            ),
            holds: ratios.map(|[least, most]| least >= 0.8 && most <= 1.25),
        }
    };
    vec![
        claim(
            "The time left is the bytes left by the average speed of a process, eq. 2.5 (8 downloads, within a quarter)",
            PAPER,
        ),
        claim(
            "The bytes left tell the delay (8 downloads, the agent's own formula, within a quarter)",
            "8 downloads",
        ),
    ]
}
