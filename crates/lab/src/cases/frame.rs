//! Frames from words, right in every field that a line doesn't say otherwise about.

use std::net::Ipv4Addr;

use etherparse::checksum::Sum16BitWords;
use evener_core::wire::{
    ARP_REPLY, ARP_REQUEST, Arp, ETHERNET_LEN, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_QINQ, ETHERTYPE_VLAN,
    Ipv4, Mac, Tcp, Udp,
};
use zerocopy::IntoBytes;

use super::words::{Fields, Words, Wrong};
use super::world::World;

/// Where the checksum stands in an IPv4, a TCP and a UDP header, in bytes.
const IPV4_SUM: usize = 10;
const TCP_SUM: usize = 16;
const UDP_SUM: usize = 6;
/// "No operation", both in IPv4 and in TCP (RFC 791, section 3.1; RFC 9293, section 3.1).
const NOP: u8 = 1;

/// Reads a whole frame up to the line's end. `before` is what came in, of which `...` takes the rest.
pub(super) fn frame(words: &mut Words<'_>, world: &World, before: Option<&[u8]>) -> Result<Vec<u8>, Wrong> {
    let mut frame =
        if words.peek() == Some("hex") { payload(words)? } else { ethernet(words, world, before)? };
    if words.take("pad") {
        frame.resize(frame.len() + words.parse::<usize>("a number of bytes")?, 0);
    }
    if words.take("truncate") {
        frame.truncate(words.parse("a number of bytes")?);
    }
    words.end()?;
    Ok(frame)
}

fn ethernet(words: &mut Words<'_>, world: &World, before: Option<&[u8]>) -> Result<Vec<u8>, Wrong> {
    words.expect("eth")?;
    let src = world.mac(words.next("a source MAC")?)?;
    words.expect(">")?;
    let dst = world.mac(words.next("a destination MAC")?)?;
    let mut frame = [dst.as_bytes(), src.as_bytes()].concat();
    if words.take("...") {
        let before = before.ok_or("`...` is the rest of the frame that came in; here none did")?;
        frame.extend(before.get(frame.len()..).unwrap_or_default());
        return Ok(frame);
    }
    let fields = Fields::of(words, &["type"])?;
    while let Some(tag) = words.take_if(|word| word == "vlan" || word == "qinq") {
        let ethertype = if tag == "vlan" { ETHERTYPE_VLAN } else { ETHERTYPE_QINQ };
        let id: u16 = words.parse("a VLAN number")?;
        frame.extend([ethertype.to_be_bytes(), id.to_be_bytes()].concat());
    }
    let (ethertype, body) = match words.peek() {
        Some("ip") => (ETHERTYPE_IPV4, ipv4(words)?),
        Some("arp") => (ETHERTYPE_ARP, arp(words, world, src, dst)?),
        _ => (0, payload(words)?),
    };
    frame.extend(fields.number("type", ethertype)?.to_be_bytes());
    frame.extend(body);
    debug_assert!(frame.len() >= ETHERNET_LEN);
    Ok(frame)
}

