//! Checks if another host answers for the addresses that this host should announce. `evener run`
//! would refuse to start.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use evener_core::farm::Announce;
use evener_core::farm::membership::NeighbourReply;
use evener_core::net::wire::Mac;
use tokio::time::{Instant, timeout_at};

use crate::config::Config;
use crate::io::neighbours::Neighbours;
use crate::io::network::Network;
use crate::views::Finding;

/// Time that another owner has to answer.
const WAIT: Duration = Duration::from_millis(300);

/// Probes the addresses on these interfaces, as the daemon does before it announces an address (RFC
/// 5227, section
/// 2.1; RFC 4862, section 5.4).
pub(super) async fn check_owners(
    config: &Config,
    network: &Network,
    interfaces: &BTreeMap<u32, Mac>,
) -> Vec<Finding> {
    let services = config
        .services
        .iter()
        .filter(|service| service.announce == Announce::Director && !service.is_on_every_host());
    let announced: BTreeMap<IpAddr, &str> = services
        .flat_map(|service| service.addresses.iter().map(|address| (address.ip(), service.name.as_str())))
        .collect();
    let (mut neighbours, mut frames) = Neighbours::new();
    let ipv6 = announced.keys().any(IpAddr::is_ipv6);
    // Without CAP_NET_RAW nothing can be checked. Another finding reports the missing right.
    if announced.is_empty() || neighbours.listen(interfaces, ipv6).is_err() {
        return Vec::new();
    }
    for ifindex in interfaces.keys() {
        announced.keys().for_each(|address| neighbours.request(*ifindex, None, *address));
    }
    let mut reported = BTreeSet::new();
    let mut findings = Vec::new();
    let end = Instant::now() + WAIT;
    while let Ok(Some(frame)) = timeout_at(end, frames.recv()).await {
        let Ok(Some(NeighbourReply { place, address })) = NeighbourReply::read(frame.ifindex, &frame.bytes)
        else {
            continue;
        };
        let own = network.interfaces.values().any(|interface| interface.mac == place.mac);
        let Some(service) = announced.get(&address).filter(|_| !own && reported.insert((address, place.mac)))
        else {
            continue;
        };
        let name = network.interfaces.get(&frame.ifindex).map_or("?", |interface| &interface.name);
        findings.push(Finding::fail(
            *service,
            format!(
                "another host owns {address}: {} answers for it on {name}, so `evener run` would not start. A server must not answer ARP for the address. If the other host is a director to which keepalived gives the address, write announce = \"host\" in both files; else a second director needs other addresses, or must be behind a router.",
                place.mac
            ),
        ));
    }
    findings
}
