//! Policies on a simulated clock, beyond the papers: response times and balance by the age of
//! reports, by the number of servers, and with servers that differ or stall.

use std::collections::BTreeMap;

use anyhow::Result;

use super::machine::Use;
use super::points::{Parameters, Point};
use super::run::Measured;
use super::{Claim, Experiment, Extent, Figure, System, line, lines_of};
use crate::workloads::load::Report;
use crate::workloads::queue_simulation::{PREQUAL, Simulation};

pub(super) static EXPERIMENT: Experiment = Experiment {
    name: "policies",
    paper: "Policies on a simulated clock, beyond the papers",
    setup: "Evener's own selection from the data plane's tables, and the rule of Prequal (NSDI 2024), send \
            Poisson requests of exponential lengths to servers with one queue each, at 80 % of what all \
            can answer, 10 requests per second each. A service has at most 256 servers. The sessions of \
            each server are known at once, reports after the given time. Unequal: each second server has \
            half the speed, and no weight says so. Stalling: each server does nothing for 1 s, each 30 s \
            on average. SURGE: requests are those of its users, who don't wait for replies; the work of a reply is \
            as the length of its file, at most 1 MB, and all pauses are scaled so that the load is the same. Nothing depends on the machine.",
    figures: &FIGURES,
    plan,
    clients: |_| 1,
    start: |_| Ok(Box::new(Simulated)),
};

const FIGURES: [Figure; 6] = [
    Figure {
        number: 1,
        title: "99th percentile by age of reports, equal servers",
        sweep: "equal",
        x: "seconds between reports",
        y: "milliseconds, 99th percentile",
        digits: 0,
        lines: |points| lines_of(points, "p99_ms"),
        claims: formulas,
    },
    Figure {
        number: 2,
        title: "99th percentile by age of reports, unequal servers",
        sweep: "unequal",
        x: "seconds between reports",
        y: "milliseconds, 99th percentile",
        digits: 0,
        lines: |points| lines_of(points, "p99_ms"),
        claims: |points| bounded_by_age(points, "p99_ms"),
    },
    Figure {
        number: 3,
        title: "99.9th percentile by age of reports, stalling servers",
        sweep: "stalling",
        x: "seconds between reports",
        y: "milliseconds, 99.9th percentile",
        digits: 0,
        lines: |points| lines_of(points, "p999_ms"),
        claims: |points| bounded_by_age(points, "p999_ms"),
    },
    Figure {
        number: 4,
        title: "Imbalance by age of reports, unequal servers",
        sweep: "unequal",
        x: "seconds between reports",
        y: "% that the busiest server is above the mean, by speed",
        digits: 0,
        lines: |points| lines_of(points, "imbalance_percent"),
        claims: evenness,
    },
    Figure {
        number: 5,
        title: "99th percentile by number of servers, equal",
        sweep: "sizes",
        x: "servers",
        y: "milliseconds, 99th percentile",
        digits: 0,
        lines: |points| lines_of(points, "p99_ms"),
        claims: sizes,
    },
    Figure {
        number: 6,
        title: "99th percentile by age of reports, users of SURGE",
        sweep: "surge",
        x: "seconds between reports",
        y: "milliseconds, 99th percentile",
        digits: 0,
        lines: |points| lines_of(points, "p99_ms"),
        claims: |points| bounded_by_age(points, "p99_ms"),
    },
];

const POLICIES: [&str; 9] = [
    "power-of-two",
    "round-robin",
    "hash",
    "least-connections",
    "peak-ewma",
    "utilisation",
    "expected-delay",
    "least-load",
    PREQUAL,
];
/// Requests per second of a server, and the offered part of them.
const RATE: f64 = 10.0;
const LOAD: f64 = 0.8;
const SERVERS: u8 = 64;
/// Numbers of servers of figure 5, and the age of reports there in seconds.
const SIZES: [u32; 3] = [10, 64, 256];
const SIZES_AGE: f64 = 2.0;

fn plan(extent: Extent) -> Vec<Parameters> {
    let (repeats, ages): (u32, &[u32]) = match extent {
        Extent::Quick => (1, &[0, 2, 20]),
        Extent::Normal => (3, &[0, 1, 2, 5, 10, 20]),
        Extent::Full => (10, &[0, 1, 2, 5, 10, 20]),
    };
    let mut points = Vec::new();
    for repeat in 0..repeats {
        let mut add = |sweep: &str, system: &str, servers: u8, x: u32| {
            let point = Parameters::new(sweep, system, servers, x);
            points.push(point.repeated(repeat).lasting(0.0, 1.0));
        };
        for sweep in ["equal", "unequal", "stalling", "surge"] {
            for policy in POLICIES {
                ages.iter().for_each(|age| add(sweep, policy, SERVERS, *age));
            }
        }
        for policy in POLICIES {
            SIZES.iter().for_each(|servers| add("sizes", policy, 0, *servers));
        }
    }
    points
}

struct Simulated;

