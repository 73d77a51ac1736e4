//! Decapsulation of tunnel packets to this host: RFC 2003, RFC 2473, RFC 4213,
//! draft-ietf-intarea-gue. `bpf/server/decapsulate.h` is this module's copy in C, with the same
//! checks in the same order.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::{Offer, Reason, Tables};
use crate::net::Protocol;
use crate::net::checksum::ChecksumDelta;
use crate::net::ip::{Fault, Fragment, IPV4_LEN, IPV6_LEN, is_martian, walk};
use crate::net::packet::Packet;
use crate::net::wire::{
    ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, FragmentHeader, GUE_PORT, IPV4_FRAGMENT_OFFSET,
    IPV4_MORE_FRAGMENTS, Ipv4, Ipv6, Mac, Udp, protocol,
};
use crate::path::mark::{self, ForwardCount, GUE_LAST, GUE_MARKED, MARK_LEN, PASSED, PASSED_TWICE};
use crate::path::tables::VipKey;

const UDP_LEN: usize = 8;
const GUE_LEN: usize = 4;
/// Maximum length of a GUE header after its first word, in words. No field needs more words.
const GUE_WORDS_MAX: usize = 8;
/// IP protocol number of GRE (RFC 2784).
const GRE: u8 = 47;

/// The ECN field (RFC 3168, section 5).
const ECN: u8 = 3;
const NOT_CAPABLE: u8 = 0;
const ECT_1: u8 = 1;
const ECT_0: u8 = 2;
const CONGESTED: u8 = 3;

/// Decapsulates a packet. Returns `None` if the frame is no tunnel packet to this host, and
/// [`Reason::Decapsulated`] if the frame now contains the inner packet. If another reason is
/// returned, the caller must drop the frame.
///
/// Frames from the network with one of the source MAC addresses that mark decapsulated packets are
/// dropped.
pub fn open(tables: &Tables, packet: &mut Packet<'_>) -> Option<Reason> {
    let is_source = |mark: &Mac| packet.frame().get(6..12) == Some(mark.0.as_slice());
    if tables.marks.is_some() && [PASSED, PASSED_TWICE].iter().any(is_source) {
        return Some(Reason::ForgedMark);
    }
    let outer = OuterHeader::read(packet.frame()).filter(|outer| tables.addresses.contains(&outer.to))?;
    match outer.inside(tables) {
        Ok(inner) => {
            inner.decapsulate(packet, tables.marks.is_some());
            Some(Reason::Decapsulated)
        }
        Err(reason) => Some(reason),
    }
}

/// Outer headers of a tunnel packet.
struct OuterHeader<'a> {
    from: IpAddr,
    to: IpAddr,
    /// Length of the IP and UDP headers, in bytes.
    len: usize,
    protocol: u8,
    ecn: u8,
    is_fragment: bool,
    is_malformed: bool,
    is_gue: bool,
    /// Bytes after these headers.
    rest: &'a [u8],
}

/// An outer IP header, and the bytes after it in the frame.
struct Encapsulated<'a> {
    outer: OuterHeader<'a>,
    is_later_fragment: bool,
    bytes: &'a [u8],
}

