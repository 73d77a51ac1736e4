//! Parser of queries. The input may be hostile, so every length is checked. Only the name is
//! copied.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::name::{Lowered, NAME_MAX};
use super::wire::{CLASS_ANY, CLASS_IN, HEADER_LEN, QR, Rcode, option, rtype};

/// Maximum number of additional records that are searched for the OPT record.
const ADDITIONAL_MAX: u16 = 8;

#[derive(Debug)]
pub(super) struct Query<'a> {
    /// Question in wire format.
    pub(super) question: &'a [u8],
    pub(super) name: Lowered,
    pub(super) rtype: u16,
    pub(super) class: u16,
    pub(super) edns: Option<Edns<'a>>,
    pub(super) signature: Option<Signature<'a>>,
}

/// Error of a query. If the query has an OPT record (`has_edns`), the answer must have one, too
/// (RFC 6891, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryError {
    pub(super) rcode: Rcode,
    pub(super) has_edns: bool,
}

/// TSIG record of a query (RFC 8945, section 4.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct Signature<'a> {
    message: &'a [u8],
    /// Offset of the key's name, which may be compressed.
    key_at: usize,
    /// Name of the algorithm.
    pub(super) algorithm: &'a [u8],
    /// Time of signing, and allowed clock difference.
    pub(super) time_fudge: &'a [u8; 8],
    /// Message ID at the time of signing.
    pub(super) id: [u8; 2],
}

impl Signature<'_> {
    /// Writes the key's name without compression, and returns its length.
    pub(super) fn key(&self, out: &mut [u8; NAME_MAX]) -> Option<usize> {
        expand(self.message, self.key_at, out)
    }
}

/// EDNS of a query (RFC 6891).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Edns<'a> {
    pub(super) udp_len: u16,
    pub(super) version: u8,
    /// True if the client requests signatures.
    pub(super) dnssec_ok: bool,
    pub(super) subnet: Option<Subnet>,
    /// Client cookie, and server cookie if present.
    pub(super) cookie: Option<(&'a [u8], &'a [u8])>,
    pub(super) wants_nsid: bool,
}

/// Client subnet of a resolver's query (RFC 7871).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subnet {
    /// Address; `None` for family 0, by which a client requests that its address is not used.
    pub(super) address: Option<IpAddr>,
    pub(super) prefix_len: u8,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) id: u16,
    pub(super) flags: u16,
}

/// Reads a message's header. `None` for messages that get no answer: bytes shorter than a header,
/// and responses.
pub(super) fn header(bytes: &[u8]) -> Option<Header> {
    let header = bytes.first_chunk::<HEADER_LEN>()?;
    let header = Header { id: word(header, 0)?, flags: word(header, 2)? };
    (header.flags & QR == 0).then_some(header)
}

/// Reads the message after its header.
pub(super) fn read<'a>(bytes: &'a [u8], header: Header) -> Result<Query<'a>, QueryError> {
    if header.flags >> 11 & 0xf != 0 {
        return Err(QueryError { rcode: Rcode::NotImp, has_edns: has_edns(bytes) });
    }
    // A malformed message is searched for an OPT record a second time.
    try_read(bytes).ok_or_else(|| QueryError { rcode: Rcode::FormErr, has_edns: has_edns(bytes) })
}

fn try_read(bytes: &[u8]) -> Option<Query<'_>> {
    let count = |at| word(bytes, at);
    // Exactly one question (RFC 9619), and no answer or authority records.
    if (count(4)?, count(6)?, count(8)?) != (1, 0, 0) || count(10)? > ADDITIONAL_MAX {
        return None;
    }
    let rest = bytes.get(HEADER_LEN..)?;
    let name = Lowered::read(rest)?;
    let (question, mut rest) = rest.split_at_checked(name.as_wire().len() + 4)?;
    let of_question = |at| word(question, name.as_wire().len() + at);
    let (rtype, class) = (of_question(0)?, of_question(2)?);
    let mut query = Query { question, name, rtype, class, edns: None, signature: None };
    for _ in 0..count(10)? {
        let (record, behind) = record(rest)?;
        // The signature must be the last record (RFC 8945, section 5.1).
        if query.signature.is_some() {
            return None;
        }
        match record.rtype {
            rtype::OPT if query.edns.is_none() && rest.first() == Some(&0) => {
                query.edns = Some(options_of(record.fixed, record.data)?);
            }
            rtype::OPT => return None,
            rtype::TSIG => query.signature = Some(signature(bytes, bytes.len() - rest.len(), &record)?),
            _ => {}
        }
        rest = behind;
    }
    // Bytes after the last record are an error.
    rest.is_empty().then_some(query)
}

/// True if a malformed message has an OPT record, as far as records can be parsed.
fn has_edns(bytes: &[u8]) -> bool {
    let look = || {
        let mut rest = bytes.get(HEADER_LEN..)?;
        for _ in 0..word(bytes, 4)?.min(ADDITIONAL_MAX) {
            let (_, behind) = skip_name(rest)?;
            rest = behind.get(4..)?;
        }
        let counts = [word(bytes, 6)?, word(bytes, 8)?, word(bytes, 10)?];
        let records: u32 = counts.map(u32::from).iter().sum();
        for _ in 0..records.min(u32::from(ADDITIONAL_MAX)) {
            let (is_root, _) = skip_name(rest)?;
            let (record, behind) = record(rest)?;
            if record.rtype == rtype::OPT {
                return is_root.then_some(());
            }
            rest = behind;
        }
        None
    };
    look().is_some()
}