impl System for Simulated {
    fn measure(&self, parameters: &Parameters) -> Result<Measured> {
        let sweep = parameters.sweep.as_str();
        let (servers, staleness) = match sweep {
            "sizes" => (parameters.x as usize, SIZES_AGE),
            _ => (usize::from(parameters.servers), parameters.x),
        };
        let rate = |place: usize| if sweep == "unequal" && place % 2 == 1 { RATE / 2.0 } else { RATE };
        let simulation = Simulation {
            rates: (0..servers).map(rate).collect(),
            load: LOAD,
            staleness,
            is_disturbed: sweep == "stalling",
            is_surge: sweep == "surge",
            requests: 200_000,
            seed: parameters.seed,
        };
        let outcome = simulation.run(&parameters.system)?;
        let values = [
            ("mean_ms", outcome.mean_ms()),
            ("p50_ms", outcome.quantile_ms(0.5)),
            ("p99_ms", outcome.quantile_ms(0.99)),
            ("p999_ms", outcome.quantile_ms(0.999)),
            ("imbalance_percent", outcome.imbalance_percent),
        ];
        Ok(Measured {
            report: Report { requests: outcome.times_ms.len() as u64, ..Report::default() },
            // the clock is simulated
            used: Use { idle: 1.0, others: 0.0, generator: 0.0 },
            values: BTreeMap::from(values.map(|(name, value)| (name.to_owned(), value))),
        })
    }
}

fn evenness(points: &[&Point]) -> Vec<Claim> {
    let lines = lines_of(points, "imbalance_percent");
    let all = ["power-of-two", "least-connections", "round-robin", "hash"]
        .map(|name| (name, line(&lines, name).and_then(|line| line.peak())));
    let ours = all.map(|(name, peak)| match peak {
        Some(peak) => format!("{name}: {peak:.0} %"),
        None => format!("{name}: not measured"),
    });
    let [two, least, turns, hash] = all.map(|(_, peak)| peak);
    vec![Claim {
        paper: "(ours) By sessions, servers of unknown speed are used more evenly than by turns or by hash",
        ours: ours.join("; "),
        holds: two
            .zip(least)
            .zip(turns.zip(hash))
            .map(|((two, least), (turns, hash))| two.max(least) < turns.min(hash)),
    }]
}

fn sizes(points: &[&Point]) -> Vec<Claim> {
    let lines = lines_of(points, "p99_ms");
    let ends = line(&lines, "power-of-two").and_then(|line| line.at(10.0).zip(line.at(256.0)));
    vec![Claim {
        paper: "(ours) Two choices are as good among many servers as among few (256 against 10: 110 % at most)",
        ours: ends.map_or_else(
            || "not measured".to_owned(),
            |(few, many)| format!("{many:.0} ms with 256, {few:.0} with 10"),
        ),
        holds: ends.map(|(few, many)| many <= 1.1 * few),
    }]
}

/// Compares with the closed forms of one queue (M/M/1), and of the shorter one of two random
/// queues.
fn formulas(points: &[&Point]) -> Vec<Claim> {
    let ratio = |policy: &str, value: &str, formula: f64| {
        let lines = lines_of(points, value);
        Some(line(&lines, policy)?.at(0.0)? / formula)
    };
    let queue = ratio("hash", "p99_ms", 100_f64.ln() / (RATE * (1.0 - LOAD)) * 1e3);
    let two: f64 = (1..20).map(|level| LOAD.powf(2_f64.powi(level) - 2.0)).sum::<f64>() / RATE * 1e3;
    let two = ratio("power-of-two", "mean_ms", two);
    let shown = |ratio: Option<f64>| {
        ratio.map_or_else(|| "not measured".to_owned(), |it| format!("{:.0} % of the formula", it * 100.0))
    };
    let is_near = |ratio: f64| (0.9..=1.15).contains(&ratio);
    vec![
        Claim {
            paper: "(formula) Requests by hash find a queue as in M/M/1: 99th percentile (90 to 115 %)",
            ours: shown(queue),
            holds: queue.map(is_near),
        },
        Claim {
            paper: "(formula) Of two random queues the shorter one: mean (Mitzenmacher 2001; 90 to 115 %)",
            ours: shown(two),
            holds: two.map(is_near),
        },
    ]
}

/// Checks that reports of any age make no policy much worse than the sessions alone.
fn bounded_by_age(points: &[&Point], value: &str) -> Vec<Claim> {
    let lines = lines_of(points, value);
    let base = line(&lines, "power-of-two").and_then(|line| line.peak());
    let worst = ["utilisation", "expected-delay", "least-load"].map(|name| {
        let peak = line(&lines, name).and_then(|line| line.peak());
        (name, peak.zip(base).map(|(peak, base)| peak / base))
    });
    let ours = worst.map(|(name, ratio)| match ratio {
        Some(ratio) => format!("{name}: {ratio:.2} times"),
        None => format!("{name}: not measured"),
    });
    let ratios: Option<Vec<f64>> = worst.into_iter().map(|(_, ratio)| ratio).collect();
    vec![Claim {
        paper: "(ours) Old reports make no policy worse than power-of-two (1.25 times at most, at any age)",
        ours: ours.join("; "),
        holds: ratios.map(|ratios| ratios.into_iter().all(|ratio| ratio <= 1.25)),
    }]
}
