//! Detects packets for services on interfaces that the director does not use. The data plane never
//! sees packets on unused interfaces, so no counter or trace shows them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use evener_core::farm::Service;
use evener_core::net::Protocol;
use evener_core::net::wire::protocol;
use evener_dataplane::link::{EtherType, LinkSocket, sent_to};
use futures_util::future::join_all;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, timeout_at};

use super::links::Links;
use crate::views::Finding;

/// Time to wait for packets. A client without an answer retransmits after one second (RFC 6298,
/// section 2).
const WAIT: Duration = Duration::from_millis(1_500);

/// A service address on an interface that the director does not use.
struct UncoveredAddress<'a> {
    service: &'a str,
    address: SocketAddr,
    interface: &'a str,
    ethernet: bool,
    socket: AsyncFd<LinkSocket>,
}

/// Listens on all interfaces except the director's, `taken`.
pub(super) async fn check_ingress(
    services: &[Service],
    links: &Links,
    taken: &BTreeSet<String>,
) -> Vec<Finding> {
    let besides = links.besides(taken);
    let places = services.iter().flat_map(|service| {
        let protocol = match service.protocol {
            Protocol::Tcp => protocol::TCP,
            Protocol::Udp => protocol::UDP,
        };
        let everywhere =
            service.addresses.iter().flat_map(|address| besides.iter().map(move |on| (address, on)));
        everywhere.filter_map(move |(&address, &(ifindex, interface, ethernet))| {
            let socket = LinkSocket::open_filtered(ifindex, EtherType::All, &sent_to(address, protocol));
            // Without CAP_NET_RAW nothing can be checked. Another finding reports the missing
            // right.
            let socket = AsyncFd::new(socket.ok()?).ok()?;
            Some(UncoveredAddress { service: &service.name, address, interface, ethernet, socket })
        })
    });
    let places: Vec<UncoveredAddress<'_>> = places.collect();
    let until = Instant::now() + WAIT;
    let answers = join_all(places.iter().map(|place| place.receives_frames(until))).await;
    places.iter().zip(answers).filter(|(_, answers)| *answers).map(|(place, _)| place.finding()).collect()
}

impl UncoveredAddress<'_> {
    /// True if a packet arrives before the deadline.
    async fn receives_frames(&self, until: Instant) -> bool {
        let readable = timeout_at(until, self.socket.readable()).await;
        readable.is_ok_and(|ready| ready.is_ok()) && self.socket.get_ref().recv(&mut [0; 64]).is_ok()
    }

    fn finding(&self) -> Finding {
        let UncoveredAddress { service, address, interface, .. } = self;
        let help = match self.ethernet {
            true => {
                "add it to `interfaces` in [engine], or remove that key to use every interface that is up and has an address"
            }
            false => "it is not Ethernet, which the director needs: let them come by another",
        };
        let message =
            format!("Packets for {address} arrive on {interface}, which Evener does not use: {help}.");
        Finding::fail(*service, message)
    }
}
