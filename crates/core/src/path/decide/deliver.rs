//! How a packet gets to its server, whichever way that is reached.

use super::choose::Selected;
use super::flow::Flow;
use super::{DecisionContext, Reason, Verdict};
use crate::net::packet::Packet;
use crate::net::tcp::TCP_LEN;
use crate::net::wire::protocol;
use crate::path::arrival::Arrival;
use crate::path::mark::PUNTED;
use crate::path::parse::{Layers, UDP_LEN};
use crate::path::ports::Holder;
use crate::path::rewrite::{self, Translation, Tunnel, encapsulate, link_len, outer_len, too_big};
use crate::path::routes::FibResult;
use crate::path::sessions::FlowHash;
use crate::path::tables::{Forwarding, ServerEntry};

/// The part of a packet's session that matters on the way, and how often it was passed on before.
#[derive(Clone, Copy)]
pub(super) struct DeliveryContext {
    /// Spreads tunnels.
    pub(super) hash: FlowHash,
    /// The port that stands for the client, or 0.
    pub(super) port: u16,
    pub(super) arrival: Arrival,
}

/// Sends a packet to a server. Whatever chose that one, a packet goes no further than its arrival
/// allows: it is served here then, and never goes in circles.
pub(super) fn deliver(
    known: &DecisionContext<'_>,
    packet: &mut Packet<'_>,
    at: &Layers,
    server: &ServerEntry,
    route: &DeliveryContext,
) -> (Verdict, Reason) {
    if server.local || !route.arrival.may_go_to(server) {
        if server.is_punt() {
            packet.mark_source(PUNTED);
        }
        return (Verdict::Pass, Reason::Local);
    }
    let Some(&src) = known.tables.interfaces.get(&server.ifindex) else {
        return (Verdict::Drop, Reason::NoServer);
    };
    match prepare(known, packet, at, server, route) {
        Ok(()) => {}
        // The host that passed the packet on has no use for the error about it.
        Err((Verdict::Forward { .. }, reason)) if route.arrival != Arrival::Direct => {
            return (error_by_route(known, packet, at), reason);
        }
        Err(stopped) => return stopped,
    }
    packet.readdress(src, server.mac);
    (Verdict::Forward { ifindex: server.ifindex }, Reason::Forwarded)
}

/// Sends the error that a client's packet has become to the client, where the host's routes say.
fn error_by_route(known: &DecisionContext<'_>, packet: &mut Packet<'_>, at: &Layers) -> Verdict {
    let hop = match super::is_link_local(at.src) {
        true => FibResult::HostStack,
        false => known.memory.routes.hop(packet.ingress, at.dst, at.src),
    };
    match hop {
        FibResult::Neighbour { ifindex, src, dst, .. } => {
            untag(packet, at, ifindex);
            packet.readdress(src, dst);
            Verdict::Forward { ifindex }
        }
        // The host's own stack sends nothing on that has its own address as source.
        FibResult::HostStack | FibResult::None => Verdict::Drop,
    }
}

/// Makes of a packet what its server's way asks for, but for the MAC addresses; else what becomes
/// of it.
fn prepare(
    known: &DecisionContext<'_>,
    packet: &mut Packet<'_>,
    at: &Layers,
    server: &ServerEntry,
    route: &DeliveryContext,
) -> Result<(), (Verdict, Reason)> {
    match server.forwarding {
        Forwarding::Link => {}
        Forwarding::Tunnel { encapsulation, from, to, mtu, mark } => {
            let outer_len = outer_len(encapsulation, to, mark.is_some());
            fit(packet, at, usize::from(mtu).saturating_sub(outer_len), at.dst)?;
            let too_small = Err((Verdict::Drop, Reason::NoHeadroom));
            if !packet.has_headroom(at.l3, outer_len, link_len(packet, at, server.ifindex)) {
                return too_small;
            }
            rewrite::decrement_ttl(packet.frame_mut(), at);
            // The new link header is without tags where they don't belong.
            let mark = mark.map(|passed| (passed, known.memory.marker.get()));
            let tunnel = Tunnel { encapsulation, from, to, mark };
            return match encapsulate(packet, at, tunnel, route.hash, server.ifindex) {
                true => Ok(()),
                false => too_small,
            };
        }
        Forwarding::Nat { to, own, source_nat, mtu } => {
            fit(packet, at, mtu.into(), at.dst)?;
            rewrite::decrement_ttl(packet.frame_mut(), at);
            let ends = Translation {
                src: source_nat.then_some(own),
                src_port: source_nat.then_some(route.port),
                dst: Some(to.ip()),
                dst_port: Some(to.port()),
            };
            rewrite::translate(packet, at, &ends);
        }
    }
    untag(packet, at, server.ifindex);
    Ok(())
}

