//! The fast path, which most packets take: whole, untagged IPv4 packets of sessions that are at
//! work and stay as they are, and those that are for no service.
//!
//! It is the slow path with everything left out that such packets don't need, so it may never
//! decide otherwise, and whatever it is in doubt about takes the slow path from its beginning:
//! nothing is changed or counted before it is known that this one will do. Addresses that no packet
//! is rightly from aren't looked at, since nothing with such a one ever began a session. In C an
//! answer goes this way only while its session stays as it is and where the kernel's routes were
//! asked a moment ago; here nothing is gained by that.

use core::net::Ipv4Addr;

use super::answer;
use super::choose::{Selected, chooses_anew, client_side};
use super::flow::Flow;
use super::follow::{PacketSide, next};
use super::{Decision, DecisionContext, Reason, carry};
use crate::net::Protocol;
use crate::net::ip::is_martian;
use crate::net::packet::Packet;
use crate::net::tcp::TCP_LEN;
use crate::net::wire::{ETHERNET_LEN, ETHERTYPE_IPV4, TCP_FIN, TCP_RST, TCP_SYN, TCP_URG};
use crate::path::arrival::Arrival;
use crate::path::cookie::DOUBTED;
use crate::path::parse::{Layers, Segment, UDP_LEN};
use crate::path::sessions::{State, Value};
use crate::path::tables::{RehandoffMode, VipKey};

/// Bytes of an IPv4 header without options.
const IPV4_LEN: usize = 20;
/// The bytes wanted of a frame: the headers of TCP, also of UDP, whose frames are seldom shorter.
const HEADERS_LEN: usize = ETHERNET_LEN + IPV4_LEN + TCP_LEN;
/// "More fragments", and where a fragment belongs.
const FRAGMENT: u16 = 0x3fff;
/// Control bits of segments that a session may change with.
const SELDOM: u8 = TCP_SYN | TCP_FIN | TCP_RST | TCP_URG;

/// The decision on a packet that can take the fast path.
pub(super) fn decide(known: &DecisionContext<'_>, packet: &mut Packet<'_>) -> Option<Decision> {
    let (segment, has_data) = read(known, packet)?;
    let key = VipKey { address: segment.at.dst, port: segment.dst_port, protocol: segment.protocol };
    let Some(vip) = known.tables.vips.get(&key) else {
        return without_vip(known, packet, &segment);
    };
    let flow = Flow::new(known, &segment, vip);
    if segment.flags & SELDOM != 0 || flow.arrival != Arrival::Direct {
        return None;
    }
    let found = known.memory.sessions.find(flow.key, flow.hash, flow.now)?.value;
    let server = known.tables.servers.get(&found.server())?;
    // A datagram may find another server than one that is down.
    if chooses_anew(known.tables, &flow, found) || !stays(&flow, client_side(Some(server)), found) {
        return None;
    }
    if let Some(handoff) = vip.handoff {
        // Later requests may be other servers'.
        let is_read = handoff.later != RehandoffMode::Stay && has_data;
        if is_read || found.mark() & DOUBTED != 0 || server.is_down() {
            return None;
        }
    }
    let choice =
        Selected { server: found.server(), new_session: false, also_counted: None, session: Some(found) };
    Some(carry(known, packet, &segment, &flow, &choice))
}

/// A packet that is for no service, but may be from a server. One from an address that it can't be
/// from is dropped where its destination is a service's.
fn without_vip(known: &DecisionContext<'_>, packet: &mut Packet<'_>, segment: &Segment) -> Option<Decision> {
    if is_martian(segment.at.src, segment.at.dst) {
        return None;
    }
    match known.tables.endpoints.is_empty() {
        true => Some(Decision::pass(Reason::NotService)),
        false => Some(answer::decide(known, packet, segment)),
    }
}

/// Whether a session is at work, and nothing of it is to be noted.
pub(super) fn stays(flow: &Flow<'_>, side: PacketSide, found: Value) -> bool {
    let protocol = if flow.udp { Protocol::Udp } else { Protocol::Tcp };
    found.state() == State::at_work(protocol)
        && next(flow, side, found).is_none_or(|next| !flow.is_stale(found, next))
}

/// A packet without a fault, and whether a TCP segment has payload.
fn read(known: &DecisionContext<'_>, packet: &Packet<'_>) -> Option<(Segment, bool)> {
    let frame = packet.frame();
    let head: &[u8; HEADERS_LEN] = frame.first_chunk()?;
    let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let own = known.tables.interfaces.get(&packet.ingress)?;
    if head[..6] != own.0 || head[6] & 1 != 0 || half(12) != ETHERTYPE_IPV4 || head[14] != 0x45 {
        return None;
    }
    let len = usize::from(half(16));
    if ETHERNET_LEN + len > frame.len() || half(20) & FRAGMENT != 0 {
        return None;
    }
    let protocol = [Protocol::Tcp, Protocol::Udp].into_iter().find(|one| one.number() == head[23])?;
    let (is_tcp, body_len) = (protocol == Protocol::Tcp, len.checked_sub(IPV4_LEN)?);
    let (least, header_len, all) = match is_tcp {
        true => (TCP_LEN, usize::from(head[46] >> 4) * 4, body_len),
        // Of UDP that is what it says of itself, payload and all.
        false => (UDP_LEN, usize::from(half(38)), body_len),
    };
    if header_len < least || header_len > all {
        return None;
    }
    let at = Layers {
        l3: ETHERNET_LEN,
        l4: ETHERNET_LEN + IPV4_LEN,
        len,
        src: Ipv4Addr::from_bits(word(26)).into(),
        dst: Ipv4Addr::from_bits(word(30)).into(),
        protocol: head[23],
        fragment: None,
    };
    let [flags, sequence, acknowledgment] =
        if is_tcp { [head[47].into(), word(38), word(42)] } else { [0; 3] };
    let (src_port, dst_port) = (half(34), half(36));
    let segment = Segment { at, protocol, src_port, dst_port, flags: flags as u8, sequence, acknowledgment };
    Some((segment, is_tcp && header_len < body_len))
}
