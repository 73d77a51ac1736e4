//! Record types and codes, and the writer of messages.

use super::name::parents;

/// Numbers of record types, assigned by IANA.
pub mod rtype {
    pub const A: u16 = 1;
    /// Name server of a zone.
    pub const NS: u16 = 2;
    /// Alias of another name.
    pub const CNAME: u16 = 5;
    /// Start of a zone.
    pub const SOA: u16 = 6;
    /// Host information; used for ANY queries (RFC 8482).
    pub const HINFO: u16 = 13;
    pub const MX: u16 = 15;
    pub const AAAA: u16 = 28;
    /// Alias of a subtree.
    pub const DNAME: u16 = 39;
    /// EDNS pseudo-record (RFC 6891).
    pub const OPT: u16 = 41;
    /// Delegation signer, in the parent zone.
    pub const DS: u16 = 43;
    /// Signature of a set of records (RFC 4034).
    pub const RRSIG: u16 = 46;
    /// Next name, for authenticated denial (RFC 4034).
    pub const NSEC: u16 = 47;
    /// Key of the zone (RFC 4034).
    pub const DNSKEY: u16 = 48;
    /// Next hashed name (RFC 5155).
    pub const NSEC3: u16 = 50;
    /// Parameters of hashed names (RFC 5155).
    pub const NSEC3PARAM: u16 = 51;
    /// Service binding (RFC 9460).
    pub const SVCB: u16 = 64;
    /// Service binding of a web site (RFC 9460).
    pub const HTTPS: u16 = 65;
    /// Signature of the message (RFC 8945).
    pub const TSIG: u16 = 250;
    pub const IXFR: u16 = 251;
    pub const AXFR: u16 = 252;
    /// Query for all types.
    pub const ANY: u16 = 255;
}

pub(super) const CLASS_IN: u16 = 1;
pub(super) const CLASS_ANY: u16 = 255;

pub(super) const HEADER_LEN: usize = 12;
pub(super) const QR: u16 = 1 << 15;
pub(super) const AA: u16 = 1 << 10;
pub(super) const TC: u16 = 1 << 9;
pub(super) const RD: u16 = 1 << 8;
pub(super) mod option {
    pub(crate) const NSID: u16 = 3;
    pub(crate) const SUBNET: u16 = 8;
    pub(crate) const COOKIE: u16 = 10;
    pub(crate) const ERROR: u16 = 15;
}

/// Response code (RFC 1035, section 4.1.1; RFC 6891).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rcode {
    NoError,
    FormErr,
    /// Temporary failure of this server.
    ServFail,
    /// The name does not exist.
    NxDomain,
    NotImp,
    /// The query is not answered by this server.
    Refused,
    /// The key of the query's signature is unknown (RFC 8945).
    NotAuth,
    BadVers,
}

impl Rcode {
    /// All codes, in order.
    pub const ALL: [Rcode; 8] = [
        Rcode::NoError,
        Rcode::FormErr,
        Rcode::ServFail,
        Rcode::NxDomain,
        Rcode::NotImp,
        Rcode::Refused,
        Rcode::NotAuth,
        Rcode::BadVers,
    ];

    pub const fn code(self) -> u16 {
        match self {
            Rcode::NoError => 0,
            Rcode::FormErr => 1,
            Rcode::ServFail => 2,
            Rcode::NxDomain => 3,
            Rcode::NotImp => 4,
            Rcode::Refused => 5,
            Rcode::NotAuth => 9,
            Rcode::BadVers => 16,
        }
    }

    /// Name in metrics and status output.
    pub const fn name(self) -> &'static str {
        match self {
            Rcode::NoError => "noerror",
            Rcode::FormErr => "formerr",
            Rcode::ServFail => "servfail",
            Rcode::NxDomain => "nxdomain",
            Rcode::NotImp => "notimp",
            Rcode::Refused => "refused",
            Rcode::NotAuth => "notauth",
            Rcode::BadVers => "badvers",
        }
    }
}

/// Error: the message has no room for a record.
#[derive(Debug)]
pub(super) struct SizeExceeded;

/// Sections of records (RFC 1035, section 4.1).
#[derive(Clone, Copy)]
pub(super) enum RecordSection {
    Answer,
    Authority,
    Additional,
}

/// Writer of a message: a question and records.
pub(super) struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
    /// Offset of the first record, after the question.
    records: usize,
    /// Length of the question's name.
    question_name: usize,
    counts: [u16; 3],
    written: WrittenNames,
}

