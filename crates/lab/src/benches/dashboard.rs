//! Measures the cost of watching a large farm: open dashboards for the daemon, and `evener top`
//! itself.
//!
//! Each member is probed every minute, so every frame differs from the previous one.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;

use crate::evener::{self, Evener};
use crate::farm::Farm;
use crate::harness::cpu::process_time;
use crate::harness::table::median;
use crate::network::host::Host;

/// Number of groups, and of members per group.
const GROUPS: usize = 16;
const MEMBERS: usize = 256;
/// Number of dashboards that read, and of dashboards that don't.
const READING: [usize; 2] = [1, 100];
const IDLE: usize = 1_000;
/// Number of rounds. A round measures each kind of viewer once, and once no viewer.
const ROUNDS: usize = 5;
/// Time to settle before each measurement, and its duration.
const SETTLES: Duration = Duration::from_secs(3);
const WATCHED: Duration = Duration::from_secs(8);

/// Results in percent of one processor: medians of rounds.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    /// The daemon without viewers.
    alone: f64,
    /// Increase with this number of reading dashboards.
    reading: Vec<(usize, f64)>,
    /// Increase with dashboards that don't read.
    idle: f64,
    /// Increase of the daemon's memory with dashboards that don't read, in bytes.
    idle_bytes: u64,
    /// Load of `evener top`, and increase of the daemon's load meanwhile.
    top: [f64; 2],
}

/// Measures with groups whose members answer.
pub(super) fn run() -> Result<Outcome> {
    let farm = Farm::builder().bare().servers(1).clients(1).build()?;
    let director = farm.director();
    eprintln!("  dashboards of {} members", GROUPS * MEMBERS);
    let mut evener = Evener::start(director, &evener::groups(&farm, GROUPS, MEMBERS, "60s"))?;
    let pid = evener.daemon().pid();
    let (mut alone, mut reading) = (Vec::new(), READING.map(|count| (count, Vec::new())));
    let (mut idle, mut idle_bytes, mut tops) = (Vec::new(), 0, [Vec::new(), Vec::new()]);
    for _ in 0..ROUNDS {
        let base = share(pid)?;
        alone.push(base);
        for (count, percents) in &mut reading {
            let streams = (0..*count).map(|_| listen(director)).collect::<Result<Vec<_>>>()?;
            for stream in &streams {
                let mut stream = stream.try_clone()?;
                thread::spawn(move || while stream.read(&mut [0; 65_536]).is_ok_and(|count| count > 0) {});
            }
            percents.push(share(pid)? - base);
            streams.iter().try_for_each(|stream| stream.shutdown(Shutdown::Both))?;
        }
        let before = evener.daemon().memory()?;
        let streams = (0..IDLE).map(|_| listen(director)).collect::<Result<Vec<_>>>()?;
        idle.push(share(pid)? - base);
        idle_bytes = idle_bytes.max(evener.daemon().memory()?.saturating_sub(before));
        drop(streams);
        let [top, daemon] = top(director, pid)?;
        tops[0].push(top);
        tops[1].push(daemon - base);
    }
    let reading = reading.into_iter().map(|(count, percents)| (count, median(percents))).collect();
    Ok(Outcome { alone: median(alone), reading, idle: median(idle), idle_bytes, top: tops.map(median) })
}

/// Opens the stream of live frames.
fn listen(host: &Host) -> Result<TcpStream> {
    let admin = SocketAddr::from(([127, 0, 0, 1], 9180));
    let mut stream = host.enter(|| TcpStream::connect(admin))??;
    stream.write_all(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    Ok(stream)
}

/// Percentage of a processor that a process uses.
fn share(pid: u32) -> Result<f64> {
    thread::sleep(SETTLES);
    let before = process_time(pid)?;
    thread::sleep(WATCHED);
    Ok(100.0 * process_time(pid)?.saturating_sub(before).as_secs_f64() / WATCHED.as_secs_f64())
}

/// Returns the load of `evener top` in a terminal of 80 columns, and of the daemon meanwhile.
fn top(host: &Host, daemon: u32) -> Result<[f64; 2]> {
    let command = format!("stty cols 80 rows 24; exec {} top", evener::program()?.display());
    let terminal = host.spawn("top", &["script", "-qfc", &command, "/dev/null"])?;
    thread::sleep(SETTLES);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", terminal.pid()))?;
    let top = children.split_whitespace().next().context("`script` runs nothing")?.parse()?;
    thread::scope(|scope| {
        let top = scope.spawn(move || share(top));
        let daemon = share(daemon)?;
        Ok([top.join().map_err(|_| anyhow!("a thread panicked"))??, daemon])
    })
}

impl Outcome {
    pub(super) fn print(&self) {
        println!("Watching {} members, in percent of one processor:", GROUPS * MEMBERS);
        println!("  the daemon while nobody does, probing each every minute: {:.2}", self.alone);
        for (count, percent) in &self.reading {
            println!("  more with {count} dashboards: {percent:+.2}");
        }
        let megabytes = self.idle_bytes as f64 / f64::from(1 << 20);
        println!("  with {IDLE} that never read: {:+.2}, and {megabytes:.1} MiB at most", self.idle);
        println!("  `evener top`: {:.2}, and the daemon meanwhile {:+.2}", self.top[0], self.top[1]);
        println!();
    }
}
