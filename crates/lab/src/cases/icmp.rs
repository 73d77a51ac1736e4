//! Encodes ICMP and ICMPv6 messages from words. Errors quote a packet.

use std::net::Ipv6Addr;

use etherparse::checksum::Sum16BitWords;
use evener_core::net::wire::{Icmp, icmp as kinds4, icmpv6 as kinds6, protocol};
use zerocopy::IntoBytes;

use super::frame::Scene;
use super::ip::{self, Ends, fill_sum};
use super::words::{Fields, Words, Wrong};

/// Offset of the checksum in bytes.
const SUM: usize = 2;
/// Fields of every message; `cut` shortens the quoted packet.
const KNOWN: [&str; 9] = ["type", "code", "sum", "id", "seq", "mtu", "rest", "cut", "flags"];
/// ICMPv6 type that differs from ICMP's (RFC 4443, section 3.3).
const TIME_EXCEEDED6: u8 = 3;

pub(super) fn v4(words: &mut Words<'_>, scene: &Scene<'_>) -> Result<Vec<u8>, Wrong> {
    words.expect("icmp")?;
    let (kind, code) = match words.next("a kind of ICMP message")? {
        "echo" => (kinds4::ECHO, 0),
        "echo-reply" => (kinds4::ECHO_REPLY, 0),
        "unreach" => (kinds4::UNREACHABLE, 1),
        "too-big" => (kinds4::UNREACHABLE, kinds4::FRAGMENTATION_NEEDED),
        "time-exceeded" => (kinds4::TIME_EXCEEDED, 0),
        "parameter-problem" => (kinds4::PARAMETER_PROBLEM, 0),
        "other" => (13, 0),
        other => return Err(no_kind(other, "")),
    };
    let fields = Fields::of(words, &KNOWN)?;
    let mut message = head(&fields, kind, code)?;
    message.extend(quote(words, scene, &fields)?);
    let right = Sum16BitWords::new().add_slice(&message).ones_complement();
    fill_sum(&mut message, SUM, &fields, right)?;
    Ok(message)
}

pub(super) fn v6(words: &mut Words<'_>, scene: &Scene<'_>, packet: Ends) -> Result<Vec<u8>, Wrong> {
    words.expect("icmp")?;
    let word = words.next("a kind of ICMPv6 message")?;
    let (kind, code) = match word {
        "echo" => (kinds6::ECHO, 0),
        "echo-reply" => (kinds6::ECHO_REPLY, 0),
        "unreach" => (kinds6::UNREACHABLE, 3),
        "too-big" => (kinds6::TOO_BIG, 0),
        "time-exceeded" => (TIME_EXCEEDED6, 0),
        "parameter-problem" => (kinds6::PARAMETER_PROBLEM, 0),
        "ns" => (kinds6::NEIGHBOUR_SOLICITATION, 0),
        "na" => (kinds6::NEIGHBOUR_ADVERTISEMENT, 0),
        "other" => (133, 0),
        other => return Err(no_kind(other, ", ns, na")),
    };
    let target = match word {
        "ns" | "na" => Some(words.parse::<Ipv6Addr>("an IPv6 address")?),
        _ => None,
    };
    let fields = Fields::of(words, &[&KNOWN[..], &["source-mac", "target-mac"]].concat())?;
    let mut message = head(&fields, kind, code)?;
    message.extend(target.map(|target| target.octets()).into_iter().flatten());
    for (option, key) in [(1, "source-mac"), (2, "target-mac")] {
        if let Some(word) = fields.text(key) {
            // the option's length is one, in units of eight bytes (RFC 4861, section 4.6.1)
            message.extend([option, 1]);
            message.extend(scene.world.mac(word)?.as_bytes());
        }
    }
    message.extend(quote(words, scene, &fields)?);
    let right = packet.pseudo(protocol::ICMPV6, message.len()).add_slice(&message).ones_complement();
    fill_sum(&mut message, SUM, &fields, right)?;
    Ok(message)
}

fn no_kind(word: &str, more: &str) -> Wrong {
    format!(
        "`{word}` is no ICMP message here; there are echo, echo-reply, unreach, too-big, time-exceeded, \
         parameter-problem, other{more}"
    )
}

fn head(fields: &Fields<'_>, kind: u8, code: u8) -> Result<Vec<u8>, Wrong> {
    let echo = fields.number("id", 0u32)? << 16 | fields.number("seq", 0u32)?;
    let flags = fields.text("flags").map_or(Ok(0), advertised)?;
    let header = Icmp {
        kind: fields.number("type", kind)?,
        code: fields.number("code", code)?,
        checksum: 0.into(),
        rest: fields.number("rest", echo | flags | fields.number("mtu", 0u32)?)?.into(),
    };
    Ok(header.as_bytes().to_vec())
}

/// Reads the flags of an advertisement: router, solicited, override (RFC 4861, section 4.4).
fn advertised(word: &str) -> Result<u32, Wrong> {
    word.chars().try_fold(0, |flags, letter| match "RSO".find(letter) {
        Some(bit) => Ok(flags | 1 << (31 - bit)),
        None => Err(format!("`{word}` are no flags of an advertisement; their letters are RSO")),
    })
}

/// Reads the packet that an error quotes, or another payload.
fn quote(words: &mut Words<'_>, scene: &Scene<'_>, fields: &Fields<'_>) -> Result<Vec<u8>, Wrong> {
    let (_, mut bytes) = ip::inside(words, scene)?;
    bytes.truncate(fields.number("cut", bytes.len() as u32)? as usize);
    Ok(bytes)
}