impl<'a> OuterHeader<'a> {
    fn read(frame: &'a [u8]) -> Option<OuterHeader<'a>> {
        let (ethernet, packet) = Ethernet::ref_from_prefix(frame).ok()?;
        let Encapsulated { outer, is_later_fragment, bytes } = match ethernet.ethertype.get() {
            ETHERTYPE_IPV4 => OuterHeader::read_v4(packet)?,
            ETHERTYPE_IPV6 => OuterHeader::read_v6(packet)?,
            _ => return None,
        };
        if outer.protocol != protocol::UDP {
            return carries(outer.protocol).then_some(outer);
        }
        // The port alone identifies a GUE tunnel. Malformed packets are found later.
        let (udp, _) = Udp::ref_from_prefix(bytes).ok()?;
        if is_later_fragment || udp.dst_port.get() != GUE_PORT {
            return None;
        }
        let udp_len = usize::from(udp.len.get());
        let rest = outer.rest.get(UDP_LEN..udp_len);
        Some(OuterHeader {
            len: outer.len + UDP_LEN,
            is_malformed: outer.is_malformed || rest.is_none(),
            is_gue: true,
            rest: rest.unwrap_or_default(),
            ..outer
        })
    }

    fn read_v4(packet: &'a [u8]) -> Option<Encapsulated<'a>> {
        let (ip, bytes) = Ipv4::ref_from_prefix(packet).ok()?;
        if ip.version_ihl >> 4 != 4 {
            return None;
        }
        let rest = packet.get(IPV4_LEN..usize::from(ip.total_len.get()));
        let word = ip.fragment.get();
        let outer = OuterHeader {
            from: Ipv4Addr::from_bits(ip.src.get()).into(),
            to: Ipv4Addr::from_bits(ip.dst.get()).into(),
            len: IPV4_LEN,
            protocol: ip.protocol,
            ecn: ip.tos & ECN,
            is_fragment: word & (IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET) != 0,
            is_malformed: ip.version_ihl & 15 != 5 || rest.is_none(),
            is_gue: false,
            rest: rest.unwrap_or_default(),
        };
        Some(Encapsulated { outer, is_later_fragment: word & IPV4_FRAGMENT_OFFSET != 0, bytes })
    }

    fn read_v6(packet: &'a [u8]) -> Option<Encapsulated<'a>> {
        let (ip, mut bytes) = Ipv6::ref_from_prefix(packet).ok()?;
        let word = ip.version_class_flow.get();
        if word >> 28 != 6 {
            return None;
        }
        let rest = bytes.get(..usize::from(ip.payload_len.get()));
        let fragment = match ip.next_header {
            protocol::FRAGMENT => Some(view::<FragmentHeader>(&mut bytes).ok()?),
            _ => None,
        };
        let outer = OuterHeader {
            from: Ipv6Addr::from(ip.src).into(),
            to: Ipv6Addr::from(ip.dst).into(),
            len: IPV6_LEN,
            protocol: fragment.map_or(ip.next_header, |header| header.next_header),
            ecn: (word >> 20) as u8 & ECN,
            is_fragment: fragment.is_some(),
            is_malformed: rest.is_none(),
            is_gue: false,
            rest: rest.unwrap_or_default(),
        };
        let is_later_fragment = fragment.is_some_and(|header| header.offset_more.get() >> 3 != 0);
        Some(Encapsulated { outer, is_later_fragment, bytes })
    }

    /// Returns the inner packet, if it may be delivered.
    fn inside(&self, tables: &Tables) -> Result<Inner, Reason> {
        if !tables.directors.contains(&self.from) {
            return Err(Reason::UnlistedSource);
        }
        if self.is_fragment {
            return Err(Reason::OuterFragment);
        }
        if self.is_malformed {
            return Err(Reason::Malformed);
        }
        let mut inner = Inner { at: ETHERNET_LEN + self.len, ethertype: 0, ecn: 0, passed: None };
        let (mut protocol, mut rest) = (self.protocol, self.rest);
        if self.is_gue {
            let gue = Gue::read(&mut rest)?;
            protocol = gue.protocol;
            inner.at += gue.len;
            inner.passed = self.passed(tables, &gue, rest)?;
        }
        let (was, offer) = if protocol == protocol::IPV4 {
            inner.ethertype = ETHERTYPE_IPV4;
            read_v4(tables, rest)?
        } else {
            inner.ethertype = ETHERTYPE_IPV6;
            read_v6(tables, rest)?
        };
        if offer.is_marked && inner.passed.is_none() {
            return Err(Reason::ForgedMark);
        }
        inner.ecn = merged_ecn(self.ecn, was).ok_or(Reason::Congestion)?;
        Ok(inner)
    }

    /// Checks the header's mark, and returns how often the packet in `rest` was forwarded. The
    /// packet is not trusted before this check.
    fn passed(&self, tables: &Tables, gue: &Gue, rest: &[u8]) -> Result<Option<ForwardCount>, Reason> {
        let Some(mark) = gue.mark else {
            // Without a mark, the flag [`GUE_LAST`] is not trusted.
            return if gue.flags & GUE_LAST == 0 { Ok(None) } else { Err(Reason::ForgedMark) };
        };
        let (mut rest, passed) = (rest, ForwardCount::of_flags(gue.flags));
        let inner: (IpAddr, IpAddr) = if gue.protocol == protocol::IPV4 {
            let ip: &Ipv4 = view(&mut rest)?;
            (Ipv4Addr::from_bits(ip.src.get()).into(), Ipv4Addr::from_bits(ip.dst.get()).into())
        } else {
            let ip: &Ipv6 = view(&mut rest)?;
            (Ipv6Addr::from(ip.src).into(), Ipv6Addr::from(ip.dst).into())
        };
        let ends = mark::TunnelAddresses { outer: (self.from, self.to), inner };
        let is_good = tables.marks.is_some_and(|key| mark::is_good(key, &ends, passed, &mark));
        if is_good { Ok(Some(passed)) } else { Err(Reason::ForgedMark) }
    }
}

/// True if this is the protocol number of an inner IP packet.
const fn carries(protocol: u8) -> bool {
    protocol == protocol::IPV4 || protocol == protocol::IPV6
}

/// Splits off the next `len` bytes.
fn split_prefix<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], Reason> {
    let (taken, left) = rest.split_at_checked(len).ok_or(Reason::Malformed)?;
    *rest = left;
    Ok(taken)
}

fn view<'a, T>(rest: &mut &'a [u8]) -> Result<&'a T, Reason>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    let (view, left) = T::ref_from_prefix(rest).map_err(|_| Reason::Malformed)?;
    *rest = left;
    Ok(view)
}

