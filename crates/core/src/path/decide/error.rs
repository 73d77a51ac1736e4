//! ICMP errors go to whoever sent the packet that they are about (RFC 792; RFC 4443; RFC 5508,
//! section 4.2).

use super::answer::{self, owner};
use super::choose::{select_without_session, session_applies};
use super::deliver::{DeliveryContext, deliver, fit, untag};
use super::{Decision, DecisionContext, Reason, Verdict};
use crate::net::packet::Packet;
use crate::path::arrival::Arrival;
use crate::path::parse::{IcmpError, Layers};
use crate::path::ports::{Holder, LinkLocalPeer};
use crate::path::rewrite::{self, Translation};
use crate::path::sessions::SessionKey;
use crate::path::tables::{Forwarding, ServerEntry, Vip, VipKey};
use core::net::SocketAddr;

pub(super) fn decide(known: &DecisionContext<'_>, packet: &mut Packet<'_>, error: &IcmpError) -> Decision {
    if known.tables.has_address(error.at.dst) {
        let sender = VipKey { address: error.quoted.src, port: error.src_port, protocol: error.protocol };
        let vip = known.tables.vips.get(&sender).filter(|_| error.quoted.src == error.at.dst);
        return match vip {
            Some(vip) => to_server(known, packet, error, vip),
            None => Decision::drop(Reason::IcmpUnknown),
        };
    }
    to_client(known, packet, error)
}

/// About what a server sent to a client.
fn to_server(known: &DecisionContext<'_>, packet: &mut Packet<'_>, error: &IcmpError, vip: &Vip) -> Decision {
    let key = SessionKey { client: error.quoted.dst, port: error.dst_port, vip: vip.id };
    let hash = key.hash(known.memory.seed);
    let arrival = known.arrival(vip);
    let found = known.memory.sessions.find(key, hash, known.now);
    let noted = found.map(|found| found.value).filter(|session| session_applies(arrival, vip, *session));
    let (slot, also_counted) = match noted {
        Some(session) => (session.server(), None),
        // Only who noted a connection that was handed over knows whose it is; who passed the error
        // on did.
        None if vip.handoff.is_some() && arrival == Arrival::Direct => {
            return Decision::drop(Reason::IcmpUnknown);
        }
        None if vip.handoff.is_some() => (vip.own, None),
        // Another director or host may have noted it, as routers hash an error by its own sender:
        // it goes where the flow's packets go.
        None => select_without_session(known.tables, known.memory, vip, key, arrival),
    };
    let Some(server) = known.tables.servers.get(&slot) else {
        return Decision::drop(Reason::IcmpUnknown);
    };
    let (verdict, reason) = match server.forwarding {
        Forwarding::Nat { .. } => match translated(known, packet, error, (slot, server), key) {
            Some(decision) => return decision,
            None => return Decision::drop(Reason::IcmpUnknown),
        },
        _ => deliver(known, packet, &error.at, server, &DeliveryContext { hash, port: 0, arrival }),
    };
    let reason = match reason {
        Reason::Forwarded | Reason::Local => Reason::IcmpForwarded,
        other => other,
    };
    Decision { also_counted, ..Decision::of(verdict, reason) }
}

/// The error as a server must see it that knows itself by another address.
fn translated(
    known: &DecisionContext<'_>,
    packet: &mut Packet<'_>,
    error: &IcmpError,
    (slot, server): (u16, &ServerEntry),
    key: SessionKey,
) -> Option<Decision> {
    let Forwarding::Nat { to, own, source_nat, mtu } = server.forwarding else {
        return None;
    };
    let src = *known.tables.interfaces.get(&server.ifindex)?;
    let hidden = match source_nat {
        true => {
            let holder = Holder { session: key, near: near(known, error)? };
            let (port, _) = known.memory.ports.find(slot, holder, key.hash(known.memory.seed), known.now)?;
            Some(port)
        }
        false => None,
    };
    if let Err((verdict, reason)) = fit(packet, &error.at, mtu.into(), error.at.dst) {
        return Some(Decision::of(verdict, reason));
    }
    rewrite::decrement_ttl(packet.frame_mut(), &error.at);
    // A server that knows only the director hears it from the director: what a router says in its
    // own name it would drop itself, were it on the way to the server too.
    let outer = Translation { src: source_nat.then_some(own), dst: Some(to.ip()), ..Translation::default() };
    let quoted = Translation {
        src: Some(to.ip()),
        src_port: Some(to.port()),
        dst: hidden.map(|_| own),
        dst_port: hidden,
    };
    rewrite::translate_error(packet, error, &outer, &quoted);
    untag(packet, &error.at, server.ifindex);
    packet.readdress(src, server.mac);
    Some(Decision::of(Verdict::Forward { ifindex: server.ifindex }, Reason::IcmpForwarded))
}

/// Where the client is that an error is about: if it has a link-local address, nobody else can have
/// sent that. `None` if that is nowhere.
fn near(known: &DecisionContext<'_>, error: &IcmpError) -> Option<Option<LinkLocalPeer>> {
    known.near(&Layers { src: error.quoted.dst, ..error.at }).ok()
}

/// About what a client sent to a server, by the server or by a router on the way to it.
fn to_client(known: &DecisionContext<'_>, packet: &mut Packet<'_>, error: &IcmpError) -> Decision {
    let endpoint = VipKey { address: error.quoted.dst, port: error.dst_port, protocol: error.protocol };
    let from = SocketAddr::new(error.quoted.src, error.src_port);
    let Some(owner) = owner(known, &endpoint, from, |_| true) else {
        return Decision::pass(Reason::NotService);
    };
    // The servers' network is its operator's own: the client hears from the service, whoever there
    // speaks (RFC 5508, section 4.2).
    let outer = Translation {
        src: Some(owner.service.address),
        dst: Some(owner.key.client),
        ..Translation::default()
    };
    let quoted = Translation {
        src: owner.port.map(|_| owner.key.client),
        src_port: owner.port.map(|_| owner.key.port),
        dst: Some(owner.service.address),
        dst_port: Some(owner.service.port),
    };
    let ends = (owner.service.address, owner.key.client);
    let rewrite = |packet: &mut Packet<'_>| rewrite::translate_error(packet, error, &outer, &quoted);
    let decision = answer::send(known, packet, &error.at, ends, owner.toward, owner.own, rewrite);
    match decision.reason {
        Reason::Answered => Decision { reason: Reason::IcmpForwarded, ..decision },
        _ => decision,
    }
}
