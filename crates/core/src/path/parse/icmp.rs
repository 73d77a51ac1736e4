//! Parses the ICMP messages that matter for services: errors and echo requests of both versions,
//! and neighbour solicitations.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::FromBytes;

use super::{IcmpError, Layers, Parsed};
use crate::net::Protocol;
use crate::net::ip::{IPV4_LEN, IPV6_LEN, walk};
use crate::net::wire::{IPV4_FRAGMENT_OFFSET, Icmp, Ipv4, Ipv6, Neighbour, icmp, icmpv6};
use crate::path::reason::Reason;

pub(crate) const ICMP_LEN: usize = size_of::<Icmp>();
/// Minimum MTU of IPv4 (RFC 791, section 3.2).
const IPV4_MTU_MIN: u32 = 68;
/// Minimum MTU of IPv6 (RFC 8200, section 5).
const IPV6_MTU_MIN: u32 = 1280;

/// Returns a message's header and the rest of the message.
fn message<'f>(frame: &'f [u8], at: &Layers) -> Result<(&'f Icmp, &'f [u8]), Reason> {
    if at.fragment.is_some() {
        return Err(Reason::Fragment);
    }
    let message = frame.get(at.l4..at.l3 + at.len).unwrap_or_default();
    Icmp::ref_from_prefix(message).map_err(|_| Reason::Truncated)
}

pub(super) fn parse_v4(frame: &[u8], at: Layers) -> Parsed {
    let odd = |reason| Parsed::Odd(reason, at.dst);
    let (header, quoted) = match message(frame, &at) {
        Ok(message) => message,
        Err(reason) => return odd(reason),
    };
    match header.kind {
        icmp::ECHO if header.code == 0 => return Parsed::Echo(at),
        icmp::UNREACHABLE | icmp::TIME_EXCEEDED | icmp::PARAMETER_PROBLEM => {}
        _ => return Parsed::Pass(Reason::NotService),
    }
    if header.kind == icmp::UNREACHABLE && header.code == icmp::FRAGMENTATION_NEEDED {
        // Old routers report an MTU of 0 (RFC 1191, section 5).
        let mtu = header.rest.get() & 0xffff;
        if mtu != 0 && mtu < IPV4_MTU_MIN {
            return odd(Reason::ForgedMtu);
        }
    }
    let Ok((ip, _)) = Ipv4::ref_from_prefix(quoted) else {
        return odd(Reason::Truncated);
    };
    let header_len = usize::from(ip.version_ihl & 0x0f) * 4;
    let fragment = ip.fragment.get() & IPV4_FRAGMENT_OFFSET != 0;
    let Some(protocol) = Protocol::of_number(ip.protocol).filter(|_| !fragment) else {
        return odd(Reason::IcmpUnknown);
    };
    if ip.version_ihl >> 4 != 4 || header_len < IPV4_LEN {
        return odd(Reason::IcmpUnknown);
    }
    let (src, dst) = (Ipv4Addr::from_bits(ip.src.get()), Ipv4Addr::from_bits(ip.dst.get()));
    about(frame, at, (src.into(), dst.into()), protocol, header_len)
}

pub(super) fn parse_v6(frame: &[u8], at: Layers) -> Parsed {
    let odd = |reason| Parsed::Odd(reason, at.dst);
    let (header, quoted) = match message(frame, &at) {
        Ok(message) => message,
        Err(reason) => return odd(reason),
    };
    match header.kind {
        icmpv6::ECHO if header.code == 0 => return Parsed::Echo(at),
        icmpv6::UNREACHABLE..=icmpv6::PARAMETER_PROBLEM => {}
        _ => return Parsed::Pass(Reason::NotService),
    }
    if header.kind == icmpv6::TOO_BIG && header.rest.get() < IPV6_MTU_MIN {
        return odd(Reason::ForgedMtu);
    }
    let Ok((ip, rest)) = Ipv6::ref_from_prefix(quoted) else {
        return odd(Reason::Truncated);
    };
    // The quoted packet may be truncated, but its headers must be complete.
    let Ok(upper) = walk(rest, ip.next_header) else {
        return odd(Reason::IcmpUnknown);
    };
    let later = upper.fragment.is_some_and(|fragment| fragment.offset != 0);
    let Some(protocol) = Protocol::of_number(upper.protocol).filter(|_| !later) else {
        return odd(Reason::IcmpUnknown);
    };
    if ip.version_class_flow.get() >> 28 != 6 {
        return odd(Reason::IcmpUnknown);
    }
    let (src, dst) = (Ipv6Addr::from(ip.src), Ipv6Addr::from(ip.dst));
    about(frame, at, (src.into(), dst.into()), protocol, IPV6_LEN + upper.offset)
}

/// Parses the transport ports of the quoted packet, whose IP headers have `header_len` bytes, and
/// returns the error.
fn about(
    frame: &[u8],
    at: Layers,
    (src, dst): (IpAddr, IpAddr),
    protocol: Protocol,
    header_len: usize,
) -> Parsed {
    let l3 = at.l4 + ICMP_LEN;
    let l4 = l3 + header_len;
    let Some(ports) = frame.get(l4..at.l3 + at.len).and_then(|transport| transport.first_chunk::<8>()) else {
        return Parsed::Odd(Reason::Truncated, at.dst);
    };
    let quoted =
        Layers { l3, l4, len: at.l3 + at.len - l3, src, dst, protocol: protocol.number(), fragment: None };
    Parsed::IcmpError(IcmpError {
        at,
        quoted,
        protocol,
        src_port: u16::from_be_bytes([ports[0], ports[1]]),
        dst_port: u16::from_be_bytes([ports[2], ports[3]]),
    })
}

/// Parses a neighbour solicitation and validates it (RFC 4861, section 7.1.1). The checksum isn't
/// checked, since an answer to a damaged solicitation is harmless.
pub(super) fn solicitation(frame: &[u8], l3: usize, l4: usize, ip: &Ipv6) -> Option<Parsed> {
    let message = frame.get(l4..l3 + IPV6_LEN + usize::from(ip.payload_len.get()))?;
    let (question, _) = Neighbour::ref_from_prefix(message).ok()?;
    let target = Ipv6Addr::from(question.target);
    let right = question.icmp.kind == icmpv6::NEIGHBOUR_SOLICITATION
        && question.icmp.code == 0
        && ip.hop_limit == 255
        && l4 == l3 + IPV6_LEN
        && !target.is_multicast();
    right.then(|| Parsed::Solicitation { l3, target, sender: ip.src.into() })
}
