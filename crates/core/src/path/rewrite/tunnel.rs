//! Encapsulates a packet (RFC 2003; RFC 2473; draft-ietf-intarea-gue, section 3).

use core::net::IpAddr;

use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::{U16, U32};

use super::{Octets, TTL, ethertype, link_len};
use crate::net::Encapsulation;
use crate::net::checksum;
use crate::net::packet::Packet;
use crate::net::wire::{GUE_PORT, IPV4_DONT_FRAGMENT, Ipv4, Ipv6, Udp, protocol};
use crate::path::mark::{self, ForwardCount, MARK_LEN, Marker};
use crate::path::parse::Layers;
use crate::path::sessions::FlowHash;

/// Length of the UDP header and the GUE header without options, in bytes.
const GUE_LEN: usize = 12;

/// Fields of the outer header around a packet.
#[derive(Clone, Copy, Debug)]
pub struct Tunnel {
    pub encapsulation: Encapsulation,
    /// Source address of the outer header.
    pub from: IpAddr,
    /// Destination address of the outer header, of the family of `from`.
    pub to: IpAddr,
    /// Forward count as in [`crate::path::tables::Forwarding::Tunnel`], and the key that signs the
    /// mark with the count.
    pub mark: Option<(ForwardCount, Marker)>,
}

/// Returns the length of the outer headers of a packet to `to`, in bytes.
pub const fn outer_len(encapsulation: Encapsulation, to: IpAddr, is_marked: bool) -> usize {
    match encapsulation {
        Encapsulation::Ipip => ip_len(to),
        Encapsulation::Gue if is_marked => ip_len(to) + GUE_LEN + MARK_LEN,
        Encapsulation::Gue => ip_len(to) + GUE_LEN,
    }
}

const fn ip_len(address: IpAddr) -> usize {
    if address.is_ipv6() { 40 } else { 20 }
}

/// Encapsulates a packet. The caller then sets the addresses of the link header. Returns false,
/// with the packet unchanged, if the frame has no room.
#[must_use]
pub fn encapsulate(
    packet: &mut Packet<'_>,
    at: &Layers,
    tunnel: Tunnel,
    hash: FlowHash,
    ifindex: u32,
) -> bool {
    let Tunnel { encapsulation, from, to, mark } = tunnel;
    let inherited = Inherited::read(packet.frame(), at);
    let link_len = link_len(packet, at, ifindex);
    let outer_len = outer_len(encapsulation, to, mark.is_some());
    if !packet.relink(at.l3, outer_len, link_len, ethertype(to.is_ipv6())) {
        return false;
    }
    let inner = if at.dst.is_ipv6() { protocol::IPV6 } else { protocol::IPV4 };
    let next = match encapsulation {
        Encapsulation::Ipip => inner,
        Encapsulation::Gue => protocol::UDP,
    };
    let (ip_len, rest_len) = (ip_len(to), at.len + outer_len - ip_len(to));
    let frame = packet.frame_mut();
    let Some(header) = frame.get_mut(link_len..link_len + outer_len) else { return false };
    match (Octets::of(from), Octets::of(to)) {
        (Octets::Four(from), Octets::Four(to)) => {
            let ip = outer4(from, to, &inherited, rest_len, next);
            header[..20].copy_from_slice(ip.as_bytes());
        }
        (from, to) => {
            let ip = outer6(&inherited, hash, rest_len, next);
            header[..8].copy_from_slice(&ip.as_bytes()[..8]);
            header[8..24].copy_from_slice(from.bytes());
            header[24..40].copy_from_slice(to.bytes());
        }
    }
    if encapsulation == Encapsulation::Gue {
        let udp = Udp {
            // The source port is a dynamic port (RFC 6335, section 6) by the flow's hash, so that
            // flows spread over paths and queues.
            src_port: U16::new(0xc000 | (hash.0 >> 48) as u16 & 0x3fff),
            dst_port: U16::new(GUE_PORT),
            len: U16::new(rest_len as u16),
            // The UDP checksum is omitted, as it may be for tunnels (RFC 6935; RFC 768). The inner
            // packet has its own checksum.
            checksum: U16::new(0),
        };
        header[ip_len..ip_len + 8].copy_from_slice(udp.as_bytes());
        let (words, flags) = match mark {
            Some((passed, _)) => ((MARK_LEN / 4) as u8, passed.flags()),
            None => (0, 0),
        };
        let [high, low] = flags.to_be_bytes();
        header[ip_len + 8..ip_len + GUE_LEN].copy_from_slice(&[words, inner, high, low]);
        if let Some((passed, marker)) = mark {
            let ends = mark::TunnelAddresses { outer: (from, to), inner: (at.src, at.dst) };
            header[ip_len + GUE_LEN..].copy_from_slice(&marker.mark(&ends, passed));
        }
    }
    true
}

/// Fields that the outer header copies from the inner header.
struct Inherited {
    /// Traffic class with ECN (RFC 6040, section 4.1).
    class: u8,
    id: u16,
    /// "Don't fragment", or 0.
    fragment: u16,
}

impl Inherited {
    fn read(frame: &[u8], at: &Layers) -> Inherited {
        let byte = |place: usize| frame.get(at.l3 + place).copied().unwrap_or_default();
        if at.dst.is_ipv6() {
            return Inherited { class: byte(0) << 4 | byte(1) >> 4, id: 0, fragment: IPV4_DONT_FRAGMENT };
        }
        let fragment = u16::from_be_bytes([byte(6), byte(7)]) & IPV4_DONT_FRAGMENT;
        // The identification is only needed if the packet may be fragmented (RFC 6864, section 4).
        let id = if fragment == 0 { u16::from_be_bytes([byte(4), byte(5)]) } else { 0 };
        Inherited { class: byte(1), id, fragment }
    }
}

fn outer4(from: [u8; 4], to: [u8; 4], inherited: &Inherited, rest_len: usize, next: u8) -> Ipv4 {
    let mut ip = Ipv4 {
        version_ihl: 0x45,
        tos: inherited.class,
        total_len: U16::new((20 + rest_len) as u16),
        id: U16::new(inherited.id),
        fragment: U16::new(inherited.fragment),
        ttl: TTL,
        protocol: next,
        checksum: U16::new(0),
        src: U32::from_bytes(from),
        dst: U32::from_bytes(to),
    };
    ip.checksum = U16::new(checksum::finish(checksum::add(0, ip.as_bytes())));
    ip
}

/// Returns an IPv6 header without addresses. The flow label spreads flows over equal-cost paths
/// (RFC 6438).
fn outer6(inherited: &Inherited, hash: FlowHash, rest_len: usize, next: u8) -> Ipv6 {
    let label = (hash.0 >> 44) as u32 & 0xf_ffff;
    Ipv6 {
        version_class_flow: U32::new(6 << 28 | u32::from(inherited.class) << 20 | label),
        payload_len: U16::new(rest_len as u16),
        next_header: next,
        hop_limit: TTL,
        src: [0; 16],
        dst: [0; 16],
    }
}
