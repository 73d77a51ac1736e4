//! Transports from words, and GUE, which looks like one.

use evener_core::wire::{Tcp, Udp, protocol};
use zerocopy::IntoBytes;

use super::frame::{Scene, ends, payload};
use super::ip::{self, Ends, fill_sum};
use super::words::{Fields, Words, Wrong};

/// Where the checksum stands in a TCP and in a UDP header, in bytes.
const TCP_SUM: usize = 16;
const UDP_SUM: usize = 6;
/// "No operation" (RFC 9293, section 3.1).
const NOP: u8 = 1;

pub(super) fn tcp(words: &mut Words<'_>, packet: Ends) -> Result<Vec<u8>, Wrong> {
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
    let right = packet.pseudo(protocol::TCP, segment.len()).add_slice(&segment).ones_complement();
    fill_sum(&mut segment, TCP_SUM, &fields, right)?;
    Ok(segment)
}

pub(super) fn udp(words: &mut Words<'_>, scene: &Scene<'_>, packet: Ends) -> Result<Vec<u8>, Wrong> {
    words.expect("udp")?;
    let (src_port, dst_port): (u16, u16) = ends(words, "a port")?;
    let fields = Fields::of(words, &["len", "sum"])?;
    let tunnel = words.peek() == Some("gue");
    let payload = if tunnel { gue(words, scene)? } else { payload(words)? };
    let len = size_of::<Udp>() + payload.len();
    let header = Udp {
        src_port: src_port.into(),
        dst_port: dst_port.into(),
        len: fields.number("len", len as u16)?.into(),
        checksum: 0.into(),
    };
    let mut datagram = [header.as_bytes(), &payload].concat();
    // what is inside a tunnel has checksums of its own
    let right = match tunnel {
        true => 0,
        false => packet.pseudo(protocol::UDP, len).add_slice(&datagram).to_ones_complement_with_no_zero(),
    };
    fill_sum(&mut datagram, UDP_SUM, &fields, right)?;
    Ok(datagram)
}

/// Generic UDP Encapsulation (draft-ietf-intarea-gue, section 3.1).
fn gue(words: &mut Words<'_>, scene: &Scene<'_>) -> Result<Vec<u8>, Wrong> {
    words.expect("gue")?;
    let fields = Fields::of(words, &["version", "control", "hlen", "proto", "flags"])?;
    let (number, inner) = ip::inside(words, scene)?;
    let (version, control) = (fields.number("version", 0u8)?, fields.number("control", 0u8)?);
    let first = version << 6 | control << 5 | fields.number("hlen", 0u8)?;
    let flags = fields.number("flags", 0u16)?.to_be_bytes();
    Ok([&[first, fields.number("proto", number.unwrap_or(protocol::IPV4))?], &flags[..], &inner].concat())
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