fn ipv4(words: &mut Words<'_>) -> Result<Vec<u8>, Wrong> {
    words.expect("ip")?;
    let (src, dst): (Ipv4Addr, Ipv4Addr) = ends(words, "an IPv4 address")?;
    let known = ["version", "ihl", "tos", "len", "id", "frag", "ttl", "proto", "sum", "options"];
    let fields = Fields::of(words, &known)?;
    let options = vec![NOP; 4 * fields.number::<u8>("options", 0)? as usize];
    let (protocol, body) = match words.peek() {
        Some("tcp") => (6, tcp(words, src, dst)?),
        Some("udp") => (17, udp(words, src, dst)?),
        _ => (0, payload(words)?),
    };
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
        protocol: fields.number("proto", protocol)?,
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

fn tcp(words: &mut Words<'_>, src: Ipv4Addr, dst: Ipv4Addr) -> Result<Vec<u8>, Wrong> {
    words.expect("tcp")?;
    let (src_port, dst_port): (u16, u16) = ends(words, "a port")?;
    let flags = flags(words.next("TCP flags")?)?;
    let fields = Fields::of(words, &["seq", "ack", "doff", "win", "sum", "options"])?;
    let options = vec![NOP; 4 * fields.number::<u8>("options", 0)? as usize];
    let header = Tcp {
        src_port: src_port.into(),
        dst_port: dst_port.into(),
        seq: fields.number("seq", 1)?.into(),
        ack: fields.number("ack", 0)?.into(),
        data_offset: fields.number("doff", 5 + (options.len() / 4) as u8)? << 4,
        flags,
        window: fields.number("win", 64_000)?.into(),
        checksum: 0.into(),
        urgent: 0.into(),
    };
    let mut segment = [header.as_bytes(), &options, &payload(words)?].concat();
    let right = pseudo(src, dst, 6, segment.len()).add_slice(&segment).ones_complement();
    fill_sum(&mut segment, TCP_SUM, &fields, right)?;
    Ok(segment)
}

fn udp(words: &mut Words<'_>, src: Ipv4Addr, dst: Ipv4Addr) -> Result<Vec<u8>, Wrong> {
    words.expect("udp")?;
    let (src_port, dst_port): (u16, u16) = ends(words, "a port")?;
    let fields = Fields::of(words, &["len", "sum"])?;
    let payload = payload(words)?;
    let len = size_of::<Udp>() + payload.len();
    let header = Udp {
        src_port: src_port.into(),
        dst_port: dst_port.into(),
        len: fields.number("len", len as u16)?.into(),
        checksum: 0.into(),
    };
    let mut datagram = [header.as_bytes(), &payload].concat();
    let sum = pseudo(src, dst, 17, len).add_slice(&datagram);
    fill_sum(&mut datagram, UDP_SUM, &fields, sum.to_ones_complement_with_no_zero())?;
    Ok(datagram)
}

/// Either question or answer; a sender is by default who sends the frame, and a target who gets it.
fn arp(words: &mut Words<'_>, world: &World, src: Mac, dst: Mac) -> Result<Vec<u8>, Wrong> {
    words.expect("arp")?;
    let address = "an IPv4 address";
    let (operation, sender_mac, sender_ip, target_mac, target_ip): (_, _, Ipv4Addr, _, Ipv4Addr);
    if words.take("who-has") {
        (operation, sender_mac, target_mac) = (ARP_REQUEST, src, Mac::default());
        target_ip = words.parse(address)?;
        words.expect("tell")?;
        sender_ip = words.parse(address)?;
    } else {
        (operation, target_mac) = (ARP_REPLY, dst);
        sender_ip = words.parse(address)?;
        words.expect("is-at")?;
        sender_mac = world.mac(words.next("a MAC address")?)?;
        words.expect("tell")?;
        target_ip = words.parse(address)?;
    }
    let known = ["htype", "ptype", "hlen", "plen", "op", "sender-mac", "target-mac"];
    let fields = Fields::of(words, &known)?;
    let mac = |key, right| fields.text(key).map_or(Ok(right), |word| world.mac(word));
    let body = Arp {
        hardware_type: fields.number("htype", 1)?.into(),
        protocol_type: fields.number("ptype", ETHERTYPE_IPV4)?.into(),
        hardware_len: fields.number("hlen", 6)?,
        protocol_len: fields.number("plen", 4)?,
        operation: fields.number("op", operation)?.into(),
        sender_mac: mac("sender-mac", sender_mac)?,
        sender_ip: sender_ip.to_bits().into(),
        target_mac: mac("target-mac", target_mac)?,
        target_ip: target_ip.to_bits().into(),
    };
    Ok(body.as_bytes().to_vec())
}

/// `payload N` is N bytes of no meaning, `hex 00 11` these ones.
fn payload(words: &mut Words<'_>) -> Result<Vec<u8>, Wrong> {
    let mut bytes = Vec::new();
    if words.take("payload") {
        let len: usize = words.parse("a number of bytes")?;
        bytes.extend((0..len).map(|at| at as u8));
    }
    if words.take("hex") {
        let digits = |word: &str| word.len() == 2 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        while let Some(byte) = words.take_if(digits) {
            bytes.extend(u8::from_str_radix(byte, 16));
        }
    }
    Ok(bytes)
}

/// `SRC > DST`
fn ends<T: std::str::FromStr<Err: std::fmt::Display>>(
    words: &mut Words<'_>,
    what: &str,
) -> Result<(T, T), Wrong> {
    let src = words.parse(what)?;
    words.expect(">")?;
    Ok((src, words.parse(what)?))
}

/// Letters as tcpdump(8) has them; `.` alone is none.
fn flags(word: &str) -> Result<u8, Wrong> {
    const LETTERS: &str = "FSRPAUEC";
    let word = if word == "." { "" } else { word };
    word.chars().try_fold(0, |flags, letter| match LETTERS.find(letter) {
        Some(bit) => Ok(flags | 1 << bit),
        None => Err(format!("`{word}` are no TCP flags; their letters are {LETTERS}, and `.` is none")),
    })
}

/// The pseudo-header that both transports' checksums begin with (RFC 9293, section 3.1).
fn pseudo(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: usize) -> Sum16BitWords {
    let [len_high, len_low] = (len as u16).to_be_bytes();
    let addresses = [src.octets(), dst.octets()].concat();
    Sum16BitWords::new().add_slice(&addresses).add_slice(&[0, protocol, len_high, len_low])
}

fn fill_sum(packet: &mut [u8], at: usize, fields: &Fields<'_>, right: u16) -> Result<(), Wrong> {
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
        EtherType, IpFragOffset, IpNumber, Ipv4Header, NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
        VlanId,
    };

    use super::*;

    const SRC: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const DST: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const CLIENT: [u8; 4] = [203, 0, 113, 7];
    const VIP: [u8; 4] = [192, 0, 2, 100];
    const IP: &str = "ip 203.0.113.7 > 192.0.2.100";

    fn built(text: &str) -> Vec<u8> {
        let line = format!("eth 02:00:00:00:00:09 > 02:00:00:00:00:01 {text}");
        frame(&mut Words::of(&line), &World::default(), None).unwrap()
    }

    fn wrong(line: &str) -> String {
        frame(&mut Words::of(line), &World::default(), None).unwrap_err()
    }

    fn ip_header() -> Ipv4Header {
        let mut header = Ipv4Header::new(0, 64, IpNumber::TCP, CLIENT, VIP).unwrap();
        (header.identification, header.dont_fragment) = (1, true);
        header
    }

    #[test]
    fn tcp_is_as_another_builder_makes_it() {
        let payload: Vec<u8> = (0..=255).chain(0..46).collect();
        for (flags, options, len) in [("S", 0, 0), ("PA", 0, 301), ("FSRPAUEC", 3, 302), (".", 10, 1)] {
            let mut tcp = PacketBuilder::ethernet2(SRC, DST)
                .ip(etherparse::IpHeaders::Ipv4(ip_header(), Default::default()))
                .tcp(40_000, 80, 7, 64_000)
                .options_raw(&vec![NOP; 4 * options])
                .unwrap();
            for flag in flags.chars() {
                tcp = match flag {
                    'F' => tcp.fin(),
                    'S' => tcp.syn(),
                    'R' => tcp.rst(),
                    'P' => tcp.psh(),
                    'A' => tcp.ack(9),
                    'U' => tcp.urg(0),
                    'E' => tcp.ece(),
                    'C' => tcp.cwr(),
                    _ => tcp,
                };
            }
            let mut expected = Vec::new();
            tcp.write(&mut expected, &payload[..len]).unwrap();
            let ack = if flags.contains('A') { 9 } else { 0 };
            let text = format!("{IP} tcp 40000 > 80 {flags} seq=7 ack={ack} options={options} payload {len}");
            assert_eq!(built(&text), expected, "{text}");
        }
    }

    #[test]
    fn udp_and_tags_are_as_another_builder_makes_them() {
        for len in [0, 1, 30] {
            let payload: Vec<u8> = (0..len).collect();
            let mut expected = Vec::new();
            PacketBuilder::ethernet2(SRC, DST)
                .double_vlan(VlanId::try_new(7).unwrap(), VlanId::try_new(5).unwrap())
                .ip(etherparse::IpHeaders::Ipv4(ip_header(), Default::default()))
                .udp(40_000, 53)
                .write(&mut expected, &payload)
                .unwrap();
            assert_eq!(built(&format!("qinq 7 vlan 5 {IP} udp 40000 > 53 payload {len}")), expected);
        }
    }

    #[test]
    fn arp_is_as_another_builder_makes_it() {
        for (text, operation, target) in [
            ("arp who-has 192.0.2.100 tell 203.0.113.7", etherparse::ArpOperation::REQUEST, [0; 6]),
            (
                "arp 203.0.113.7 is-at 02:00:00:00:00:09 tell 192.0.2.100",
                etherparse::ArpOperation::REPLY,
                DST,
            ),
        ] {
            let arp = etherparse::ArpEthIpv4Packet {
                operation,
                sender_mac: SRC,
                sender_ipv4: CLIENT,
                target_mac: target,
                target_ipv4: VIP,
            };
            let mut expected = Vec::new();
            PacketBuilder::ethernet2(SRC, DST).arp(arp.into()).write(&mut expected).unwrap();
            assert_eq!(built(text), expected, "{text}");
        }
    }

    #[test]
    fn ip_fields_are_where_another_parser_finds_them() {
        let text =
            "ip 203.0.113.7 > 192.0.2.100 tos=0xb8 id=0xbeef frag=0x2010 ttl=3 proto=17 options=2 payload 9";
        let bytes = built(text);
        let packet = SlicedPacket::from_ethernet(&bytes).unwrap();
        let Some(NetSlice::Ipv4(ip)) = packet.net else { panic!("IPv4") };
        let header = ip.header().to_header();
        assert_eq!((header.dscp.value(), header.ecn.value(), header.identification), (0x2e, 0, 0xbeef));
        assert_eq!(
            (header.more_fragments, header.fragment_offset),
            (true, IpFragOffset::try_new(16).unwrap())
        );
        assert_eq!((header.time_to_live, header.protocol, header.options.len()), (3, IpNumber::UDP, 8));
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        assert_eq!((header.total_len, ip.payload().payload.len()), (37, 9));
    }

    #[test]
    fn a_lie_changes_its_own_field_and_the_checksum() {
        let right = built(&format!("{IP} tcp 1 > 2 S"));
        for (text, place, value) in
            [("version=6", 14, 0x65), ("ihl=6", 14, 0x46), ("len=255", 17, 255), ("proto=17", 23, 17)]
        {
            let lie = built(&format!("{IP} {text} tcp 1 > 2 S"));
            assert_eq!(lie[place], value, "{text}");
            let differing: Vec<_> = (0..right.len()).filter(|at| right[*at] != lie[*at]).collect();
            assert!(differing.iter().all(|at| [place, 24, 25].contains(at)), "{text}: {differing:?}");
        }
        assert_eq!(built(&format!("{IP} tcp 1 > 2 S doff=4"))[46], 0x40);
        assert_eq!(built(&format!("{IP} udp 1 > 2 len=7"))[39], 7);
        assert_eq!(built(&format!("{IP} sum=0x1234 udp 1 > 2 sum=0"))[24..26], [0x12, 0x34]);
        assert_eq!(built("type=0x86dd payload 3")[12..], [0x86, 0xdd, 0, 1, 2]);
    }

    #[test]
    fn frames_are_cut_and_padded() {
        assert_eq!(built(&format!("{IP} tcp 1 > 2 S pad 6")).len(), 60);
        assert_eq!(built(&format!("{IP} tcp 1 > 2 S truncate 33")).len(), 33);
        let whole = frame(&mut Words::of("hex 00 ff 7a pad 2"), &World::default(), None).unwrap();
        assert_eq!(whole, [0, 0xff, 0x7a, 0, 0]);
        let rest = frame(&mut Words::of("eth broadcast > broadcast ..."), &World::default(), Some(&[7; 14]));
        assert_eq!(rest.unwrap()[11..], [0xff, 7, 7]);
        let bytes = built(&format!("{IP} tcp 1 > 2 S pad 6"));
        let packet = SlicedPacket::from_ethernet(&bytes).unwrap();
        assert!(
            matches!(packet.transport, Some(TransportSlice::Tcp(tcp)) if tcp.syn() && tcp.payload().is_empty())
        );
        assert_eq!(
            packet.link.and_then(|link| link.to_header()?.ethernet2()).unwrap().ether_type,
            EtherType::IPV4
        );
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (line, expected) in [
            ("eth broadcast broadcast", "expected `>`, found `broadcast`"),
            ("eth broadcast >", "the line ends where a destination MAC should be"),
            (
                "eth broadcast > broadcast ip 1.2.3 > 4.5.6.7",
                "`1.2.3` is not an IPv4 address: invalid IPv4 address syntax",
            ),
            (
                "eth broadcast > broadcast ip 1.2.3.4 > 4.5.6.7 ihl=x",
                "`ihl=x` is not a number that fits the field",
            ),
            (
                "eth broadcast > broadcast ip 1.2.3.4 > 4.5.6.7 len=65536",
                "`len=65536` is not a number that fits the field",
            ),
            ("eth broadcast > broadcast payload 3 x", "`x` is one word too many"),
            ("eth broadcast > broadcast ...", "`...` is the rest of the frame that came in; here none did"),
        ] {
            assert_eq!(wrong(line), expected);
        }
        assert!(
            wrong("eth broadcast > broadcast ip 1.2.3.4 > 4.5.6.7 mtu=5")
                .starts_with("`mtu` is no field here")
        );
        assert!(
            wrong("eth broadcast > broadcast ip 1.2.3.4 > 4.5.6.7 tcp 1 > 2 SX").contains("are no TCP flags")
        );
    }
}