impl<'a> Writer<'a> {
    /// Starts a message with a question in wire format, which may be empty. `question_name` is the
    /// length of the question's name.
    pub(super) fn begin(
        out: &'a mut [u8],
        question: &[u8],
        name_len: usize,
    ) -> Result<Writer<'a>, SizeExceeded> {
        let records = HEADER_LEN + question.len();
        out.get_mut(HEADER_LEN..records).ok_or(SizeExceeded)?.copy_from_slice(question);
        let written = WrittenNames::default();
        Ok(Writer { out, len: records, records, question_name: name_len, counts: [0; 3], written })
    }

    /// Limits the length of the message to `limit`.
    pub(super) fn reserve(&mut self, limit: usize) -> SizeLimit {
        SizeLimit { limit: limit.min(self.out.len()) }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn clear(&mut self) {
        self.written.forget(self.records);
        (self.len, self.counts) = (self.records, [0; 3]);
    }

    /// Writes one record completely, or nothing if there is no room.
    pub(super) fn record(
        &mut self,
        limit: SizeLimit,
        place: RecordSection,
        owner: &[u8],
        kind: (u16, u16),
        ttl: u32,
        data: &[&[u8]],
    ) -> Result<(), SizeExceeded> {
        self.write(limit, place, owner, kind, ttl, |writer| {
            data.iter().try_for_each(|part| writer.write_bytes(limit, part))
        })
    }

    /// Writes one record of a zone. Names in the data are compressed for those types in which
    /// readers expect compression (RFC 3597, section 4).
    pub(super) fn stored(
        &mut self,
        limit: SizeLimit,
        place: RecordSection,
        owner: &[u8],
        rtype: u16,
        ttl: u32,
        data: &[u8],
    ) -> Result<(), SizeExceeded> {
        self.write(limit, place, owner, (rtype, CLASS_IN), ttl, |writer| {
            parts(rtype, data).try_for_each(|part| match part {
                RdataPart::Name(name) if is_compressed(rtype) => writer.put_name(limit, name),
                RdataPart::Name(part) | RdataPart::Octets(part) => writer.write_bytes(limit, part),
            })
        })
    }

    fn write(
        &mut self,
        limit: SizeLimit,
        place: RecordSection,
        owner: &[u8],
        kind: (u16, u16),
        ttl: u32,
        data: impl FnOnce(&mut Self) -> Result<(), SizeExceeded>,
    ) -> Result<(), SizeExceeded> {
        let before = self.len;
        let written = self.try_write(limit, owner, kind, ttl, data);
        match written {
            Ok(()) => self.counts[place as usize] += 1,
            Err(SizeExceeded) => {
                self.written.forget(before);
                self.len = before;
            }
        }
        written
    }

    fn try_write(
        &mut self,
        limit: SizeLimit,
        owner: &[u8],
        (rtype, class): (u16, u16),
        ttl: u32,
        data: impl FnOnce(&mut Self) -> Result<(), SizeExceeded>,
    ) -> Result<(), SizeExceeded> {
        match self.in_question(owner) {
            Some(at) => self.write_bytes(limit, &pointer(at))?,
            None => self.put_name(limit, owner)?,
        }
        self.write_bytes(limit, &rtype.to_be_bytes())?;
        self.write_bytes(limit, &class.to_be_bytes())?;
        self.write_bytes(limit, &ttl.to_be_bytes())?;
        let len_at = self.len;
        self.write_bytes(limit, &[0, 0])?;
        data(self)?;
        let len = u16::try_from(self.len - len_at - 2).map_err(|_| SizeExceeded)?;
        let place = self.out.get_mut(len_at..len_at + 2).ok_or(SizeExceeded)?;
        place.copy_from_slice(&len.to_be_bytes());
        Ok(())
    }

    /// Returns the offset of a name in the question, or of a parent of it. The question's letter
    /// case is used for the owner.
    fn in_question(&self, owner: &[u8]) -> Option<usize> {
        let question = self.out.get(HEADER_LEN..HEADER_LEN + self.question_name)?;
        // The root is not replaced, since a pointer is longer than the root.
        let mut places = parents(question).filter(|_| owner.len() > 1);
        let found = places.find(|name| name.eq_ignore_ascii_case(owner))?;
        Some(HEADER_LEN + question.len() - found.len())
    }

    /// Writes a name, with a pointer for a suffix that was written with the same letter case (RFC
    /// 1035, section 4.1.4).
    fn put_name(&mut self, limit: SizeLimit, name: &[u8]) -> Result<(), SizeExceeded> {
        let begin = self.len;
        if self.written.count == 0 {
            // The question's name is added only now, since most answers need no pointer to another
            // name.
            let question = self.out.get(HEADER_LEN..HEADER_LEN + self.question_name).ok_or(SizeExceeded)?;
            self.written.add(question, HEADER_LEN, question.len());
        }
        for rest in parents(name).filter(|rest| rest.len() > 1) {
            if let Some(at) = self.written.find(self.out, rest) {
                let new = name.len() - rest.len();
                self.write_bytes(limit, name.get(..new).ok_or(SizeExceeded)?)?;
                self.write_bytes(limit, &pointer(at))?;
                self.written.add(name, begin, new);
                return Ok(());
            }
        }
        self.write_bytes(limit, name)?;
        self.written.add(name, begin, name.len());
        Ok(())
    }

    fn write_bytes(&mut self, limit: SizeLimit, bytes: &[u8]) -> Result<(), SizeExceeded> {
        let end = self.len + bytes.len();
        if end > limit.limit {
            return Err(SizeExceeded);
        }
        self.out.get_mut(self.len..end).ok_or(SizeExceeded)?.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }

    /// Writes the header, and returns the message's length.
    pub(super) fn finish(self, id: u16, flags: u16) -> usize {
        let question = u16::from(self.records > HEADER_LEN);
        let words = [id, flags, question, self.counts[0], self.counts[1], self.counts[2]];
        for (place, word) in self.out.chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        self.len
    }
}

