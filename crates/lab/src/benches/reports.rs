//! Measures an agent's reports: reported pending bytes compared with the bytes that clients still
//! lack, and the agent's processor time.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

use super::Effort;
use crate::clients::downloads::Downloads;
use crate::evener::program;
use crate::farm::{Farm, WEB_PORT};
use crate::harness::cpu::{BpfTimes, process_times};
use crate::harness::process::Proc;
use crate::harness::table::{Table, thousands};
use crate::harness::wait::LONG;
use crate::network::host::Host;
use crate::servers::nginx::write_by_length;
use crate::workloads::load::Load;

/// Numbers of concurrent downloads and their lengths, over a link with limited bandwidth.
const DOWNLOADS: [(usize, usize); 5] = [(1, LARGE), (4, LARGE), (8, LARGE), (200, LARGE), (200, SMALL)];
const LARGE: usize = 5 << 20;
const SMALL: usize = 50 << 10;
const LINK_MBIT: u32 = 4;
/// Times of measurements, in seconds after the start.
const LOOKS: std::ops::RangeInclusive<u64> = 2..=20;
/// Differences up to this number of bytes count as none.
const NEAR: u64 = 64 * 1024;
/// Length of a page in bytes, and numbers of connections with the pause between their requests in
/// microseconds.
const PAGE: usize = 20_000;
const PACES: [(usize, u64); 3] = [(0, 0), (20, 9_500), (170, 9_000)];

#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    bytes: Vec<Bytes>,
    costs: Vec<Cost>,
}

