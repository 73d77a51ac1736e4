//! Experiments of *Web Load Balancing Through More Accurate Server Report*, section 3: periods of
//! reports and ranks (figures 3.1 to 3.3), numbers of servers (3.3, 3.4), and updates a second
//! beside round-robin DNS (3.5); which signal is the better one; and section 2.4: the views
//! themselves (figures 2.2 and 2.3).

mod views;

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};

use super::points::{Parameters, Point};
use super::run::{self, Measured};
use super::{Claim, Experiment, Extent, Figure, System, line, lines_of};
use crate::evener::{Agent, Evener};
use crate::farm::{Farm, WEB_PORT};
use crate::harness::held_machine::HeldMachine;
use crate::harness::plot::{Line, LinePoint};
use crate::harness::process::Proc;
use crate::harness::wait;
use crate::network::family::Family;
use crate::network::host::Host;
use crate::servers::other_web_servers::apache_prefork;
use crate::workloads;
use crate::workloads::load::{Clients, ServerName};
use crate::workloads::webstone::{self, WebStone};

pub(super) static EXPERIMENT: Experiment = Experiment {
    name: "lba",
    paper: "Web Load Balancing Through More Accurate Server Report, sections 2.4 and 3",
    setup: "WebStone's clients resolve the server's name for each connection; answers live 0 s. A server is \
            Apache prefork with 64 processes and its agent, held to a fifth of a processor, with a link of \
            20 Mbit/s: the paper's 615 connections per second nearly fill its network, too. The DNS server \
            has half of a server's processor. A slow server has a quarter of the others' link. In figure \
            10, links are fast, and the slow server has a quarter of the others' processor. All hosts \
            report the same use of processors, which they share. A period is that of reports and of ranks. Lines with \"best\" answer with the least delay alone, by the paper's \
            own formula; lines with \"shares\" spread the answers by delay. Systems without reports were measured \
            once, and are drawn at all numbers of updates. The paper's clients were on \
            several hosts, and its servers on other networks.",
    figures: &FIGURES,
    plan,
    clients: |parameters| clients(parameters),
    start,
};

const FIGURES: [Figure; 10] = [
    Figure {
        number: 1,
        title: "Throughput by clients and period (3.1)",
        sweep: "periods",
        x: "clients",
        y: "megabits per second",
        digits: 1,
        lines: |points| lines_of(points, "megabits"),
        claims: best_period,
    },
    Figure {
        number: 2,
        title: "Connections by clients and period (3.2)",
        sweep: "periods",
        x: "clients",
        y: "connections per second",
        digits: 0,
        lines: |points| lines_of(points, "requests_per_second"),
        claims: fluctuation,
    },
    Figure {
        number: 3,
        title: "Throughput of a client by clients and period (3.3)",
        sweep: "periods",
        x: "clients",
        y: "kilobits per second of a client",
        digits: 0,
        lines: |points| lines_of(points, "client_kilobits"),
        claims: |points| falls_with_clients(points),
    },
    Figure {
        number: 4,
        title: "Connections by servers (3.4)",
        sweep: "servers",
        x: "servers",
        y: "connections per second",
        digits: 0,
        lines: |points| lines_of(points, "requests_per_second"),
        claims: rises_with_servers,
    },
    Figure {
        number: 5,
        title: "Connections by updates a second, equal servers (3.5)",
        sweep: "updates, equal",
        x: "updates a second",
        y: "connections per second",
        digits: 0,
        lines: by_updates,
        claims: updates,
    },
    Figure {
        number: 6,
        title: "Connections by updates a second, one slow link (3.5)",
        sweep: "updates, one slow link",
        x: "updates a second",
        y: "connections per second",
        digits: 0,
        lines: by_updates,
        claims: updates,
    },
    Figure {
        number: 7,
        title: "Connections by signal, one slow link",
        sweep: "signals",
        x: "clients",
        y: "connections per second",
        digits: 0,
        lines: |points| lines_of(points, "requests_per_second"),
        claims: better_signal,
    },
    Figure {
        number: 8,
        title: "Bytes left, reported and true (2.2)",
        sweep: views::SWEEP,
        x: "seconds since the start",
        y: "megabytes",
        digits: 2,
        lines: views::bytes,
        claims: views::bytes_claims,
    },
    Figure {
        number: 9,
        title: "Time left, reported and true (2.3)",
        sweep: views::SWEEP,
        x: "seconds since the start",
        y: "seconds",
        digits: 1,
        lines: views::seconds,
        claims: views::seconds_claims,
    },
    Figure {
        number: 10,
        title: "Connections by updates a second, one slow processor",
        sweep: SLOW_PROCESSOR,
        x: "updates a second",
        y: "connections per second",
        digits: 0,
        lines: by_updates,
        claims: slow_processor,
    },
];

