//! Farms in which every host is a director: the program on each host, real web servers and real
//! clients.
//! Packet tests run on both engines, and tests of messages between hosts on one.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[macro_use]
extern crate evener_lab;

mod changes;
mod datagrams;
mod failures;
mod hostile;
mod marks;
mod own_address;
mod refusals;
mod rounds;
mod variants;
mod weights;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, bail, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::{Plan, Team};
use evener_lab::farm::{Farm, WEB_PORT};
use evener_lab::harness::wait::LONG;
use evener_lab::workloads::load::{Load, Report};

const HASH: &str = "method = \"l2\"\npolicy = \"hash\"\n";
const STATELESS: &str = "method = \"l2\"\npolicy = \"hash\"\nstateless = true\n";
const IN_TURN: &str = "method = \"l2\"\npolicy = \"round-robin\"\n";

/// Starts `hosts` hosts on one network and waits until all are up.
fn team(engine: &str, keys: &str, hosts: u8) -> Result<Team> {
    Team::start(Farm::builder().every_host(hosts).build()?, Plan::new(engine, keys, hosts.into()))
}

/// Returns the web service at the address of a host.
fn service(team: &Team, host: usize) -> SocketAddr {
    (team.farm.own_vip(team.plan.family, host), WEB_PORT).into()
}

/// Returns the number of connections per server, of sequential new connections to an address.
fn shares(team: &Team, service: SocketAddr, connections: u64) -> Result<BTreeMap<String, u64>> {
    let load = Load { requests: Some(connections), timeout: LONG, ..Load::to(service) };
    let report = unbroken(load.run_on(team.farm.client(0))?)?;
    Ok(report.servers.into_iter().map(|(server, share)| (server, share.connections)).collect())
}

/// Returns the report if it has no errors.
fn unbroken(report: Report) -> Result<Report> {
    ensure!(report.errors.total() == 0, "{} requests broke: {:?}", report.errors.total(), report.examples);
    ensure!(report.requests > 0, "nothing was asked at all");
    Ok(report)
}

/// Returns a load of continuous visits to all addresses, with timeouts long enough for TCP
/// retransmissions.
fn audience(team: &Team) -> Load {
    let targets = (0..team.hosts.len()).map(|host| service(team, host)).collect();
    let pause = std::time::Duration::from_millis(5);
    Load { targets, connections: 6, pause, timeout: LONG, ..Load::to(service(team, 0)) }
}

struct Download {
    /// Index of the host whose address the client uses.
    by: usize,
    server: String,
    thread: JoinHandle<Result<()>>,
}

/// Starts two slow downloads per address: one from any server, and one from a server other than the
/// address's owner. They last longer than a change of the farm.
fn downloads(team: &Team) -> Result<Vec<Download>> {
    let by_address = |by: usize| {
        let owner = team.farm.server(by).name();
        [download(team, by, |_| true), download(team, by, |server| server != owner)]
    };
    (0..team.hosts.len()).flat_map(by_address).collect()
}

/// Starts a slow download through a host's address, from a server that `wanted` accepts.
fn download(team: &Team, by: usize, wanted: impl Fn(&str) -> bool) -> Result<Download> {
    for _ in 0..100 {
        let mut visit = HttpConnection::open(team.farm.client(0), service(team, by))?;
        let server = visit.who()?;
        if wanted(&server) {
            let thread = thread::spawn(move || visit.download(4_000_000, LONG));
            return Ok(Download { by, server, thread });
        }
    }
    bail!("by the address of web{} none of 100 connections came to a server that is wanted", by + 1)
}

impl Download {
    /// Waits for the end.
    ///
    /// # Errors
    /// Fails if the download broke.
    fn finish(self) -> Result<()> {
        let done = self.thread.join().map_err(|_| anyhow!("the download's thread panicked"))?;
        done.with_context(|| {
            format!("the download from {} by the address of web{}", self.server, self.by + 1)
        })
    }
}

/// Waits for the end of downloads, none of which may have broken.
fn all_whole(downloads: Vec<Download>) -> Result<()> {
    downloads.into_iter().try_for_each(Download::finish)
}
