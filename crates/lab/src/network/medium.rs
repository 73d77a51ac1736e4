//! Media of a farm: a switch whose cables have a rate, or a hub that all hosts share.

use anyhow::{Context, Result};

use super::host::{Host, Interface};
use crate::farm::Farm;

/// Name of the device in the switch that all frames of a shared medium pass.
const HUB: &str = "hub";

/// Network of a farm, with its rate in megabits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Each cable has the rate in each direction.
    Switched(u32),
    /// All frames of the farm together have the rate, as on a hub. Frames that the router sends
    /// don't count: on a network with all hosts there would be no router.
    Shared(u32),
}

impl Farm {
    /// Limits the farm's network. It must not be [limited](Host::limit) otherwise.
    pub fn limit_network(&self, medium: Medium) -> Result<()> {
        let hosts = || self.servers().iter().chain(self.directors()).chain(self.clients());
        match medium {
            Medium::Switched(megabits) => hosts().try_for_each(|host| {
                host.limit(Some(megabits))?;
                let ports = host.interfaces().iter();
                let lines = ports.map(|Interface { port, .. }| {
                    format!("qdisc replace dev {port} root tbf rate {megabits}mbit burst 16k latency 50ms")
                });
                self.in_switch(host, &lines.collect::<Vec<_>>())
            }),
            Medium::Shared(megabits) => {
                let lines = [format!("link add {HUB} type ifb"), format!("link set {HUB} up")];
                self.switch().ip(&lines).context("A shared medium needs the kernel's ifb devices")?;
                let rate = format!("qdisc add dev {HUB} root tbf rate {megabits}mbit burst 16k latency 50ms");
                self.in_switch(self.router(), &[rate])?;
                hosts().try_for_each(|host| {
                    let ports = host.interfaces().iter();
                    let lines = ports.flat_map(|Interface { port, .. }| {
                        [
                            format!("qdisc add dev {port} clsact"),
                            format!(
                                "filter add dev {port} ingress protocol all u32 match u32 0 0 action mirred egress redirect dev {HUB}"
                            ),
                        ]
                    });
                    self.in_switch(host, &lines.collect::<Vec<_>>())
                })
            }
        }
    }

    /// Runs tc(8) commands in the switch; a file of `host` has them.
    fn in_switch(&self, host: &Host, lines: &[String]) -> Result<()> {
        let file = host.write("medium.tc", &(lines.join("\n") + "\n"))?;
        host.in_switch(&["tc", "-batch", &file.to_string_lossy()])
    }
}
