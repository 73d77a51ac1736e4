//! What servers answer through the director (RFC 2391; LSNAT, section 3.2): its source becomes the service
//! again, and it goes where the host's routes say.

use super::choose::Flow;
use super::deliver::{fit, untag};
use super::follow::{Side, follow};
use super::{Decision, Knowledge, Reason, Verdict, fragment, has_bad_flags};
use crate::packet::Packet;
use crate::parse::{Layers, Segment};
use crate::rewrite::{self, Ends};
use crate::routes::Hop;
use crate::sessions::{Found, SessionKey};
use crate::tables::{Behind, Vip, VipKey, Way};
use core::net::{IpAddr, SocketAddr};

/// The session that an answer belongs to.
pub(super) struct Owner<'a> {
    pub(super) server: u16,
    pub(super) key: SessionKey,
    pub(super) session: Found<'a>,
    /// The port that stands for the client, and its place.
    pub(super) port: Option<(u16, Found<'a>)>,
    pub(super) service: VipKey,
    pub(super) vip: &'a Vip,
    /// The director's own address towards the server.
    pub(super) own: IpAddr,
}

impl Owner<'_> {
    /// What a packet's ends become on its way back to the client.
    pub(super) fn ends(&self) -> Ends {
        Ends {
            src: Some(self.service.address),
            src_port: Some(self.service.port),
            dst: self.port.map(|_| self.key.client),
            dst_port: self.port.map(|_| self.key.port),
        }
    }
}

/// Finds the session of what goes from a server's endpoint to `to`: a client, or where the director speaks
/// for one.
pub(super) fn owner<'a>(known: &Knowledge<'a>, endpoint: &VipKey, to: SocketAddr) -> Option<Owner<'a>> {
    let behind = known.tables.endpoints.get(endpoint)?;
    behind.iter().find_map(|behind| owned_by(known, *behind, to))
}

fn owned_by<'a>(known: &Knowledge<'a>, behind: Behind, to: SocketAddr) -> Option<Owner<'a>> {
    let Knowledge { tables, memory, now, .. } = *known;
    let Behind { vip, server } = behind;
    let Way::Nat { own, source_nat, .. } = tables.servers.get(&server)?.way else {
        return None;
    };
    let (key, port) = if source_nat {
        let (key, found) = (to.ip() == own)
            .then(|| memory.ports.holder(server, to.port(), now))?
            .filter(|(key, _)| key.vip == vip)?;
        (key, Some((to.port(), found)))
    } else {
        (SessionKey { client: to.ip(), port: to.port(), vip }, None)
    };
    let session = memory.sessions.find(key, key.hash(memory.seed), now)?;
    let (service, vip) = tables.vip_by_id(vip)?;
    (session.value.server() == server).then_some(Owner {
        server,
        key,
        session,
        port,
        service: *service,
        vip,
        own,
    })
}

/// A packet that is for no service: it may be from a server.
pub(super) fn decide(known: &Knowledge<'_>, packet: &mut Packet<'_>, segment: &Segment) -> Decision {
    let Segment { at, protocol, .. } = *segment;
    let endpoint = VipKey { address: at.src, port: segment.src_port, protocol };
    let Some(owner) = owner(known, &endpoint, SocketAddr::new(at.dst, segment.dst_port)) else {
        return Decision::pass(Reason::NotService);
    };
    if has_bad_flags(segment) {
        return Decision::drop(Reason::BadFlags);
    }
    let flow = Flow::of(owner.key, known, segment, owner.vip);
    let value = follow(known.memory, &flow, Side::Server, owner.session);
    if let Some((_, found)) = owner.port.filter(|(_, found)| flow.is_stale(found.value, value)) {
        known.memory.ports.keep(found, value);
    }
    let port = owner.port.map_or(0, |(port, _)| port);
    if let Err(reason) = fragment::note(known, &at, owner.server, owner.vip.id, port, true) {
        return Decision::drop(reason);
    }
    let rewrite = |packet: &mut Packet<'_>| rewrite::translate(packet, &at, &owner.ends());
    send(known, packet, &at, (owner.service.address, owner.key.client), owner.own, rewrite)
}

/// Sends a packet on by the host's routes, rewritten: from the service's address `ends.0` to the client's. What is
/// too long for the way is answered in the name of `own`.
pub(super) fn send(
    known: &Knowledge<'_>,
    packet: &mut Packet<'_>,
    at: &Layers,
    ends: (IpAddr, IpAddr),
    own: IpAddr,
    rewrite: impl FnOnce(&mut Packet<'_>),
) -> Decision {
    let hop = known.memory.routes.hop(packet.ingress, ends.0, ends.1);
    let most = match hop {
        Hop::Neighbour { mtu, .. } => usize::from(mtu),
        Hop::ByHost => usize::MAX,
        Hop::None => return Decision::drop(Reason::NoRoute),
    };
    if let Err((verdict, reason)) = fit(packet, at, most, own) {
        return Decision::of(verdict, reason);
    }
    rewrite(packet);
    match hop {
        Hop::Neighbour { ifindex, src, dst, .. } => {
            rewrite::decrement_ttl(packet.frame_mut(), at);
            untag(packet, at, ifindex);
            packet.readdress(src, dst);
            Decision::of(Verdict::Forward { ifindex }, Reason::Answered)
        }
        _ => Decision::pass(Reason::ByHost),
    }
}
