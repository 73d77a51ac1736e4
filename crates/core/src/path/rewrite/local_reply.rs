//! Replies that the director itself sends, written over the request.

use core::net::{IpAddr, Ipv6Addr};

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::{Octets, TTL, ethertype, fields, fix, put};
use crate::net::checksum;
use crate::net::packet::{Checksum, Packet};
use crate::net::wire::{
    ARP_LEN, ARP_REPLY, Arp, ETHERNET_LEN, Ethernet, Icmp, Ipv4, Ipv6, Mac, Neighbour, icmp, icmpv6, protocol,
};
use crate::path::parse::Layers;

/// Number of bytes of a packet that an ICMP error quotes. With it the error fits in 576 bytes with
/// room for IPv4 options (RFC 1812, section 4.3.2.3). Every packet that is too long for its path
/// has more bytes.
pub const QUOTE_LEN: usize = 512;
/// Length of a neighbour advertisement with one option, without the link header, in bytes.
const ADVERTISEMENT_LEN: usize = 40 + 24 + 8;

/// Turns an ARP request into its reply, which says that the target's address is at `own` (RFC 826).
pub fn arp_answer(packet: &mut Packet<'_>, l3: usize, own: Mac) {
    let Some((head, body)) = packet.frame_mut().split_at_mut_checked(l3) else { return };
    let (Ok((ethernet, _)), Some(Ok(arp))) =
        (Ethernet::mut_from_prefix(head), body.get_mut(..ARP_LEN).map(Arp::mut_from_bytes))
    else {
        return;
    };
    ethernet.dst = arp.sender_mac;
    ethernet.src = own;
    arp.operation.set(ARP_REPLY);
    let target_ip = arp.target_ip;
    arp.target_mac = arp.sender_mac;
    arp.target_ip = arp.sender_ip;
    arp.sender_mac = own;
    arp.sender_ip = target_ip;
}

/// Turns a neighbour solicitation into its advertisement, which says that the target is at `own`
/// (RFC 4861, section 7.2.4). False, with the packet unchanged, if the frame has no room.
#[must_use]
pub fn neighbour_answer(
    packet: &mut Packet<'_>,
    l3: usize,
    target: Ipv6Addr,
    sender: Ipv6Addr,
    own: Mac,
) -> bool {
    let Ok((&Ethernet { src: source, .. }, _)) = Ethernet::ref_from_prefix(packet.frame()) else {
        return false;
    };
    // A solicitation without the option for the sender's MAC is shorter than the advertisement.
    let missing = (l3 + ADVERTISEMENT_LEN).saturating_sub(packet.frame().len());
    if !packet.relink(l3, missing, l3, ethertype(true)) || !packet.truncate(l3 + ADVERTISEMENT_LEN) {
        return false;
    }
    // A host that probes for an address has no address yet, so the advertisement goes to all nodes.
    let probe = sender.is_unspecified();
    let to = if probe { Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1) } else { sender };
    let ip = Ipv6 {
        version_class_flow: U32::new(6 << 28),
        payload_len: U16::new(32),
        next_header: protocol::ICMPV6,
        hop_limit: 255,
        src: target.octets(),
        dst: to.octets(),
    };
    // The flag "override" is set. The flag "solicited" is set, too, unless the sender has no
    // address.
    let flags: u32 = if probe { 1 << 29 } else { 3 << 29 };
    let icmp =
        Icmp { kind: icmpv6::NEIGHBOUR_ADVERTISEMENT, code: 0, checksum: U16::new(0), rest: U32::new(flags) };
    let mut body = [0; 32];
    body[..24].copy_from_slice(Neighbour { icmp, target: target.octets() }.as_bytes());
    // The target's link-layer address (RFC 4861, section 4.6.1).
    body[24..26].copy_from_slice(&[2, 1]);
    body[26..].copy_from_slice(&own.0);
    let checksum = icmpv6_checksum(&ip, &body);
    body[2..4].copy_from_slice(&checksum.to_be_bytes());
    if let Some(rest) = packet.frame_mut().get_mut(l3..l3 + ADVERTISEMENT_LEN) {
        rest[..40].copy_from_slice(ip.as_bytes());
        rest[40..].copy_from_slice(&body);
    }
    let to = if probe { Mac([0x33, 0x33, 0, 0, 0, 1]) } else { source };
    packet.readdress(own, to);
    true
}