fn pointer(at: usize) -> [u8; 2] {
    (0xc000 | at as u16).to_be_bytes()
}

/// A part of a record's data.
#[derive(Clone, Copy, Debug)]
pub(super) enum RdataPart<'d> {
    /// A name, which is case-insensitive (RFC 4343).
    Name(&'d [u8]),
    /// Bytes without domain names.
    Octets(&'d [u8]),
}

/// Splits well-formed data of a type into the bytes before the names, the names, and the rest.
pub(super) fn parts(rtype: u16, data: &[u8]) -> impl Iterator<Item = RdataPart<'_>> {
    let (before, names) = names_in(rtype);
    let (before, mut rest) = data.split_at_checked(before).unwrap_or((data, &[]));
    let names: [Option<&[u8]>; 2] = core::array::from_fn(|at| {
        let root = parents(rest).last().filter(|_| at < names)?;
        let (name, behind) = rest.split_at_checked(rest.len() - root.len() + 1)?;
        rest = behind;
        Some(name)
    });
    let names = names.into_iter().flatten().map(RdataPart::Name);
    core::iter::once(RdataPart::Octets(before)).chain(names).chain([RdataPart::Octets(rest)])
}

/// Returns the number of bytes before the names in the data of a type, and the number of names.
fn names_in(rtype: u16) -> (usize, usize) {
    match rtype {
        // NS, MD, MF, CNAME, MB, MG, MR, PTR, DNAME
        rtype::NS | 3 | 4 | rtype::CNAME | 7 | 8 | 9 | 12 | rtype::DNAME => (0, 1),
        // SOA, MINFO, RP
        rtype::SOA | 14 | 17 => (0, 2),
        // MX, AFSDB, RT, KX
        rtype::MX | 18 | 21 | 36 => (2, 1),
        // SRV
        33 => (6, 1),
        _ => (0, 0),
    }
}

/// True if names in the data of a type may be compressed: only in types of RFC 1035, since readers
/// can't decompress unknown types (RFC 3597, section 4).
fn is_compressed(rtype: u16) -> bool {
    matches!(rtype, rtype::NS..=9 | 12 | 14 | rtype::MX)
}

/// Maximum number of names to which pointers may lead. Later names get no pointers.
const WRITTEN_MAX: usize = 64;
/// Maximum offset of a pointer.
const POINTER_MAX: usize = 0x3fff;

/// Offsets of names and their parents in a message.
struct WrittenNames {
    /// Offset and uncompressed length of each name. The length is compared first, since different
    /// names rarely have the same length.
    places: [(u16, u8); WRITTEN_MAX],
    count: usize,
}

impl Default for WrittenNames {
    fn default() -> Self {
        WrittenNames { places: [(0, 0); WRITTEN_MAX], count: 0 }
    }
}

impl WrittenNames {
    /// Adds a name at offset `at`. Its first `new` bytes were written there, and the rest is a
    /// pointer.
    fn add(&mut self, name: &[u8], at: usize, new: usize) {
        for rest in parents(name).filter(|rest| rest.len() > 1) {
            let behind = name.len() - rest.len();
            let place =
                self.places.get_mut(self.count).filter(|_| behind < new && at + behind <= POINTER_MAX);
            let Some(place) = place else { return };
            // Offset and length fit, as checked above and by the parser of the name.
            *place = ((at + behind) as u16, rest.len() as u8);
            self.count += 1;
        }
    }

    /// Removes names at or after this offset.
    fn forget(&mut self, len: usize) {
        let count = self.places.iter().take(self.count).take_while(|(at, _)| usize::from(*at) < len).count();
        self.count = count;
    }

    fn find(&self, message: &[u8], name: &[u8]) -> Option<usize> {
        let known = self.places.get(..self.count)?.iter();
        let mut long = known.filter(|(_, len)| usize::from(*len) == name.len());
        long.find(|(at, _)| is_at(message, usize::from(*at), name)).map(|(at, _)| usize::from(*at))
    }
}

/// True if the message has this name at an offset, with the same letter case. All pointers come
/// from this writer, so they lead backwards.
fn is_at(message: &[u8], mut at: usize, name: &[u8]) -> bool {
    for rest in parents(name) {
        let Some(label) = rest.first().and_then(|len| rest.get(..=usize::from(*len))) else { return false };
        while let Some(&[high, low]) = message.get(at..).and_then(|rest| rest.first_chunk::<2>())
            && high >= 0xc0
        {
            at = usize::from(u16::from_be_bytes([high & 0x3f, low]));
        }
        if message.get(at..at + label.len()) != Some(label) {
            return false;
        }
        at += label.len();
    }
    true
}

/// Limit of the message's length.
#[derive(Clone, Copy)]
pub(super) struct SizeLimit {
    limit: usize,
}
