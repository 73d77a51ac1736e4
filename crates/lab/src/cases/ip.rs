//! Encodes IP packets of both versions from words, with IPv6 extension headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::checksum::Sum16BitWords;
use evener_core::net::wire::{FragmentHeader, Ipv4, Ipv6, protocol};
use zerocopy::IntoBytes;

use super::frame::{Scene, ends, payload};
use super::words::{Fields, Words, Wrong};
use super::{icmp, transport};

/// Offset of the checksum in an IPv4 header, in bytes.
const IPV4_SUM: usize = 10;
/// No-operation option (RFC 791, section 3.1).
const NOP: u8 = 1;
/// Next header value for no next header (RFC 8200, section 4.7).
const NO_NEXT: u8 = 59;
/// Padding option of eight bytes (RFC 8200, section 4.2).
const PADDING: [u8; 8] = [1, 6, 0, 0, 0, 0, 0, 0];

/// Source and destination of a packet, which transport checksums cover.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
}

impl Ends {
    /// Returns the sum of the pseudo-header (RFC 9293, section 3.1; RFC 8200, section 8.1).
    pub(super) fn pseudo(self, protocol: u8, len: usize) -> Sum16BitWords {
        let sum = match (self.src, self.dst) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                Sum16BitWords::new().add_16bytes(src.octets()).add_16bytes(dst.octets())
            }
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                Sum16BitWords::new().add_4bytes(src.octets()).add_4bytes(dst.octets())
            }
            // both addresses are always of one version
            _ => Sum16BitWords::new(),
        };
        sum.add_2bytes([0, protocol]).add_4bytes((len as u32).to_be_bytes())
    }

    pub(super) fn is_ipv6(self) -> bool {
        self.src.is_ipv6()
    }
}

pub(super) fn v4(words: &mut Words<'_>, scene: &Scene<'_>) -> Result<Vec<u8>, Wrong> {
    words.expect("ip")?;
    let (src, dst): (Ipv4Addr, Ipv4Addr) = ends(words, "an IPv4 address")?;
    let known = ["version", "ihl", "tos", "len", "id", "frag", "ttl", "proto", "sum", "options"];
    let fields = Fields::of(words, &known)?;
    let options = vec![NOP; 4 * fields.number::<u8>("options", 0)? as usize];
    let (protocol, body) = body(words, scene, Ends { src: src.into(), dst: dst.into() })?;
    let (version, ihl) =
        (fields.number("version", 4u8)?, fields.number("ihl", 5 + (options.len() / 4) as u8)?);
    let len = size_of::<Ipv4>() + options.len() + body.len();
    let header = Ipv4 {
        version_ihl: version << 4 | ihl & 0x0f,
        tos: fields.number("tos", 0)?,
        total_len: fields.number("len", len as u16)?.into(),
        id: fields.number("id", 1)?.into(),
        fragment: fields.number("frag", 0x4000)?.into(),
        ttl: fields.number("ttl", 64)?,
        protocol: fields.number("proto", protocol.unwrap_or_default())?,
        checksum: 0.into(),
        src: src.to_bits().into(),
        dst: dst.to_bits().into(),
    };
    let mut packet = [header.as_bytes(), &options].concat();
    let right = Sum16BitWords::new().add_slice(&packet).ones_complement();
    fill_sum(&mut packet, IPV4_SUM, &fields, right)?;
    packet.extend(body);
    Ok(packet)
}

pub(super) fn v6(words: &mut Words<'_>, scene: &Scene<'_>) -> Result<Vec<u8>, Wrong> {
    words.expect("ip6")?;
    let (src, dst): (Ipv6Addr, Ipv6Addr) = ends(words, "an IPv6 address")?;
    let fields = Fields::of(words, &["version", "tc", "flow", "len", "next", "hlim"])?;
    let (next, body) = body(words, scene, Ends { src: src.into(), dst: dst.into() })?;
    let (version, class) = (fields.number("version", 6u32)?, fields.number("tc", 0u8)?);
    let flow = fields.number("flow", 0u32)?;
    let header = Ipv6 {
        version_class_flow: (version << 28 | u32::from(class) << 20 | flow & 0xf_ffff).into(),
        payload_len: fields.number("len", body.len() as u16)?.into(),
        next_header: fields.number("next", next.unwrap_or(NO_NEXT))?,
        hop_limit: fields.number("hlim", 64)?,
        src: src.octets(),
        dst: dst.octets(),
    };
    Ok([header.as_bytes(), &body].concat())
}

/// Reads the payload of a packet. Returns its protocol number, or `None` for bytes without one.
fn body(words: &mut Words<'_>, scene: &Scene<'_>, ends: Ends) -> Result<(Option<u8>, Vec<u8>), Wrong> {
    let (number, bytes) = match words.peek() {
        Some("tcp") => (protocol::TCP, transport::tcp(words, scene, ends)?),
        Some("udp") => (protocol::UDP, transport::udp(words, scene, ends)?),
        Some("icmp") if ends.is_ipv6() => (protocol::ICMPV6, icmp::v6(words, scene, ends)?),
        Some("icmp") => (protocol::ICMP, icmp::v4(words, scene)?),
        Some("hop") => (protocol::HOP_BY_HOP, options(words, scene, ends)?),
        Some("dst") => (protocol::DESTINATION_OPTIONS, options(words, scene, ends)?),
        Some("route") => (protocol::ROUTING, routing(words, scene, ends)?),
        Some("ah") => (protocol::AUTHENTICATION, authentication(words, scene, ends)?),
        Some("frag6") => (protocol::FRAGMENT, fragment(words, scene, ends)?),
        _ => return inside(words, scene),
    };
    Ok((Some(number), bytes))
}

