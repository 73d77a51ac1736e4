//! Encodes TCP, UDP and GUE headers from the words of a case.

use std::net::{Ipv4Addr, Ipv6Addr};

use evener_core::net::wire::{Ipv4, Ipv6, Tcp, Udp, protocol};
use evener_core::path::mark::{self, ForwardCount};
use zerocopy::{FromBytes, IntoBytes};

use super::MARKER;
use super::frame::{Scene, ends, payload};
use super::ip::{self, Ends, fill_sum};
use super::words::{Fields, Words, Wrong};

/// Offsets of the checksum in a TCP and in a UDP header, in bytes.
const TCP_SUM: usize = 16;
const UDP_SUM: usize = 6;
/// Kinds of TCP options (RFC 9293, section 3.2; RFC 7323; RFC 2018).
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const TIMESTAMP: u8 = 8;

pub(super) fn tcp(words: &mut Words<'_>, scene: &Scene<'_>, packet: Ends) -> Result<Vec<u8>, Wrong> {
    words.expect("tcp")?;
    let (src_port, dst_port): (u16, u16) = ends(words, "a port")?;
    let flags = flags(words.next("TCP flags")?)?;
    let fields = Fields::of(words, &["seq", "ack", "doff", "win", "sum", "options"])?;
    let options = match fields.text("options") {
        Some(list) if list.parse::<u8>().is_err() => options(list, scene)?,
        _ => vec![NOP; 4 * fields.number::<u8>("options", 0)? as usize],
    };
    let header = Tcp {
        src_port: src_port.into(),
        dst_port: dst_port.into(),
        seq: sequence(&fields, "seq", 1, scene)?.into(),
        ack: sequence(&fields, "ack", 0, scene)?.into(),
        data_offset: fields.number("doff", 5 + (options.len() / 4) as u8)? << 4,
        flags,
        window: fields.number("win", 64_000)?.into(),
        checksum: 0.into(),
        urgent: 0.into(),
    };
    let mut segment = [header.as_bytes(), &options, &payload(words)?].concat();
    let right = packet.pseudo(protocol::TCP, segment.len()).add_slice(&segment).ones_complement();
    fill_sum(&mut segment, TCP_SUM, &fields, right)?;
    Ok(segment)
}

/// Reads a number, or `cookie` or `cookie+N`, where `cookie` is the sequence number of the last SYN
/// cookie.
fn sequence(fields: &Fields<'_>, key: &str, right: u32, scene: &Scene<'_>) -> Result<u32, Wrong> {
    let made = scene.world.cookie.map(|cookie| cookie.number);
    let cookie = fields.text(key).and_then(|text| of_cookie(text, made));
    cookie.unwrap_or_else(|| fields.number(key, right))
}

/// Reads `cookie` or `cookie+N`, where `made` is the value of `cookie`: the sequence number or the
/// timestamp of the last SYN cookie. `None` for other texts.
fn of_cookie(text: &str, made: Option<u32>) -> Option<Result<u32, Wrong>> {
    let more = text.strip_prefix("cookie")?;
    let more: Result<u32, Wrong> = match more.strip_prefix('+') {
        Some(more) => more.parse().map_err(|_| format!("`{more}` is not a number")),
        None if more.is_empty() => Ok(0),
        None => Err(format!("`{text}` is neither `cookie` nor `cookie+N`")),
    };
    let made = made.ok_or_else(|| "no SYN came that could be answered with a cookie".to_owned());
    Some(made.and_then(|made| Ok(made.wrapping_add(more?))))
}

/// Reads options separated by commas: `mss:N`, `sack`, `ws:N`, `ts:N:N` (each N may be `cookie` or
/// `cookie+N`), `nop`, `end`, and literal `xNN...`. The options are padded
/// with zeros to a multiple of four bytes.
fn options(list: &str, scene: &Scene<'_>) -> Result<Vec<u8>, Wrong> {
    let mut bytes = Vec::new();
    for item in list.split(',') {
        let wrong = || format!("`{item}` is no option; mss:N, sack, ws:N, ts:N:N, nop, end and xNN are");
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        match item.split(':').collect::<Vec<_>>()[..] {
            ["mss", mss] => {
                let mss = u16::try_from(number(mss)?).map_err(|_| wrong())?;
                bytes.extend([&[MSS, 4][..], &mss.to_be_bytes()].concat());
            }
            ["sack"] => bytes.extend([SACK_PERMITTED, 2]),
            ["ws", scale] => bytes.extend([WINDOW_SCALE, 3, scale.parse().map_err(|_| wrong())?]),
            ["ts", clock_of, echo] => {
                let made = scene.world.cookie.map(|cookie| cookie.clock);
                let clock = |text| of_cookie(text, made).unwrap_or_else(|| number(text));
                bytes.extend([TIMESTAMP, 10]);
                bytes.extend([clock(clock_of)?.to_be_bytes(), clock(echo)?.to_be_bytes()].concat());
            }
            ["nop"] => bytes.push(NOP),
            ["end"] => bytes.push(0),
            [hex] if hex.starts_with('x') && hex.len() % 2 == 1 && hex.is_ascii() => {
                let digits = hex.as_bytes().get(1..).unwrap_or_default().as_chunks::<2>().0;
                for pair in digits {
                    let pair = str::from_utf8(pair).map_err(|_| wrong())?;
                    bytes.push(u8::from_str_radix(pair, 16).map_err(|_| wrong())?);
                }
            }
            _ => return Err(wrong()),
        }
    }
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    Ok(bytes)
}

