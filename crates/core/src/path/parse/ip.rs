//! Parses IP headers of both versions.

use core::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::FromBytes;

use super::{Fragment, Layers, Parsed, icmp, parse_transport};
use crate::net::Protocol;
use crate::net::ip::{Fault, IPV4_LEN, IPV6_LEN, UpperLayer, is_martian, walk};
use crate::net::wire::{IPV4_FRAGMENT_OFFSET, IPV4_MORE_FRAGMENTS, Ipv4, Ipv6, Mac, protocol};
use crate::path::reason::Reason;

pub(super) fn parse_v4(frame: &[u8], l3: usize, from: Mac) -> Parsed {
    let body = frame.get(l3..).unwrap_or_default();
    let Ok((ip, _)) = Ipv4::ref_from_prefix(body) else {
        return Parsed::Pass(Reason::Runt);
    };
    if ip.version_ihl >> 4 != 4 {
        return Parsed::Pass(Reason::BadVersion);
    }
    let transport = Protocol::of_number(ip.protocol);
    if transport.is_none() && ip.protocol != protocol::ICMP {
        return Parsed::Pass(Reason::NotService);
    }
    let dst = Ipv4Addr::from_bits(ip.dst.get());
    let src = Ipv4Addr::from_bits(ip.src.get());
    let odd = |reason| Parsed::Odd(reason, dst.into());

    if ip.version_ihl & 0x0f != 5 {
        return odd(if ip.version_ihl & 0x0f < 5 { Reason::BadLength } else { Reason::IpOptions });
    }
    // If the packet is shorter than the frame, the rest is Ethernet padding. If the packet is
    // longer, it is malformed.
    let len = usize::from(ip.total_len.get());
    if len < IPV4_LEN || len > body.len() {
        return odd(Reason::BadLength);
    }
    if from.is_multicast() {
        return odd(Reason::MulticastSource);
    }
    if is_martian(src.into(), dst.into()) {
        return odd(Reason::MartianSource);
    }
    let (offset, more) =
        (ip.fragment.get() & IPV4_FRAGMENT_OFFSET, ip.fragment.get() & IPV4_MORE_FRAGMENTS != 0);
    let Ok(fragment) = Fragment::read(ip.id.get().into(), offset, more, len - IPV4_LEN) else {
        return odd(Reason::BadLength);
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
        Err(Fault::Foreign) => return Parsed::Pass(Reason::NotService),
        Err(Fault::Truncated) => return odd(Reason::Truncated),
        Err(Fault::Extensions) => return odd(Reason::ExtensionHeaders),
        Err(Fault::Length) => return odd(Reason::BadLength),
    };
    let UpperLayer { protocol, offset, fragment } = upper;
    let transport = Protocol::of_number(protocol);
    // The fragment header of a later fragment may name one of these two headers, although only the
    // first fragment contains it (RFC 8200, section 4.5).
    let is_cut = matches!(protocol, protocol::DESTINATION_OPTIONS | protocol::AUTHENTICATION);
    let later = fragment.is_some() && is_cut;
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
    if is_martian(src.into(), dst.into()) {
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
