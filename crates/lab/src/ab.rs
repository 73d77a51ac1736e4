//! ab(1) against farms that hand connections over, beside a server alone: it uses its ports again
//! as soon as they are free.

use std::fmt;
use std::net::SocketAddr;

use anyhow::{Context, Result};

use crate::evener::{Handoff, Offer, Plan, Team};
use crate::family::Family;
use crate::farm::{Farm, WEB_PORT};
use crate::host::Host;

/// The number that a farm may break more than a server alone does, of as many requests.
const MORE: u64 = 2;
/// Requests of one run of ab: more than there are ports, so that it uses them again.
const RUN: u64 = 30_000;
/// Requests at a time.
const CONCURRENCY: &str = "42";

/// The broken ones of as many requests to each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Broken {
    /// Requests to each.
    pub requests: u64,
    /// Without Evener.
    pub alone: u64,
    /// By a director.
    pub director: u64,
    /// By hosts that all decide.
    pub every_host: u64,
}

impl Broken {
    /// Whether farms break no more than a server alone.
    pub fn is_well(&self) -> bool {
        self.director.max(self.every_host) <= self.alone + MORE
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

/// Serves so many requests in each way, with the kernel engine.
///
/// # Errors
/// When a farm can't be built, or ab gives up.
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

/// Requests that were not answered in full, of as many as a run takes in the time that a host's
/// command has, run after run.
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
