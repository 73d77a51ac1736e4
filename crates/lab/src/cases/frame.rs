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
