//! The server's name in a TLS ClientHello (RFC 8446, section 4.1.2; RFC 6066, section 3).
//!
//! With encrypted hellos the name is the outer one, the only one that anybody on the way is to see.

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::{HOST_MAX, PuntReason, RequestClass, RequestKey, is_name_byte};

/// A record of the handshake (RFC 8446, section 5.1).
pub(super) const HANDSHAKE: u8 = 0x16;
/// Bytes before a record's content.
const RECORD_HEADER: usize = 5;
/// Bytes of the longest record that holds a hello: a hello is never encrypted (RFC 8446, section
/// 5.1).
pub const HELLO_MAX: usize = RECORD_HEADER + RECORD_MAX;
/// Bytes that a record may hold.
const RECORD_MAX: usize = 1 << 14;
/// The first half of every version's number since SSL 3.0.
const MAJOR: u8 = 3;
/// Bytes before a message's content: its kind and length.
const MESSAGE_HEADER: usize = 4;
const CLIENT_HELLO: u8 = 1;
/// The version that hellos of TLS 1.3 repeat from the past, and the client's random bytes.
const VERSION_AND_RANDOM: usize = 2 + 32;
const SESSION_ID_MAX: usize = 32;
const SERVER_NAME: usize = 0;
const HOST_NAME: u8 = 0;

/// Reads a hello that is whole in one record of at most `limit` bytes. A name comes without a path
/// and a method.
pub(super) fn read(payload: &[u8], limit: usize) -> Result<RequestKey<'_>, PuntReason> {
    let mut hello = message(payload, limit)?;
    hello.read_bytes(VERSION_AND_RANDOM)?;
    let session_id = hello.u8()?;
    odd_unless(usize::from(session_id) <= SESSION_ID_MAX)?;
    hello.read_bytes(session_id.into())?;
    let cipher_suites = hello.u16()?;
    hello.read_bytes(cipher_suites)?;
    let compression = hello.u8()?;
    hello.read_bytes(compression.into())?;
    // until TLS 1.2 a hello could do without extensions (RFC 5246, section 7.4.1.2)
    let host = if hello.is_over() { &[] } else { extensions(&mut hello)? };
    Ok(RequestKey { class: RequestClass::Hello, host, path: &[], method: &[] })
}

/// The inside of the message that the record is to hold, the whole of it and nothing else.
fn message(payload: &[u8], limit: usize) -> Result<Cursor<'_>, PuntReason> {
    let mut cursor = Cursor { payload, at: 0, end: RECORD_HEADER };
    odd_unless(cursor.u8()? == HANDSHAKE)?;
    odd_unless(cursor.u8()? == MAJOR)?;
    // The other half of the version means nothing here (RFC 8446, section 5.1; RFC 5246, appendix
    // E.1).
    cursor.u8()?;
    let record_len = cursor.u16()?;
    if (1..MESSAGE_HEADER).contains(&record_len) {
        return Err(PuntReason::Split);
    }
    cursor.end = RECORD_HEADER + record_len;
    odd_unless(cursor.end <= limit.min(HELLO_MAX))?;
    odd_unless(cursor.u8()? == CLIENT_HELLO)?;
    let len = usize::from(cursor.u8()?) << 16 | cursor.u16()?;
    match (cursor.at + len).cmp(&cursor.end) {
        Ordering::Greater => Err(PuntReason::Split),
        Ordering::Less => Err(PuntReason::Odd),
        Ordering::Equal => Ok(cursor),
    }
}

/// A hello that comes in several records (RFC 8446, section 5.1), in one.
///
/// # Errors
/// Why there is none: it isn't whole yet, or odd.
pub fn joined(payload: &[u8]) -> Result<Vec<u8>, PuntReason> {
    let (mut message, mut rest) = (Vec::new(), payload);
    loop {
        odd_unless(rest.first().is_none_or(|kind| *kind == HANDSHAKE))?;
        odd_unless(rest.get(1).is_none_or(|major| *major == MAJOR))?;
        let (header, behind) = rest.split_first_chunk::<RECORD_HEADER>().ok_or(PuntReason::Incomplete)?;
        let record_len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        odd_unless((1..=RECORD_MAX).contains(&record_len))?;
        message.extend_from_slice(behind.get(..record_len).unwrap_or(behind));
        if let Some(&[kind, high, middle, low]) = message.first_chunk::<MESSAGE_HEADER>() {
            let len = MESSAGE_HEADER + u32::from_be_bytes([0, high, middle, low]) as usize;
            odd_unless(kind == CLIENT_HELLO && len <= RECORD_MAX && message.len() <= len)?;
            if message.len() == len && behind.len() >= record_len {
                let [high, low] = (len as u16).to_be_bytes();
                return Ok([&[HANDSHAKE, MAJOR, 1, high, low][..], &message].concat());
            }
        }
        rest = behind.get(record_len..).ok_or(PuntReason::Incomplete)?;
    }
}

/// The server's name among all extensions, which fill the rest; empty if it is none of them.
fn extensions<'a>(hello: &mut Cursor<'a>) -> Result<&'a [u8], PuntReason> {
    let len = hello.u16()?;
    odd_unless(hello.at + len == hello.end)?;
    let mut host = None;
    while !hello.is_over() {
        let (kind, len) = (hello.u16()?, hello.u16()?);
        if kind == SERVER_NAME {
            odd_unless(host.is_none())?;
            host = Some(server_name(hello, len)?);
        } else {
            hello.read_bytes(len)?;
        }
    }
    Ok(host.unwrap_or_default())
}

/// The one name of the list that the extension of `len` bytes is, without a dot at its end: clients
/// send what their URL has, though RFC 6066, section 3, wants none.
fn server_name<'a>(hello: &mut Cursor<'a>, len: usize) -> Result<&'a [u8], PuntReason> {
    let end = hello.at + len;
    odd_unless(hello.u16()? + 2 == len)?;
    odd_unless(hello.u8()? == HOST_NAME)?;
    let name = hello.u16()?;
    odd_unless(hello.at + name == end)?;
    odd_unless(name <= HOST_MAX + 1)?;
    let name = hello.read_bytes(name)?;
    let name = name.strip_suffix(b".").unwrap_or(name);
    odd_unless((1..=HOST_MAX).contains(&name.len()))?;
    odd_unless(name.iter().copied().all(is_name_byte) && name.last() != Some(&b'.'))?;
    Ok(name)
}

fn odd_unless(good: bool) -> Result<(), PuntReason> {
    if good { Ok(()) } else { Err(PuntReason::Odd) }
}

/// Bytes up to an end that they claim themselves and that may not have come yet.
struct Cursor<'a> {
    payload: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Cursor<'a> {
    fn read_bytes(&mut self, len: usize) -> Result<&'a [u8], PuntReason> {
        let end = self.at + len;
        odd_unless(end <= self.end)?;
        let bytes = self.payload.get(self.at..end).ok_or(PuntReason::Incomplete)?;
        self.at = end;
        Ok(bytes)
    }

    fn u8(&mut self) -> Result<u8, PuntReason> {
        let bytes = self.read_bytes(1)?;
        bytes.first().copied().ok_or(PuntReason::Incomplete)
    }

    fn u16(&mut self) -> Result<usize, PuntReason> {
        let (high, low) = (self.u8()?, self.u8()?);
        Ok(u16::from_be_bytes([high, low]).into())
    }

    fn is_over(&self) -> bool {
        self.at == self.end
    }
}
