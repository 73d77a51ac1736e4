//! Encodes frames from words. Fields without words get correct values.

use evener_core::net::wire::{
    ETHERNET_LEN, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, protocol,
};
use zerocopy::IntoBytes;

use super::arp::arp;
use super::hello::hello;
use super::ip;
use super::words::{Fields, Words, Wrong};
use super::world::World;

/// Context of the words of a frame.
pub(super) struct Scene<'a> {
    pub(super) world: &'a World,
    /// Incoming frame, which `...` refers to.
    before: Option<&'a [u8]>,
}

impl Scene<'_> {
    fn before(&self) -> Result<&[u8], Wrong> {
        Ok(self.before.ok_or("`...` is the rest of the frame that came in; here none did")?)
    }

    /// Reads `...` inside a packet: the incoming packet, with its protocol number.
    pub(super) fn packet(&self, words: &mut Words<'_>) -> Result<(u8, Vec<u8>), Wrong> {
        words.expect("...")?;
        let mut packet = self.before()?.get(12..).unwrap_or_default();
        while let [0x81 | 0x88, 0x00 | 0xa8, _, _, rest @ ..] = packet {
            packet = rest;
        }
        match packet {
            [0x08, 0x00, packet @ ..] => Ok((protocol::IPV4, cut(packet, 2, 0))),
            [0x86, 0xdd, packet @ ..] => Ok((protocol::IPV6, cut(packet, 4, 40))),
            _ => Err("`...` inside a packet is the packet that came in; here none did".into()),
        }
    }
}

/// Removes padding behind a packet. The packet's length field is at offset `at` and excludes `more`
/// bytes.
fn cut(packet: &[u8], at: usize, more: usize) -> Vec<u8> {
    let len = match packet.get(at..at + 2) {
        Some(&[high, low]) => usize::from(u16::from_be_bytes([high, low])) + more,
        _ => packet.len(),
    };
    packet.get(..len).unwrap_or(packet).to_vec()
}

/// Reads a whole frame up to the end of the line. `before` is the incoming frame, which `...`
/// refers to.
pub(super) fn frame(words: &mut Words<'_>, world: &World, before: Option<&[u8]>) -> Result<Vec<u8>, Wrong> {
    let mut frame = if words.peek() == Some("hex") {
        payload(words)?
    } else {
        ethernet(words, &Scene { world, before })?
    };
    if words.take("pad") {
        frame.resize(frame.len() + words.parse::<usize>("a number of bytes")?, 0);
    }
    if words.take("truncate") {
        frame.truncate(words.parse("a number of bytes")?);
    }
    words.end()?;
    Ok(frame)
}

fn ethernet(words: &mut Words<'_>, scene: &Scene<'_>) -> Result<Vec<u8>, Wrong> {
    words.expect("eth")?;
    let world = scene.world;
    let src = world.mac(words.next("a source MAC")?)?;
    words.expect(">")?;
    let dst = world.mac(words.next("a destination MAC")?)?;
    let mut frame = [dst.as_bytes(), src.as_bytes()].concat();
    if words.take("...") {
        frame.extend(scene.before()?.get(frame.len()..).unwrap_or_default());
        return Ok(frame);
    }
    let fields = Fields::of(words, &["type"])?;
    while let Some(tag) = words.take_if(|word| word == "vlan" || word == "qinq") {
        let ethertype = if tag == "vlan" { ETHERTYPE_VLAN } else { ETHERTYPE_QINQ };
        let id: u16 = words.parse("a VLAN number")?;
        frame.extend([ethertype.to_be_bytes(), id.to_be_bytes()].concat());
    }
    let (ethertype, body) = match words.peek() {
        Some("ip") => (ETHERTYPE_IPV4, ip::v4(words, scene)?),
        Some("ip6") => (ETHERTYPE_IPV6, ip::v6(words, scene)?),
        Some("arp") => (ETHERTYPE_ARP, arp(words, world, src, dst)?),
        _ => (0, payload(words)?),
    };
    frame.extend(fields.number("type", ethertype)?.to_be_bytes());
    frame.extend(body);
    debug_assert!(frame.len() >= ETHERNET_LEN);
    Ok(frame)
}

