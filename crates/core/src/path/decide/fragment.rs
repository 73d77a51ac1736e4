//! Fragments go where the first one went (RFC 791, section 3.2; RFC 8200, section 4.5).

use super::answer::{self, Toward};
use super::deliver::{Route, deliver};
use super::{Decision, Knowledge, Reason};
use crate::net::packet::Packet;
use crate::path::fragments::{FragmentKey, LIFETIME_MS, Track};
use crate::path::parse::Layers;
use crate::path::rewrite::{self, Translation};
use crate::path::sessions::{FlowHash, ticks};
use crate::path::tables::{Forwarding, NO_SERVER};

/// Remembers a first fragment, if the packet is one.
///
/// # Errors
/// Another first fragment of the same packet was seen, and says otherwise: one would be written over the other.
pub(super) fn note(
    known: &Knowledge<'_>,
    at: &Layers,
    server: u16,
    vip: u16,
    port: u16,
    answer: bool,
) -> Result<(), Reason> {
    let Some(fragment) = at.fragment else {
        return Ok(());
    };
    let expires = known.now.wrapping_add(ticks(LIFETIME_MS));
    let track = Track { expires, server, vip, port, first_end: fragment.end, answer };
    let key = key(at, fragment.id);
    match find(known, &key) {
        Some(seen) if (Track { expires, ..seen }) != track => return Err(Reason::FragmentOverlap),
        Some(_) => {}
        None => known.memory.fragments.note(&key, track),
    }
    Ok(())
}

fn key(at: &Layers, id: u32) -> FragmentKey {
    let protocol = if at.dst.is_ipv6() { 0 } else { at.protocol };
    FragmentKey { src: at.src, dst: at.dst, id, protocol }
}

fn find(known: &Knowledge<'_>, key: &FragmentKey) -> Option<Track> {
    let track = known.memory.fragments.find(key)?;
    // What nobody put out may be met again for five seconds each 52 days, when ticks have wrapped: of that one fragment is
    // lost, as networks lose them.
    let left = track.expires.wrapping_sub(known.now).wrapping_sub(1);
    (left < ticks(LIFETIME_MS)).then_some(track)
}

/// A fragment other than the first.
pub(super) fn decide(known: &Knowledge<'_>, packet: &mut Packet<'_>, at: &Layers) -> Decision {
    let tables = known.tables;
    let Some(fragment) = at.fragment else {
        return Decision::pass(Reason::NotService);
    };
    let Some(track) = find(known, &key(at, fragment.id)) else {
        let expected = tables.has_address(at.dst) || tables.has_endpoint(at.src);
        return match expected {
            true => Decision::hold(packet, Reason::FragmentHeld, Reason::FragmentLost),
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
        let route = Route { hash: FlowHash(0), port: track.port, arrival: known.arrival(vip) };
        let (verdict, reason) = deliver(known, packet, at, server, &route);
        let given = matches!(reason, Reason::Forwarded | Reason::Local);
        let server = if given { track.server } else { NO_SERVER };
        return Decision { server, ..Decision::of(verdict, reason) };
    }
    let client = match track.port {
        0 => Some((at.dst, Toward::client(known, at.dst, None))),
        port => known.memory.ports.holder(track.server, port, known.now).map(|(holder, _)| {
            let client = holder.session.client;
            (client, Toward::client(known, client, Some(holder)))
        }),
    };
    let (Some((client, toward)), Forwarding::Nat { own, .. }) = (client, server.forwarding) else {
        return Decision::drop(Reason::FragmentLost);
    };
    let ends = Translation { src: Some(service.address), dst: Some(client), ..Translation::default() };
    let rewrite = |packet: &mut Packet<'_>| rewrite::translate(packet, at, &ends);
    answer::send(known, packet, at, (service.address, client), toward, own, rewrite)
}
