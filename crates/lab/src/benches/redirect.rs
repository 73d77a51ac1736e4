//! Compares redirects with nginx's `return 302` on the same processors.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use super::Effort;
use crate::evener::Evener;
use crate::farm::Farm;
use crate::harness::process::Proc;
use crate::harness::table::{Table, thousands};
use crate::network::host::Host;
use crate::workloads::load::{self, Load};

const PORT: u16 = 8000;
const NGINX_PORT: u16 = 8001;
/// Numbers of concurrent connections.
const CONNECTIONS: [usize; 3] = [1, 10, 100];

#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    rows: Vec<Row>,
}

/// One comparison: medians of rounds, each with both programs.
#[derive(Debug, Serialize)]
struct Row {
    connections: usize,
    kept: bool,
    evener: Figure,
    nginx: Figure,
    /// Median of the rounds' ratios of replies per second.
    ratio: f64,
    errors: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Figure {
    per_second: f64,
    p50_us: u64,
    p99_us: u64,
    /// Processor time of the director per reply, in microseconds.
    cpu_us: f64,
}

/// Measures both programs in turn, round by round.
pub(super) fn run(effort: Effort) -> Result<Outcome> {
    // Each program has its own host, to separate the processor times.
    let farm = Farm::builder().bare().servers(1).directors(2).build()?;
    let [ours, theirs] = [0, 1].map(|number| &farm.directors()[number]);
    let evener = Evener::start(ours, &file(&farm, ours, "round-robin"))?;
    evener.wait_for_servers(1, Duration::from_secs(20))?;
    let _nginx = nginx(&farm, theirs)?;
    let sides = [(ours, address(ours)), (theirs, at(theirs, NGINX_PORT))];
    let mut rows = Vec::new();
    for kept in [true, false] {
        for connections in CONNECTIONS {
            eprintln!("redirect: {connections} connections, {}", if kept { "kept" } else { "new" });
            rows.push(row(&farm, sides, connections, kept, effort)?);
        }
    }
    Ok(Outcome { rows })
}

fn at(host: &Host, port: u16) -> SocketAddr {
    (host.address(), port).into()
}

/// Address on `host` of the group that [`file()`] configures.
pub(super) fn address(host: &Host) -> SocketAddr {
    at(host, PORT)
}

/// Returns a file with a group of one server.
pub(super) fn file(farm: &Farm, host: &Host, policy: &str) -> String {
    format!(
        "[[service]]\nname = \"shop\"\naddress = \"{}\"\nmethod = \"redirect\"\npolicy = \"{policy}\"\n\
         [[service.server]]\nurl = \"http://{}\"\n",
        address(host),
        farm.server(0).address()
    )
}

/// Starts nginx as its manual recommends, with a worker for each processor and no log.
fn nginx(farm: &Farm, host: &Host) -> Result<Proc> {
    let (own, to) = (host.file("redirect"), farm.server(0).address());
    let own = own.display();
    let text = format!(
        "daemon off; worker_processes auto; error_log stderr; pid {own}.pid; events {{ worker_connections 8192; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 600s;\n\
         client_body_temp_path {own}.body; proxy_temp_path {own}.proxy; fastcgi_temp_path {own}.fastcgi;\n\
         uwsgi_temp_path {own}.uwsgi; scgi_temp_path {own}.scgi;\n\
         server {{ listen {NGINX_PORT} backlog=4096 reuseport; return 302 http://{to}$request_uri; }} }}\n"
    );
    let path = host.write("redirect.conf", &text)?;
    let mut nginx = host.spawn("nginx", &["nginx", "-c", &path.to_string_lossy()])?;
    nginx.wait_until_listening(host, at(host, NGINX_PORT))?;
    Ok(nginx)
}

fn row(
    farm: &Farm,
    sides: [(&Host, SocketAddr); 2],
    connections: usize,
    kept: bool,
    effort: Effort,
) -> Result<Row> {
    let mut rounds = Vec::new();
    let mut errors = 0;
    for round in 0..effort.rounds {
        let mut both = [None; 2];
        // The order alternates between rounds.
        for side in [round % 2, 1 - round % 2] {
            let (host, address) = sides[side];
            let load = Load {
                path: "/a/page?of=some&length".to_owned(),
                connections,
                keep_alive: kept,
                duration: Some(effort.each),
                status: 302,
                ..Load::to(address)
            };
            let before = host.processor_time()?;
            let report = load.run_on(farm.client(0))?;
            errors += report.errors.total();
            ensure!(report.requests > 0, "nothing was answered: {:?}", report.examples);
            both[side] = Some(figure(&report, host.processor_time()?.saturating_sub(before)));
        }
        if let [Some(evener), Some(nginx)] = both {
            rounds.push((evener, nginx));
        }
    }
    let of = |figures: Vec<Figure>| Figure {
        per_second: median(figures.iter().map(|figure| figure.per_second)),
        p50_us: median(figures.iter().map(|figure| figure.p50_us as f64)) as u64,
        p99_us: median(figures.iter().map(|figure| figure.p99_us as f64)) as u64,
        cpu_us: median(figures.iter().map(|figure| figure.cpu_us)),
    };
    Ok(Row {
        connections,
        kept,
        evener: of(rounds.iter().map(|(evener, _)| *evener).collect()),
        nginx: of(rounds.iter().map(|(_, nginx)| *nginx).collect()),
        ratio: median(rounds.iter().map(|(evener, nginx)| evener.per_second / nginx.per_second)),
        errors,
    })
}

fn figure(report: &load::Report, cpu: Duration) -> Figure {
    Figure {
        per_second: report.requests_per_second,
        p50_us: report.p50_us,
        p99_us: report.p99_us,
        cpu_us: cpu.as_secs_f64() * 1e6 / report.requests as f64,
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl Outcome {
    /// True if every request was answered.
    pub(super) fn is_whole(&self) -> bool {
        self.rows.iter().all(|row| row.errors == 0)
    }

    pub(super) fn print(&self) {
        println!(
            "Answers that send a client on: evener beside nginx `return 302`, medians of paired rounds."
        );
        println!();
        let mut table = Table::new(&[
            "connections",
            "evener/s",
            "nginx/s",
            "ratio",
            "p99 us",
            "nginx p99",
            "cpu us",
            "nginx cpu",
            "errors",
        ]);
        for row in &self.rows {
            let kind = if row.kept { "kept" } else { "new for each" };
            table.row([
                format!("{} {kind}", row.connections),
                thousands(row.evener.per_second as u64),
                thousands(row.nginx.per_second as u64),
                format!("{:.2}", row.ratio),
                thousands(row.evener.p99_us),
                thousands(row.nginx.p99_us),
                format!("{:.1}", row.evener.cpu_us),
                format!("{:.1}", row.nginx.cpu_us),
                row.errors.to_string(),
            ]);
        }
        println!("{table}");
    }
}