/// Turns an echo request into its reply.
pub fn echo_answer(packet: &mut Packet<'_>, at: &Layers) {
    send_back(packet);
    let v6 = at.dst.is_ipv6();
    let places = fields(v6);
    let frame = packet.frame_mut();
    // Swapping the addresses doesn't change the checksum.
    put(frame, at.l3 + places.src, Octets::of(at.dst).bytes());
    put(frame, at.l3 + places.dst, Octets::of(at.src).bytes());
    if v6 {
        if let Some(hops) = frame.get_mut(at.l3 + places.ttl) {
            *hops = TTL;
        }
    } else {
        let change = put(frame, at.l3 + places.ttl, &[TTL, protocol::ICMP]);
        fix(frame, at.l3 + 10, change);
    }
    let kind = if v6 { icmpv6::ECHO_REPLY } else { icmp::ECHO_REPLY };
    let change = put(frame, at.l4, &[kind, 0]);
    fix(frame, at.l4 + 2, change);
}

/// Turns a packet into the ICMP error from `from` that reports the MTU to its sender (RFC 1191,
/// section 4; RFC 4443, section 3.2). False, with the packet unchanged, if the frame has no room.
#[must_use]
pub fn too_big(packet: &mut Packet<'_>, at: &Layers, mtu: u16, from: IpAddr) -> bool {
    let v6 = at.dst.is_ipv6();
    let ip_len = if v6 { 40 } else { 20 };
    let quoted_len = at.len.min(QUOTE_LEN);
    if !packet.relink(at.l3, ip_len + 8, at.l3, ethertype(v6))
        || !packet.truncate(at.l3 + ip_len + 8 + quoted_len)
    {
        return false;
    }
    packet.checksum = Checksum::Whole;
    packet.segment_len = None;
    send_back(packet);
    let frame = packet.frame_mut();
    let (header, message) = match frame.get_mut(at.l3..).and_then(|rest| rest.split_at_mut_checked(ip_len)) {
        Some(parts) => parts,
        None => return false,
    };
    let (kind, code) =
        if v6 { (icmpv6::TOO_BIG, 0) } else { (icmp::UNREACHABLE, icmp::FRAGMENTATION_NEEDED) };
    let icmp = Icmp { kind, code, checksum: U16::new(0), rest: U32::new(mtu.into()) };
    message[..8].copy_from_slice(icmp.as_bytes());
    let checksum = match (Octets::of(from), Octets::of(at.src)) {
        (Octets::Six(src), Octets::Six(dst)) => {
            let ip = Ipv6 {
                version_class_flow: U32::new(6 << 28),
                payload_len: U16::new(message.len() as u16),
                next_header: protocol::ICMPV6,
                hop_limit: TTL,
                src,
                dst,
            };
            header.copy_from_slice(ip.as_bytes());
            icmpv6_checksum(&ip, message)
        }
        (Octets::Four(src), Octets::Four(dst)) => {
            let mut ip = Ipv4 {
                version_ihl: 0x45,
                tos: 0,
                total_len: U16::new((ip_len + message.len()) as u16),
                id: U16::new(0),
                fragment: U16::new(0),
                ttl: TTL,
                protocol: protocol::ICMP,
                checksum: U16::new(0),
                src: U32::from_bytes(src),
                dst: U32::from_bytes(dst),
            };
            ip.checksum = U16::new(checksum::finish(checksum::add(0, ip.as_bytes())));
            header.copy_from_slice(ip.as_bytes());
            checksum::finish(checksum::add(0, message))
        }
        _ => return false,
    };
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    true
}

/// Sends a packet back to its sender.
pub(super) fn send_back(packet: &mut Packet<'_>) {
    if let Some(Ok((&Ethernet { dst, src, .. }, _))) =
        packet.frame().get(..ETHERNET_LEN).map(Ethernet::ref_from_prefix)
    {
        packet.readdress(dst, src);
    }
}

/// Computes the ICMPv6 checksum, which includes the pseudo-header (RFC 8200, section 8.1).
fn icmpv6_checksum(ip: &Ipv6, message: &[u8]) -> u16 {
    let sum = checksum::add(checksum::add(0, &ip.src), &ip.dst);
    let sum = checksum::add(sum, &(message.len() as u32).to_be_bytes());
    checksum::finish(checksum::add(sum + u32::from(ip.next_header), message))
}
