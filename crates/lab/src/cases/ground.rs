//! Network namespace that represents the director's host of a case file.

use std::net::IpAddr;
use std::process::Command;

use anyhow::Result;
use evener_core::net::wire::Mac;

use super::CaseFile;
use super::routes::{Next, Route};
use crate::harness::cleanup;
use crate::harness::wait;
use crate::network::netns::{Netns, ip_batch};

/// First interface index; the loopback interface already has index 1.
pub(super) const FIRST: u32 = 100;
/// MTU of the interfaces, in bytes.
pub(super) const MTU: usize = 3_000;

/// Namespace in which each interface of a case file is one end of a veth pair.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) prefix: String,
    pub(super) netns: Netns,
}

impl Ground {
    /// Creates the namespace. With `forwarding` the host is a router.
    ///
    /// # Errors
    /// Fails without root.
    pub(super) fn lay(file: &CaseFile, forwarding: bool) -> Result<Ground> {
        let prefix = cleanup::next_prefix()?;
        let ground = Ground { netns: Netns::new(format!("{prefix}cases")), prefix };
        ip_batch(&[], &[format!("netns add {}", ground.netns.name())])?;
        let mut lines = vec!["link set lo up".to_owned()];
        for (number, mac) in &file.interfaces {
            let index = FIRST + number;
            lines.extend([
                format!("link add in{number} mtu {MTU} address {mac} index {index} type veth peer name out{number}"),
                // without link-local addresses the interfaces send nothing themselves
                format!("link set in{number} addrgenmode none"),
                format!("link set out{number} addrgenmode none"),
                format!("link set out{number} mtu {MTU} up"),
                format!("link set in{number} up"),
            ]);
        }
        lines.extend(file.routes.iter().flat_map(route_lines));
        ground.netns.ip(&lines)?;
        if forwarding {
            let settings = ["ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"];
            ground.netns.sysctl(&settings.map(|path| (path, "1")))?;
        }
        ground.wait_until_up()?;
        Ok(ground)
    }

    /// Waits until both ends of all veth pairs are up: frames sent earlier are lost.
    fn wait_until_up(&self) -> Result<()> {
        let name = self.netns.name();
        wait::until("all cables are up", || {
            let output = Command::new("ip").args(["-n", name, "-brief", "link"]).output()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let mut cables = text.lines().filter(|line| line.starts_with("in") || line.starts_with("out"));
            Ok(cables.all(|line| line.split_whitespace().nth(1) == Some("UP")))
        })
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        cleanup::reap(&self.prefix);
    }
}

/// Returns the commands that create a route and its neighbour.
fn route_lines(route: &Route) -> Vec<String> {
    let Route { network, bits, next } = route;
    let Some(Next { interface, mac, mtu }) = next else {
        // the neighbour is unresolved
        let gateway = gateway(*network, Mac([0, 0, 0, 0, 0xff, 0xfe]));
        return vec![format!("route add {network}/{bits} via {gateway} dev in1 onlink")];
    };
    let gateway = gateway(*network, *mac);
    // a lookup from a BPF program honours the MTU of a route only if it is locked
    vec![
        format!("neigh replace {gateway} lladdr {mac} dev in{interface} nud permanent"),
        format!("route add {network}/{bits} via {gateway} dev in{interface} mtu lock {mtu} onlink"),
    ]
}

/// Returns a link-local address that encodes the MAC.
fn gateway(network: IpAddr, mac: Mac) -> String {
    let Mac([.., c, d, e, f]) = mac;
    match network {
        IpAddr::V4(_) => format!("169.254.{e}.{f}"),
        IpAddr::V6(_) => format!("fe80::{c:x}{d:02x}:{e:x}{f:02x}"),
    }
}