/// Reads a packet inside another, as in tunnels and ICMP errors, with its protocol number. Without
/// such a packet it reads other bytes, which have no number.
pub(super) fn inside(words: &mut Words<'_>, scene: &Scene<'_>) -> Result<(Option<u8>, Vec<u8>), Wrong> {
    let (number, bytes) = match words.peek() {
        Some("ip") => (protocol::IPV4, v4(words, scene)?),
        Some("ip6") => (protocol::IPV6, v6(words, scene)?),
        Some("...") => scene.packet(words)?,
        _ => return Ok((None, payload(words)?)),
    };
    Ok((Some(number), bytes))
}

/// Reads hop-by-hop or destination options, which are padding (RFC 8200, sections 4.3 and 4.6).
fn options(words: &mut Words<'_>, scene: &Scene<'_>, ends: Ends) -> Result<Vec<u8>, Wrong> {
    words.next("`hop` or `dst`")?;
    let fields = Fields::of(words, &["next", "len", "more"])?;
    let more = fields.number("more", 0u8)?;
    let (next, body) = body(words, scene, ends)?;
    let head = [fields.number("next", next.unwrap_or(NO_NEXT))?, fields.number("len", more)?];
    // two bytes of header leave six bytes, of which the padding option's own header takes two
    let first = [1, 4, 0, 0, 0, 0];
    Ok([&head[..], &first, &PADDING.repeat(more.into()), &body].concat())
}

/// Reads a routing header (RFC 8200, section 4.4) with zero addresses.
fn routing(words: &mut Words<'_>, scene: &Scene<'_>, ends: Ends) -> Result<Vec<u8>, Wrong> {
    words.expect("route")?;
    let fields = Fields::of(words, &["next", "len", "type", "left"])?;
    let len = fields.number("len", 0u8)?;
    let (next, body) = body(words, scene, ends)?;
    let next = fields.number("next", next.unwrap_or(NO_NEXT))?;
    let head = [next, len, fields.number("type", 0u8)?, fields.number("left", 0u8)?];
    Ok([&head[..], &vec![0; 4 + 8 * usize::from(len)], &body].concat())
}

/// Reads an authentication header (RFC 4302, section 2), with as many bytes behind the first eight
/// as its length field says.
fn authentication(words: &mut Words<'_>, scene: &Scene<'_>, ends: Ends) -> Result<Vec<u8>, Wrong> {
    words.expect("ah")?;
    let fields = Fields::of(words, &["next", "len"])?;
    let len = fields.number("len", 2u8)?;
    let (next, body) = body(words, scene, ends)?;
    let head = [fields.number("next", next.unwrap_or(NO_NEXT))?, len, 0, 0, 0, 0, 0, 1];
    Ok([&head[..], &vec![7; 4 * usize::from(len)], &body].concat())
}

fn fragment(words: &mut Words<'_>, scene: &Scene<'_>, ends: Ends) -> Result<Vec<u8>, Wrong> {
    words.expect("frag6")?;
    let fields = Fields::of(words, &["next", "res", "off", "more", "id"])?;
    let (next, body) = body(words, scene, ends)?;
    let (offset, more) = (fields.number("off", 0u16)?, fields.number("more", 0u8)?);
    let header = FragmentHeader {
        next_header: fields.number("next", next.unwrap_or(NO_NEXT))?,
        reserved: fields.number("res", 0)?,
        offset_more: (offset << 3 | u16::from(more) & 7).into(),
        id: fields.number("id", 1u32)?.into(),
    };
    Ok([header.as_bytes(), &body].concat())
}

