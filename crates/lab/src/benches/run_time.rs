//! Measures changes at run time with a real daemon. A change is answered when it is on disk and in
//! the XDP engine.

use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};

use crate::evener::{AdminSocket, Evener};
use crate::farm::Farm;
use crate::network::host::Host;

/// Number of servers of the changed farm and of the scraped farm, and servers per service.
const SERVERS: usize = 1_000;
const SCRAPED: usize = 4_096;
const OF_A_SERVICE: usize = 250;
/// Number of consecutive changes, and of scrapes.
const CHANGES: usize = 300;
const SCRAPES: usize = 50;
/// Number of concurrent writers, interval of each writer's changes, and duration.
const WRITERS: usize = 4;
const PACE: Duration = Duration::from_millis(40);
const WRITING: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    change: Percentiles,
    /// Baseline: writing the same number of bytes and syncing them to disk.
    fsync: Percentiles,
    wanted: usize,
    answered: usize,
    /// Answered changes that are missing after the daemon was killed.
    lost: usize,
    together: Percentiles,
    scrape: Percentiles,
}

#[derive(Debug, Serialize)]
struct Percentiles {
    p50: f64,
    p99: f64,
    max: f64,
}

impl Percentiles {
    fn of(mut times: Vec<Duration>) -> Percentiles {
        times.sort_unstable();
        let at = |share: usize| {
            let place = (times.len() * share / 100).min(times.len().saturating_sub(1));
            times.get(place).map_or(0.0, |time| time.as_secs_f64() * 1e3)
        };
        Percentiles { p50: at(50), p99: at(99), max: at(100) }
    }
}

/// Measures a farm with the XDP engine.
pub(super) fn run() -> Result<Outcome> {
    let farm = Farm::builder().bare().servers(1).build()?;
    let director = farm.director();
    director.ip(&["route add 10.9.0.0/16 dev eth0".to_owned()])?;
    eprintln!("  changes at run time, {SERVERS} servers");
    let mut evener = Evener::start(director, &file(&farm, SERVERS))?;
    let socket = evener.admin_socket()?;
    let change =
        Percentiles::of((0..CHANGES).map(|number| patch(&socket, number, number)).collect::<Result<_>>()?);
    let fsync = fsync(director)?;
    eprintln!("  {WRITERS} writers for {} s", WRITING.as_secs());
    let (times, last) = write_together(&socket)?;
    let answered = times.len();
    evener.daemon().kill9()?;
    evener.start_again()?;
    let lost = lost(&evener, &last)?;
    evener.stop()?;
    drop(evener);
    fs::remove_dir_all(director.file("state"))?;
    eprintln!("  scrapes of {SCRAPED} servers");
    let evener = Evener::start(director, &file(&farm, SCRAPED))?;
    let scrape = (0..SCRAPES).map(|_| timed(|| socket.request("GET", "/metrics", "")).map(|(time, _)| time));
    let scrape = Percentiles::of(scrape.collect::<Result<_>>()?);
    drop(evener);
    let wanted = WRITERS * (WRITING.as_millis() / PACE.as_millis()) as usize;
    Ok(Outcome { change, fsync, wanted, answered, lost, together: Percentiles::of(times), scrape })
}

