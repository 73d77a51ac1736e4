//! How a packet gets to its server, by each kind of forwarding.

use super::choose::Selected;
use super::flow::Flow;
use super::{Decide, Decision, Reason, Verdict};
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
use crate::path::tables::{ALL_FULL, Forwarding, ServerEntry};
use core::net::IpAddr;

/// No interface has this number.
pub(super) const NO_INTERFACE: u32 = 0;

/// The part of a packet's session that matters on the way, and how often it was passed on before.
#[derive(Clone, Copy)]
pub(super) struct DeliveryContext {
    /// Spreads tunnels.
    pub(super) hash: FlowHash,
    /// The port that stands for the client, or 0.
    pub(super) port: u16,
    pub(super) arrival: Arrival,
}

impl Decide<'_, '_> {
    /// Sends a client's packet to the server that was selected for it.
    pub(super) fn send_to_server(&mut self, flow: &Flow<'_>, selected: Selected) -> Decision {
        let at = &flow.segment.at;
        let dropped = |reason| {
            let selected = Selected { also_counted: None, ..selected };
            Decision { selected, ..Decision::drop(reason) }
        };
        let Some(server) = self.tables.servers.get(&selected.server) else {
            let is_full = selected.server == ALL_FULL;
            return dropped(if is_full { Reason::ServersFull } else { Reason::NoServer });
        };
        let port = match self.hidden_port(flow, &selected, server) {
            Ok(port) => port,
            Err(Reason::NoSession) if !flow.opens() => {
                return self.unmatched_segment(flow, Reason::NoSession);
            }
            Err(reason) => return dropped(reason),
        };
        if let Err(reason) = self.note_track(flow, selected.server, port, false) {
            return dropped(reason);
        }
        let context = DeliveryContext { hash: flow.hash, port, arrival: flow.arrival };
        let (verdict, reason) = self.deliver(at, server, &context);
        Decision { verdict, reason, selected }
    }

    /// The port that stands for the client towards a server that knows only the director; 0 for
    /// other servers.
    ///
    /// # Errors
    /// Why the packet can't go on: it has no session, or there is no port for one.
    fn hidden_port(&self, flow: &Flow<'_>, selected: &Selected, server: &ServerEntry) -> Result<u16, Reason> {
        let Forwarding::Nat { source_nat, .. } = server.forwarding else {
            return Ok(0);
        };
        // A packet without a known session couldn't be answered either.
        let session = selected.session.ok_or(selected.also_counted.unwrap_or(Reason::NoSession))?;
        let near = self.near(flow.segment.at.src, &flow.segment.at)?;
        if !source_nat {
            // The server answers on its own link.
            let is_reached = near.is_none_or(|near| near.link == server.ifindex);
            return if is_reached { Ok(0) } else { Err(Reason::LinkLocal) };
        }
        let (ports, key) = (self.memory.ports, Holder { session: flow.key, near });
        match ports.find(selected.server, key, flow.hash, flow.now) {
            Some((port, found)) => {
                if flow.is_stale(found.value, session) {
                    ports.keep(found, session);
                }
                Ok(port)
            }
            None => ports.allocate(selected.server, key, flow.hash, session, flow.now).ok_or(Reason::NoPort),
        }
    }

    /// Sends a packet to a server. A packet goes no further than its arrival allows, whatever
    /// server was selected: it is served here then, and never goes in circles.
    pub(super) fn deliver(
        &mut self,
        at: &Layers,
        server: &ServerEntry,
        context: &DeliveryContext,
    ) -> (Verdict, Reason) {
        if server.local || !context.arrival.may_go_to(server) {
            if server.is_punt() {
                self.packet.mark_source(PUNTED);
            }
            return (Verdict::Pass, Reason::Local);
        }
        let Some(&src) = self.tables.interfaces.get(&server.ifindex) else {
            return (Verdict::Drop, Reason::NoServer);
        };
        match self.rewrite_for(at, server, context) {
            Ok(()) => {}
            // The host that passed the packet on has no use for the error about it.
            Err((Verdict::Forward { .. }, Reason::TooBig)) if context.arrival != Arrival::Direct => {
                return (self.too_big_by_route(at), Reason::TooBig);
            }
            Err(stopped) => return stopped,
        }
        self.packet.readdress(src, server.mac);
        (Verdict::Forward { ifindex: server.ifindex }, Reason::Forwarded)
    }

