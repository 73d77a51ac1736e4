//! A query, as far as it can be read. Hostile until read: every length is looked at, nothing is copied but the name.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::name::{NAME_MAX, lower};
use super::wire::{CLASS_ANY, CLASS_IN, HEADER_LEN, QR, Rcode, option, rtype};

/// The most records that are looked through for the one of EDNS.
const ADDITIONAL_MAX: u16 = 8;

/// A query that can be answered.
#[derive(Debug)]
pub(super) struct Query<'a> {
    /// The question as it came.
    pub(super) question: &'a [u8],
    name: [u8; NAME_MAX],
    name_len: usize,
    pub(super) rtype: u16,
    pub(super) class: u16,
    pub(super) edns: Option<Edns<'a>>,
}

/// What a client says about messages (RFC 6891).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Edns<'a> {
    pub(super) udp_len: u16,
    pub(super) version: u8,
    /// Whether it wants signatures.
    pub(super) dnssec_ok: bool,
    pub(super) subnet: Option<Subnet>,
    /// The client's own cookie and, if it has one, this server's.
    pub(super) cookie: Option<(&'a [u8], &'a [u8])>,
    pub(super) wants_nsid: bool,
}

/// For which clients a resolver asks (RFC 7871).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subnet {
    pub(super) address: IpAddr,
    pub(super) prefix_len: u8,
}

/// A message's first octets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) id: u16,
    pub(super) flags: u16,
}

impl Query<'_> {
    /// What is asked for, in lower case.
    pub(super) fn name(&self) -> &[u8] {
        self.name.get(..self.name_len).unwrap_or_default()
    }
}

/// Reads a message's header; `None` for what must not be answered: what is no message, and answers.
pub(super) fn header(bytes: &[u8]) -> Option<Header> {
    let header = bytes.first_chunk::<HEADER_LEN>()?;
    let header = Header { id: word(header, 0)?, flags: word(header, 2)? };
    (header.flags & QR == 0).then_some(header)
}

/// Reads what is behind it.
pub(super) fn read<'a>(bytes: &'a [u8], header: Header) -> Result<Query<'a>, Rcode> {
    if header.flags >> 11 & 0xf != 0 {
        return Err(Rcode::NotImp);
    }
    let count = |at| word(bytes, at).ok_or(Rcode::FormErr);
    // One question (RFC 9619), and nothing that only answers have.
    if (count(4)?, count(6)?, count(8)?) != (1, 0, 0) || count(10)? > ADDITIONAL_MAX {
        return Err(Rcode::FormErr);
    }
    let rest = bytes.get(HEADER_LEN..).ok_or(Rcode::FormErr)?;
    let mut name = [0; NAME_MAX];
    let len = rest.len().min(NAME_MAX);
    name[..len].copy_from_slice(&rest[..len]);
    let name_len = lower(&mut name[..len]).ok_or(Rcode::FormErr)?;
    let (question, mut rest) = rest.split_at_checked(name_len + 4).ok_or(Rcode::FormErr)?;
    let of_question = |at| word(question, name_len + at).ok_or(Rcode::FormErr);
    let (rtype, class) = (of_question(0)?, of_question(2)?);
    let mut edns = None;
    for _ in 0..count(10)? {
        let (read, behind) = additional(rest).ok_or(Rcode::FormErr)?;
        rest = behind;
        if let Some((fixed, options)) = read {
            if edns.is_some() {
                return Err(Rcode::FormErr);
            }
            edns = Some(options_of(fixed, options).ok_or(Rcode::FormErr)?);
        }
    }
    // What is behind the message is nobody's.
    if !rest.is_empty() {
        return Err(Rcode::FormErr);
    }
    Ok(Query { question, name, name_len, rtype, class, edns })
}

impl Query<'_> {
    /// Whether it is about the Internet.
    pub(super) fn is_internet(&self) -> bool {
        matches!(self.class, CLASS_IN | CLASS_ANY)
    }
}

/// A record's numbers and data.
type Fields<'a> = (&'a [u8; 8], &'a [u8]);

/// The first of these records, if it is that of EDNS, and what is behind it.
fn additional(bytes: &[u8]) -> Option<(Option<Fields<'_>>, &[u8])> {
    let (is_root, behind_name) = skip_name(bytes)?;
    let (rtype, behind) = behind_name.split_first_chunk::<2>()?;
    let is_edns = u16::from_be_bytes(*rtype) == rtype::OPT;
    if is_edns && !is_root {
        return None;
    }
    let (fixed, behind) = behind.split_first_chunk::<8>()?;
    let len = usize::from(u16::from_be_bytes([fixed[6], fixed[7]]));
    let (data, rest) = behind.split_at_checked(len)?;
    Some((is_edns.then_some((fixed, data)), rest))
}

/// Goes by a name; whether it is the root.
fn skip_name(bytes: &[u8]) -> Option<(bool, &[u8])> {
    let (mut rest, mut is_root) = (bytes, true);
    loop {
        let (len, behind) = rest.split_first()?;
        match len {
            0 => return Some((is_root, behind)),
            1..64 => rest = behind.get(usize::from(*len)..)?,
            // A pointer ends a name; where it leads is no matter here.
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
            // RFC 7873, section 5.2.2.
            option::COOKIE => return None,
            _ => {}
        }
    }
    Some(edns)
}

/// RFC 7871, section 7.1.2: what isn't well-formed is an error.
fn subnet(value: &[u8]) -> Option<Subnet> {
    let (&[_, family, prefix_len, scope], address) = value.split_first_chunk::<4>()?;
    let is_whole = word(value, 0)? == u16::from(family) && scope == 0;
    let len = usize::from(prefix_len).div_ceil(8);
    let mut octets = [0; 16];
    octets.get_mut(..len)?.copy_from_slice(address.get(..len)?);
    let address: IpAddr = match family {
        1 if prefix_len <= 32 => Ipv4Addr::from(*octets.first_chunk::<4>()?).into(),
        2 if prefix_len <= 128 => Ipv6Addr::from(octets).into(),
        _ => return None,
    };
    let is_cut = u128::from_be_bytes(octets).checked_shl(u32::from(prefix_len)).unwrap_or(0) == 0;
    (is_whole && is_cut && len + 4 == value.len()).then_some(Subnet { address, prefix_len })
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|two| u16::from_be_bytes(*two))
}
