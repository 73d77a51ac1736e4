//! Packets that mostly make sense: from clients, from servers that answer, from routers that send
//! errors.

use std::net::IpAddr;

use evener_core::net::checksum;
use proptest::prelude::*;

use crate::every_host::{EVERY_HOST, SOURCES};
use crate::handoff;
use crate::world::{EMPTY, L2, NAT, OWN, SOURCE_NAT, TUNNELS, client, vip};

/// Description of a frame before it is damaged.
#[derive(Clone, Debug)]
pub struct Plan {
    kind: Kind,
    /// Index into [`SOURCES`].
    source: usize,
    tags: usize,
    damage: Damage,
}

#[derive(Clone, Debug)]
enum Kind {
    Client {
        v6: bool,
        client: u8,
        vip: u8,
        port: u16,
        service: u16,
        body: Body,
        hops: u8,
    },
    /// A reply to the packet forwarded this many packets ago.
    Answer {
        back: usize,
        body: Body,
        hops: u8,
    },
    /// An ICMP error that quotes the packet forwarded this many packets ago, or a reply to it.
    Error {
        back: usize,
        turned: bool,
        kind: u8,
        code: u8,
        rest: u32,
        from: u8,
        quoted: usize,
    },
    Echo {
        v6: bool,
        vip: u8,
        kind: u8,
        len: usize,
    },
    Arp {
        operation: u8,
        target: u8,
        sender: u8,
        len: usize,
    },
    Solicitation {
        target: u8,
        sender: u8,
        hops: u8,
        group: bool,
        option: bool,
    },
    Random(Vec<u8>),
}

