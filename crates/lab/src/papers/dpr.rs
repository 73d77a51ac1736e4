//! Experiments of *Distributed Packet Rewriting*, section 4: throughput and delay of its variants
//! by offered rate (figures 2 and 3), and scaling by users and servers (figures 4 and 5).

use std::any::Any;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};

use super::points::{Parameters, Point};
use super::run::{self, Measured};
use super::{Claim, Experiment, Extent, Figure, System, line, lines_of, ratios, repeats};
use crate::evener::{Plan, Team};
use crate::farm::{Farm, WEB_PORT};
use crate::harness::plot::{Line, LinePoint};
use crate::network::family::Family;
use crate::network::host::Host;
use crate::servers::nginx;
use crate::workloads::load::{Clients, Mix, Schedule};
use crate::workloads::page_users::PageUsers;

pub(super) static EXPERIMENT: Experiment = Experiment {
    name: "dpr",
    paper: "Distributed Packet Rewriting and its Application to Scalable Server Architectures, section 4",
    setup: "Replies of each server are limited to 30 Mbit/s, the capacity of one server, where the paper's \
            servers were limited by their processors; forwarding for other hosts takes nothing of that \
            rate. Files are SPECweb96's mix, and each request has a connection of its own. Users request \
            pages as in SURGE, with pauses twelve times as short. Kernel engine.",
    figures: &FIGURES,
    plan,
    clients,
    start,
};

const FIGURES: [Figure; 4] = [
    Figure {
        number: 2,
        title: "Throughput of DPR variants",
        sweep: "rate",
        x: "requests per second, asked",
        y: "requests per second, answered",
        digits: 0,
        lines: |points| lines_of(points, "requests_per_second"),
        claims: |points| throughput(&lines_of(points, "requests_per_second")),
    },
    Figure {
        number: 3,
        title: "Request delay of DPR variants",
        sweep: "rate",
        x: "requests per second, asked",
        y: "milliseconds of a request, mean",
        digits: 1,
        lines: delays,
        claims: |points| delay(&delays(points)),
    },
    Figure {
        number: 4,
        title: "Throughput comparison",
        sweep: "users",
        x: "users for each server",
        y: "requests per second, answered",
        digits: 0,
        lines: |points| lines_of(points, "requests_per_second"),
        claims: |points| comparison(&lines_of(points, "requests_per_second")),
    },
    Figure {
        number: 5,
        title: "Scalability comparison",
        sweep: "users",
        x: "servers",
        y: "megabits per second at saturation",
        digits: 1,
        lines: peaks,
        claims: |points| scalability(&peaks(points)),
    },
];

/// Limit of a server's replies, in megabits per second.
const SERVER_MBITS: u32 = 30;
/// Offered rates, relative to the capacity of two servers.
const RATES: [f64; 12] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.3, 1.6];
const FEW_RATES: [f64; 3] = [0.4, 0.7, 1.1];
/// Delays are reported while at least this part of the requests is answered.
const NEARLY: f64 = 0.93;
/// Users for each server.
const USERS: [u32; 6] = [10, 20, 30, 40, 60, 80];
const FEW_USERS: [u32; 2] = [20, 60];
/// Users for each server from which all servers are saturated.
const SATURATED: f64 = 60.0;
const SERVERS_MAX: u8 = 5;

const STATEFUL: &str = "method = \"l2\"\npolicy = \"round-robin\"\n";
const STATELESS: &str = "method = \"l2\"\npolicy = \"hash\"\nstateless = true\n";

/// Systems of figures 2 and 3, with their servers.
const VARIANTS: [(&str, u8); 6] = [
    (ONE_HOST, 1),
    (TWO_HOSTS, 2),
    (CENTRALISED, 2),
    (STATELESS_IMBALANCED, 2),
    (STATEFUL_IMBALANCED, 2),
    (STATEFUL_BALANCED, 2),
];
const ONE_HOST: &str = "one host";
const TWO_HOSTS: &str = "two hosts, no routing";
const CENTRALISED: &str = "centralised";
const STATELESS_IMBALANCED: &str = "stateless, imbalanced";
const STATEFUL_IMBALANCED: &str = "stateful, imbalanced";
const STATEFUL_BALANCED: &str = "stateful, balanced";
const EVERY_HOST: &str = "every host";