const PORT: u16 = 5300;
const NAME: &str = "www.example.com";
/// Part of a processor and rate of the link of a server, and its processes.
const PART: f64 = 0.2;
const MEGABITS: u32 = 20;
/// A slow server has this share of the others' processor or link.
const SLOW: u32 = 4;
const PROCESSES: u16 = 64;
/// Numbers of clients of figures 3.1 to 3.3, and of the others.
const CLIENTS: [u32; 6] = [10, 20, 30, 50, 75, 100];
const MANY: u32 = 50;
/// Periods in seconds; the paper found 5 the best.
const PERIODS: [u32; 5] = [1, 5, 10, 15, 20];
/// Least number of periods that a point lasts.
const PERIODS_LEAST: f64 = 2.5;
const BEST: &str = "best, period 5 s";
const ROUND_ROBIN: &str = "round robin";
const RANDOM: &str = "random";
/// Answers by the latency of a probe each 2 s.
const PROBES: &str = "latency of probes";
/// Sweep with fast links, whose slow server has a slow processor.
const SLOW_PROCESSOR: &str = "updates, one slow processor";
/// Words of systems by the bytes of requests.
const BY_BYTES: [&str; 2] = ["best", "shares"];
/// Words that start an agent which can't load kernel programs.
const QUEUE_ONLY: [&str; 3] = ["setpriv", "--bounding-set", "-bpf,-perfmon,-sys_admin"];
const SIGNALS: [&str; 4] = ["bytes of requests", "kernel's queue", "processors", ROUND_ROBIN];

fn plan(extent: Extent) -> Vec<Parameters> {
    let is_quick = extent == Extent::Quick;
    let (repeats, warmup_seconds, seconds) = match extent {
        Extent::Quick => (1, 2.0, 3.0),
        Extent::Normal => (1, 5.0, 20.0),
        Extent::Full => (3, 20.0, 60.0),
    };
    let clients: &[u32] = if is_quick { &[10, 50] } else { &CLIENTS };
    let periods: &[u32] = if is_quick { &[1, 5] } else { &PERIODS };
    let servers: &[u8] = if is_quick { &[1, 4] } else { &[1, 2, 3, 4, 5, 6] };
    let rates: &[u32] = if is_quick { &[1, 8] } else { &[1, 2, 4, 8, 12] };
    let mut points = Vec::new();
    for repeat in 0..repeats {
        for period in periods {
            // after the first ranking, two at least
            let warmup_seconds = f64::from(*period).max(warmup_seconds);
            let seconds = (PERIODS_LEAST * f64::from(*period)).max(seconds);
            let point = |x: &u32| Parameters::new("periods", &format!("best, period {period} s"), 4, *x);
            let all = clients.iter().map(point);
            points.extend(all.map(|point| point.repeated(repeat).lasting(warmup_seconds, seconds)));
        }
        let mut add = |sweep: &str, system: &str, servers: u8, x: u32| {
            let point = Parameters::new(sweep, system, servers, x);
            points.push(point.repeated(repeat).lasting(warmup_seconds, seconds));
        };
        for servers in servers {
            for system in [BEST, ROUND_ROBIN] {
                add("servers", system, *servers, (*servers).into());
            }
        }
        for sweep in ["updates, equal", "updates, one slow link", SLOW_PROCESSOR] {
            for system in BY_BYTES {
                rates.iter().for_each(|x| add(sweep, system, 4, *x));
            }
            // these have no updates
            [ROUND_ROBIN, RANDOM].iter().for_each(|system| add(sweep, system, 4, 1));
        }
        add(SLOW_PROCESSOR, PROBES, 4, 1);
        for system in SIGNALS {
            clients.iter().for_each(|x| add("signals", system, 4, *x));
        }
    }
    points.extend(views::plan(extent));
    // points of a system are adjacent
    points.sort_by(|one, other| (one.repeat, &one.sweep).cmp(&(other.repeat, &other.sweep)));
    points
}