/// The transport header, and headers around it.
#[derive(Clone, Debug)]
struct Body {
    udp: bool,
    flags: u8,
    sequence: u32,
    acknowledgment: u32,
    payload: usize,
    /// True if the UDP checksum is zero (RFC 768).
    unsummed: bool,
    fragment: Option<(u16, bool, u8)>,
    extensions: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Damage {
    None,
    SetByte(usize, u8),
    /// Like `SetByte`, with an index within the first headers.
    SetHeaderByte(usize, u8),
    /// Cuts the IP payload to this length and adjusts the IP header.
    Shorten(usize),
    Truncate(usize),
    Extend(usize),
}

fn body() -> impl Strategy<Value = Body> {
    let flags = prop_oneof![4 => Just(0x02), 4 => Just(0x10), 2 => Just(0x12), 2 => Just(0x11), 1 => Just(0x04), 1 => any::<u8>()];
    // Mostly matching numbers, and some on both sides of the acceptance limit.
    let number = || prop_oneof![8 => 1u32..4, 1 => Just(17_000), 1 => Just(17_500), 1 => Just(65_000), 1 => Just(67_000), 1 => Just(0xffff_0001), 1 => any::<u32>()];
    let payload = prop_oneof![8 => 0usize..80, 2 => 1200usize..1500];
    let offset =
        prop_oneof![3 => Just(0u16), 3 => Just(4), 2 => 0u16..12, 1 => any::<u16>().prop_map(|n| n & 0x1fff)];
    let fragment = prop_oneof![
        8 => Just(None),
        2 => (offset, prop::bool::weighted(0.7), 0u8..4).prop_map(Some),
    ];
    let extension = prop_oneof![3 => Just(60u8), 1 => Just(43), 1 => Just(0), 1 => Just(51)];
    let extensions = prop_oneof![6 => Just(Vec::new()), 1 => prop::collection::vec(extension, 1..3), 1 => Just(vec![60; 7])];
    let numbers = (number(), number());
    (prop::bool::weighted(0.35), flags, numbers, payload, prop::bool::weighted(0.1), fragment, extensions)
        .prop_map(|(udp, flags, (sequence, acknowledgment), payload, unsummed, fragment, extensions)| {
            let payload = if fragment.is_some() { payload & !7 } else { payload };
            Body { udp, flags, sequence, acknowledgment, payload, unsummed, fragment, extensions }
        })
}

fn hops() -> impl Strategy<Value = u8> {
    prop_oneof![12 => Just(64u8), 1 => Just(1), 1 => any::<u8>()]
}

fn service() -> impl Strategy<Value = u8> {
    prop_oneof![
        4 => prop::sample::select(L2.to_vec()),
        1 => Just(EMPTY),
        1 => Just(104),
        5 => Just(NAT),
        5 => Just(SOURCE_NAT),
        4 => prop::sample::select(TUNNELS.to_vec()),
        8 => prop::sample::select(EVERY_HOST.to_vec()),
        4 => prop::sample::select(handoff::HANDOFF.to_vec()),
    ]
}

fn kind() -> impl Strategy<Value = Kind> {
    let port = prop_oneof![9 => Just(80u16), 1 => Just(81)];
    let from_client = (any::<bool>(), 0u8..16, service(), 1000u16..1006, port, body(), hops()).prop_map(
        |(v6, client, vip, port, service, body, hops)| Kind::Client {
            v6,
            client,
            vip,
            port,
            service,
            body,
            hops,
        },
    );
    let answer =
        (0usize..20, body(), hops()).prop_map(|(back, body, hops)| Kind::Answer { back, body, hops });
    let about = prop_oneof![8 => Just(0u32), 2 => Just(1400), 1 => 0u32..2000];
    // "Packet too big" is frequent, with its ICMPv6 type and its ICMP code.
    let kind = prop_oneof![3 => 0u8..14, 1 => Just(2), 1 => Just(3)];
    let error = (0usize..20, any::<bool>(), kind, 0u8..6, about, any::<u8>(), 20usize..120).prop_map(
        |(back, turned, kind, code, rest, from, quoted)| Kind::Error {
            back,
            turned,
            kind,
            code,
            rest,
            from,
            quoted,
        },
    );
    let echo = (any::<bool>(), service(), prop_oneof![5 => Just(0u8), 1 => any::<u8>()], 0usize..100)
        .prop_map(|(v6, vip, kind, len)| Kind::Echo { v6, vip, kind, len });
    let arp = (0u8..4, 98u8..106, 98u8..106, 15usize..70)
        .prop_map(|(operation, target, sender, len)| Kind::Arp { operation, target, sender, len });
    let solicitation =
        (98u8..106, 98u8..108, prop_oneof![5 => Just(255u8), 1 => Just(64)], any::<bool>(), any::<bool>())
            .prop_map(|(target, sender, hops, group, option)| Kind::Solicitation {
                target,
                sender,
                hops,
                group,
                option,
            });
    prop_oneof![
        12 => from_client,
        8 => answer,
        4 => error,
        1 => echo,
        1 => arp,
        1 => solicitation,
        1 => prop::collection::vec(any::<u8>(), 15..128).prop_map(Kind::Random),
    ]
}

pub fn plan() -> impl Strategy<Value = Plan> {
    let damage = prop_oneof![
        12 => Just(Damage::None),
        2 => (0usize..120, any::<u8>()).prop_map(|(at, to)| Damage::SetByte(at, to)),
        3 => (12usize..48, any::<u8>()).prop_map(|(at, to)| Damage::SetHeaderByte(at, to)),
        1 => Just(Damage::SetHeaderByte(14, 0x46)),
        1 => Just(Damage::SetHeaderByte(6, 3)),
        2 => prop_oneof![Just(8usize), Just(16), 0usize..24].prop_map(Damage::Shorten),
        1 => (15usize..120).prop_map(Damage::Truncate),
        1 => (1usize..100).prop_map(Damage::Extend),
    ];
    let tags = prop_oneof![10 => Just(0usize), 2 => Just(1), 1 => Just(2), 1 => Just(3)];
    let source = prop_oneof![4 => Just(0), 6 => 1..SOURCES.len()];
    (kind(), source, tags, damage).prop_map(|(kind, source, tags, damage)| Plan {
        kind,
        source,
        tags,
        damage,
    })
}

impl Plan {
    /// Returns the frame. `None` if no packet was forwarded yet that a reply or an ICMP error could
    /// refer to.
    pub fn frame(&self, seen: &[Vec<u8>]) -> Option<Vec<u8>> {
        let back = |back: usize| seen.len().checked_sub(back + 1).and_then(|at| Packet::read(&seen[at]));
        let mut frame = match &self.kind {
            Kind::Client { v6, client: number, vip: last, port, service, body, hops } => {
                let (src, dst) = (client(*v6, *number), vip(*v6, *last));
                link(ip(src, dst, body, (*port, *service), *hops))
            }
            Kind::Answer { back: number, body, hops } => {
                let Packet { src, dst, ports, udp, .. } = back(*number)?;
                // For a packet above the MTU, the kernel reports its length before the missing
                // neighbour. The core's test host may report the missing neighbour.
                let body = Body { udp, payload: body.payload.min(1380), ..body.clone() };
                link(ip(dst, src, &body, (ports.1, ports.0), *hops))
            }
            Kind::Error { back: number, turned, kind, code, rest, from, quoted } => {
                let packet = back(*number)?;
                let about = if *turned { packet.turned() } else { packet.bytes.clone() };
                let (src, dst) = if *turned { (packet.dst, packet.src) } else { (packet.src, packet.dst) };
                let from = if *from < 128 { dst } else { client(src.is_ipv6(), *from & 15) };
                let quote = &about[..about.len().min(*quoted)];
                link(icmp(from, src, [*kind, *code], *rest, quote))
            }
            Kind::Echo { v6, vip: last, kind, len } => {
                let echo: u8 = if *v6 { 128 } else { 8 };
                let message = [echo.wrapping_add(*kind), 0];
                link(icmp(client(*v6, 1), vip(*v6, *last), message, 7 << 16 | 9, &vec![0x55; *len]))
            }
            Kind::Arp { operation, target, sender, len } => arp(*operation, *target, *sender, *len),
            Kind::Solicitation { target, sender, hops, group, option } => {
                solicitation(*target, *sender, *hops, *group, *option)
            }
            Kind::Random(bytes) => bytes.clone(),
        };
        frame[6..12].copy_from_slice(&SOURCES[self.source].0);
        Some(self.damaged(tagged(frame, self.tags)))
    }

