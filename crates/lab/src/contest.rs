//! Policies beside each other: the same requests at the same times, on the same farm of [queued]
//! servers, shared in one way after the other.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::evener::Evener;
use crate::farm::Farm;
use crate::load::{Arrivals, Report};
use crate::queued::{self, Queued};
use crate::wait::LONG;

/// Where the group is.
const GROUP_PORT: u16 = 8000;
/// Reports are honest and come each second; nobody is removed because this machine is busy.
const GROUP: &str =
    "[service.group]\ninsecure = true\nreport = \"1s\"\nquery_after = \"10s\"\nremove_after = \"60s\"\n";
/// Neither is anybody down for that.
const HEALTH: &str =
    "[service.health]\nkind = \"http\"\npath = \"/healthz\"\ninterval = \"1s\"\ntimeout = \"900ms\"\n";

/// How requests are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// By a group's `least-load`: clients are sent on, and members report each second.
    Group,
    /// By `nat`, with the kernel engine and this policy.
    Nat(&'static str),
}

/// A load on a farm.
#[derive(Clone, Debug)]
pub struct Contest {
    /// How many requests each server can answer in a second.
    pub rates: Vec<f64>,
    /// How many come in a second.
    pub per_second: f64,
    /// Requests that are due in this time aren't counted.
    pub warmup: Duration,
    /// How long requests are due after that.
    pub duration: Duration,
    /// An answer that takes longer is none.
    pub timeout: Duration,
}

impl Contest {
    /// The farm: servers are behind the director, which is their router, whoever chooses them.
    ///
    /// # Errors
    /// When it can't be built.
    pub fn farm(&self) -> Result<Farm> {
        let farm = Farm::builder().servers(u8::try_from(self.rates.len())?).routed().build()?;
        farm.forward_on_directors()?;
        Ok(farm)
    }

    /// Puts the load on the farm, whose servers begin with nothing to do.
    ///
    /// # Errors
    /// When the farm doesn't come to work; requests that fail are in the report.
    pub fn run(&self, farm: &Farm, sharing: Sharing) -> Result<Report> {
        let mut servers: Vec<Queued> = farm
            .servers()
            .iter()
            .zip(&self.rates)
            .map(|(host, rate)| Queued::start(host, *rate))
            .collect::<Result<_>>()?;
        let (address, text) = match sharing {
            Sharing::Group => group(farm),
            Sharing::Nat(policy) => nat(farm, policy),
        };
        let evener = Evener::start(farm.director(), &text)?;
        if sharing == Sharing::Group {
            servers.iter_mut().try_for_each(|server| server.join(address))?;
        }
        evener.wait_for_servers(servers.len(), LONG)?;
        let follow = sharing == Sharing::Group;
        let Contest { per_second: rate, warmup, duration, timeout, .. } = *self;
        let report =
            Arrivals { target: address, follow, rate, warmup, duration, timeout }.run_on(farm.client(0))?;
        ensure!(report.requests > 0, "nothing was answered: {:?}", report.examples);
        servers.iter().try_for_each(Queued::check)?;
        Ok(report)
    }
}

/// A group that nobody is a member of.
fn group(farm: &Farm) -> (SocketAddr, String) {
    let address = SocketAddr::from((farm.director().address(), GROUP_PORT));
    let text = format!(
        "[[service]]\nname = \"group\"\naddress = \"{address}\"\nmethod = \"redirect\"\npolicy = \"least-load\"\n{HEALTH}{GROUP}"
    );
    (address, text)
}

/// A service of all servers.
fn nat(farm: &Farm, policy: &str) -> (SocketAddr, String) {
    let address = farm.service();
    let mut text = format!(
        "[engine]\nkind = \"xdp\"\n\n[[service]]\nname = \"web\"\naddress = \"{address}\"\nmethod = \"nat\"\npolicy = \"{policy}\"\n{HEALTH}"
    );
    for host in farm.servers() {
        let (name, address, port) = (host.name(), host.address(), queued::PORT);
        text += &format!("\n[[service.server]]\nname = \"{name}\"\naddress = \"{address}\"\nport = {port}\n");
    }
    (address, text)
}