/// Requests per second that a server can answer.
fn capacity() -> f64 {
    f64::from(SERVER_MBITS) * 1e6 / 8.0 / Mix::mean_len()
}

fn plan(extent: Extent) -> Vec<Parameters> {
    let is_quick = extent == Extent::Quick;
    let repeats = if extent == Extent::Normal { 3 } else { 1 };
    let rates = if is_quick { &FEW_RATES[..] } else { &RATES };
    let users = if is_quick { &FEW_USERS[..] } else { &USERS };
    let (warmup_seconds, seconds) = match extent {
        Extent::Quick => (0.5, 1.5),
        Extent::Normal => (1.5, 5.0),
        Extent::Full => (300.0, 600.0),
    };
    let mut points = Vec::new();
    for repeat in 0..repeats {
        let mut add = |sweep: &str, system: &str, servers: u8, x: f64| {
            let point = Parameters::new(sweep, system, servers, x);
            points.push(point.repeated(repeat).lasting(warmup_seconds, seconds));
        };
        for (system, servers) in VARIANTS {
            rates.iter().for_each(|rate| add("rate", system, servers, (rate * 2.0 * capacity()).round()));
        }
        users.iter().for_each(|users| add("users", ONE_HOST, 1, (*users).into()));
        for servers in 1..=SERVERS_MAX {
            for kind in [EVERY_HOST, CENTRALISED] {
                let system = format!("{kind}, {servers}");
                users.iter().for_each(|users| add("users", &system, servers, (*users).into()));
            }
        }
    }
    points
}

fn clients(parameters: &Parameters) -> usize {
    match parameters.sweep.as_str() {
        "rate" => Schedule::CONNECTIONS_MAX,
        _ => parameters.x as usize * usize::from(parameters.servers),
    }
}

/// Running farm of rate-limited servers, with or without Evener.
struct Hosts {
    targets: Vec<SocketAddr>,
    client: Host,
    _running: Box<dyn Any>,
}

fn start(parameters: &Parameters) -> Result<Box<dyn System>> {
    let servers = parameters.servers;
    let kind = parameters.system.trim_end_matches(|end: char| end.is_ascii_digit() || end == ' ');
    let hosts = match kind.trim_end_matches(',') {
        ONE_HOST | TWO_HOSTS => Hosts::straight(servers)?,
        CENTRALISED => {
            let mut plan = Plan::new("auto", STATEFUL, usize::from(servers) + 1);
            plan.weights[0] = 0;
            Hosts::team(plan, 1)?
        }
        STATELESS_IMBALANCED => Hosts::team(Plan::new("auto", STATELESS, servers.into()), 1)?,
        STATEFUL_IMBALANCED => Hosts::team(Plan::new("auto", STATEFUL, servers.into()), 1)?,
        STATEFUL_BALANCED | EVERY_HOST => Hosts::team(Plan::new("auto", STATEFUL, servers.into()), servers)?,
        _ => bail!("no system is called {}", parameters.system),
    };
    Ok(Box::new(hosts))
}

impl Hosts {
    fn straight(servers: u8) -> Result<Hosts> {
        let farm = farm(servers)?;
        Ok(Hosts { targets: farm.straight(), client: farm.client(0).clone(), _running: Box::new(farm) })
    }

    /// Starts hosts that serve and forward. Requests arrive at the first ones.
    fn team(plan: Plan, arrivals: u8) -> Result<Hosts> {
        let farm = farm(u8::try_from(plan.weights.len())?)?;
        let team = Team::start(farm, plan).context("The hosts of a farm did not come together")?;
        let targets =
            (0..arrivals.into()).map(|host| (team.farm.own_vip(Family::V4, host), WEB_PORT).into()).collect();
        Ok(Hosts { targets, client: team.farm.client(0).clone(), _running: Box::new(team) })
    }
}

