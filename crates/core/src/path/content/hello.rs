//! The server name (SNI) in a TLS ClientHello (RFC 8446, section 4.1.2; RFC 6066, section 3).
//!
//! With Encrypted Client Hello, the name is that of the outer hello, since the inner hello is
//! encrypted.

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::{HOST_MAX, PuntReason, RequestClass, RequestKey, is_name_byte};

/// Content type of handshake records (RFC 8446, section 5.1).
pub(super) const HANDSHAKE: u8 = 0x16;
/// Length of a record's header, in bytes.
const RECORD_HEADER: usize = 5;
/// Maximum length of a record with a hello, in bytes, header included. A hello is never encrypted,
/// so the limit of plaintext records applies (RFC 8446, section 5.1).
pub const HELLO_MAX: usize = RECORD_HEADER + RECORD_MAX;
/// Maximum length of a plaintext record's content, in bytes.
const RECORD_MAX: usize = 1 << 14;
/// Major version in the header of a record, which is the same since SSL 3.0.
const MAJOR: u8 = 3;
/// Length of a handshake message's header, in bytes: message type and length.
const MESSAGE_HEADER: usize = 4;
const CLIENT_HELLO: u8 = 1;
/// Length of the fields legacy_version and random, in bytes.
const VERSION_AND_RANDOM: usize = 2 + 32;
const SESSION_ID_MAX: usize = 32;
const SERVER_NAME: usize = 0;
const HOST_NAME: u8 = 0;

/// Reads a hello that is complete in one record of at most `limit` bytes. In the returned key the
/// host is the server name. Path and method are empty.
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
    // Up to TLS 1.2, extensions are optional (RFC 5246, section 7.4.1.2).
    let host = if hello.is_over() { &[] } else { extensions(&mut hello)? };
    Ok(RequestKey { class: RequestClass::Hello, host, path: &[], method: &[] })
}

/// Returns a cursor at the content of the hello. The hello must fill its record exactly. Fails with
/// [`PuntReason::Split`] if the hello continues in another record.
fn message(payload: &[u8], limit: usize) -> Result<Cursor<'_>, PuntReason> {
    let mut cursor = Cursor { payload, at: 0, end: RECORD_HEADER };
    odd_unless(cursor.u8()? == HANDSHAKE)?;
    odd_unless(cursor.u8()? == MAJOR)?;
    // The minor version of the record is ignored (RFC 8446, section 5.1; RFC 5246, appendix E.1).
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

/// Joins a hello that is split over several records (RFC 8446, section 5.1) into one record.
///
/// # Errors
/// [`PuntReason::Incomplete`] if more bytes are needed, [`PuntReason::Odd`] if the hello is
/// malformed or too long for one record.
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

/// Returns the server name from the extensions, which must fill the rest of the hello; empty if no
/// extension has a server name.
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

/// Returns the name in a server_name extension of `len` bytes, whose list of names must have
/// exactly one entry. Removes a trailing dot, since clients may send the host of their URL
/// unchanged, although RFC 6066, section 3, forbids the dot.
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

/// Position in a hello. `end` is the end of the hello by its length fields. The payload may end
/// before `end` if later segments have not arrived yet.
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