    fn damaged(&self, mut frame: Vec<u8>) -> Vec<u8> {
        match self.damage {
            Damage::None => {}
            Damage::Shorten(len) => {
                let l3 = 14 + 4 * self.tags;
                let v6 = frame.get(l3).is_some_and(|byte| byte >> 4 == 6);
                let (place, length) = if v6 { (l3 + 4, len) } else { (l3 + 2, len + 20) };
                if let Some(field) = frame.get_mut(place..place + 2) {
                    field.copy_from_slice(&(length as u16).to_be_bytes());
                }
            }
            Damage::SetByte(at, to) | Damage::SetHeaderByte(at, to) => {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = to;
                }
            }
            Damage::Truncate(len) => frame.truncate(len),
            Damage::Extend(by) => frame.resize(frame.len() + by, 0xaa),
        }
        frame
    }
}

/// Returns a TCP segment from a client to the service with this last address byte.
pub fn segment(v6: bool, service: u8, client: u8, port: u16, flags: u8) -> Vec<u8> {
    let body = Body {
        udp: false,
        flags,
        sequence: 1,
        acknowledgment: 2,
        payload: 0,
        unsummed: false,
        fragment: None,
        extensions: Vec::new(),
    };
    link(ip(numbered(v6, client), vip(v6, service), &body, (port, 80), 64))
}

/// Returns an unfragmented datagram with this many bytes of payload.
pub fn datagram(v6: bool, service: u8, client: u8, port: u16, payload: usize) -> Vec<u8> {
    let body = Body {
        udp: true,
        flags: 0,
        sequence: 1,
        acknowledgment: 2,
        payload,
        unsummed: false,
        fragment: None,
        extensions: Vec::new(),
    };
    link(ip(numbered(v6, client), vip(v6, service), &body, (port, 80), 64))
}

/// Returns a server's reply to a packet that was forwarded to the server's own address. A TCP reply
/// has these flags.
pub fn answer_to(forwarded: &[u8], flags: u8) -> Option<Vec<u8>> {
    let packet = Packet::read(forwarded)?;
    if !matches!(packet.dst, IpAddr::V4(address) if address.octets()[..3] == [10, 0, 5]) {
        return None;
    }
    let mut answer = packet.turned();
    if !packet.udp {
        answer[packet.l4 + 13] = flags;
    }
    Some(link(answer))
}

/// Returns the first or the second of a UDP packet's two fragments.
pub fn fragment(v6: bool, service: u8, client: u8, first: bool) -> Vec<u8> {
    // Each fragment has 64 bytes of payload, and the first also the UDP header: the offset is 9
    // units of eight bytes.
    let fragment = Some((if first { 0 } else { 9 }, first, 1));
    let body = Body {
        udp: true,
        flags: 0,
        sequence: 1,
        acknowledgment: 2,
        payload: 64,
        unsummed: false,
        fragment,
        extensions: Vec::new(),
    };
    link(ip(numbered(v6, client), vip(v6, service), &body, (1000, 80), 64))
}