impl System for Hosts {
    fn measure(&self, parameters: &Parameters) -> Result<Measured> {
        let (targets, seed, client) = (self.targets.clone(), parameters.seed, &self.client);
        run::measure(client, parameters, |warmup, duration| match parameters.sweep.as_str() {
            "rate" => {
                let (workload, rate) = (&Mix::new(seed), parameters.x);
                Schedule { workload, targets, rate, duration, warmup, seed }.run_on(client)
            }
            _ => {
                let count = clients(parameters);
                let users = PageUsers::new(true, seed);
                Clients { count, duration, warmup, ..Clients::new(&users, targets) }.run_on(client)
            }
        })
    }
}

fn farm(servers: u8) -> Result<Farm> {
    let farm = Farm::builder().every_host(servers).offload_replies().build()?;
    nginx::write_by_length(&farm, &Mix::lengths())?;
    farm.servers().iter().try_for_each(|host| host.limit_replies(SERVER_MBITS))?;
    Ok(farm)
}

/// Lines of delays, where nearly all requests are answered.
fn delays(points: &[&Point]) -> Vec<Line> {
    let is_answered = |point: &&&Point| {
        point
            .values
            .get("requests_per_second")
            .is_some_and(|answered| *answered >= NEARLY * point.parameters.x)
    };
    lines_of(&points.iter().filter(is_answered).copied().collect::<Vec<_>>(), "mean_ms")
}

/// Lines of the throughput at saturation, by servers.
fn peaks(points: &[&Point]) -> Vec<Line> {
    let saturated: Vec<&Point> =
        points.iter().copied().filter(|point| point.parameters.x >= SATURATED).collect();
    let line = |kind: &str| {
        let of_kind: Vec<&Point> =
            saturated.iter().copied().filter(|point| point.parameters.system.starts_with(kind)).collect();
        let megabits = |point: &Point| point.values.get("megabits").copied();
        Line { name: kind.to_owned(), points: repeats(&of_kind, |p| p.parameters.servers.into(), megabits) }
    };
    let single = line(ONE_HOST).points.first().copied();
    let ideal = |single: LinePoint| {
        (1..=SERVERS_MAX).map(f64::from).map(move |servers| LinePoint {
            x: servers,
            least: single.least * servers,
            median: single.median * servers,
            greatest: single.greatest * servers,
            counts: single.counts,
        })
    };
    let ideal = Line { name: "ideal".to_owned(), points: single.into_iter().flat_map(ideal).collect() };
    vec![ideal, line(EVERY_HOST), line(CENTRALISED)]
}

/// Part of `of` by which two results that are alike may differ.
const ALIKE: f64 = 0.05;

fn is_alike(ratio: f64) -> bool {
    (ratio - 1.0).abs() <= ALIKE
}

fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "?".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0))
}

fn throughput(lines: &[Line]) -> Vec<Claim> {
    let peak = |name| line(lines, name).and_then(Line::peak);
    let of_two = |name| Some(peak(name)? / peak(TWO_HOSTS)?);
    let (one, central, stateless) = (of_two(ONE_HOST), of_two(CENTRALISED), of_two(STATELESS_IMBALANCED));
    let (imbalanced, balanced) = (of_two(STATEFUL_IMBALANCED), of_two(STATEFUL_BALANCED));
    let both = |one: Option<f64>, other: Option<f64>| Some((one?, other?));
    vec![
        Claim {
            paper: "One host saturates at 100 requests/s, two without routing at 200: 50 % (we allow 45 to 55 %)",
            ours: format!("{} of two hosts' peak", percent(one)),
            holds: one.map(|one| (one - 0.5).abs() <= 0.05),
        },
        Claim {
            paper: "The stateless variant and the centralised router saturate at 195, as two hosts do (within 5 %)",
            ours: format!("{} and {} of two hosts' peak", percent(stateless), percent(central)),
            holds: both(stateless, central).map(|(one, other)| is_alike(one) && is_alike(other)),
        },
        Claim {
            paper: "The stateful variants saturate at 180 of 200 (at 85 % or more)",
            ours: format!("{} and {} of two hosts' peak", percent(imbalanced), percent(balanced)),
            holds: both(imbalanced, balanced).map(|(one, other)| one.min(other) >= 0.85),
        },
        Claim {
            paper: "It hardly matters whether all requests arrive at one host (within 5 %)",
            ours: format!(
                "imbalanced {} of balanced",
                percent(both(imbalanced, balanced).map(|(i, b)| i / b))
            ),
            holds: both(imbalanced, balanced).map(|(imbalanced, balanced)| is_alike(imbalanced / balanced)),
        },
    ]
}

