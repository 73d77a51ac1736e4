//! Probes if a server still answers ARP, or neighbour discovery over IPv6. Requests are unicast to
//! the server's MAC, so other servers don't get them.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use evener_core::farm::membership::NeighbourReply;
use evener_core::net::neighbour::solicitation;
use evener_core::net::wire::{ARP_REPLY, ETHERTYPE_ARP, ETHERTYPE_IPV6, arp_request, icmpv6, protocol};
use evener_core::pool::health::Failure;
use evener_dataplane::link::{Field, Instruction, filter};
use tokio::time::{Instant, timeout_at};

use super::link::ProbeSocket;
use super::{Adjacency, ProbePath, Target};

/// Number of requests without an answer before the server counts as silent, since frames get lost.
const PUNTED: u32 = 3;
/// Buffer size for an ARP body, or a neighbour advertisement with some options.
const FRAME_MAX: usize = 256;

/// Requests the server's own address if it is known, else the service address.
pub(super) async fn probe(target: &Target, timeout: Duration) -> Result<(), Failure> {
    let (hop, source, server) = match target.way {
        ProbePath::Local { .. } => return Ok(()),
        ProbePath::Link { hop, source, server } => (hop, source, server),
        ProbePath::Direct { .. } | ProbePath::Tunnel { .. } => {
            return Err(Failure::Other("ARP can't probe a server that may be behind routers".to_owned()));
        }
    };
    let address = server.unwrap_or(target.destination.ip());
    let (ethertype, mut question, silent) = match (source, address) {
        (IpAddr::V4(source), IpAddr::V4(address)) => {
            (ETHERTYPE_ARP, arp_request(hop.own_mac, source, address).to_vec(), Failure::NoArp)
        }
        (IpAddr::V6(source), IpAddr::V6(address)) => {
            (ETHERTYPE_IPV6, solicitation(hop.own_mac, source, address), Failure::NoNeighbour)
        }
        _ => return Err(Failure::Other(format!("{source} can't ask for {address}"))),
    };
    if let Some(destination) = question.get_mut(..hop.mac.0.len()) {
        destination.copy_from_slice(&hop.mac.0);
    }
    let link = ProbeSocket::open(hop.ifindex, ethertype, &replies_for(address))?;
    let result = request(&link, hop, &question, address, timeout).await;
    link.close();
    result.unwrap_or(Err(silent))
}

/// Sends requests until one is answered. Returns `None` at the timeout.
async fn request(
    link: &ProbeSocket,
    hop: Adjacency,
    question: &[u8],
    address: IpAddr,
    timeout: Duration,
) -> Option<Result<(), Failure>> {
    let started = Instant::now();
    for attempt in 1..=PUNTED {
        if let Err(failure) = link.send(question) {
            return Some(Err(failure));
        }
        let until = started + timeout * attempt / PUNTED;
        if let Ok(reply) = timeout_at(until, receive(link, hop, address)).await {
            return Some(reply);
        }
    }
    None
}

async fn receive(link: &ProbeSocket, hop: Adjacency, address: IpAddr) -> Result<(), Failure> {
    let mut buffer = [0; FRAME_MAX];
    loop {
        while let Some(frame) = link.receive(&mut buffer)? {
            let answer = NeighbourReply::read(hop.ifindex, frame).ok().flatten();
            if answer.is_some_and(|answer| answer.address == address && answer.place.mac == hop.mac) {
                return Ok(());
            }
        }
        link.wait().await?;
    }
}

/// Returns a filter for ARP replies and neighbour advertisements about `address`.
fn replies_for(address: IpAddr) -> Vec<Instruction> {
    match address {
        // Operation and sender (RFC 826).
        IpAddr::V4(address) => filter(&[Field::Half(20, ARP_REPLY), Field::Word(28, address.to_bits())]),
        IpAddr::V6(address) => filter(&advertisement_of(address)),
    }
}

/// Returns the fields of an advertisement's target, without extension headers before it (RFC 4861,
/// section 4.4).
fn advertisement_of(address: Ipv6Addr) -> Vec<Field> {
    let mut fields =
        vec![Field::Byte(20, protocol::ICMPV6), Field::Byte(54, icmpv6::NEIGHBOUR_ADVERTISEMENT)];
    fields.extend(Field::address_v6(62, address));
    fields
}