fn clients(parameters: &Parameters) -> usize {
    if parameters.sweep == views::SWEEP {
        return views::clients(parameters);
    }
    (if ["periods", "signals"].contains(&&*parameters.sweep) { parameters.x as u32 } else { MANY }) as usize
}

/// Returns a server's part of a processor, and the rate of its link unless that is fast.
fn limits(parameters: &Parameters, number: usize) -> (f64, Option<u32>) {
    let is_first = number == 0;
    match parameters.sweep.as_str() {
        SLOW_PROCESSOR if is_first => (PART / f64::from(SLOW), None),
        SLOW_PROCESSOR => (PART, None),
        "updates, one slow link" | "signals" if is_first => (PART, Some(MEGABITS / SLOW)),
        _ => (PART, Some(MEGABITS)),
    }
}

/// Running servers with their agents, and a DNS server. Fields are dropped in order.
struct Site {
    stone: WebStone,
    resolver: SocketAddr,
    evener: Evener,
    _agents: Vec<Agent>,
    _apaches: Vec<Proc>,
    _machines: Vec<HeldMachine>,
    farm: Farm,
}

fn start(parameters: &Parameters) -> Result<Box<dyn System>> {
    if parameters.sweep == views::SWEEP {
        return views::start(parameters);
    }
    let mut farm = Farm::builder().bare().servers(parameters.servers).clients(2).offload_replies().build()?;
    let stone = WebStone::new(&webstone::STATIC, parameters.seed);
    workloads::write_files(&farm.page(""), &stone)?;
    let (mut machines, mut apaches, mut agents) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..farm.servers().len() {
        farm.stop_web(number)?;
        let (part, megabits) = limits(parameters, number);
        if let Some(megabits) = megabits {
            farm.server(number).limit_replies(megabits)?;
        }
        let machine = HeldMachine::new(part)?;
        apaches.push(apache_prefork(farm.server(number), &farm, PROCESSES, &machine)?);
        agents.push(agent(&farm, number, parameters, &machine)?);
        machines.push(machine);
    }
    let dns = HeldMachine::new(PART / 2.0)?;
    let (resolver, text) = (SocketAddr::from((farm.director().address(), PORT)), file(&farm, parameters)?);
    let before = dns.before();
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    let evener = Evener::start_by(farm.director(), &text, &before, &[])?;
    machines.push(dns);
    let names = || -> Result<serde_json::Value> { evener.json(&["names"]) };
    wait::until("all servers are in answers", || {
        let names = names()?;
        let all = names.as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(all.len() == farm.servers().len() && all.iter().all(|name| name["state"] == "up"))
    })?;
    Ok(Box::new(Site {
        stone,
        resolver,
        evener,
        _agents: agents,
        _apaches: apaches,
        _machines: machines,
        farm,
    }))
}

/// Starts a server's agent, and then holds it with the server. Without some capabilities, the
/// kernel refuses the programs that follow requests, so that only the kernel's queues count.
fn agent(farm: &Farm, number: usize, parameters: &Parameters, machine: &HeldMachine) -> Result<Agent> {
    let host = farm.server(number);
    let before = if parameters.system == "kernel's queue" { &QUEUE_ONLY[..] } else { &[] };
    let delay = if parameters.system.starts_with("best") { "paper" } else { "corrected" };
    let text = agent_file(delay, host);
    let mut agent = Agent::start_behind(host, &text, before)?;
    machine.hold(agent.process().pid())?;
    Ok(agent)
}