fn delay(lines: &[Line]) -> Vec<Claim> {
    let mean = |name: &str, base: &str| {
        let ratios = ratios(line(lines, name)?, line(lines, base)?);
        (!ratios.is_empty()).then(|| ratios.iter().sum::<f64>() / ratios.len() as f64)
    };
    let claim = |paper, name, base| {
        let ratio = mean(name, base);
        let ours = ratio.map_or_else(
            || "no point has both".to_owned(),
            |ratio| format!("{ratio:.2} times as long, on average over the points"),
        );
        Claim { paper, ours, holds: ratio.map(|ratio| (0.75..=1.25).contains(&ratio)) }
    };
    vec![
        claim(
            "Delays of the stateful variants are alike, balanced or not (within 25 %)",
            STATEFUL_IMBALANCED,
            STATEFUL_BALANCED,
        ),
        claim(
            "Delays of the stateless variant are as the centralised router's (within 25 %)",
            STATELESS_IMBALANCED,
            CENTRALISED,
        ),
        claim(
            "A hop more adds little to the delay: the stateful variant beside two hosts (within 25 %)",
            STATEFUL_BALANCED,
            TWO_HOSTS,
        ),
    ]
}

fn comparison(lines: &[Line]) -> Vec<Claim> {
    let peak = |kind: &str, servers: u8| line(lines, &format!("{kind}, {servers}"))?.peak();
    let ratio = |servers| Some(peak(CENTRALISED, servers)? / peak(EVERY_HOST, servers)?);
    let claim = |paper, sizes: [u8; 2], holds: fn(f64) -> bool| {
        let found = sizes.map(ratio);
        let ours = sizes.iter().zip(found).map(|(servers, ratio)| {
            let ratio = ratio.map_or_else(|| "?".to_owned(), |ratio| format!("{ratio:.3}"));
            format!("{servers} servers: {ratio}")
        });
        Claim {
            paper,
            ours: format!("centralised / every host: {}", ours.collect::<Vec<_>>().join(", ")),
            holds: found.into_iter().collect::<Option<Vec<f64>>>().map(|all| all.into_iter().all(holds)),
        }
    };
    vec![
        claim("With 2 and 3 servers both are alike (within 5 %)", [2, 3], is_alike),
        claim(
            "With 4 and 5 the centralised router's throughput is lower (by more than 2 %)",
            [4, 5],
            |ratio| ratio < 0.98,
        ),
    ]
}

fn scalability(lines: &[Line]) -> Vec<Claim> {
    let part = |name: &str, servers: u8| {
        let servers = servers.into();
        Some(line(lines, name)?.at(servers)? / line(lines, "ideal")?.at(servers)?)
    };
    let parts: Option<Vec<f64>> = (1..=SERVERS_MAX).map(|servers| part(EVERY_HOST, servers)).collect();
    let least = parts.map(|parts| parts.into_iter().fold(f64::INFINITY, f64::min));
    let (four, five) = (part(CENTRALISED, 4), part(CENTRALISED, 5));
    vec![
        Claim {
            paper: "DPR is near-perfect for up to five hosts (95 % of ideal or more)",
            ours: format!("{} of ideal or more", percent(least)),
            holds: least.map(|least| least >= 0.95),
        },
        Claim {
            paper: "The centralised system has 94 % of ideal on four hosts, and 86 % on five: its router is a \
                    bottleneck (less than 97 % and 90 %)",
            ours: format!("{} and {}", percent(four), percent(five)),
            holds: four.zip(five).map(|(four, five)| four < 0.97 && five < 0.9),
        },
    ]
}