struct Gue {
    protocol: u8,
    flags: u16,
    mark: Option<[u8; MARK_LEN]>,
    len: usize,
}

impl Gue {
    /// Parses version (2 bits), control flag, length of the rest (5 bits), protocol, and flags (16
    /// bits).
    fn read(rest: &mut &[u8]) -> Result<Gue, Reason> {
        let header = split_prefix(rest, GUE_LEN)?;
        let &[first, protocol, high, low] = header else { return Err(Reason::Malformed) };
        let (words, flags) = (usize::from(first & 0x1f), u16::from_be_bytes([high, low]));
        // Only version 0 without control flag is accepted. Unknown flags may change the meaning of
        // the rest.
        if first & 0xe0 != 0
            || flags & !(GUE_LAST | GUE_MARKED) != 0
            || words > GUE_WORDS_MAX
            || !carries(protocol)
        {
            return Err(Reason::GueHeader);
        }
        let private = split_prefix(rest, words * 4)?;
        let mark = if flags & GUE_MARKED == 0 {
            None
        } else {
            Some(private.try_into().map_err(|_| Reason::ForgedMark)?)
        };
        Ok(Gue { protocol, flags, mark, len: GUE_LEN + words * 4 })
    }
}

/// Returns the ECN field of a packet to decapsulate, and its service's settings.
fn read_v4(tables: &Tables, mut rest: &[u8]) -> Result<(u8, Offer), Reason> {
    let ip: &Ipv4 = view(&mut rest)?;
    let header_len = usize::from(ip.version_ihl & 15) * 4;
    let total_len = usize::from(ip.total_len.get());
    if ip.version_ihl >> 4 != 4 || header_len < IPV4_LEN || total_len < header_len {
        return Err(Reason::Malformed);
    }
    rest = split_prefix(&mut rest, total_len - IPV4_LEN)?;
    let [src, dst] = [ip.src, ip.dst].map(|address| Ipv4Addr::from_bits(address.get()).into());
    if is_martian(src, dst) {
        return Err(Reason::InnerMartian);
    }
    split_prefix(&mut rest, header_len - IPV4_LEN)?;
    let word = ip.fragment.get();
    let (offset, more) = (word & IPV4_FRAGMENT_OFFSET, word & IPV4_MORE_FRAGMENTS != 0);
    let fragment = Fragment::read(ip.id.get().into(), offset, more, rest.len()).map_err(fault_reason)?;
    let portless = fragment.is_some() || ip.protocol == protocol::ICMP;
    let offer = find_service(tables, dst, ip.protocol, portless, rest)?;
    Ok((ip.tos & ECN, offer))
}