/// Returns an agent's file. The agent follows requests to the port of the service.
fn agent_file(delay: &str, host: &Host) -> String {
    format!(
        "[agent]\nlisten = \"0.0.0.0:9183\"\nreport = \"500ms\"\ndelay = \"{delay}\"\n\
         [[service]]\nname = \"web\"\naddress = \"192.0.2.200:{WEB_PORT}\"\n[[service.server]]\naddress = \"{}\"\n",
        host.address()
    )
}

/// Returns the DNS server's file.
fn file(farm: &Farm, parameters: &Parameters) -> Result<String> {
    let (keys, has_reports) = policy(&parameters.system)?;
    let period_ms = match (parameters.sweep.as_str(), parameters.system.rsplit_once("period ")) {
        (_, Some((_, period))) => {
            let seconds = period.trim_end_matches(" s").parse::<u64>();
            seconds.context("The period is no number")? * 1_000
        }
        (sweep, _) if sweep.starts_with("updates") => 1_000 / (parameters.x as u64).max(1),
        _ => 1_000,
    };
    // all clients are of one network, which exceeds the limits against forged addresses
    let mut text = format!(
        "[dns]\nlisten = [\"{}:{PORT}\"]\nrate = 0\ntotal_rate = 0\n[[dns.zone]]\nname = \"example.com\"\n[[dns.name]]\nname = \"{NAME}\"\n\
         ttl = 0\ntop = 1\nservers = [{}]\n{keys}",
        farm.director().address(),
        farm.servers().iter().map(|host| format!("\"{}\"", host.address())).collect::<Vec<_>>().join(", "),
    );
    if has_reports {
        text += &format!("period = \"{period_ms}ms\"\n");
    }
    text += "[dns.name.health]\n";
    text += match parameters.sweep.as_str() {
        SLOW_PROCESSOR => "kind = \"http\"\npath = \"/bytes/500\"\ninterval = \"2s\"\ntimeout = \"1900ms\"\n",
        // a probe of a busy server would fail
        _ => "kind = \"none\"\n",
    };
    if has_reports {
        text += &format!("[dns.name.report]\ninterval = \"{period_ms}ms\"\n");
    }
    Ok(text)
}

/// Returns the keys of a system's policy, and true if it goes by reports.
fn policy(system: &str) -> Result<(&'static str, bool)> {
    const DELAY: &str = "policy = \"expected-delay\"\nreport_gain = 32\n";
    Ok(match system {
        ROUND_ROBIN => ("policy = \"round-robin\"\n", false),
        RANDOM => ("policy = \"random\"\n", false),
        PROBES => ("policy = \"peak-ewma\"\nreport_gain = 32\n", false),
        "processors" => ("policy = \"utilisation\"\nreport_gain = 32\n", true),
        "shares" | "bytes of requests" | "kernel's queue" => (DELAY, true),
        best if best.starts_with("best") => ("policy = \"expected-delay\"\nrank = \"paper\"\n", true),
        _ => bail!("no system is called {system}"),
    })
}

impl System for Site {
    fn measure(&self, parameters: &Parameters) -> Result<Measured> {
        self.evener.reload(&file(&self.farm, parameters)?)?;
        let count = clients(parameters);
        let name = ServerName { name: NAME.to_owned(), resolver: self.resolver, family: Family::V4 };
        let targets = self.farm.straight();
        let mut measured = run::measure(self.farm.client(0), parameters, |warmup, duration| {
            let clients = Clients::new(&self.stone, targets);
            Clients { count, warmup, duration, name: Some(name), ..clients }.run_on(self.farm.client(0))
        })?;
        let values = &mut measured.values;
        let megabits = values.get("megabits").copied().unwrap_or_default();
        values.insert("client_kilobits".to_owned(), megabits * 1e3 / count as f64);
        values.insert("p99_ms".to_owned(), measured.report.p99_us as f64 / 1e3);
        values.insert("resolve_and_connect_ms".to_owned(), measured.report.connect_us / 1e3);
        Ok(measured)
    }
}

