//! IP headers of both versions, and what may stand between them and the transport's.

use core::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::FromBytes;

use super::{Fragment, Layers, Parsed, icmp, parse_transport};
use crate::net::Protocol;
use crate::net::wire::{
    FragmentHeader, IPV4_FRAGMENT_OFFSET, IPV4_MORE_FRAGMENTS, Ipv4, Ipv6, Mac, protocol,
};
use crate::path::reason::Reason;

pub(super) const IPV4_LEN: usize = 20;
pub(super) const IPV6_LEN: usize = 40;
/// The most extension headers that are looked behind. Each should occur once at most (RFC 8200, section 4.1).
const EXTENSIONS_MAX: usize = 6;
/// Bytes that a packet can have in all (RFC 791, section 3.1).
const PACKET_MAX: usize = 65_535;

/// A transport that services have, or none.
pub(super) fn transport(number: u8) -> Option<Protocol> {
    match number {
        protocol::TCP => Some(Protocol::Tcp),
        protocol::UDP => Some(Protocol::Udp),
        _ => None,
    }
}

pub(super) fn parse_v4(frame: &[u8], l3: usize, from: Mac) -> Parsed {
    let body = frame.get(l3..).unwrap_or_default();
    let Ok((ip, _)) = Ipv4::ref_from_prefix(body) else {
        return Parsed::Pass(Reason::Runt);
    };
    if ip.version_ihl >> 4 != 4 {
        return Parsed::Pass(Reason::BadVersion);
    }
    let transport = transport(ip.protocol);
    if transport.is_none() && ip.protocol != protocol::ICMP {
        return Parsed::Pass(Reason::NotService);
    }
    let dst = Ipv4Addr::from_bits(ip.dst.get());
    let src = Ipv4Addr::from_bits(ip.src.get());
    let odd = |reason| Parsed::Odd(reason, dst.into());

    if ip.version_ihl & 0x0f != 5 {
        return odd(if ip.version_ihl & 0x0f < 5 { Reason::BadLength } else { Reason::IpOptions });
    }
    // Shorter than the frame is Ethernet padding; longer is a lie.
    let len = usize::from(ip.total_len.get());
    if len < IPV4_LEN || len > body.len() {
        return odd(Reason::BadLength);
    }
    if from.is_multicast() {
        return odd(Reason::MulticastSource);
    }
    if is_martian_v4(src) || src == dst {
        return odd(Reason::MartianSource);
    }
    let (offset, more) =
        (ip.fragment.get() & IPV4_FRAGMENT_OFFSET, ip.fragment.get() & IPV4_MORE_FRAGMENTS != 0);
    let fragment = match fragment(ip.id.get().into(), offset, more, len - IPV4_LEN) {
        Ok(fragment) => fragment,
        Err(reason) => return odd(reason),
    };
    let (src, dst) = (src.into(), dst.into());
    let at = Layers { l3, l4: l3 + IPV4_LEN, len, src, dst, protocol: ip.protocol, fragment };
    match transport {
        Some(protocol) => parse_transport(frame, at, protocol),
        None => icmp::parse_v4(frame, at),
    }
}

pub(super) fn parse_v6(frame: &[u8], l3: usize, from: Mac) -> Parsed {
    let body = frame.get(l3..).unwrap_or_default();
    let Ok((ip, rest)) = Ipv6::ref_from_prefix(body) else {
        return Parsed::Pass(Reason::Runt);
    };
    if ip.version_class_flow.get() >> 28 != 6 {
        return Parsed::Pass(Reason::BadVersion);
    }
    let dst = Ipv6Addr::from(ip.dst);
    let src = Ipv6Addr::from(ip.src);
    let odd = |reason| Parsed::Odd(reason, dst.into());

    let payload_len = usize::from(ip.payload_len.get());
    let Some(payload) = rest.get(..payload_len) else {
        return odd(Reason::BadLength);
    };
    let upper = match walk(payload, ip.next_header) {
        Ok(upper) => upper,
        Err(Stop::Foreign) => return Parsed::Pass(Reason::NotService),
        Err(Stop::Odd(reason)) => return odd(reason),
    };
    let Upper { protocol, offset, fragment } = upper;
    let transport = transport(protocol);
    // Options may stand at the beginning of what was cut (RFC 8200, section 4.5).
    let later = fragment.is_some() && protocol == protocol::DESTINATION_OPTIONS;
    if protocol == protocol::ICMPV6 && fragment.is_none() {
        if let Some(solicitation) = icmp::solicitation(frame, l3, l3 + IPV6_LEN + offset, ip) {
            return solicitation;
        }
    } else if transport.is_none() && protocol != protocol::ICMPV6 && !later {
        return Parsed::Pass(Reason::NotService);
    }
    if from.is_multicast() {
        return odd(Reason::MulticastSource);
    }
    if is_martian_v6(src) || src == dst {
        return odd(Reason::MartianSource);
    }
    let (src, dst) = (src.into(), dst.into());
    let at =
        Layers { l3, l4: l3 + IPV6_LEN + offset, len: IPV6_LEN + payload_len, src, dst, protocol, fragment };
    match transport {
        Some(protocol) => parse_transport(frame, at, protocol),
        None if later => Parsed::LaterFragment(at),
        None => icmp::parse_v6(frame, at),
    }
}