fn read_v6(tables: &Tables, mut rest: &[u8]) -> Result<(u8, Offer), Reason> {
    let ip: &Ipv6 = view(&mut rest)?;
    let word = ip.version_class_flow.get();
    if word >> 28 != 6 {
        return Err(Reason::Malformed);
    }
    rest = split_prefix(&mut rest, ip.payload_len.get().into())?;
    let [src, dst] = [ip.src, ip.dst].map(Ipv6Addr::from);
    // A packet from a link-local address must not leave its link (RFC 4291, section 2.5.6).
    if is_martian(src.into(), dst.into()) || src.is_unicast_link_local() {
        return Err(Reason::InnerMartian);
    }
    let upper = walk(rest, ip.next_header).map_err(fault_reason)?;
    let rest = rest.get(upper.offset..).ok_or(Reason::Malformed)?;
    let portless = upper.fragment.is_some() || upper.protocol == protocol::ICMPV6;
    let offer = find_service(tables, dst.into(), upper.protocol, portless, rest)?;
    Ok(((word >> 20) as u8 & ECN, offer))
}

/// Returns the reason that is counted for a fault in the inner headers.
const fn fault_reason(fault: Fault) -> Reason {
    match fault {
        Fault::Foreign => Reason::NotOwnService,
        Fault::Truncated | Fault::Extensions | Fault::Length => Reason::Malformed,
    }
}

/// Returns the settings of the inner packet's service on this host. If the packet has no port, the
/// address alone decides.
fn find_service(
    tables: &Tables,
    address: IpAddr,
    next: u8,
    portless: bool,
    mut rest: &[u8],
) -> Result<Offer, Reason> {
    if carries(next) || next == GRE {
        return Err(Reason::Nested);
    }
    let offer = if portless {
        tables.portless(address)
    } else {
        let protocol = Protocol::of_number(next).ok_or(Reason::NotOwnService)?;
        let ports = split_prefix(&mut rest, 4)?;
        let port = u16::from_be_bytes([ports[2], ports[3]]);
        tables.services.get(&VipKey { address, port, protocol }).copied()
    };
    offer.ok_or(Reason::NotOwnService)
}

/// Returns the ECN field after decapsulation (RFC 6040, section 4.2); `None` if the packet must be
/// dropped.
const fn merged_ecn(outer: u8, inner: u8) -> Option<u8> {
    match (outer, inner) {
        (CONGESTED, NOT_CAPABLE) => None,
        (CONGESTED, _) => Some(CONGESTED),
        (ECT_1, ECT_0) => Some(ECT_1),
        _ => Some(inner),
    }
}

/// An inner packet that may be delivered.
struct Inner {
    /// Offset in the frame.
    at: usize,
    ethertype: u16,
    /// ECN field of the packet after decapsulation.
    ecn: u8,
    /// Number of times that the packet was forwarded; `None` if it has no mark.
    passed: Option<ForwardCount>,
}

impl Inner {
    /// Removes the outer headers. The frame keeps its MAC addresses. But if `marks` is true, the
    /// source MAC then shows how often the packet was forwarded. A packet without a mark counts as
    /// forwarded twice, so this host serves it.
    fn decapsulate(&self, packet: &mut Packet<'_>, marks: bool) {
        let fits = packet.relink(self.at, 0, ETHERNET_LEN, self.ethertype);
        debug_assert!(fits, "what is in front of the packet was longer");
        if let Some(ip) = packet.frame_mut().get_mut(ETHERNET_LEN..) {
            self.set_ecn(ip);
        }
        if marks {
            packet.mark_source(if self.passed == Some(ForwardCount::Once) { PASSED } else { PASSED_TWICE });
        }
    }

    fn set_ecn(&self, ip: &mut [u8]) {
        if self.ethertype == ETHERTYPE_IPV6 {
            if let Some(byte) = ip.get_mut(1) {
                *byte = *byte & !(ECN << 4) | self.ecn << 4;
            }
        } else if let Some(&[first, tos]) = ip.first_chunk() {
            let now = tos & !ECN | self.ecn;
            let change = ChecksumDelta::of(&[first, tos], &[first, now]);
            if let (true, Some(&[high, low])) = (now != tos, ip.get(10..12)) {
                let sum = change.applied(u16::from_be_bytes([high, low])).to_be_bytes();
                ip[1] = now;
                ip[10..12].copy_from_slice(&sum);
            }
        }
    }
}
