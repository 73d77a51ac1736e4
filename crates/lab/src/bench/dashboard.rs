//! The cost of watching a large farm: of open dashboards to the daemon, and of `evener top` to
//! itself.
//!
//! Each member is probed every 20 s, so that some of every frame differs from the one before.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cpu::process_time;
use crate::evener::{self, Evener};
use crate::farm::Farm;
use crate::host::Host;

/// Groups, and members of each.
const GROUPS: usize = 16;
const MEMBERS: usize = 256;
/// Dashboards that read, and such that don't.
const READING: [usize; 3] = [0, 1, 100];
const IDLE: usize = 1_000;
/// How long each is watched, once it has settled.
const SETTLES: Duration = Duration::from_secs(8);
const WATCHED: Duration = Duration::from_secs(30);

/// The measurements, in percent of one processor.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    /// Dashboards that read, and the daemon's share.
    reading: Vec<(usize, f64)>,
    /// With those that don't read.
    idle: f64,
    /// Bytes that the daemon takes more for those.
    idle_bytes: u64,
    /// `evener top`, and the daemon meanwhile.
    top: [f64; 2],
}

/// Measures on a group of members that answer.
pub(super) fn run() -> Result<Outcome> {
    let farm = Farm::builder().bare().servers(1).clients(1).build()?;
    let director = farm.director();
    eprintln!("  dashboards of {} members", GROUPS * MEMBERS);
    let mut evener = Evener::start(director, &file(&farm))?;
    let pid = evener.daemon().pid();
    let (mut reading, mut open) = (Vec::new(), 0);
    for count in READING {
        for _ in open..count {
            let mut stream = listen(director)?;
            thread::spawn(move || while stream.read(&mut [0; 65_536]).is_ok_and(|count| count > 0) {});
        }
        open = count;
        reading.push((count, watch(&[pid])?[0]));
    }
    drop(evener);
    let mut evener = Evener::start(director, &file(&farm))?;
    let pid = evener.daemon().pid();
    let before = evener.daemon().memory()?;
    let idle_ones = (0..IDLE).map(|_| listen(director)).collect::<Result<Vec<_>>>()?;
    let idle = watch(&[pid])?[0];
    let idle_bytes = evener.daemon().memory()?.saturating_sub(before);
    drop(idle_ones);
    Ok(Outcome { reading, idle, idle_bytes, top: top(director, pid)? })
}

fn file(farm: &Farm) -> String {
    let (director, server) = (farm.director().address(), farm.server(0).address());
    let mut file = String::new();
    for group in 0..GROUPS {
        let port = 8_000 + group;
        file += &format!(
            "[[service]]\nname = \"shop{group:02}\"\naddress = \"{director}:{port}\"\nmethod = \"redirect\"\n\
             [service.health]\nkind = \"tcp\"\ninterval = \"20s\"\n"
        );
        for member in group * MEMBERS..(group + 1) * MEMBERS {
            file +=
                &format!("[[service.server]]\nname = \"m{member:04}\"\nurl = \"http://{server}/{member}\"\n");
        }
    }
    file
}

/// Asks for all frames.
fn listen(host: &Host) -> Result<TcpStream> {
    let admin = SocketAddr::from(([127, 0, 0, 1], 9180));
    let mut stream = host.enter(|| TcpStream::connect(admin))??;
    stream.write_all(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    Ok(stream)
}

/// The share of a processor that each of these processes takes.
fn watch(pids: &[u32]) -> Result<Vec<f64>> {
    thread::sleep(SETTLES);
    let times = || pids.iter().map(|pid| process_time(*pid)).collect::<Result<Vec<_>>>();
    let before = times()?;
    thread::sleep(WATCHED);
    let used = times()?.into_iter().zip(before).map(|(now, before)| now.saturating_sub(before));
    Ok(used.map(|used| 100.0 * used.as_secs_f64() / WATCHED.as_secs_f64()).collect())
}

/// `evener top` in a terminal of 80 columns.
fn top(host: &Host, daemon: u32) -> Result<[f64; 2]> {
    let command = format!("stty cols 80 rows 24; exec {} top", evener::program()?.display());
    let terminal = host.spawn("top", &["script", "-qfc", &command, "/dev/null"])?;
    thread::sleep(SETTLES);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", terminal.pid()))?;
    let top = children.split_whitespace().next().context("`script` runs nothing")?.parse()?;
    let used = watch(&[top, daemon])?;
    Ok([used[0], used[1]])
}

impl Outcome {
    /// The tables.
    pub(super) fn print(&self) {
        println!("Watching {} members, in percent of one processor:", GROUPS * MEMBERS);
        for (count, percent) in &self.reading {
            println!("  the daemon with {count} dashboards: {percent:.2}");
        }
        let megabytes = self.idle_bytes as f64 / f64::from(1 << 20);
        println!("  with {IDLE} that never read: {:.2}, and {megabytes:.1} MiB more", self.idle);
        println!("  `evener top`: {:.2}, and the daemon meanwhile {:.2}", self.top[0], self.top[1]);
        println!();
    }
}