fn mean(line: &Line) -> Option<f64> {
    let all: Vec<f64> = line.counted().map(|point| point.median).collect();
    (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
}

fn best_period(points: &[&Point]) -> Vec<Claim> {
    let lines = lines_of(points, "megabits");
    let means: Vec<(&str, f64)> =
        lines.iter().filter_map(|line| Some((line.name.as_str(), mean(line)?))).collect();
    let best = means.iter().max_by(|(_, one), (_, other)| one.total_cmp(other));
    let ours: Vec<String> = means.iter().map(|(name, mean)| format!("{name}: {mean:.1}")).collect();
    vec![Claim {
        paper: "A period of 5 s has the best throughput (mean over the numbers of clients)",
        ours: format!("megabits per second: {}", ours.join("; ")),
        holds: best.filter(|_| means.len() > 1).map(|(name, _)| *name == BEST),
    }]
}

fn fluctuation(points: &[&Point]) -> Vec<Claim> {
    let lines = lines_of(points, "requests_per_second");
    let spread = |clients: f64| {
        let all: Vec<f64> = lines.iter().filter_map(|line| line.at(clients)).collect();
        let most = all.iter().copied().reduce(f64::max)?;
        let least = all.iter().copied().reduce(f64::min)?;
        (all.len() > 1 && most > 0.0).then(|| (most - least) / most * 100.0)
    };
    let ends = spread(10.0).zip(spread(100.0));
    vec![Claim {
        paper: "Periods differ more with more clients (greatest difference between periods)",
        ours: ends.map_or_else(
            || "not measured".to_owned(),
            |(few, many)| format!("{few:.0} % with 10 clients, {many:.0} % with 100"),
        ),
        holds: ends.map(|(few, many)| many > few),
    }]
}

fn falls_with_clients(points: &[&Point]) -> Vec<Claim> {
    let lines = lines_of(points, "client_kilobits");
    let ends = line(&lines, BEST).and_then(|line| line.at(10.0).zip(line.at(100.0)));
    vec![Claim {
        paper: "The throughput of a client falls as clients are added (period 5 s)",
        ours: ends.map_or_else(
            || "not measured".to_owned(),
            |(few, many)| format!("{few:.0} kbit/s with 10 clients, {many:.0} with 100"),
        ),
        holds: ends.map(|(few, many)| many < few),
    }]
}

fn rises_with_servers(points: &[&Point]) -> Vec<Claim> {
    let lines = lines_of(points, "requests_per_second");
    let all: Option<Vec<f64>> =
        line(&lines, BEST).map(|line| line.counted().map(|point| point.median).collect());
    let all = all.unwrap_or_default();
    let shown: Vec<String> = all.iter().map(|rate| format!("{rate:.0}")).collect();
    vec![Claim {
        paper: "Connections rise with the servers (each more than with one fewer)",
        ours: if shown.is_empty() { "not measured".to_owned() } else { shown.join(", ") },
        holds: (all.len() > 1).then(|| all.is_sorted_by(|one, next| one < next)),
    }]
}

/// Lines by updates. Systems without reports have one point, which is drawn at all places.
fn by_updates(points: &[&Point]) -> Vec<Line> {
    let mut lines = lines_of(points, "requests_per_second");
    let mut places: Vec<f64> = points.iter().map(|point| point.parameters.x).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    for line in lines.iter_mut().filter(|line| !BY_BYTES.contains(&line.name.as_str())) {
        if let [alone] = line.points[..] {
            line.points = places.iter().map(|x| LinePoint { x: *x, ..alone }).collect();
        }
    }
    lines
}

fn updates(points: &[&Point]) -> Vec<Claim> {
    let lines = lines_of(points, "requests_per_second");
    let gain = |name: &str, value: &str| {
        let lines = lines_of(points, value);
        Some(line(&lines, name)?.peak()? / line(&lines, ROUND_ROBIN)?.at(1.0)?)
    };
    let claim = |paper, name| {
        let (connections, megabits) = (gain(name, "requests_per_second"), gain(name, "megabits"));
        let ours = connections.zip(megabits).map_or_else(
            || "not measured".to_owned(),
            |(connections, megabits)| {
                format!("{connections:.2} times round robin; {megabits:.2} times its megabits per second")
            },
        );
        Claim { paper, ours, holds: connections.map(|gain| gain >= 1.7) }
    };
    let late = line(&lines, BY_BYTES[0]).and_then(|line| line.at(8.0).zip(line.at(12.0)));
    let change = late.map(|(eight, twelve)| (twelve / eight - 1.0) * 100.0);
    vec![
        claim(
            "615 connections per second against 327.6 of round robin: 1.88 times (1.7 or more, by the best)",
            BY_BYTES[0],
        ),
        claim("(ours) Shares by delay gain as much (1.7 or more)", BY_BYTES[1]),
        Claim {
            paper: "Steady above 8 updates a second (within 10 %)",
            ours: change.map_or_else(
                || "not measured".to_owned(),
                |change| format!("12 updates a second: {change:+.0} % against 8"),
            ),
            holds: change.map(|change| change.abs() <= 10.0),
        },
    ]
}

fn slow_processor(points: &[&Point]) -> Vec<Claim> {
    let lines = lines_of(points, "requests_per_second");
    let gains = [BY_BYTES[1], PROBES].map(|name| {
        let peak = line(&lines, name).and_then(|line| line.peak());
        peak.zip(line(&lines, ROUND_ROBIN).and_then(|line| line.at(1.0))).map(|(peak, base)| peak / base)
    });
    let shown = gains.map(|gain| gain.map_or_else(|| "not measured".to_owned(), |gain| format!("{gain:.2}")));
    vec![Claim {
        paper: "(ours) A server whose processor is slow has few bytes left: shares by them gain less than by the latency of probes",
        ours: format!("times round robin: {} by bytes; {} by probes", shown[0], shown[1]),
        holds: gains[0].zip(gains[1]).map(|(bytes, probes)| bytes < probes),
    }]
}

fn better_signal(points: &[&Point]) -> Vec<Claim> {
    let lines = lines_of(points, "requests_per_second");
    let all = SIGNALS.map(|name| (name, line(&lines, name).and_then(mean)));
    let shown = all.map(|(name, rate)| match rate {
        Some(rate) => format!("{name}: {rate:.0}"),
        None => format!("{name}: not measured"),
    });
    let ours = shown.join("; ");
    let [bytes, queue, _, turns] = all.map(|(_, rate)| rate);
    let better = |other: Option<f64>| bytes.zip(other).map(|(bytes, other)| bytes > other);
    vec![
        Claim {
            paper: "The remaining bytes of requests are a better signal than none (mean over the numbers of clients)",
            ours: ours.clone(),
            holds: better(turns),
        },
        Claim {
            paper: "They are a better signal than the use of processors",
            ours: "not told: all hosts share the processors, and report the same use".to_owned(),
            holds: None,
        },
        Claim {
            paper: "(ours) They are a better signal than the part of them that the kernel has queued",
            ours,
            holds: better(queue),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_has_a_policy() {
        for extent in [Extent::Quick, Extent::Normal, Extent::Full] {
            let points = plan(extent);
            let mut balanced = points.iter().filter(|point| point.sweep != views::SWEEP);
            assert!(balanced.all(|point| policy(&point.system).is_ok()));
            // a system that comes twice would start twice
            let systems: Vec<_> = points.chunk_by(Parameters::has_system_of).map(|all| &all[0]).collect();
            for (number, one) in systems.iter().enumerate() {
                let rest = &systems[number + 1..];
                let again = rest.iter().any(|other| one.has_system_of(other) && one.repeat == other.repeat);
                assert!(!again, "{one:?}");
            }
        }
    }
}
