//! Sends servers' replies through the director to clients (RFC 2391; LSNAT, section 3.2). The
//! source becomes the service's address again, and the host's routes decide the next hop.

use super::deliver::NO_INTERFACE;
use super::follow::PacketSide;
use super::{Decide, Decision, Reason, Verdict, has_bad_flags};
use crate::net::packet::Packet;
use crate::path::parse::{Layers, Segment};
use crate::path::ports::{Holder, LinkLocalPeer};
use crate::path::reply_hops::FibResult;
use crate::path::rewrite::{self, Translation};
use crate::path::sessions::{FoundSession, SessionKey};
use crate::path::tables::{Forwarding, ReplyOrigin, Vip, VipKey};
use core::net::{IpAddr, SocketAddr};

/// Session that a reply belongs to.
pub(super) struct ReplySession<'a> {
    server: u16,
    session: FoundSession<'a>,
    pub(super) key: SessionKey,
    /// Source-NAT port of the client, with the port's entry in the table of ports.
    pub(super) port: Option<(u16, FoundSession<'a>)>,
    pub(super) service: VipKey,
    vip: &'a Vip,
    pub(super) path: ReplyPath,
}

/// Path of a packet back to a client.
pub(super) struct ReplyPath {
    /// Service address: the source that the client sees.
    pub(super) service: IpAddr,
    pub(super) client: IpAddr,
    pub(super) toward: ClientPath,
    /// Address of the director towards the server, which is the source of ICMP errors.
    pub(super) own: IpAddr,
}

/// Next hop towards a client.
#[derive(Clone, Copy)]
pub(super) enum ClientPath {
    /// Next hop by the host's routes.
    Routes,
    /// Neighbour that sent the client's packets.
    Near(LinkLocalPeer),
    /// Link-local address on the link that the reply came from.
    Link(u32),
}

impl ClientPath {
    /// Returns the path to a client. `holder` is the session that holds the client's source-NAT
    /// port, if it has one.
    pub(super) fn of(decide: &Decide<'_, '_>, client: IpAddr, holder: Option<Holder>) -> ClientPath {
        match holder.and_then(|holder| holder.near) {
            Some(near) => ClientPath::Near(near),
            None if super::is_link_local(client) => ClientPath::Link(decide.packet.ingress),
            None => ClientPath::Routes,
        }
    }
}

impl ReplySession<'_> {
    /// Returns the new endpoints of a server's packet for the client.
    fn ends(&self) -> Translation {
        Translation {
            src: Some(self.service.address),
            src_port: Some(self.service.port),
            dst: self.port.map(|_| self.key.client),
            dst_port: self.port.map(|_| self.key.port),
        }
    }
}