/// Reported bytes compared with the bytes that clients lacked.
#[derive(Debug, Serialize)]
struct Bytes {
    downloads: usize,
    length: usize,
    looks: usize,
    /// Largest difference of the sums, in bytes and in percent of the bytes lacked, and the same
    /// for single requests. Differences up to 64 KB have no percentage.
    sum: Difference,
    single: Difference,
    /// Percentage of the pending bytes in the kernel's queues; median of the measurements.
    queued_percent: f64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Difference {
    bytes: u64,
    /// Percentage, only of differences above 64 KB.
    percent: f64,
}

/// Load of the agent, in percent of a processor.
#[derive(Debug, Serialize)]
struct Cost {
    requests_per_second: f64,
    process_percent: f64,
    programs_percent: f64,
}

impl Difference {
    /// Adds a reported value. The bytes that clients lacked shortly before and shortly after are
    /// the bounds of the true value.
    fn look(&mut self, reported: u64, lacked: [u64; 2]) {
        let [before, after] = lacked;
        let bytes = reported.saturating_sub(before).max(after.saturating_sub(reported));
        self.bytes = self.bytes.max(bytes);
        if bytes > NEAR {
            self.percent = self.percent.max(bytes as f64 * 100.0 / after.max(1) as f64);
        }
    }
}

pub(super) fn run(effort: Effort) -> Result<Outcome> {
    let few = if effort.is_quick { 2 } else { DOWNLOADS.len() };
    let bytes = DOWNLOADS.iter().rev().take(few).rev().map(|(downloads, length)| bytes(*downloads, *length));
    Ok(Outcome { bytes: bytes.collect::<Result<_>>()?, costs: costs(effort)? })
}

fn agent(farm: &Farm) -> Result<Proc> {
    let host = farm.server(0);
    let (vip, own) = (farm.vip(0), host.address());
    let config = format!(
        "[[service]]\nname = \"web\"\naddress = \"{vip}:{WEB_PORT}\"\nmethod = \"nat\"\n[[service.server]]\naddress = \"{own}\"\n"
    );
    let config = host.write("agent.toml", &config)?;
    let program = program()?.to_string_lossy().into_owned();
    let mut agent = host.spawn("agent", &[&*program, "agent", "--config", &config.to_string_lossy()])?;
    agent.wait_for("evener: ready", LONG)?;
    Ok(agent)
}

fn bytes(downloads: usize, length: usize) -> Result<Bytes> {
    eprintln!("load: {downloads} downloads of {} bytes", thousands(length as u64));
    let farm = Farm::builder().build()?;
    write_by_length(&farm, &[length])?;
    let _agent = agent(&farm)?;
    let server = farm.server(0);
    server.limit_replies(LINK_MBIT)?;
    let to = SocketAddr::new(server.address().into(), WEB_PORT);
    let began = Instant::now();
    let running = Downloads::start(farm.client(0), to, downloads, &format!("/bytes/{length}"), length)?;
    Ok(Bytes { downloads, length, ..looks(server, &running, began)? })
}

fn looks(server: &Host, downloads: &Downloads, began: Instant) -> Result<Bytes> {
    let (mut sum, mut single, mut queued) = (Difference::default(), Difference::default(), Vec::new());
    for second in LOOKS {
        thread::sleep(Duration::from_secs(second).saturating_sub(began.elapsed()));
        let before = downloads.lacks();
        let load: Value = serde_json::from_str(&server.curl(&["http://127.0.0.1:9183/v1/load"])?)?;
        let after = downloads.lacks();
        let reported = load["bytes_to_send"].as_u64().context("no bytes to send")?;
        let sums = [&before, &after].map(|all| all.iter().sum::<u64>());
        sum.look(reported, sums);
        if sums[1] > NEAR {
            queued.push(load["lower_bound"].as_u64().unwrap_or_default() as f64 * 100.0 / sums[1] as f64);
        }
        let before = downloads.lacks();
        let shown: Vec<Value> =
            serde_json::from_str(&server.run(&[&program()?.to_string_lossy(), "requests", "--json"])?)?;
        for ((client, before), after) in downloads.clients().zip(before).zip(downloads.lacks()) {
            let one = shown.iter().find(|one| one["client"] == client.to_string());
            let left = one.and_then(|one| one["bytes_left"].as_u64()).unwrap_or_default();
            single.look(left, [before, after]);
        }
    }
    let queued_percent = if queued.is_empty() { 0.0 } else { crate::harness::table::median(queued) };
    Ok(Bytes { downloads: 0, length: 0, looks: LOOKS.count(), sum, single, queued_percent })
}

fn costs(effort: Effort) -> Result<Vec<Cost>> {
    let farm = Farm::builder().build()?;
    write_by_length(&farm, &[PAGE])?;
    let agent = agent(&farm)?;
    let to = SocketAddr::new(farm.server(0).address().into(), WEB_PORT);
    let _counted = BpfTimes::count()?;
    let duration = Duration::from_secs(if effort.is_quick { 5 } else { 20 });
    let cost = |(connections, pause_us): (usize, u64)| -> Result<Cost> {
        eprintln!("load: what an agent takes, {connections} clients");
        let (before, began) = (process_times(agent.pid()), Instant::now());
        let requests = match connections {
            0 => {
                thread::sleep(duration);
                0
            }
            _ => {
                let pause = Duration::from_micros(pause_us);
                let path = format!("/bytes/{PAGE}");
                let load = Load {
                    path,
                    connections,
                    pause,
                    keep_alive: true,
                    duration: Some(duration),
                    ..Load::to(to)
                };
                load.run_on(farm.client(0))?.requests
            }
        };
        let (seconds, after) = (began.elapsed().as_secs_f64(), process_times(agent.pid()));
        let percent = |at: usize| (after[at] - before[at]).as_secs_f64() * 100.0 / seconds;
        Ok(Cost {
            requests_per_second: requests as f64 / seconds,
            process_percent: percent(0),
            programs_percent: percent(1),
        })
    };
    PACES.into_iter().map(cost).collect()
}

impl Outcome {
    pub(super) fn print(&self) {
        println!(
            "Bytes still to be sent, as the agent reports them, beside what clients lack, over {LINK_MBIT} Mbit/s."
        );
        println!();
        let mut table =
            Table::new(&["downloads", "looks", "sum off by KB", "%", "a request off by KB", "%", "queued %"]);
        for one in &self.bytes {
            let kb = |difference: Difference| format!("{:.0}", difference.bytes as f64 / 1024.0);
            table.row([
                format!("{} of {} KiB", one.downloads, one.length >> 10),
                one.looks.to_string(),
                kb(one.sum),
                format!("{:.1}", one.sum.percent),
                kb(one.single),
                format!("{:.1}", one.single.percent),
                format!("{:.0}", one.queued_percent),
            ]);
        }
        println!("{table}");
        println!("What the agent takes of a processor, with pages of {PAGE} bytes on kept connections.");
        println!();
        let mut table = Table::new(&["requests/s", "process %", "programs in the kernel %"]);
        for one in &self.costs {
            table.row([
                thousands(one.requests_per_second as u64),
                format!("{:.2}", one.process_percent),
                format!("{:.2}", one.programs_percent),
            ]);
        }
        println!("{table}");
    }
}