/// Takes the tags off a frame that leaves the LAN they belong to.
pub(super) fn untag(packet: &mut Packet<'_>, at: &Layers, ifindex: u32) {
    let link_len = link_len(packet, at, ifindex);
    if link_len != at.l3 {
        // It becomes shorter, so there is room.
        let _ = packet.relink(at.l3, 0, link_len, rewrite::ethertype(at.dst.is_ipv6()));
    }
}

/// Whether a packet may go on over a way that takes `most` bytes; else it becomes the ICMP error
/// that says so in the name of `from`.
///
/// A packet without "don't fragment" is answered too: nothing here cuts packets, and a sender that
/// learns how long they may be cuts the next ones itself.
pub(super) fn fit(
    packet: &mut Packet<'_>,
    at: &Layers,
    most: usize,
    from: core::net::IpAddr,
) -> Result<(), (Verdict, Reason)> {
    if rewrite::ttl(packet.frame(), at) <= 1 {
        return Err((Verdict::Drop, Reason::TtlExpired));
    }
    if longest(packet, at) <= most {
        return Ok(());
    }
    let verdict = Verdict::Forward { ifindex: packet.ingress };
    match too_big(packet, at, most as u16, from) {
        true => Err((verdict, Reason::TooBig)),
        false => Err((Verdict::Drop, Reason::NoHeadroom)),
    }
}

/// The longest of the packets that the frame is or will be cut into.
fn longest(packet: &Packet<'_>, at: &Layers) -> usize {
    let Some(payload_len) = packet.segment_len else {
        return at.len;
    };
    let transport_len = match at.protocol {
        protocol::UDP => UDP_LEN,
        _ => packet.frame().get(at.l4 + 12).map_or(TCP_LEN, |offset| usize::from(offset >> 4) * 4),
    };
    at.l4 - at.l3 + transport_len + usize::from(payload_len)
}

/// The port that stands for the client towards a server that knows only the director; 0 for other
/// servers.
///
/// # Errors
/// Why the packet can't go on: it has no session, or there is no port for one.
pub(super) fn hidden_port(
    known: &DecisionContext<'_>,
    at: &Layers,
    flow: &Flow<'_>,
    choice: &Selected,
    server: &ServerEntry,
) -> Result<u16, Reason> {
    let Forwarding::Nat { source_nat, .. } = server.forwarding else {
        return Ok(0);
    };
    // A packet without a known session couldn't be answered either.
    let session = choice.session.ok_or(choice.also_counted.unwrap_or(Reason::NoSession))?;
    let near = known.near(at)?;
    if !source_nat {
        // The server answers on its own link.
        return if near.is_none_or(|near| near.link == server.ifindex) {
            Ok(0)
        } else {
            Err(Reason::LinkLocal)
        };
    }
    let (ports, key) = (known.memory.ports, Holder { session: flow.key, near });
    match ports.find(choice.server, key, flow.hash, flow.now) {
        Some((port, found)) => {
            if flow.is_stale(found.value, session) {
                ports.keep(found, session);
            }
            Ok(port)
        }
        None => ports.allocate(choice.server, key, flow.hash, session, flow.now).ok_or(Reason::NoPort),
    }
}