impl<'a> Decide<'a, '_> {
    /// Decides a packet that is not for a service. It may be a server's reply.
    pub(super) fn decide_reply(&mut self, segment: &Segment) -> Decision {
        let Segment { at, protocol, .. } = *segment;
        let endpoint = VipKey { address: at.src, port: segment.src_port, protocol };
        let to = SocketAddr::new(at.dst, segment.dst_port);
        let Some(reply) = self.find_reply_session(&endpoint, to, |session| self.takes(segment, session))
        else {
            return Decision::pass(Reason::NotService);
        };
        if has_bad_flags(segment) {
            return Decision::drop(Reason::BadFlags);
        }
        let flow = self.flow(reply.key, segment, reply.vip);
        let value = self.follow(&flow, PacketSide::Server, reply.session);
        if let Some((_, found)) = reply.port.filter(|(_, found)| flow.is_stale(found.value, value)) {
            self.memory.ports.keep(found, value);
        }
        let port = reply.port.map_or(0, |(port, _)| port);
        if let Err(reason) = self.record_fragment(&flow, reply.server, port, true) {
            return Decision::drop(reason);
        }
        self.send_reply(&at, &reply.path, |packet| rewrite::translate(packet, &at, &reply.ends()))
    }

    /// Finds the session of a packet from a server's endpoint to `to`. `to` is a client, or the
    /// director's own address with a client's source-NAT port. `takes` filters the sessions with
    /// these endpoints.
    pub(super) fn find_reply_session(
        &self,
        endpoint: &VipKey,
        to: SocketAddr,
        takes: impl Fn(FoundSession<'a>) -> bool,
    ) -> Option<ReplySession<'a>> {
        let origins = self.tables.endpoints.get(endpoint)?;
        origins
            .iter()
            .filter_map(|origin| self.reply_session_of(*origin, to))
            .find(|reply| takes(reply.session))
    }

    fn reply_session_of(&self, origin: ReplyOrigin, to: SocketAddr) -> Option<ReplySession<'a>> {
        let Decide { tables, memory, now, .. } = *self;
        let ReplyOrigin { vip, server } = origin;
        let Forwarding::Nat { own, source_nat, .. } = tables.servers.get(&server)?.forwarding else {
            return None;
        };
        let (key, port, holder) = if source_nat {
            let (holder, found) = (to.ip() == own)
                .then(|| memory.ports.holder(server, to.port(), now))?
                .filter(|(holder, _)| holder.session.vip == vip)?;
            (holder.session, Some((to.port(), found)), Some(holder))
        } else {
            (SessionKey { client: to.ip(), port: to.port(), vip }, None, None)
        };
        let session = memory.sessions.find(key, key.hash(memory.seed), now)?;
        let (service, vip) = tables.vip_by_id(vip)?;
        let toward = ClientPath::of(self, key.client, holder);
        let path = ReplyPath { service: service.address, client: key.client, toward, own };
        (session.value.server() == server).then_some(ReplySession {
            server,
            session,
            key,
            port,
            service: *service,
            vip,
            path,
        })
    }

    /// Rewrites a packet and sends it to a client. If the packet is too long for the path, its
    /// sender gets an ICMP error. Link-local clients need a path of their own, since the kernel's
    /// route lookup (`bpf_ipv6_fib_lookup`) doesn't support their addresses.
    pub(super) fn send_reply(
        &mut self,
        at: &Layers,
        path: &ReplyPath,
        rewrite: impl FnOnce(&mut Packet<'_>),
    ) -> Decision {
        let hop = match path.toward {
            ClientPath::Routes => self.memory.routes.hop(self.packet.ingress, path.service, path.client),
            ClientPath::Near(near) => self.find_near(near),
            ClientPath::Link(_) => FibResult::HostStack,
        };
        let most = match hop {
            FibResult::Neighbour { mtu, .. } => usize::from(mtu),
            FibResult::HostStack => usize::MAX,
            FibResult::None => return Decision::drop(Reason::NoRoute),
        };
        if let Err((verdict, reason)) = self.fits(at, most, path.own) {
            return Decision::of(verdict, reason);
        }
        rewrite(self.packet);
        let FibResult::Neighbour { ifindex, src, dst, .. } = hop else {
            let link = if let ClientPath::Link(link) = path.toward { Some(link) } else { None };
            return Decision::of(Verdict::HostStack { link }, Reason::HostStack);
        };
        rewrite::decrement_ttl(self.packet.frame_mut(), at);
        // Packets of a link-local client arrive without tags, so packets to that client get no tags
        // either.
        self.untag(at, if matches!(path.toward, ClientPath::Near(_)) { NO_INTERFACE } else { ifindex });
        self.packet.readdress(src, dst);
        Decision::of(Verdict::Forward { ifindex }, Reason::Answered)
    }

    fn find_near(&self, LinkLocalPeer { link, mac }: LinkLocalPeer) -> FibResult {
        match (self.tables.interfaces.get(&link), self.memory.routes.mtu(link)) {
            (Some(&src), Some(mtu)) => FibResult::Neighbour { ifindex: link, src, dst: mac, mtu },
            _ => FibResult::None,
        }
    }
}
