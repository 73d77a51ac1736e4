//! Fragments go where the first one went (RFC 791, section 3.2; RFC 8200, section 4.5).

use super::answer::{self, ClientPath};
use super::deliver::{DeliveryContext, deliver};
use super::{Decision, DecisionContext, Reason, track};
use crate::net::packet::Packet;
use crate::path::fragments::FragmentKey;
use crate::path::parse::Layers;
use crate::path::rewrite::{self, Translation};
use crate::path::sessions::FlowHash;
use crate::path::tables::{Forwarding, NO_SERVER};

/// A fragment other than the first.
pub(super) fn decide(known: &DecisionContext<'_>, packet: &mut Packet<'_>, at: &Layers) -> Decision {
    let tables = known.tables;
    let Some(fragment) = at.fragment else {
        return Decision::pass(Reason::NotService);
    };
    let Some(track) = track::find(known, &FragmentKey::of(at, fragment.id)) else {
        let expected = tables.has_address(at.dst) || tables.has_endpoint(at.src);
        return match expected {
            true => Decision::held(packet, Reason::FragmentHeld, Reason::FragmentLost),
            false => Decision::pass(Reason::NotService),
        };
    };
    if fragment.offset < track.first_end {
        return Decision::drop(Reason::FragmentOverlap);
    }
    let (Some(server), Some((service, vip))) =
        (tables.servers.get(&track.server), tables.vip_by_id(track.vip))
    else {
        return Decision::drop(Reason::NoServer);
    };
    if !track.answer {
        // Its ports are with the first; of a tunnel's paths any will do.
        let route = DeliveryContext { hash: FlowHash(0), port: track.port, arrival: known.arrival(vip) };
        let (verdict, reason) = deliver(known, packet, at, server, &route);
        let given = matches!(reason, Reason::Forwarded | Reason::Local);
        let server = if given { track.server } else { NO_SERVER };
        return Decision { server, ..Decision::of(verdict, reason) };
    }
    let client = match track.port {
        0 => Some((at.dst, ClientPath::client(known, at.dst, None))),
        port => known.memory.ports.holder(track.server, port, known.now).map(|(holder, _)| {
            let client = holder.session.client;
            (client, ClientPath::client(known, client, Some(holder)))
        }),
    };
    let (Some((client, toward)), Forwarding::Nat { own, .. }) = (client, server.forwarding) else {
        return Decision::drop(Reason::FragmentLost);
    };
    let ends = Translation { src: Some(service.address), dst: Some(client), ..Translation::default() };
    let rewrite = |packet: &mut Packet<'_>| rewrite::translate(packet, at, &ends);
    answer::send(known, packet, at, (service.address, client), toward, own, rewrite)
}
