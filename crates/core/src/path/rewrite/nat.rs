//! Rewrites addresses and ports, and the checksums over them (RFC 3022, section 4; RFC 1624).

use core::net::IpAddr;

use super::{Octets, fields, fix, put};
use crate::net::checksum::ChecksumDelta;
use crate::net::packet::{Checksum, Packet};
use crate::net::wire::protocol;
use crate::path::parse::{IcmpError, Layers};

/// New endpoints of a packet. A field that is `None` stays unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    pub src: Option<IpAddr>,
    pub src_port: Option<u16>,
    pub dst: Option<IpAddr>,
    pub dst_port: Option<u16>,
}

/// Rewrites the endpoints of a TCP or UDP packet, or of a fragment. The IP version stays.
pub fn translate(packet: &mut Packet<'_>, at: &Layers, ends: &Translation) {
    let checksum = packet.checksum;
    let frame = packet.frame_mut();
    let addresses = put_addresses(frame, at, ends);
    // Later fragments have neither ports nor the checksum, which covers the whole packet.
    if at.fragment.is_some_and(|fragment| fragment.offset != 0) {
        return;
    }
    let ports = put_ports(frame, at, ends);
    let udp = at.protocol == protocol::UDP;
    let place = at.l4 + if udp { 6 } else { 16 };
    let Some(field) = frame.get_mut(place..place + 2) else { return };
    let old = u16::from_be_bytes([field[0], field[1]]);
    let new = match checksum {
        // The field is only the sum of the pseudo-header, since the hardware will add the rest.
        Checksum::Partial => addresses.applied_to_sum(old),
        // A UDP checksum of 0 means that there is none (RFC 768).
        Checksum::Whole if udp && old == 0 => return,
        Checksum::Whole => match addresses.with(ports).applied(old) {
            0 if udp => 0xffff,
            new => new,
        },
    };
    field.copy_from_slice(&new.to_be_bytes());
}

/// Rewrites the endpoints of an ICMP error and of the packet that it quotes (RFC 5508, section
/// 4.2). The transport checksum of the quoted packet stays, since receivers don't check it and the
/// quote is rarely long enough.
pub fn translate_error(
    packet: &mut Packet<'_>,
    error: &IcmpError,
    outer: &Translation,
    quoted: &Translation,
) {
    let frame = packet.frame_mut();
    let addresses = put_addresses(frame, &error.at, outer);
    let header_before = quoted_checksum(frame, &error.quoted);
    let mut change =
        put_addresses(frame, &error.quoted, quoted).with(put_ports(frame, &error.quoted, quoted));
    change = match (header_before, quoted_checksum(frame, &error.quoted)) {
        (Some(before), Some(after)) => change.and(&before, &after),
        _ => change,
    };
    // The checksum of ICMPv6 includes a pseudo-header (RFC 4443, section 2.3).
    if error.at.dst.is_ipv6() {
        change = change.with(addresses);
    }
    fix(frame, error.at.l4 + 2, change);
}

/// Returns the header checksum of a quoted IPv4 packet.
fn quoted_checksum(frame: &[u8], quoted: &Layers) -> Option<[u8; 2]> {
    let field = frame.get(quoted.l3 + 10..quoted.l3 + 12).filter(|_| quoted.dst.is_ipv4())?;
    field.first_chunk().copied()
}

/// Writes the addresses, and returns the change of checksums that include the pseudo-header.
fn put_addresses(frame: &mut [u8], at: &Layers, ends: &Translation) -> ChecksumDelta {
    let v6 = at.dst.is_ipv6();
    let places = fields(v6);
    let mut change = ChecksumDelta::default();
    for (place, address) in [(places.src, ends.src), (places.dst, ends.dst)] {
        if let Some(address) = address.filter(|address| address.is_ipv6() == v6) {
            change = change.with(put(frame, at.l3 + place, Octets::of(address).bytes()));
        }
    }
    if !v6 {
        fix(frame, at.l3 + 10, change);
    }
    change
}

fn put_ports(frame: &mut [u8], at: &Layers, ends: &Translation) -> ChecksumDelta {
    let mut change = ChecksumDelta::default();
    for (place, port) in [(0, ends.src_port), (2, ends.dst_port)] {
        if let Some(port) = port {
            change = change.with(put(frame, at.l4 + place, &port.to_be_bytes()));
        }
    }
    change
}