pub(super) fn udp(words: &mut Words<'_>, scene: &Scene<'_>, packet: Ends) -> Result<Vec<u8>, Wrong> {
    words.expect("udp")?;
    let (src_port, dst_port): (u16, u16) = ends(words, "a port")?;
    let fields = Fields::of(words, &["len", "sum"])?;
    let tunnel = words.peek() == Some("gue");
    let payload = if tunnel { gue(words, scene, packet)? } else { payload(words)? };
    let len = size_of::<Udp>() + payload.len();
    let header = Udp {
        src_port: src_port.into(),
        dst_port: dst_port.into(),
        len: fields.number("len", len as u16)?.into(),
        checksum: 0.into(),
    };
    let mut datagram = [header.as_bytes(), &payload].concat();
    // inner packets have their own checksums
    let right = match tunnel {
        true => 0,
        false => packet.pseudo(protocol::UDP, len).add_slice(&datagram).to_ones_complement_with_no_zero(),
    };
    fill_sum(&mut datagram, UDP_SUM, &fields, right)?;
    Ok(datagram)
}

/// Reads a header of Generic UDP Encapsulation (draft-ietf-intarea-gue, section 3.1) and the packet
/// in it.
fn gue(words: &mut Words<'_>, scene: &Scene<'_>, outer: Ends) -> Result<Vec<u8>, Wrong> {
    words.expect("gue")?;
    let fields = Fields::of(words, &["version", "control", "hlen", "proto", "flags", "mark"])?;
    let (number, inner) = ip::inside(words, scene)?;
    let passed = match fields.text("mark") {
        None => None,
        Some("once") => Some(ForwardCount::Once),
        Some("twice") => Some(ForwardCount::Twice),
        Some(other) => return Err(format!("`mark={other}` is neither `once` nor `twice`")),
    };
    let mark = passed.map_or_else(Vec::new, |passed| mark(outer, &inner, passed));
    let (version, control) = (fields.number("version", 0u8)?, fields.number("control", 0u8)?);
    let first = version << 6 | control << 5 | fields.number("hlen", (mark.len() / 4) as u8)?;
    let flags = fields.number("flags", passed.map_or(0, ForwardCount::flags))?.to_be_bytes();
    let head = [first, fields.number("proto", number.unwrap_or(protocol::IPV4))?];
    Ok([&head[..], &flags, &mark, &inner].concat())
}

/// Returns the mark of a packet that is forwarded in a tunnel.
fn mark(outer: Ends, inner: &[u8], passed: ForwardCount) -> Vec<u8> {
    let inner = match (Ipv4::ref_from_prefix(inner), Ipv6::ref_from_prefix(inner)) {
        (_, Ok((ip, _))) if ip.version_class_flow.get() >> 28 == 6 => {
            (Ipv6Addr::from(ip.src).into(), Ipv6Addr::from(ip.dst).into())
        }
        (Ok((ip, _)), _) => {
            (Ipv4Addr::from_bits(ip.src.get()).into(), Ipv4Addr::from_bits(ip.dst.get()).into())
        }
        _ => return Vec::new(),
    };
    MARKER.mark(&mark::TunnelAddresses { outer: (outer.src, outer.dst), inner }, passed).to_vec()
}

/// Reads flags by their letters in `FSRPAUEC`; `.` alone for none.
fn flags(word: &str) -> Result<u8, Wrong> {
    const LETTERS: &str = "FSRPAUEC";
    let word = if word == "." { "" } else { word };
    word.chars().try_fold(0, |flags, letter| match LETTERS.find(letter) {
        Some(bit) => Ok(flags | 1 << bit),
        None => Err(format!("`{word}` are no TCP flags; their letters are {LETTERS}, and `.` is none")),
    })
}
