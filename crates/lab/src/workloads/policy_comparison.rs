//! Compares policies: the same requests at the same times, on the same farm of servers with queues
//! ([`crate::servers::queue_servers`]), with one policy after another.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::evener::Evener;
use crate::farm::Farm;
use crate::harness::wait::LONG;
use crate::servers::queue_servers::{self, Queued};
use crate::workloads::load::{Arrivals, Report};

/// Port of the group.
const GROUP_PORT: u16 = 8000;
/// The reports come each second and are true. The long limits avoid removals on a busy machine.
const GROUP: &str =
    "[service.group]\ninsecure = true\nreport = \"1s\"\nquery_after = \"10s\"\nremove_after = \"60s\"\n";
/// The long timeout avoids servers that are down on a busy machine.
const HEALTH: &str =
    "[service.health]\nkind = \"http\"\npath = \"/healthz\"\ninterval = \"1s\"\ntimeout = \"900ms\"\n";

/// Method and policy that distribute the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// A group with `least-load`: clients are redirected, and members report each second.
    Group,
    /// `nat` with the XDP engine and this policy.
    Nat(&'static str),
}

/// Load on a farm.
#[derive(Clone, Debug)]
pub struct Contest {
    /// Requests per second that each server can answer.
    pub rates: Vec<f64>,
    /// Offered requests per second.
    pub per_second: f64,
    /// Initial time whose requests are not counted.
    pub warmup: Duration,
    /// Duration of the measurement after that.
    pub duration: Duration,
    /// Timeout of a reply.
    pub timeout: Duration,
}

impl Contest {
    /// Returns a farm whose servers are behind the director as their router.
    ///
    /// # Errors
    /// Fails if the farm can't be built.
    pub fn farm(&self) -> Result<Farm> {
        let farm = Farm::builder().servers(u8::try_from(self.rates.len())?).routed().build()?;
        farm.forward_on_directors()?;
        Ok(farm)
    }

    /// Runs the load on the farm, with idle servers at the start.
    ///
    /// # Errors
    /// Fails if the farm doesn't start; failed requests are in the report.
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

/// Returns a group without members.
fn group(farm: &Farm) -> (SocketAddr, String) {
    let address = SocketAddr::from((farm.director().address(), GROUP_PORT));
    let text = format!(
        "[[service]]\nname = \"group\"\naddress = \"{address}\"\nmethod = \"redirect\"\npolicy = \"least-load\"\n{HEALTH}{GROUP}"
    );
    (address, text)
}

/// Returns a service with all servers.
fn nat(farm: &Farm, policy: &str) -> (SocketAddr, String) {
    let address = farm.service();
    let mut text = format!(
        "[engine]\nkind = \"xdp\"\n\n[[service]]\nname = \"web\"\naddress = \"{address}\"\nmethod = \"nat\"\npolicy = \"{policy}\"\n{HEALTH}"
    );
    for host in farm.servers() {
        let (name, address, port) = (host.name(), host.address(), queue_servers::PORT);
        text += &format!("\n[[service.server]]\nname = \"{name}\"\naddress = \"{address}\"\nport = {port}\n");
    }
    (address, text)
}
