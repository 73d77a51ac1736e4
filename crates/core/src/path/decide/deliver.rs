//! Delivery of a packet to its server, by each kind of forwarding.

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
use crate::path::reply_hops::FibResult;
use crate::path::rewrite::{self, Translation, Tunnel, encapsulate, link_len, outer_len, too_big};
use crate::path::sessions::FlowHash;
use crate::path::tables::{ALL_FULL, Forwarding, ServerEntry};
use core::net::IpAddr;

/// Interface number that no interface has.
pub(super) const NO_INTERFACE: u32 = 0;

/// Facts on which the delivery of a packet depends besides its server.
#[derive(Clone, Copy)]
pub(super) struct DeliveryContext {
    /// Hash of the flow, which spreads tunnels over paths.
    pub(super) hash: FlowHash,
    /// Source-NAT port of the client, or 0.
    pub(super) port: u16,
    pub(super) arrival: Arrival,
}

impl Decide<'_, '_> {
    /// Sends a client's packet to its selected server.
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
        let port = match self.source_nat_port(flow, &selected, server) {
            Ok(port) => port,
            Err(Reason::NoSession) if !flow.opens() => {
                return self.unmatched_segment(flow, Reason::NoSession);
            }
            Err(reason) => return dropped(reason),
        };
        if let Err(reason) = self.record_fragment(flow, selected.server, port, false) {
            return dropped(reason);
        }
        let context = DeliveryContext { hash: flow.hash, port, arrival: flow.arrival };
        let (verdict, reason) = self.deliver(at, server, &context);
        Decision { verdict, reason, selected }
    }

    /// Returns the source-NAT port of the client, for a server that sees only the director's
    /// address. Returns 0 for other servers.
    ///
    /// # Errors
    /// The reason to drop the packet: it has no session, or no port is available.
    fn source_nat_port(
        &self,
        flow: &Flow<'_>,
        selected: &Selected,
        server: &ServerEntry,
    ) -> Result<u16, Reason> {
        let Forwarding::Nat { source_nat, .. } = server.forwarding else {
            return Ok(0);
        };
        // Without a session, the server's reply would find no client.
        let session = selected.session.ok_or(selected.also_counted.unwrap_or(Reason::NoSession))?;
        let near = self.near(flow.segment.at.src, &flow.segment.at)?;
        if !source_nat {
            // Without source NAT, the server replies to a link-local client on its own link.
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

    /// Sends a packet to a server. If the packet's origin forbids this, this host serves the
    /// packet, so packets never loop.
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
            // The packet came from another host, which can't use the ICMP error. So the error is
            // routed to the client.
            Err((Verdict::Forward { .. }, Reason::TooBig)) if context.arrival != Arrival::Direct => {
                return (self.too_big_by_route(at), Reason::TooBig);
            }
            Err(stopped) => return stopped,
        }
        self.packet.readdress(src, server.mac);
        (Verdict::Forward { ifindex: server.ifindex }, Reason::Forwarded)
    }

    /// Rewrites a packet by its server's forwarding, except for the MAC addresses.
    ///
    /// # Errors
    /// The verdict on a packet that can't be forwarded.
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
                // If the frame leaves by another link, the new link header has no tags.
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

    /// Sends an ICMP error about a client's packet to the client by the host's routes. The error
    /// has replaced the packet in its frame.
    fn too_big_by_route(&mut self, at: &Layers) -> Verdict {
        let hop = match super::is_link_local(at.src) {
            true => FibResult::HostStack,
            false => self.memory.routes.hop(self.packet.ingress, at.dst, at.src),
        };
        // The host's own stack doesn't forward packets that have its own source address.
        let FibResult::Neighbour { ifindex, src, dst, .. } = hop else { return Verdict::Drop };
        self.untag(at, ifindex);
        self.packet.readdress(src, dst);
        Verdict::Forward { ifindex }
    }

    /// Removes the VLAN tags of a frame that leaves by another link, since tags belong to their own
    /// link.
    pub(super) fn untag(&mut self, at: &Layers, ifindex: u32) {
        let link_len = link_len(self.packet, at, ifindex);
        if link_len != at.l3 {
            // This can't fail, since the frame becomes shorter.
            let _ = self.packet.relink(at.l3, 0, link_len, rewrite::ethertype(at.dst.is_ipv6()));
        }
    }

    /// Checks that a packet fits a path with an MTU of `most` bytes. A packet without "don't
    /// fragment" gets an ICMP error too: the data plane doesn't fragment packets, and a sender that
    /// learns the MTU sends smaller packets.
    ///
    /// # Errors
    /// The verdict on a packet that doesn't fit or whose time to live expires. A packet that is too
    /// long has been replaced by an ICMP error with source `from`.
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

/// Returns the length of the frame's packet. If the frame will be segmented, returns the length of
/// its longest segment.
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