/// What stands behind the extension headers.
pub(super) struct Upper {
    pub(super) protocol: u8,
    /// Where, counted from the end of the fixed header.
    pub(super) offset: usize,
    pub(super) fragment: Option<Fragment>,
}

/// Why nothing is known to stand there.
pub(super) enum Stop {
    /// It is for another layer of another host, or none that services have.
    Foreign,
    /// The headers make no sense.
    Odd(Reason),
}

/// Goes through the extension headers of a packet whose `payload` follows the fixed header.
pub(super) fn walk(payload: &[u8], first: u8) -> Result<Upper, Stop> {
    let mut next = first;
    let mut offset = 0;
    let mut seen = None;
    for number in 0..=EXTENSIONS_MAX {
        match next {
            protocol::HOP_BY_HOP if number != 0 => return Err(Stop::Odd(Reason::ExtensionHeaders)),
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS | protocol::FRAGMENT => {
            }
            protocol => return Ok(Upper { protocol, offset, fragment: seen }),
        }
        if number == EXTENSIONS_MAX {
            break;
        }
        let Some(&[following, len, kind, left]) =
            payload.get(offset..offset + 4).and_then(|b| b.first_chunk())
        else {
            return Err(Stop::Odd(Reason::Truncated));
        };
        match next {
            protocol::FRAGMENT => {
                let Some(Ok((header, _))) = payload.get(offset..).map(FragmentHeader::ref_from_prefix) else {
                    return Err(Stop::Odd(Reason::Truncated));
                };
                if seen.is_some() {
                    return Err(Stop::Odd(Reason::ExtensionHeaders));
                }
                offset += size_of::<FragmentHeader>();
                let word = header.offset_more.get();
                let len = payload.len() - offset;
                seen = fragment(header.id.get(), word >> 3, word & 1 != 0, len).map_err(Stop::Odd)?;
                if seen.is_some_and(|fragment| fragment.offset != 0) {
                    return Ok(Upper { protocol: following, offset, fragment: seen });
                }
            }
            // Its type 0 made packets travel in circles (RFC 5095); with hops left, the packet's
            // destination isn't its last.
            protocol::ROUTING if kind == 0 => return Err(Stop::Odd(Reason::ExtensionHeaders)),
            protocol::ROUTING if left != 0 => return Err(Stop::Foreign),
            _ => offset += (usize::from(len) + 1) * 8,
        }
        next = following;
    }
    Err(Stop::Odd(Reason::ExtensionHeaders))
}

/// What a fragment of `len` bytes says of itself; `None` if it is the whole packet (RFC 6946).
fn fragment(id: u32, offset: u16, more: bool, len: usize) -> Result<Option<Fragment>, Reason> {
    if offset == 0 && !more {
        return Ok(None);
    }
    let end = usize::from(offset) * 8 + len;
    if len == 0 || end > PACKET_MAX || (more && !len.is_multiple_of(8)) {
        return Err(Reason::BadLength);
    }
    Ok(Some(Fragment { id, offset, more, end: end.div_ceil(8) as u16 }))
}

/// Sources that no client has (RFC 1812, section 5.3.7): this network, loopback, multicast and above.
fn is_martian_v4(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    first == 0 || first == 127 || first >= 224
}

/// The same (RFC 4291, sections 2.5.2, 2.5.3, 2.5.5 and 2.7): unspecified, loopback, IPv4 written as IPv6, multicast.
fn is_martian_v6(address: Ipv6Addr) -> bool {
    let bits = address.to_bits();
    bits >> 48 == 0 || address.is_multicast() || bits >> 32 == 0xffff
}
