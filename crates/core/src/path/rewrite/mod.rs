//! Rewrites packets for their verdicts.
//!
//! The functions trust the offsets that [`crate::path::parse`] found. If a packet ends before a
//! field, the packet stays unchanged.

mod handshake;
mod local_reply;
mod nat;
mod tunnel;

pub use handshake::{SynAck, acknowledge, reset, write_syn_ack};
use local_reply::send_back;
pub use local_reply::{QUOTE_LEN, arp_answer, echo_answer, neighbour_answer, too_big};
pub use nat::{Translation, translate, translate_error};
pub use tunnel::{Tunnel, encapsulate, outer_len};

use crate::net::checksum::ChecksumDelta;
use crate::net::packet::Packet;
use crate::net::wire::{ETHERNET_LEN, Octets};
use crate::path::parse::Layers;

/// Time to live and hop limit of the director's own packets.
const TTL: u8 = 64;

/// Overwrites bytes and returns the change of the checksum over them.
fn put(frame: &mut [u8], at: usize, new: &[u8]) -> ChecksumDelta {
    match frame.get_mut(at..at + new.len()) {
        Some(place) => {
            let change = ChecksumDelta::of(place, new);
            place.copy_from_slice(new);
            change
        }
        None => ChecksumDelta::default(),
    }
}

/// Applies a change to the checksum at offset `at`.
fn fix(frame: &mut [u8], at: usize, change: ChecksumDelta) {
    if let Some(place) = frame.get_mut(at..at + 2) {
        let checksum = change.applied(u16::from_be_bytes([place[0], place[1]]));
        place.copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Offsets of addresses and time to live in an IP header.
struct HeaderOffsets {
    src: usize,
    dst: usize,
    ttl: usize,
}

const fn fields(v6: bool) -> HeaderOffsets {
    if v6 { HeaderOffsets { src: 8, dst: 24, ttl: 7 } } else { HeaderOffsets { src: 12, dst: 16, ttl: 8 } }
}

/// Returns the time to live or hop limit.
pub fn ttl(frame: &[u8], at: &Layers) -> u8 {
    frame.get(at.l3 + fields(at.dst.is_ipv6()).ttl).copied().unwrap_or_default()
}

/// Decrements the time to live (RFC 1812, section 5.3.1). The caller has checked that it is not 0.
pub fn decrement_ttl(frame: &mut [u8], at: &Layers) {
    let v6 = at.dst.is_ipv6();
    let place = at.l3 + fields(v6).ttl;
    let ttl = ttl(frame, at);
    if v6 {
        if let Some(hops) = frame.get_mut(place) {
            *hops = ttl.saturating_sub(1);
        }
        return;
    }
    // The protocol is in the same 16-bit word of the checksum.
    let protocol = at.protocol;
    let change = put(frame, place, &[ttl.saturating_sub(1), protocol]);
    fix(frame, at.l3 + 10, change);
}

/// Returns the length of the link header with which the frame leaves. If the frame leaves by
/// another interface, the header has no VLAN tags, since tags belong to their own LAN.
pub(crate) fn link_len(packet: &Packet<'_>, at: &Layers, ifindex: u32) -> usize {
    if ifindex == packet.ingress { at.l3 } else { ETHERNET_LEN }
}

/// Returns the ethertype of an IP version.
pub(crate) const fn ethertype(v6: bool) -> u16 {
    if v6 { crate::net::wire::ETHERTYPE_IPV6 } else { crate::net::wire::ETHERTYPE_IPV4 }
}