    /// Rewrites a packet as its server's forwarding asks for, but for the MAC addresses.
    ///
    /// # Errors
    /// The verdict on a packet that can't go on.
    fn rewrite_for(
        &mut self,
        at: &Layers,
        server: &ServerEntry,
        context: &DeliveryContext,
    ) -> Result<(), (Verdict, Reason)> {
        match server.forwarding {
            Forwarding::Link => {}
            Forwarding::Tunnel { encapsulation, from, to, mtu, mark } => {
                let outer_len = outer_len(encapsulation, to, mark.is_some());
                self.fits(at, usize::from(mtu).saturating_sub(outer_len), at.dst)?;
                let too_small = Err((Verdict::Drop, Reason::NoHeadroom));
                if !self.packet.has_headroom(at.l3, outer_len, link_len(self.packet, at, server.ifindex)) {
                    return too_small;
                }
                rewrite::decrement_ttl(self.packet.frame_mut(), at);
                // The new link header is without tags where they don't belong.
                let mark = mark.map(|passed| (passed, self.memory.marker.get()));
                let tunnel = Tunnel { encapsulation, from, to, mark };
                return match encapsulate(self.packet, at, tunnel, context.hash, server.ifindex) {
                    true => Ok(()),
                    false => too_small,
                };
            }
            Forwarding::Nat { to, own, source_nat, mtu } => {
                self.fits(at, mtu.into(), at.dst)?;
                rewrite::decrement_ttl(self.packet.frame_mut(), at);
                let ends = Translation {
                    src: source_nat.then_some(own),
                    src_port: source_nat.then_some(context.port),
                    dst: Some(to.ip()),
                    dst_port: Some(to.port()),
                };
                rewrite::translate(self.packet, at, &ends);
            }
        }
        self.untag(at, server.ifindex);
        Ok(())
    }

    /// Sends the error that a client's packet has become to the client, where the host's routes
    /// say.
    fn too_big_by_route(&mut self, at: &Layers) -> Verdict {
        let hop = match super::is_link_local(at.src) {
            true => FibResult::HostStack,
            false => self.memory.routes.hop(self.packet.ingress, at.dst, at.src),
        };
        // The host's own stack doesn't forward packets from its own address.
        let FibResult::Neighbour { ifindex, src, dst, .. } = hop else { return Verdict::Drop };
        self.untag(at, ifindex);
        self.packet.readdress(src, dst);
        Verdict::Forward { ifindex }
    }

    /// Takes the tags off a frame that leaves the LAN they belong to.
    pub(super) fn untag(&mut self, at: &Layers, ifindex: u32) {
        let link_len = link_len(self.packet, at, ifindex);
        if link_len != at.l3 {
            // It becomes shorter, so there is room.
            let _ = self.packet.relink(at.l3, 0, link_len, rewrite::ethertype(at.dst.is_ipv6()));
        }
    }

    /// Checks that a packet may go on over a path that takes `most` bytes. A packet without "don't
    /// fragment" is answered too: nothing here cuts packets, and a sender that learns how long they
    /// may be cuts the next ones itself.
    ///
    /// # Errors
    /// The verdict on a packet that may not. One that is too long has become the ICMP error in the
    /// name of `from`.
    pub(super) fn fits(&mut self, at: &Layers, most: usize, from: IpAddr) -> Result<(), (Verdict, Reason)> {
        if rewrite::ttl(self.packet.frame(), at) <= 1 {
            return Err((Verdict::Drop, Reason::TtlExpired));
        }
        if longest(self.packet, at) <= most {
            return Ok(());
        }
        let verdict = Verdict::Forward { ifindex: self.packet.ingress };
        match too_big(self.packet, at, most as u16, from) {
            true => Err((verdict, Reason::TooBig)),
            false => Err((Verdict::Drop, Reason::NoHeadroom)),
        }
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
