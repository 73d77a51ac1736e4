//! Experiments of *A Scalable Web Cluster System using a Light-weight Cluster Control Protocol*,
//! section 5.2: one server with and without handoff (figure 5), and farms of up to 14 servers
//! compared with as many direct servers (figure 6).

use std::net::SocketAddr;

use anyhow::{Result, bail};

use super::points::{Parameters, Point};
use super::run::{self, Measured};
use super::{Claim, Experiment, Extent, Figure, System, line, lines_of, ratios};
use crate::evener::{Handoff, Offer, route};
use crate::farm::Farm;
use crate::network::family::Family;
use crate::servers::nginx;
use crate::workloads::load::{Clients, Mix};
use crate::workloads::page_users::PageUsers;

pub(super) static EXPERIMENT: Experiment = Experiment {
    name: "lccp",
    paper: "A Scalable Web Cluster System using a Light-weight Cluster Control Protocol, section 5.2",
    setup: "Replies of each server are limited to 30 Mbit/s. Files are SPECweb96's mix where the paper had \
            SURGE's set, and clients send a new request on a new connection as soon as the previous one is \
            answered. The director selects by a path, among its servers the one with the fewest \
            connections, where the paper had round robin. Figure 6 has 60 clients for each server, where \
            the paper had 200.",
    figures: &FIGURES,
    plan,
    clients,
    start,
};

const FIGURES: [Figure; 2] = [
    Figure {
        number: 5,
        title: "One server, with and without handoff",
        sweep: "clients",
        x: "clients",
        y: "connections per second",
        digits: 0,
        lines: |points| lines_of(points, "requests_per_second"),
        claims: stability,
    },
    Figure {
        number: 6,
        title: "Throughput by number of servers",
        sweep: "servers",
        x: "servers",
        y: "connections per second",
        digits: 0,
        lines: |points| lines_of(points, "requests_per_second"),
        claims: scaling,
    },
];

/// Limit of a server's replies, in megabits per second.
const SERVER_MBITS: u32 = 30;
/// Numbers of clients of the single server (figure 5).
const CLIENTS: [u32; 7] = [10, 20, 40, 80, 120, 160, 200];
const FEW_CLIENTS: [u32; 2] = [10, 120];
/// Numbers of servers (figure 6), and clients for each server.
const SERVERS: [u8; 7] = [1, 2, 4, 6, 8, 11, 14];
const FEW_SERVERS: [u8; 3] = [1, 4, 14];
const CLIENTS_EACH: usize = 60;
/// Path to the servers.
const WAYS: [&str; 2] = [STRAIGHT, HANDED_OFF];
const STRAIGHT: &str = "straight";
const HANDED_OFF: &str = "handed off";

fn plan(extent: Extent) -> Vec<Parameters> {
    // of 30 seconds, the paper used the middle 20; one reply in a hundred has a third of all bytes,
    // so that points of this mix take long
    let (repeats, warmup_seconds, seconds) = match extent {
        Extent::Quick => (1, 1.5, 3.0),
        Extent::Normal => (3, 3.0, 10.0),
        Extent::Full => (10, 5.0, 20.0),
    };
    let is_quick = extent == Extent::Quick;
    let clients = if is_quick { &FEW_CLIENTS[..] } else { &CLIENTS };
    let servers = if is_quick { &FEW_SERVERS[..] } else { &SERVERS };
    let mut points = Vec::new();
    for repeat in 0..repeats {
        let mut add = |sweep: &str, system: &str, servers: u8, x: u32| {
            let point = Parameters::new(sweep, system, servers, x);
            points.push(point.repeated(repeat).lasting(warmup_seconds, seconds));
        };
        for way in WAYS {
            clients.iter().for_each(|clients| add("clients", way, 1, *clients));
        }
        for servers in servers {
            WAYS.iter().for_each(|way| add("servers", way, *servers, (*servers).into()));
        }
    }
    points
}

fn clients(parameters: &Parameters) -> usize {
    match parameters.sweep.as_str() {
        "clients" => parameters.x as usize,
        _ => CLIENTS_EACH * usize::from(parameters.servers),
    }
}

/// Running farm, and the addresses that clients use.
struct Cluster {
    targets: Vec<SocketAddr>,
    handoff: Handoff,
}

