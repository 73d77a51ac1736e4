//! Experiments of *Implementing Distributed Server Groups for the World Wide Web*, section 4:
//! balance among members (figures 6 to 8), the dispatcher's time (figure 9), clients' latency
//! (figures 10 and 11; 13 here has the other workloads), and the gain that the conclusion expects
//! of a faster network (12 here).

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::points::{Parameters, Point};
use super::run::{self, Measured};
use super::{Claim, Experiment, Extent, Figure, System, line, lines_of, ratios};
use crate::evener::{Agent, Evener};
use crate::farm::Farm;
use crate::harness::held_machine::HeldMachine;
use crate::harness::plot::Line;
use crate::harness::process::Proc;
use crate::harness::wait::LONG;
use crate::network::medium::Medium;
use crate::servers::other_web_servers::apache_prefork;
use crate::workloads::load::{Clients, Load, Report};
use crate::workloads::server_groups::Pattern;
use crate::workloads::webstone::WebStone;
use crate::workloads::{self, Workload};

pub(super) static EXPERIMENT: Experiment = Experiment {
    name: "groups",
    paper: "Implementing Distributed Server Groups for the World Wide Web (CMU-CS-95-114), section 4",
    setup: "All hosts share 10 Mbit/s, as on the paper's Ethernet, but without collisions. Members are nginx \
            with agents, which report each 3 s where the paper's reported each 15 s; the director sends \
            clients on by `least-load`, by reports that age or by the paper's own formula. The paper has ten \
            patterns of 4 KB, 100 KB and 2 MB and doesn't list them; these are ours. Figure 12 isn't in the \
            paper: each host has 100 Mbit/s at a switch, and members are Apache held to a tenth of a \
            processor; its programs use 20 ms for a reply.",
    figures: &FIGURES,
    plan,
    clients: |parameters| clients(parameters),
    start,
};

const FIGURES: [Figure; 8] = [
    Figure {
        number: 6,
        title: "Balance of two members",
        sweep: "patterns",
        x: "pattern",
        y: "% that the busiest member is above an equal share",
        digits: 1,
        lines: |points| balance(points, 2),
        claims: |points| balance_claims(points, 2, "The load is within 7 % of optimal with 2 servers", 7.0),
    },
    Figure {
        number: 7,
        title: "Share of the first member, ten patterns in a row",
        sweep: "shares",
        x: "pattern",
        y: "% of requests of the first of two members",
        digits: 1,
        lines: |points| lines_of(points, "first_percent"),
        claims: share_claims,
    },
    Figure {
        number: 8,
        title: "Balance of four members",
        sweep: "patterns",
        x: "pattern",
        y: "% that the busiest member is above an equal share",
        digits: 1,
        lines: |points| balance(points, 4),
        claims: |points| balance_claims(points, 4, "The load is within 9 % of optimal with 4 servers", 9.0),
    },
    Figure {
        number: 9,
        title: "Time of a dispatch",
        sweep: "dispatches",
        x: "clients",
        y: "milliseconds, mean",
        digits: 2,
        lines: |points| lines_of(points, "mean_ms"),
        claims: dispatch_claims,
    },
    Figure {
        number: 10,
        title: "Latency of small files",
        sweep: "small",
        x: "clients",
        y: "milliseconds of a request, mean",
        digits: 1,
        lines: latency,
        claims: latency_claims,
    },
    Figure {
        number: 11,
        title: "Latency of large files",
        sweep: "large",
        x: "clients",
        y: "milliseconds of a request, mean",
        digits: 0,
        lines: latency,
        claims: latency_claims,
    },
    Figure {
        number: 12,
        title: "Throughput on a faster network (conclusion)",
        sweep: "fast",
        x: "members",
        y: "requests per second",
        digits: 1,
        lines: |points| lines_of(points, "requests_per_second"),
        claims: gain_claims,
    },
    Figure {
        number: 13,
        title: "Latency by pattern, ten clients",
        sweep: "patterns",
        x: "pattern",
        y: "milliseconds of a request, mean",
        digits: 0,
        lines: latency,
        claims: pattern_claims,
    },
];