/// Reads a payload: `payload N` is N arbitrary bytes, `hex 00 11` literal bytes, `text "..."` the
/// bytes of a text, `hello [NAME]` a TLS ClientHello.
pub(super) fn payload(words: &mut Words<'_>) -> Result<Vec<u8>, Wrong> {
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
    if words.take("text") {
        bytes.extend(text(words)?);
    }
    if words.take("hello") {
        bytes.extend(hello(words.take_if(|word| word != "pad" && word != "truncate").map(str::as_bytes)));
    }
    Ok(bytes)
}

/// Reads a text in quotes, with single spaces between words. `\r`, `\n`, `\t` and `\xNN` are
/// escapes.
fn text(words: &mut Words<'_>) -> Result<Vec<u8>, Wrong> {
    let first = words.next("a text in quotes")?;
    let mut text = first.strip_prefix('"').ok_or("a text stands in quotes")?.to_owned();
    while !text.ends_with('"') {
        text = format!("{text} {}", words.next("the end of a text in quotes")?);
    }
    let mut bytes = Vec::new();
    let mut parts = text.trim_end_matches('"').split('\\');
    bytes.extend(parts.next().unwrap_or_default().bytes());
    for part in parts {
        let (byte, rest) = match part.split_at_checked(1) {
            Some(("r", rest)) => (b'\r', rest),
            Some(("n", rest)) => (b'\n', rest),
            Some(("t", rest)) => (b'\t', rest),
            Some(("x", rest)) => {
                let (digits, rest) = rest.split_at_checked(2).ok_or("`\\x` has two digits")?;
                (u8::from_str_radix(digits, 16).map_err(|_| "`\\x` has two digits")?, rest)
            }
            _ => return Err(format!("`\\{part}` stands for nothing")),
        };
        bytes.push(byte);
        bytes.extend(rest.bytes());
    }
    Ok(bytes)
}

/// Reads `SRC > DST`.
pub(super) fn ends<T: std::str::FromStr<Err: std::fmt::Display>>(
    words: &mut Words<'_>,
    what: &str,
) -> Result<(T, T), Wrong> {
    let src = words.parse(what)?;
    words.expect(">")?;
    Ok((src, words.parse(what)?))
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
    const NOP: u8 = 1;

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
    fn tcp_frame_equals_other_builder() {
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
    fn arp_frame_equals_other_builder() {
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
    fn tcp_options_and_payload_match_other_parser() {
        use etherparse::TcpOptionElement::{
            MaximumSegmentSize, Noop, SelectiveAcknowledgementPermitted, Timestamp, WindowScale,
        };
        let text = "tcp 1 > 2 PA options=mss:1460,sack,ts:5:6,nop,ws:7 text \"GET / HTTP/1.1\\r\\n\\x23 a\"";
        let bytes = built(&format!("{IP} {text}"));
        let packet = SlicedPacket::from_ethernet(&bytes).unwrap();
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("TCP") };
        let options: Vec<_> = tcp.options_iterator().map(Result::unwrap).collect();
        let expected = [
            MaximumSegmentSize(1460),
            SelectiveAcknowledgementPermitted,
            Timestamp(5, 6),
            Noop,
            WindowScale(7),
        ];
        assert_eq!(options, expected);
        assert_eq!(tcp.payload(), b"GET / HTTP/1.1\r\n# a");
        assert!(built(&format!("{IP} tcp 1 > 2 S options=x0102,end hello a.b")).ends_with(&[2, 3, 4]));
    }

    #[test]
    fn frame_errors_name_the_problem() {
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
            (
                "eth broadcast > broadcast text \"a b",
                "the line ends where the end of a text in quotes should be",
            ),
            ("eth broadcast > broadcast text \"\\y\"", "`\\y` stands for nothing"),
            (
                "eth broadcast > broadcast ip 1.2.3.4 > 4.5.6.7 tcp 1 > 2 A ack=cookie+1",
                "no SYN came that could be answered with a cookie",
            ),
            (
                "eth broadcast > broadcast ip 1.2.3.4 > 4.5.6.7 tcp 1 > 2 S options=mss:x",
                "`mss:x` is no option; mss:N, sack, ws:N, ts:N:N, nop, end and xNN are",
            ),
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