/// Returns the last fragment of a UDP packet, in a frame of `len` bytes.
pub fn later(v6: bool, service: u8, len: usize) -> Vec<u8> {
    let payload = len - 14 - if v6 { 40 + 8 } else { 20 };
    let body = Body {
        udp: true,
        flags: 0,
        sequence: 1,
        acknowledgment: 2,
        payload,
        unsummed: false,
        fragment: Some((9, false, 1)),
        extensions: Vec::new(),
    };
    link(ip(numbered(v6, 1), vip(v6, service), &body, (1000, 80), 64))
}

fn numbered(v6: bool, client: u8) -> IpAddr {
    if v6 { format!("2001:db8:c1::{client}").parse().unwrap() } else { [203, 0, 111, client].into() }
}

struct Packet {
    bytes: Vec<u8>,
    src: IpAddr,
    dst: IpAddr,
    ports: (u16, u16),
    udp: bool,
    /// Offset of the ports.
    l4: usize,
}

impl Packet {
    /// Decodes a packet and removes its tunnel headers. `None` if the packet is a later fragment or
    /// has extension headers.
    fn read(frame: &[u8]) -> Option<Packet> {
        let mut at = 12;
        while matches!(frame.get(at..at + 2)?, [0x81, 0] | [0x88, 0xa8]) {
            at += 4;
        }
        let mut bytes = frame.get(at + 2..)?;
        loop {
            let v6 = bytes.first()? >> 4 == 6;
            let (l4, next) = if v6 { (40, *bytes.get(6)?) } else { (20, *bytes.get(9)?) };
            let half = |at: usize| bytes.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
            match next {
                4 | 41 => bytes = bytes.get(l4..)?,
                17 if half(l4 + 2)? == 6080 => bytes = bytes.get(l4 + 12..)?,
                6 | 17 if v6 || half(6)? & 0x1fff == 0 => {
                    let address = |at: usize| -> Option<IpAddr> {
                        Some(match v6 {
                            true => <[u8; 16]>::try_from(bytes.get(at..at + 16)?).ok()?.into(),
                            false => <[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok()?.into(),
                        })
                    };
                    let (src, dst) =
                        if v6 { (address(8)?, address(24)?) } else { (address(12)?, address(16)?) };
                    let ports = (half(l4)?, half(l4 + 2)?);
                    return Some(Packet { bytes: bytes.to_vec(), src, dst, ports, udp: next == 17, l4 });
                }
                _ => return None,
            }
        }
    }

    /// Returns the packet with source and destination swapped.
    fn turned(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let (at, len) = if self.src.is_ipv6() { (8, 16) } else { (12, 4) };
        bytes[at..at + 2 * len].rotate_left(len);
        bytes[self.l4..self.l4 + 4].rotate_left(2);
        bytes
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}

/// Adds an Ethernet header with the director's address.
pub fn link(packet: Vec<u8>) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] };
    [&OWN.0[..], &[2, 0, 0, 9, 9, 9], &ethertype, &packet].concat()
}

pub fn tagged(mut frame: Vec<u8>, tags: usize) -> Vec<u8> {
    for tag in 0..tags {
        let kind = if tag == 0 { [0x81, 0] } else { [0x88, 0xa8] };
        frame.splice(12..12, [kind[0], kind[1], 0, 5 + tag as u8]);
    }
    frame
}

fn ip(src: IpAddr, dst: IpAddr, body: &Body, ports: (u16, u16), hops: u8) -> Vec<u8> {
    let transport = transport(src, dst, body, ports);
    let next = if body.udp { 17 } else { 6 };
    let later = body.fragment.is_some_and(|(offset, ..)| offset != 0);
    let transport = if later { vec![0x77; body.payload] } else { transport };
    if src.is_ipv4() {
        let field = body.fragment.map_or(0x4000, |(offset, more, _)| offset | u16::from(more) << 13);
        let id = body.fragment.map_or(0, |(.., id)| id);
        return packet_v4(src, dst, next, hops, (id.into(), field), &transport);
    }
    let mut rest = transport;
    let mut next = next;
    if let Some((offset, more, id)) = body.fragment {
        let word = (offset << 3 | u16::from(more)).to_be_bytes();
        rest = [&[next, 0, word[0], word[1], 0, 0, 0, id][..], &rest].concat();
        next = 44;
    }
    for extension in &body.extensions {
        // A routing header with no segments left, an authentication header, or padding.
        let header: &[u8] = match *extension {
            43 => &[next, 0, 4, 0, 0, 0, 0, 0],
            51 => &[next, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 7, 7, 7, 7],
            _ => &[next, 0, 1, 4, 0, 0, 0, 0],
        };
        rest = [header, &rest].concat();
        next = *extension;
    }
    packet_v6(src, dst, next, hops, &rest)
}