/// Rate of the shared network, and of each port of the switch in figure 12, in megabits per second.
const MEGABITS: u32 = 10;
const FAST_MEGABITS: u32 = 100;
/// Time between two reports of a member, in seconds.
const REPORT: &str = "3";
/// Workloads of figure 12.
const FAST: [&str; 3] = ["small files", "large files", "programs"];
/// Part of a processor of a server of figure 12, and its processes.
const PART: f64 = 0.1;
const PROCESSES: u16 = 64;
/// Probes of members.
const HEALTH: &str = "kind = \"http\"\npath = \"/healthz\"\ninterval = \"1s\"\ntimeout = \"900ms\"";
/// Length of a program's reply in bytes, and the processor time that it uses.
const PROGRAM: (usize, Duration) = (4_000, Duration::from_millis(20));
/// Port of the group.
const PORT: u16 = 8000;
/// Number of clients of the patterns.
const CLIENTS: u32 = 10;
const VANILLA: &str = "vanilla";
/// Systems whose latency is compared.
const ONE: &str = "1 members, aged";
const FOUR: &str = "4 members, aged";
/// Patterns with large files, and how much longer these are measured.
const LARGE: [u32; 5] = [3, 5, 6, 7, 10];
const LONGER: f64 = 6.0;

fn plan(extent: Extent) -> Vec<Parameters> {
    let (patterns, counts, few, seconds): (&[u32], &[u8], &[u32], f64) = match extent {
        Extent::Quick => (&[1, 2, 4], &[2], &[1, 10], 4.0),
        Extent::Normal => (&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], &[2, 4], &[1, 5, 10], 10.0),
        Extent::Full => (&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], &[2, 4], &[1, 5, 10], 120.0),
    };
    let mut points = Vec::new();
    let mut add = |sweep: &str, system: String, servers: u8, x: u32| {
        // ten large files take 16 s on the shared network
        let has_large = sweep == "large" || (sweep == "patterns" && LARGE.contains(&x));
        let seconds = match sweep {
            _ if has_large => seconds * LONGER,
            "shares" if LARGE.contains(&x) => seconds * 2.0,
            _ => seconds,
        };
        points.push(Parameters::new(sweep, &system, servers, x).lasting(4.0, seconds));
    };
    for members in counts {
        for load in ["aged", "paper"] {
            patterns.iter().for_each(|x| add("patterns", format!("{members} members, {load}"), *members, *x));
        }
    }
    for alone in [VANILLA, ONE] {
        patterns.iter().for_each(|x| add("patterns", alone.to_owned(), 1, *x));
    }
    few.iter().for_each(|x| add("dispatches", FOUR.to_owned(), 4, *x));
    for report in ["1", "3", "15"] {
        patterns.iter().for_each(|x| add("shares", format!("reports each {report} s"), 2, *x));
    }
    for workload in FAST {
        [1, 2, 4].iter().for_each(|members| add("fast", workload.to_owned(), *members, u32::from(*members)));
    }
    for sweep in ["small", "large"] {
        few.iter().for_each(|x| add(sweep, VANILLA.to_owned(), 1, *x));
        for members in [1, 4] {
            few.iter().for_each(|x| add(sweep, format!("{members} members, aged"), members, *x));
        }
    }
    points
}

fn clients(parameters: &Parameters) -> usize {
    let of_patterns = ["patterns", "shares", "fast"].contains(&&*parameters.sweep);
    if of_patterns { CLIENTS as usize } else { parameters.x as usize }
}

/// Running group, or one server alone. Fields are dropped in order.
struct Group {
    target: SocketAddr,
    _agents: Vec<Agent>,
    evener: Option<Evener>,
    _apaches: Vec<Proc>,
    _machines: Vec<HeldMachine>,
    farm: Farm,
}

/// Replaces the servers of figure 12 by held ones, which run programs.
fn hold(farm: &mut Farm) -> Result<(Vec<Proc>, Vec<HeldMachine>)> {
    let (mut apaches, mut machines) = (Vec::new(), Vec::new());
    for number in 0..farm.servers().len() {
        farm.stop_web(number)?;
        let machine = HeldMachine::new(PART)?;
        apaches.push(apache_prefork(farm.server(number), farm, PROCESSES, &machine)?);
        machines.push(machine);
    }
    Ok((apaches, machines))
}