impl Query<'_> {
    /// True for class IN or ANY.
    pub(super) fn is_internet(&self) -> bool {
        matches!(self.class, CLASS_IN | CLASS_ANY)
    }
}

/// A record without its name.
struct RecordFields<'a> {
    rtype: u16,
    /// Class, TTL and length.
    fixed: &'a [u8; 8],
    data: &'a [u8],
}

/// Returns the first record, and the bytes after it.
fn record(bytes: &[u8]) -> Option<(RecordFields<'_>, &[u8])> {
    let (_, behind_name) = skip_name(bytes)?;
    let (rtype, behind) = behind_name.split_first_chunk::<2>()?;
    let (fixed, behind) = behind.split_first_chunk::<8>()?;
    let len = usize::from(u16::from_be_bytes([fixed[6], fixed[7]]));
    let (data, rest) = behind.split_at_checked(len)?;
    Some((RecordFields { rtype: u16::from_be_bytes(*rtype), fixed, data }, rest))
}

/// Reads a TSIG record; `key_at` is the offset of the record. Class must be ANY and TTL 0 (RFC
/// 8945, section 4.2).
fn signature<'a>(message: &'a [u8], key_at: usize, record: &RecordFields<'a>) -> Option<Signature<'a>> {
    if record.fixed[..6] != [0, CLASS_ANY as u8, 0, 0, 0, 0] {
        return None;
    }
    expand(message, key_at, &mut [0; NAME_MAX])?;
    let (_, behind) = skip_name(record.data).filter(|_| Lowered::read(record.data).is_some())?;
    let algorithm = record.data.get(..record.data.len() - behind.len())?;
    let (time_fudge, behind) = behind.split_first_chunk::<8>()?;
    let mac = usize::from(word(behind, 0)?);
    let id = *behind.get(2 + mac..)?.first_chunk::<2>()?;
    let others = usize::from(word(behind, 2 + mac + 4)?);
    (behind.len() == 2 + mac + 6 + others).then_some(Signature { message, key_at, algorithm, time_fudge, id })
}

/// Writes a compressed name without compression, and returns its length. Pointers must lead
/// backwards.
fn expand(message: &[u8], mut at: usize, out: &mut [u8; NAME_MAX]) -> Option<usize> {
    let (mut len, mut begin) = (0, at);
    loop {
        let octet = *message.get(at)?;
        let taken = match octet {
            0..64 => 1 + usize::from(octet),
            0xc0.. => {
                let to = usize::from(word(message, at)? & 0x3fff);
                if to >= begin {
                    return None;
                }
                (at, begin) = (to, to);
                continue;
            }
            _ => return None,
        };
        out.get_mut(len..len + taken)?.copy_from_slice(message.get(at..at + taken)?);
        (len, at) = (len + taken, at + taken);
        if octet == 0 {
            return Some(len);
        }
    }
}

/// Skips a name. Returns true if it is the root.
fn skip_name(bytes: &[u8]) -> Option<(bool, &[u8])> {
    let (mut rest, mut is_root) = (bytes, true);
    loop {
        let (len, behind) = rest.split_first()?;
        match len {
            0 => return Some((is_root, behind)),
            1..64 => rest = behind.get(usize::from(*len)..)?,
            // A pointer ends a name. Its target does not matter here.
            0xc0.. => return Some((false, behind.get(1..)?)),
            _ => return None,
        }
        is_root = false;
    }
}

fn options_of<'a>(fixed: &[u8; 8], mut data: &'a [u8]) -> Option<Edns<'a>> {
    let [len_high, len_low, _, version, flags_high, ..] = *fixed;
    let mut edns = Edns {
        udp_len: u16::from_be_bytes([len_high, len_low]),
        version,
        dnssec_ok: flags_high & 0x80 != 0,
        ..Edns::default()
    };
    while !data.is_empty() {
        let (code, behind) = (word(data, 0)?, data.get(4..)?);
        let (value, rest) = behind.split_at_checked(usize::from(word(data, 2)?))?;
        data = rest;
        match code {
            option::NSID => edns.wants_nsid = true,
            option::SUBNET => edns.subnet = Some(subnet(value)?),
            option::COOKIE if matches!(value.len(), 8 | 16..=40) => edns.cookie = Some(value.split_at(8)),
            // Invalid length (RFC 7873, section 5.2.2).
            option::COOKIE => return None,
            _ => {}
        }
    }
    Some(edns)
}

/// Reads a client subnet. `None` if it is malformed, which is an error (RFC 7871, section 7.1.2).
/// Family 0 has no address.
fn subnet(value: &[u8]) -> Option<Subnet> {
    let (&[_, family, prefix_len, scope], address) = value.split_first_chunk::<4>()?;
    let is_whole = word(value, 0)? == u16::from(family) && scope == 0;
    let len = usize::from(prefix_len).div_ceil(8);
    let mut octets = [0; 16];
    octets.get_mut(..len)?.copy_from_slice(address.get(..len)?);
    let address: Option<IpAddr> = match family {
        0 if prefix_len == 0 => None,
        1 if prefix_len <= 32 => Some(Ipv4Addr::from(*octets.first_chunk::<4>()?).into()),
        2 if prefix_len <= 128 => Some(Ipv6Addr::from(octets).into()),
        _ => return None,
    };
    let is_cut = u128::from_be_bytes(octets).checked_shl(u32::from(prefix_len)).unwrap_or(0) == 0;
    (is_whole && is_cut && len + 4 == value.len()).then_some(Subnet { address, prefix_len })
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|two| u16::from_be_bytes(*two))
}