/// Writes a checksum: from the line, or else the right one.
pub(super) fn fill_sum(packet: &mut [u8], at: usize, fields: &Fields<'_>, right: u16) -> Result<(), Wrong> {
    let sum = fields.number("sum", u16::from_be(right))?;
    if let Some(place) = packet.get_mut(at..at + 2) {
        place.copy_from_slice(&sum.to_be_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use etherparse::{
        IcmpEchoHeader, Icmpv4Type, Icmpv6Type, IpNumber, Ipv6FlowLabel, Ipv6Header, NetSlice, PacketBuilder,
        SlicedPacket, TransportSlice,
    };

    use super::super::frame::frame;
    use super::super::world::World;
    use super::*;

    const SRC: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const DST: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const CLIENT: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0xc, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
    const VIP: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    const IP6: &str = "ip6 2001:db8:c::7 > 2001:db8::100";

    fn built(text: &str) -> Vec<u8> {
        let line = format!("eth 02:00:00:00:00:09 > 02:00:00:00:00:01 {text}");
        frame(&mut Words::of(&line), &World::default(), None).unwrap()
    }

    fn echo() -> IcmpEchoHeader {
        IcmpEchoHeader { id: 77, seq: 3 }
    }

    #[test]
    fn ipv6_packet_equals_other_builder() {
        let header = Ipv6Header {
            traffic_class: 0xb9,
            flow_label: Ipv6FlowLabel::try_new(0xabcde).unwrap(),
            payload_length: 0,
            next_header: IpNumber::TCP,
            hop_limit: 9,
            source: CLIENT,
            destination: VIP,
        };
        let ip = || {
            let headers = etherparse::IpHeaders::Ipv6(header.clone(), Default::default());
            PacketBuilder::ethernet2(SRC, DST).ip(headers)
        };
        let fields = "tc=0xb9 flow=0xabcde hlim=9";
        for len in [0, 1, 301] {
            let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let mut expected = Vec::new();
            ip().tcp(40_000, 80, 7, 64_000).syn().write(&mut expected, &payload).unwrap();
            assert_eq!(built(&format!("{IP6} {fields} tcp 40000 > 80 S seq=7 payload {len}")), expected);
            expected.clear();
            ip().udp(40_000, 53).write(&mut expected, &payload).unwrap();
            assert_eq!(built(&format!("{IP6} {fields} udp 40000 > 53 payload {len}")), expected);
            expected.clear();
            ip().icmpv6(Icmpv6Type::EchoRequest(echo())).write(&mut expected, &payload).unwrap();
            assert_eq!(built(&format!("{IP6} {fields} icmp echo id=77 seq=3 payload {len}")), expected);
        }
    }

    #[test]
    fn icmp_packet_equals_other_builder() {
        let mut expected = Vec::new();
        let mut header =
            etherparse::Ipv4Header::new(0, 64, IpNumber::ICMP, [203, 0, 113, 7], [192, 0, 2, 100]).unwrap();
        (header.identification, header.dont_fragment) = (1, true);
        PacketBuilder::ethernet2(SRC, DST)
            .ip(etherparse::IpHeaders::Ipv4(header, Default::default()))
            .icmpv4(Icmpv4Type::EchoReply(echo()))
            .write(&mut expected, &[0, 1, 2])
            .unwrap();
        assert_eq!(built("ip 203.0.113.7 > 192.0.2.100 icmp echo-reply id=77 seq=3 payload 3"), expected);
    }

    #[test]
    fn quotes_and_tunnels_are_packets_of_their_own() {
        let inner = built("ip 192.0.2.1 > 192.0.2.2 tcp 1 > 2 S")[14..].to_vec();
        for (text, head) in [
            ("ip 10.0.0.1 > 10.0.0.2 ip 192.0.2.1 > 192.0.2.2 tcp 1 > 2 S", 34),
            ("ip6 ::1 > ::2 ip 192.0.2.1 > 192.0.2.2 tcp 1 > 2 S", 54),
            ("ip 10.0.0.1 > 10.0.0.2 udp 9 > 6080 gue ip 192.0.2.1 > 192.0.2.2 tcp 1 > 2 S", 46),
            ("ip 10.0.0.1 > 10.0.0.2 icmp too-big mtu=1280 ip 192.0.2.1 > 192.0.2.2 tcp 1 > 2 S", 42),
            ("ip6 ::1 > ::2 icmp too-big mtu=1280 cut=30 ip 192.0.2.1 > 192.0.2.2 tcp 1 > 2 S", 62),
        ] {
            let outer = built(text);
            assert!(inner.starts_with(&outer[head..]), "{text}");
        }
        let gue = built("ip 10.0.0.1 > 10.0.0.2 udp 9 > 6080 gue ip6 ::1 > ::2 tcp 1 > 2 S");
        assert_eq!(gue[40..46], [0, 0, 0, 41, 0, 0]);
    }

    #[test]
    fn extension_headers_match_other_parser() {
        let bytes = built(&format!("{IP6} hop more=1 route type=2 len=2 dst tcp 40000 > 80 S"));
        let packet = SlicedPacket::from_ethernet(&bytes).unwrap();
        assert!(matches!(packet.transport, Some(TransportSlice::Tcp(tcp)) if tcp.destination_port() == 80));
        let bytes = built(&format!("{IP6} frag6 id=0xbeef off=8 more=1 next=17 payload 64"));
        let packet = SlicedPacket::from_ethernet(&bytes).unwrap();
        let Some(NetSlice::Ipv6(ip)) = packet.net else { panic!("IPv6") };
        assert!(ip.is_payload_fragmented());
        assert_eq!(ip.payload().payload.len(), 64);
    }

    #[test]
    fn three_dots_are_the_packet_that_came_in() {
        let before = built("vlan 5 ip 192.0.2.1 > 192.0.2.2 tcp 1 > 2 S pad 6");
        let line = "eth broadcast > broadcast ip 10.0.0.1 > 10.0.0.2 ...";
        let outer = frame(&mut Words::of(line), &World::default(), Some(&before)).unwrap();
        assert_eq!((outer[23], &outer[34..]), (4, &before[18..58]));
    }
}