fn start(parameters: &Parameters) -> Result<Box<dyn System>> {
    let is_fast = parameters.sweep == "fast";
    let hosts = if is_fast { 4 } else { 1 };
    let mut farm = Farm::builder().bare().servers(parameters.servers).clients(hosts).build()?;
    let pattern = Pattern::new(0).context("There is no pattern")?;
    workloads::write_files(&farm.page(""), &pattern)?;
    let (apaches, machines) = if is_fast { hold(&mut farm)? } else { Default::default() };
    let group = if parameters.system == VANILLA {
        let Some(target) = farm.straight().first().copied() else { bail!("The farm has no server") };
        Group { target, _agents: Vec::new(), evener: None, _apaches: apaches, _machines: machines, farm }
    } else {
        let load = if parameters.system.ends_with("paper") { "paper" } else { "aged" };
        let each = parameters.system.strip_prefix("reports each ").and_then(|text| text.split(' ').next());
        let report = each.unwrap_or(REPORT);
        // a held server may be late
        let health = if is_fast { "kind = \"none\"" } else { HEALTH };
        let target = SocketAddr::from((farm.director().address(), PORT));
        let file = format!(
            "[[service]]\nname = \"group\"\naddress = \"{target}\"\nmethod = \"redirect\"\npolicy = \"least-load\"\n\
             load = \"{load}\"\n[service.health]\n{health}\n\
             [service.group]\ninsecure = true\nreport = \"{report}s\"\nquery_after = \"20s\"\n\
             remove_after = \"60s\"\n"
        );
        let evener = Evener::start(farm.director(), &file)?;
        let agents =
            Agent::start_all(farm.servers(), &format!("[agent.member]\ngroup = \"http://{target}\"\n"))?;
        evener.wait_for_servers(farm.servers().len(), LONG)?;
        Group { target, _agents: agents, evener: Some(evener), _apaches: apaches, _machines: machines, farm }
    };
    let medium = if is_fast { Medium::Switched(FAST_MEGABITS) } else { Medium::Shared(MEGABITS) };
    group.farm.limit_network(medium)?;
    Ok(Box::new(group))
}

impl System for Group {
    fn measure(&self, parameters: &Parameters) -> Result<Measured> {
        let (client, count, targets) = (self.farm.client(0), clients(parameters), vec![self.target]);
        let number = match parameters.sweep.as_str() {
            "patterns" | "shares" => parameters.x as usize,
            "large" => 3,
            "fast" if parameters.system == "large files" => 3,
            _ => 1,
        };
        let pattern = Pattern::new(number - 1).context("There is no such pattern")?;
        let mut measured = run::measure(client, parameters, |warmup, duration| {
            if parameters.sweep == "dispatches" {
                let path = "/a/page".to_owned();
                let load = Load {
                    path,
                    connections: count,
                    duration: Some(warmup + duration),
                    status: 302,
                    ..Load::to(self.target)
                };
                return load.run_on(client);
            }
            let (len, time) = PROGRAM;
            let programs = WebStone::new(&[(len, 1)], parameters.seed).by_program(time);
            let workload: &dyn Workload = if parameters.system == "programs" { &programs } else { &pattern };
            let clients = Clients::new(workload, targets);
            Clients { count, warmup, duration, follow: self.evener.is_some(), ..clients }
                .run_on_all(self.farm.clients())
        })?;
        let report = &measured.report;
        let phases = [
            ("connect_ms", report.connect_us / 1e3),
            ("redirect_ms", report.redirect_us / 1e3),
            ("fetch_ms", report.fetch_us / 1e3),
        ];
        measured.values.extend(phases.map(|(name, value)| (name.to_owned(), value)));
        if parameters.sweep == "shares" {
            let first = measured.report.servers.get("web1").map_or(0, |share| share.requests);
            let percent = first as f64 * 100.0 / measured.report.requests.max(1) as f64;
            measured.values.insert("first_percent".to_owned(), percent);
        }
        if parameters.sweep != "patterns" {
            return Ok(measured);
        }
        let report = &measured.report;
        let excesses = [
            ("requests_excess_percent", excess(report, parameters.servers, |share| share.requests)),
            ("bytes_excess_percent", excess(report, parameters.servers, |share| share.bytes)),
        ];
        measured.values.extend(excesses.map(|(name, value)| (name.to_owned(), value)));
        Ok(measured)
    }
}

