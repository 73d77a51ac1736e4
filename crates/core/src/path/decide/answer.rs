//! Servers' answers through the director (RFC 2391; LSNAT, section 3.2): their source becomes the
//! service again, and it goes where the host's routes say.

use super::deliver::{fit, untag};
use super::flow::Flow;
use super::follow::{PacketSide, follow, takes};
use super::{Decision, DecisionContext, Reason, Verdict, has_bad_flags, track};
use crate::net::packet::Packet;
use crate::path::parse::{Layers, Segment};
use crate::path::ports::{Holder, LinkLocalPeer};
use crate::path::rewrite::{self, Translation};
use crate::path::routes::FibResult;
use crate::path::sessions::{FoundSession, SessionKey};
use crate::path::tables::{Forwarding, ReplyOrigin, Vip, VipKey};
use core::net::{IpAddr, SocketAddr};

/// The session that an answer belongs to.
pub(super) struct ReplySession<'a> {
    pub(super) server: u16,
    pub(super) key: SessionKey,
    pub(super) session: FoundSession<'a>,
    /// The port that stands for the client, and its place.
    pub(super) port: Option<(u16, FoundSession<'a>)>,
    pub(super) service: VipKey,
    pub(super) vip: &'a Vip,
    /// The director's own address towards the server.
    pub(super) own: IpAddr,
    pub(super) toward: ClientPath,
}

/// Where a client is to be found.
#[derive(Clone, Copy)]
pub(super) enum ClientPath {
    /// Where the host's routes say.
    Routes,
    /// Where its own packets came from.
    Near(LinkLocalPeer),
    /// At a link-local address on the link that the answer came by.
    Link(u32),
}

impl ClientPath {
    /// The way of an answer to a client that a port stands for, or to an address that the server
    /// itself knows.
    pub(super) fn client(known: &DecisionContext<'_>, client: IpAddr, holder: Option<Holder>) -> ClientPath {
        match holder.and_then(|holder| holder.near) {
            Some(near) => ClientPath::Near(near),
            None if super::is_link_local(client) => ClientPath::Link(known.ingress),
            None => ClientPath::Routes,
        }
    }
}

impl ReplySession<'_> {
    /// The ends of a packet on its way back to the client.
    pub(super) fn ends(&self) -> Translation {
        Translation {
            src: Some(self.service.address),
            src_port: Some(self.service.port),
            dst: self.port.map(|_| self.key.client),
            dst_port: self.port.map(|_| self.key.port),
        }
    }
}

/// Finds the session of what goes from a server's endpoint to `to`: a client, or where the director
/// speaks for one. `takes` is whether a session is the one, of those with these ends.
pub(super) fn owner<'a>(
    known: &DecisionContext<'a>,
    endpoint: &VipKey,
    to: SocketAddr,
    takes: impl Fn(FoundSession<'a>) -> bool,
) -> Option<ReplySession<'a>> {
    let behind = known.tables.endpoints.get(endpoint)?;
    behind.iter().filter_map(|behind| owned_by(known, *behind, to)).find(|owner| takes(owner.session))
}

fn owned_by<'a>(
    known: &DecisionContext<'a>,
    behind: ReplyOrigin,
    to: SocketAddr,
) -> Option<ReplySession<'a>> {
    let DecisionContext { tables, memory, now, .. } = *known;
    let ReplyOrigin { vip, server } = behind;
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
    (session.value.server() == server).then_some(ReplySession {
        server,
        key,
        session,
        port,
        service: *service,
        vip,
        own,
        toward: ClientPath::client(known, key.client, holder),
    })
}

/// A packet that is for no service: it may be from a server.
pub(super) fn decide(known: &DecisionContext<'_>, packet: &mut Packet<'_>, segment: &Segment) -> Decision {
    let Segment { at, protocol, .. } = *segment;
    let endpoint = VipKey { address: at.src, port: segment.src_port, protocol };
    let takes = |session| takes(known, segment, session);
    let Some(owner) = owner(known, &endpoint, SocketAddr::new(at.dst, segment.dst_port), takes) else {
        return Decision::pass(Reason::NotService);
    };
    if has_bad_flags(segment) {
        return Decision::drop(Reason::BadFlags);
    }
    let flow = Flow::of(owner.key, known, segment, owner.vip);
    let value = follow(known.memory, &flow, PacketSide::Server, owner.session);
    if let Some((_, found)) = owner.port.filter(|(_, found)| flow.is_stale(found.value, value)) {
        known.memory.ports.keep(found, value);
    }
    let port = owner.port.map_or(0, |(port, _)| port);
    if let Err(reason) = track::note_track(known, &at, owner.server, owner.vip.id, port, true) {
        return Decision::drop(reason);
    }
    let rewrite = |packet: &mut Packet<'_>| rewrite::translate(packet, &at, &owner.ends());
    let ends = (owner.service.address, owner.key.client);
    send(known, packet, &at, ends, owner.toward, owner.own, rewrite)
}

/// Sends a packet on, rewritten: from the service's address `ends.0` to the client's. A packet too
/// long for the way is answered in the name of `own`. Of link-local addresses the kernel's look-up
/// of routes tells nothing (`bpf_ipv6_fib_lookup`).
pub(super) fn send(
    known: &DecisionContext<'_>,
    packet: &mut Packet<'_>,
    at: &Layers,
    ends: (IpAddr, IpAddr),
    toward: ClientPath,
    own: IpAddr,
    rewrite: impl FnOnce(&mut Packet<'_>),
) -> Decision {
    let hop = match toward {
        ClientPath::Routes => known.memory.routes.hop(packet.ingress, ends.0, ends.1),
        ClientPath::Near(near) => hop_to(known, near),
        ClientPath::Link(_) => FibResult::HostStack,
    };
    let most = match hop {
        FibResult::Neighbour { mtu, .. } => usize::from(mtu),
        FibResult::HostStack => usize::MAX,
        FibResult::None => return Decision::drop(Reason::NoRoute),
    };
    if let Err((verdict, reason)) = fit(packet, at, most, own) {
        return Decision::of(verdict, reason);
    }
    rewrite(packet);
    match hop {
        FibResult::Neighbour { ifindex, src, dst, .. } => {
            rewrite::decrement_ttl(packet.frame_mut(), at);
            // Such a client's packets came without a tag, whatever the server's have.
            untag(packet, at, if matches!(toward, ClientPath::Near(_)) { NO_INTERFACE } else { ifindex });
            packet.readdress(src, dst);
            Decision::of(Verdict::Forward { ifindex }, Reason::Answered)
        }
        _ => {
            let link = if let ClientPath::Link(link) = toward { Some(link) } else { None };
            Decision { link, ..Decision::pass(Reason::HostStack) }
        }
    }
}

/// No interface has this number.
const NO_INTERFACE: u32 = 0;

fn hop_to(known: &DecisionContext<'_>, LinkLocalPeer { link, mac }: LinkLocalPeer) -> FibResult {
    match (known.tables.interfaces.get(&link), known.memory.routes.mtu(link)) {
        (Some(&src), Some(mtu)) => FibResult::Neighbour { ifindex: link, src, dst: mac, mtu },
        _ => FibResult::None,
    }
}