/// Returns a file whose servers don't exist but are in the tables, because their MACs are fixed.
fn file(farm: &Farm, servers: usize) -> String {
    let mut text = "[engine]\nkind = \"xdp\"\n".to_owned();
    for first in (0..servers).step_by(OF_A_SERVICE) {
        let number = first / OF_A_SERVICE;
        let vip = farm.vip(0);
        text += &format!(
            "\n[[service]]\nname = \"s{number}\"\naddress = \"{vip}:{}\"\nannounce = false\nhealth.kind = \"none\"\n",
            8_000 + number
        );
        for server in first..servers.min(first + OF_A_SERVICE) {
            let address = IpAddr::from(Ipv4Addr::from(0x0a09_0000 + 1 + server as u32));
            let [high, low] = (server as u16).to_be_bytes();
            text += &format!(
                "[[service.server]]\nname = \"web{server}\"\naddress = \"{address}\"\nmac = \"02:00:01:00:{high:02x}:{low:02x}\"\n"
            );
        }
    }
    text
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(Duration, T)> {
    let begin = Instant::now();
    let done = work()?;
    Ok((begin.elapsed(), done))
}

/// Changes a server's weight to a new value. Returns the duration.
fn patch(socket: &AdminSocket, server: usize, round: usize) -> Result<Duration> {
    let server = server % SERVERS;
    let path = format!("/v1/services/s{}/servers/web{server}", server / OF_A_SERVICE);
    let weight = 2 + (round % 60_000);
    Ok(timed(|| socket.request("PATCH", &path, &json!({"weight": weight}).to_string()))?.0)
}

/// Measures the disk time of as many bytes as the record of the changes so far has.
fn fsync(host: &Host) -> Result<Percentiles> {
    let folder = fs::read_dir(host.file("state"))?.flatten().next().context("There is no record")?.path();
    let bytes = fs::read(folder.join("changes.json"))?;
    let write = |_| {
        let (new, path) = (folder.join("bench.new"), folder.join("bench"));
        timed(|| {
            let mut file = fs::File::create(&new)?;
            file.write_all(&bytes)?;
            file.sync_data()?;
            fs::rename(&new, &path)?;
            Ok(fs::File::open(&folder)?.sync_all()?)
        })
        .map(|(time, ())| time)
    };
    Ok(Percentiles::of((0..100).map(write).collect::<Result<_>>()?))
}

/// Last weight of each server that a writer has changed.
type LastWeights = Vec<(usize, usize)>;

/// Runs writers that change separate servers. Returns the durations and the last weights.
fn write_together(socket: &AdminSocket) -> Result<(Vec<Duration>, LastWeights)> {
    let writer = |writer: usize| {
        let (begin, mut times, mut last) = (Instant::now(), Vec::new(), Vec::new());
        let mut round = 0_usize;
        while begin.elapsed() < WRITING {
            let server = writer + WRITERS * (round % 50);
            times.push(patch(socket, server, 100 + round)?);
            last.retain(|(known, _)| *known != server);
            last.push((server, 2 + (100 + round) % 60_000));
            round += 1;
            let next = PACE * round as u32;
            thread::sleep(next.saturating_sub(begin.elapsed()));
        }
        Ok::<_, anyhow::Error>((times, last))
    };
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|number| scope.spawn(move || writer(number))).collect();
        let (mut times, mut last) = (Vec::new(), Vec::new());
        for writer in writers {
            let (own, of) = writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
            times.extend(own);
            last.extend(of);
        }
        Ok((times, last))
    })
}

/// Number of servers without the last answered weight.
fn lost(evener: &Evener, last: &[(usize, usize)]) -> Result<usize> {
    let servers: Vec<Value> = evener.json(&["servers"])?;
    let weight = |server: usize| {
        let name = format!("web{server}");
        servers.iter().find(|known| known["name"] == name.as_str()).and_then(|known| known["weight"].as_u64())
    };
    Ok(last.iter().filter(|(server, wanted)| weight(*server) != Some(*wanted as u64)).count())
}

impl Outcome {
    pub(super) fn print(&self) {
        let shown =
            |of: &Percentiles| format!("p50 {:.1}, p99 {:.1}, greatest {:.1} ms", of.p50, of.p99, of.max);
        println!("Changes at run time, from a request to its answer, on disk and in the kernel engine:");
        println!("  a weight of one of {SERVERS} servers: {}", shown(&self.change));
        println!("  of that, a disk of this machine takes for such a file: {}", shown(&self.fsync));
        println!(
            "  {WRITERS} writers, {} changes a second wanted for {} s: {} of {} answered, {} lost by kill -9; {}",
            WRITERS * 1_000 / PACE.as_millis() as usize,
            WRITING.as_secs(),
            self.answered,
            self.wanted,
            self.lost,
            shown(&self.together)
        );
        println!("  a scrape of {SCRAPED} servers: {}", shown(&self.scrape));
        println!();
    }
}