pub fn packet_v4(
    src: IpAddr,
    dst: IpAddr,
    next: u8,
    hops: u8,
    (id, field): (u16, u16),
    rest: &[u8],
) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((20 + rest.len() as u16).to_be_bytes());
    packet.extend(id.to_be_bytes());
    packet.extend(field.to_be_bytes());
    packet.extend([hops, next, 0, 0]);
    packet.extend(octets(src));
    packet.extend(octets(dst));
    let sum = checksum::finish(checksum::add(0, &packet));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(rest);
    packet
}

pub fn packet_v6(src: IpAddr, dst: IpAddr, next: u8, hops: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0x30, 0, 7];
    packet.extend((rest.len() as u16).to_be_bytes());
    packet.extend([next, hops]);
    packet.extend(octets(src));
    packet.extend(octets(dst));
    packet.extend(rest);
    packet
}

fn transport(src: IpAddr, dst: IpAddr, body: &Body, ports: (u16, u16)) -> Vec<u8> {
    let mut bytes = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
    let (next, at) = if body.udp { (17, 6) } else { (6, 16) };
    if body.udp {
        bytes.extend((8 + body.payload as u16).to_be_bytes());
        bytes.extend([0, 0]);
    } else {
        bytes.extend(body.sequence.to_be_bytes());
        bytes.extend(body.acknowledgment.to_be_bytes());
        bytes.extend([0x50, body.flags, 4, 0, 0, 0, 0, 0]);
    }
    bytes.extend((0..body.payload).map(|n| n as u8));
    if !(body.udp && body.unsummed) {
        let sum = match sum(src, dst, next, &bytes) {
            0 if body.udp => 0xffff,
            sum => sum,
        };
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

/// Returns the checksum of the bytes with a pseudo-header.
pub fn sum(src: IpAddr, dst: IpAddr, next: u8, bytes: &[u8]) -> u16 {
    let pseudo = [&octets(src)[..], &octets(dst), &(bytes.len() as u32).to_be_bytes(), &[0, next]].concat();
    checksum::finish(checksum::add(checksum::add(0, &pseudo), bytes))
}

fn icmp(src: IpAddr, dst: IpAddr, message: [u8; 2], rest: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![message[0], message[1], 0, 0];
    bytes.extend(rest.to_be_bytes());
    bytes.extend(body);
    let whole = match src {
        IpAddr::V4(_) => checksum::finish(checksum::add(0, &bytes)),
        IpAddr::V6(_) => sum(src, dst, 58, &bytes),
    };
    bytes[2..4].copy_from_slice(&whole.to_be_bytes());
    match src {
        IpAddr::V4(_) => packet_v4(src, dst, 1, 64, (0, 0), &bytes),
        IpAddr::V6(_) => packet_v6(src, dst, 58, 64, &bytes),
    }
}

fn arp(operation: u8, target: u8, sender: u8, len: usize) -> Vec<u8> {
    let mut arp = vec![0u8; 64];
    arp[0..6].copy_from_slice(&[0xff; 6]);
    arp[6..12].copy_from_slice(&[2, 0, 0, 9, 9, 9]);
    arp[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    arp[22..28].copy_from_slice(&[2, 0, 0, 9, 9, 9]);
    arp[28..32].copy_from_slice(&octets(vip(false, sender)));
    arp[38..42].copy_from_slice(&octets(vip(false, target)));
    arp.truncate(len);
    arp
}

fn solicitation(target: u8, sender: u8, hops: u8, group: bool, option: bool) -> Vec<u8> {
    let address = vip(true, target);
    // Numbers above the services stand for duplicate address detection, with the source `::`.
    let src = if sender < 106 { vip(true, sender) } else { IpAddr::V6(0.into()) };
    let mut body = octets(address);
    if option {
        body.extend([1, 1, 2, 0, 0, 9, 9, 9]);
    }
    let mut frame = link({
        let packet = icmp(src, address, [135, 0], 0, &body);
        let mut packet = packet;
        packet[7] = hops;
        packet
    });
    if group {
        let last = octets(address);
        frame[..6].copy_from_slice(&[0x33, 0x33, 0xff, last[13], last[14], last[15]]);
    }
    frame
}