/// Returns how far the busiest member is above an equal share, in percent.
fn excess(report: &Report, members: u8, of: fn(&crate::workloads::load::Share) -> u64) -> f64 {
    let all: Vec<u64> = report.servers.values().map(of).collect();
    let sum = all.iter().sum::<u64>().max(1) as f64;
    let most = all.into_iter().max().unwrap_or_default() as f64;
    (most * f64::from(members) / sum - 1.0) * 100.0
}

/// Lines of the imbalance of this number of members, in requests and in bytes.
fn balance(points: &[&Point], members: u8) -> Vec<Line> {
    let of_members: Vec<&Point> =
        points.iter().copied().filter(|point| point.parameters.servers == members).collect();
    let lines = |value: &str, name: &str| {
        let lines = lines_of(&of_members, value).into_iter();
        let renamed = lines.map(|line| {
            let load = line.name.rsplit(' ').next().unwrap_or_default();
            Line { name: format!("{load}, {name}"), points: line.points }
        });
        renamed.collect::<Vec<_>>()
    };
    [lines("requests_excess_percent", "requests"), lines("bytes_excess_percent", "bytes")].concat()
}

fn balance_claims(points: &[&Point], members: u8, paper: &'static str, most: f64) -> Vec<Claim> {
    let lines = balance(points, members);
    let greatest = |name: &str| line(&lines, name)?.peak();
    let all: Vec<String> =
        lines.iter().filter_map(|line| Some(format!("{}: {:.1} %", line.name, line.peak()?))).collect();
    vec![Claim {
        paper,
        ours: if all.is_empty() {
            "not measured".to_owned()
        } else {
            format!("greatest of all patterns above an equal share: {}", all.join("; "))
        },
        holds: greatest("aged, requests").map(|excess| excess <= most),
    }]
}

fn share_claims(points: &[&Point]) -> Vec<Claim> {
    let lines = lines_of(points, "first_percent");
    let shown = lines.iter().filter_map(|line| {
        let shares: Vec<f64> = line.counted().map(|point| point.median).collect();
        let least = shares.iter().copied().reduce(f64::min)?;
        let most = shares.iter().copied().reduce(f64::max)?;
        Some((
            format!("{}: {least:.0} to {most:.0} %", line.name),
            (least - 50.0).abs().max((most - 50.0).abs()),
        ))
    });
    let (shown, off): (Vec<String>, Vec<f64>) = shown.unzip();
    vec![Claim {
        paper: "The share varies somewhat, around one half (by 10 of 100 at most)",
        ours: if shown.is_empty() { "not measured".to_owned() } else { shown.join("; ") },
        holds: off.into_iter().reduce(f64::max).map(|off| off <= 10.0),
    }]
}

fn gain_claims(points: &[&Point]) -> Vec<Claim> {
    let lines = lines_of(points, "requests_per_second");
    let gain = |name: &str| {
        let line = line(&lines, name)?;
        Some(line.at(4.0)? / line.at(1.0)?)
    };
    let all = FAST.map(|name| (name, gain(name)));
    let ours = all.map(|(name, gain)| match gain {
        Some(gain) => format!("{name}: {gain:.1} times"),
        None => format!("{name}: not measured"),
    });
    let gains: Option<Vec<f64>> = all.into_iter().map(|(_, gain)| gain).collect();
    vec![Claim {
        paper: "A gain would be expected where the network isn't the limit (four members: 1.5 times one or more)",
        ours: ours.join("; "),
        holds: gains.map(|gains| gains.into_iter().all(|gain| gain >= 1.5)),
    }]
}

