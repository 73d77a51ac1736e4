//! Compares how many requests of ab(1) fail through handoff farms and at a single server. ab reuses
//! its ports as soon as they are free.

use std::fmt;
use std::net::SocketAddr;

use anyhow::{Context, Result};

use crate::evener::{Handoff, Offer, Plan, Team};
use crate::farm::{Farm, WEB_PORT};
use crate::network::family::Family;
use crate::network::host::Host;

/// Tolerance: a farm may fail this many requests more than a single server.
const TOLERANCE: u64 = 2;
/// Requests of one run of ab: more than there are ports, so that ab reuses ports.
const RUN: u64 = 30_000;
const CONCURRENCY: &str = "42";

/// Number of failed requests of each variant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Broken {
    pub requests: u64,
    /// Failures of a server without Evener.
    pub alone: u64,
    /// Failures through a director.
    pub director: u64,
    /// Failures of an every-host farm.
    pub every_host: u64,
}

impl Broken {
    /// True if the farms have no more failures than a single server, within the tolerance.
    pub fn is_well(&self) -> bool {
        self.director.max(self.every_host) <= self.alone + TOLERANCE
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Broken { requests, alone, director, every_host } = self;
        write!(
            f,
            "of {requests} requests each for 108 KB broke: {alone} of a server alone, {director} by a director, {every_host} \
             where every host decides"
        )
    }
}

/// Sends this number of requests to each variant, with the XDP engine.
///
/// # Errors
/// Fails if a farm can't be built or ab fails.
pub fn run(requests: u64) -> Result<Broken> {
    let handoff = Handoff::start(Farm::builder().bare().servers(2).build()?, Offer::new("xdp", 2, &[]))?;
    let server = SocketAddr::new(handoff.farm.server(0).address().into(), WEB_PORT);
    let alone = broken(handoff.client(), server, requests)?;
    let director = broken(handoff.client(), handoff.service(Family::V4), requests)?;
    drop(handoff);
    let keys = "method = \"handoff\"\npolicy = \"round-robin\"\n";
    let team = Team::start(Farm::builder().every_host(2).build()?, Plan::new("xdp", keys, 2))?;
    let service = (team.farm.own_vip(Family::V4, 0), WEB_PORT).into();
    let every_host = broken(team.farm.client(0), service, requests)?;
    Ok(Broken { requests, alone, director, every_host })
}

/// Returns the number of requests that failed, got another status than 2xx, or were not completed.
/// Sends them in consecutive runs, each of which ends within the timeout of [`Host::run`].
fn broken(client: &Host, service: SocketAddr, requests: u64) -> Result<u64> {
    let runs = (0..requests).step_by(RUN as usize);
    runs.map(|done| broken_of_run(client, service, RUN.min(requests - done))).sum()
}

fn broken_of_run(client: &Host, service: SocketAddr, requests: u64) -> Result<u64> {
    let url = format!("http://{service}/108k");
    let printed = client.run(&["ab", "-q", "-r", "-c", CONCURRENCY, "-n", &requests.to_string(), &url])?;
    let number = |name: &str| {
        let line = printed.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
    };
    let failed = number("Failed requests:").with_context(|| format!("ab printed {printed}"))?;
    let refused = number("Non-2xx responses:").unwrap_or_default();
    let complete = number("Complete requests:").unwrap_or_default();
    Ok(failed + refused + requests.saturating_sub(complete))
}
