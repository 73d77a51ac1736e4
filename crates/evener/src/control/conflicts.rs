//! Detects service addresses of the director that another host already owns (RFC 5227, section 2.1;
//! RFC 4862, section 5.4).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use evener_core::farm::Farm;
use evener_core::farm::membership::NeighbourReply;
use evener_core::net::wire::Mac;
use tokio::time::Instant;

use super::executor::Executor;
use crate::io::neighbours::ReceivedFrame;
use crate::io::network::Network;

/// Time that another owner of an address has to answer.
const WAIT: Duration = Duration::from_millis(300);

/// Another host owns an address that the director should announce.
#[derive(Debug, thiserror::Error)]
#[error(
    "another host owns {address}: {mac} answers for it on {interface}. If that is a server of the farm, stop it from answering ARP for the address ({}), or set discover = \"arp\". If it is a director to which keepalived gives the address, write announce = \"host\" in both files", silence(.address)
)]
pub(super) struct OwnedElsewhere {
    address: IpAddr,
    /// MAC address of the host that answers.
    mac: Mac,
    interface: String,
}

/// Returns how a server that has a service address is kept from answering ARP or neighbour
/// discovery for the address.
fn silence(address: &IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "arp_ignore = 1, arp_announce = 2",
        IpAddr::V6(_) => "have it on lo and on no other interface",
    }
}

/// Probed addresses, each with its interface.
pub(super) struct ProbedAddresses {
    addresses: BTreeSet<(u32, IpAddr)>,
    own: BTreeSet<Mac>,
    /// Deadline for replies of other owners.
    pub(super) until: Instant,
}

impl ProbedAddresses {
    /// Probes the addresses that the director would newly announce with this file. Returns `None`
    /// if there are none. Addresses that hosts share are claimed later, by their own protocol.
    pub(super) fn send(
        executor: &Executor,
        farm: &Farm,
        links: &BTreeMap<u32, Mac>,
    ) -> Option<ProbedAddresses> {
        let addresses = executor.director.newly_announced(farm, links);
        for (ifindex, address) in &addresses {
            executor.neighbours.request(*ifindex, None, *address);
        }
        let own = links.values().copied().collect();
        (!addresses.is_empty()).then(|| ProbedAddresses { addresses, own, until: Instant::now() + WAIT })
    }

    /// Fails if a frame shows that another host owns a probed address.
    pub(super) fn owner(&self, frame: &ReceivedFrame, network: &Network) -> Result<(), OwnedElsewhere> {
        let Ok(Some(NeighbourReply { place, address })) = NeighbourReply::read(frame.ifindex, &frame.bytes)
        else {
            return Ok(());
        };
        if self.own.contains(&place.mac) || !self.addresses.contains(&(frame.ifindex, address)) {
            return Ok(());
        }
        let interface = network.interfaces.get(&frame.ifindex);
        let interface = interface.map_or("?", |interface| &interface.name).to_owned();
        Err(OwnedElsewhere { address, mac: place.mac, interface })
    }
}