fn dispatch_claims(points: &[&Point]) -> Vec<Claim> {
    let lines = lines_of(points, "mean_ms");
    let line = lines.first();
    let ends = line.and_then(|line| Some((line.at(1.0)?, line.at(10.0)?)));
    let ours = ends.map_or_else(
        || "not measured".to_owned(),
        |(one, ten)| format!("{one:.2} ms with one client, {ten:.2} with ten"),
    );
    vec![
        Claim {
            paper: "A redirect takes around 30 ms (no more than that)",
            ours: ours.clone(),
            holds: ends.map(|(one, ten)| one.max(ten) <= 30.0),
        },
        Claim {
            paper: "The time stays fairly constant from 1 to 10 clients (at most twice as long)",
            ours,
            holds: ends.map(|(one, ten)| ten <= 2.0 * one),
        },
    ]
}

/// Lines of the mean latency, and of its phases with four members.
fn latency(points: &[&Point]) -> Vec<Line> {
    let mut lines = lines_of(points, "mean_ms");
    lines.retain(|line| [VANILLA, ONE, FOUR].contains(&line.name.as_str()));
    for (value, phase) in [("connect_ms", "connect"), ("redirect_ms", "redirect"), ("fetch_ms", "fetch")] {
        let of_phase = lines_of(points, value).into_iter().filter(|line| line.name == FOUR);
        lines.extend(of_phase.map(|line| Line { name: format!("4 members, {phase}"), ..line }));
    }
    lines
}

fn pattern_claims(points: &[&Point]) -> Vec<Claim> {
    let lines = lines_of(points, "mean_ms");
    let all = |name: &str| {
        let ratios = ratios(line(&lines, name)?, line(&lines, VANILLA)?);
        let most = ratios.iter().copied().reduce(f64::max)?;
        Some((ratios.iter().sum::<f64>() / ratios.len() as f64, most))
    };
    let four = all(FOUR);
    let shown = |name: &str| match all(name) {
        Some((mean, most)) => {
            format!("{name}: {:.0} % of a server alone, {:.0} at most", mean * 100.0, most * 100.0)
        }
        None => format!("{name}: not measured"),
    };
    vec![Claim {
        paper: "Latency is generally no worse than that of a server alone (mean over the patterns, at most 10 % more)",
        ours: format!("{}; {}", shown(ONE), shown(FOUR)),
        holds: four.map(|(mean, _)| mean <= 1.1),
    }]
}

fn latency_claims(points: &[&Point]) -> Vec<Claim> {
    let lines = lines_of(points, "mean_ms");
    let at_ten = |name: &str| line(&lines, name)?.at(10.0);
    let ratio = |one: Option<f64>, other: Option<f64>| Some(one? / other?);
    let percent =
        |ratio: Option<f64>| ratio.map_or_else(|| "?".to_owned(), |it| format!("{:.0} %", it * 100.0));
    let (vanilla, one, four) = (at_ten(VANILLA), at_ten(ONE), at_ten(FOUR));
    let (to_vanilla, to_one) = (ratio(four, vanilla), ratio(four, one));
    vec![
        Claim {
            paper: "Latency is generally no worse than that of a server alone (ten clients, at most 10 % more)",
            ours: format!("four members: {} of a server alone", percent(to_vanilla)),
            holds: to_vanilla.map(|ratio| ratio <= 1.1),
        },
        Claim {
            paper: "It improves only slightly as servers are added: the network is the limit (by 15 % at most)",
            ours: format!("four members: {} of one member", percent(to_one)),
            holds: to_one.map(|ratio| (0.85..=1.15).contains(&ratio)),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::server_groups::PATTERNS;

    #[test]
    fn excess_is_what_busiest_member_has_above_its_share() {
        let mut report = Report::default();
        for (server, requests) in [("web1", 60), ("web2", 40)] {
            let share = crate::workloads::load::Share { requests, ..Default::default() };
            report.servers.insert(server.to_owned(), share);
        }
        assert!((excess(&report, 2, |share| share.requests) - 20.0).abs() < 1e-9);
        // a member without a request has a share too
        assert!((excess(&report, 4, |share| share.requests) - 140.0).abs() < 1e-9);
    }

    #[test]
    fn patterns_with_large_files_are_measured_longer() {
        for (number, (_, files)) in (1..).zip(PATTERNS) {
            assert_eq!(LARGE.contains(&number), files.contains(&2_000_000), "{number}");
        }
    }
}