/// Starts rate-limited servers, and a director that selects the server with the fewest connections
/// by a path route. Round robin would accumulate long connections at one server, which does not
/// happen with direct connections.
fn start(parameters: &Parameters) -> Result<Box<dyn System>> {
    let farm = Farm::builder().bare().servers(parameters.servers).offload_replies().build()?;
    nginx::write_by_length(&farm, &Mix::lengths())?;
    farm.servers().iter().try_for_each(|host| host.limit_replies(SERVER_MBITS))?;
    let all: Vec<&str> = farm.servers().iter().map(|server| server.name()).collect();
    let routes = [route("path = \"/other/*\"", &all[..1]), route("path = \"/*\"", &all)];
    // saturated servers would fail probes
    let health = "[service.health]\nkind = \"none\"\n".to_owned();
    let keys = "policy = \"least-connections\"\n".to_owned();
    let offer = Offer { health, keys, ..Offer::new("auto", parameters.servers.into(), &routes) };
    let handoff = Handoff::start(farm, offer)?;
    let targets = match parameters.system.as_str() {
        STRAIGHT => handoff.farm.straight(),
        HANDED_OFF => vec![handoff.service(Family::V4)],
        _ => bail!("no system is called {}", parameters.system),
    };
    Ok(Box::new(Cluster { targets, handoff }))
}

impl System for Cluster {
    fn measure(&self, parameters: &Parameters) -> Result<Measured> {
        let (targets, seed, client) = (self.targets.clone(), parameters.seed, self.handoff.client());
        let count = clients(parameters);
        run::measure(client, parameters, |warmup, duration| {
            let users = PageUsers::new(false, seed);
            Clients { count, duration, warmup, ..Clients::new(&users, targets) }.run_on(client)
        })
    }
}

/// Names of values, with their names in sentences.
const VALUES: [(&str, &str); 2] = [("requests_per_second", "connections"), ("megabits", "megabits")];

fn stability(points: &[&Point]) -> Vec<Claim> {
    vec![as_good(
        "The system with handoff performs comparably to the unmodified server (90 % or more)",
        points,
    )]
}

fn scaling(points: &[&Point]) -> Vec<Claim> {
    let linear = |value| {
        let lines = lines_of(points, value);
        let handed = line(&lines, HANDED_OFF)?;
        let single = handed.at(1.0)?;
        handed.counted().map(|point| point.median / (single * point.x)).min_by(f64::total_cmp)
    };
    let found = VALUES.map(|(value, name)| (name, linear(value)));
    let ours = found.map(|(name, least)| match least {
        Some(least) => format!("{name}: {:.1} % of linear or more", least * 100.0),
        None => format!("{name}: no point of one server"),
    });
    vec![
        Claim {
            paper: "Throughput increases linearly with the servers, up to 14 (95 % of linear or more)",
            ours: ours.join("; "),
            holds: found
                .map(|(_, least)| least)
                .into_iter()
                .collect::<Option<Vec<f64>>>()
                .map(all_from(0.95)),
        },
        as_good("The system is as good as the ideal one, of servers alone (90 % or more)", points),
    ]
}

fn all_from(least: f64) -> impl Fn(Vec<f64>) -> bool {
    move |all| all.into_iter().all(|value| value >= least)
}

/// Checks that handoff reaches nearly what clients reach that go straight, in connections and in
/// megabits: clients of a busy server finish more of the short replies than of the long ones.
fn as_good(paper: &'static str, points: &[&Point]) -> Claim {
    let least_and_greatest = |value| {
        let lines = lines_of(points, value);
        let mut all = ratios(line(&lines, HANDED_OFF)?, line(&lines, STRAIGHT)?);
        all.sort_by(f64::total_cmp);
        Some((*all.first()?, *all.last()?))
    };
    let found = VALUES.map(|(value, name)| (name, least_and_greatest(value)));
    let ours = found.map(|(name, found)| match found {
        Some((least, greatest)) => {
            format!("{name}: {:.1} to {:.1} % of straight", least * 100.0, greatest * 100.0)
        }
        None => format!("{name}: no point has both"),
    });
    let least = found.map(|(_, found)| found.map(|(least, _)| least));
    Claim {
        paper,
        ours: ours.join("; "),
        holds: least.into_iter().collect::<Option<Vec<f64>>>().map(all_from(0.9)),
    }
}
