//! Whether a service address that the director is about to answer for is another host's (RFC 5227,
//! section 2.1; RFC 4862, section 5.4).

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

/// How long another owner of an address has to answer.
const WAIT: Duration = Duration::from_millis(300);

/// An address that the director should answer for is another host's.
#[derive(Debug, thiserror::Error)]
#[error(
    "{address} is owned elsewhere: {mac} answers for it on {interface}. If that is one of the servers, make it \
     silent for the address ({}), or set discover = \"arp\"", silence(.address)
)]
pub(super) struct OwnedElsewhere {
    /// The address.
    address: IpAddr,
    /// The MAC of the host that answers.
    mac: Mac,
    /// Where.
    interface: String,
}

/// How a server keeps silent for an address that it has.
fn silence(address: &IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "arp_ignore = 1, arp_announce = 2",
        IpAddr::V6(_) => "have it on lo and on no other interface",
    }
}

/// Addresses that were asked for, each on an interface.
pub(super) struct ProbedAddresses {
    addresses: BTreeSet<(u32, IpAddr)>,
    own: BTreeSet<Mac>,
    /// Until when answers count.
    pub(super) until: Instant,
}

impl ProbedAddresses {
    /// Asks for the addresses that the director would answer for with this file, and doesn't yet;
    /// `None` if there are none. Addresses that every host may own are claimed later, with care.
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

    /// Whether a frame is the answer of an owner.
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
