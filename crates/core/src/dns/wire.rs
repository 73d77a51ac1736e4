//! The parts of messages, and the writer of one.

use super::name::parents;

/// Types of records, by number (IANA).
pub mod rtype {
    /// An IPv4 address.
    pub const A: u16 = 1;
    /// A server of a zone.
    pub const NS: u16 = 2;
    /// Another name for this one.
    pub const CNAME: u16 = 5;
    /// A zone's beginning.
    pub const SOA: u16 = 6;
    /// A host's kind; here that there is more than is told (RFC 8482).
    pub const HINFO: u16 = 13;
    /// The mail server of this name.
    pub const MX: u16 = 15;
    /// An IPv6 address.
    pub const AAAA: u16 = 28;
    /// Another name for all below this one.
    pub const DNAME: u16 = 39;
    /// The pseudo-record of EDNS (RFC 6891).
    pub const OPT: u16 = 41;
    /// The key of a zone below.
    pub const DS: u16 = 43;
    /// A signature of a set of records (RFC 4034).
    pub const RRSIG: u16 = 46;
    /// The next name, by which it is shown that there is none between (RFC 4034).
    pub const NSEC: u16 = 47;
    /// A key of the zone itself (RFC 4034).
    pub const DNSKEY: u16 = 48;
    /// The next name, hashed (RFC 5155).
    pub const NSEC3: u16 = 50;
    /// How names are hashed (RFC 5155).
    pub const NSEC3PARAM: u16 = 51;
    /// A service: where it is, and how it is spoken to (RFC 9460).
    pub const SVCB: u16 = 64;
    /// The same of a web site.
    pub const HTTPS: u16 = 65;
    /// A signature of the message (RFC 8945).
    pub const TSIG: u16 = 250;
    /// A zone's changes.
    pub const IXFR: u16 = 251;
    /// A whole zone.
    pub const AXFR: u16 = 252;
    /// All types.
    pub const ANY: u16 = 255;
}

/// The Internet.
pub(super) const CLASS_IN: u16 = 1;
/// Any class.
pub(super) const CLASS_ANY: u16 = 255;

pub(super) const HEADER_LEN: usize = 12;
/// Bits of the header's third and fourth octet.
pub(super) const QR: u16 = 1 << 15;
pub(super) const AA: u16 = 1 << 10;
pub(super) const TC: u16 = 1 << 9;
pub(super) const RD: u16 = 1 << 8;
/// Options of [`rtype::OPT`].
pub(super) mod option {
    pub(crate) const NSID: u16 = 3;
    pub(crate) const SUBNET: u16 = 8;
    pub(crate) const COOKIE: u16 = 10;
    pub(crate) const ERROR: u16 = 15;
}

/// The result of a query (RFC 1035, section 4.1.1; RFC 6891).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rcode {
    /// It was answered.
    NoError,
    /// It can't be read.
    FormErr,
    /// This server can't answer now.
    ServFail,
    /// There is no such name.
    NxDomain,
    /// That isn't done here.
    NotImp,
    /// It isn't answered here.
    Refused,
    /// It is signed by a key that isn't known here (RFC 8945).
    NotAuth,
    /// Of an EDNS version that isn't known here.
    BadVers,
}

impl Rcode {
    /// All of them, in order.
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

    /// Its number.
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

    /// In a word, for metrics and views.
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

/// There is no room for a record.
#[derive(Debug)]
pub(super) struct SizeExceeded;

/// The sections of records (RFC 1035, section 4.1).
#[derive(Clone, Copy)]
pub(super) enum RecordSection {
    Answer,
    Authority,
    Additional,
}

/// Writes a message: a question that was asked, and records.
pub(super) struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
    /// Where the records begin, and the question ends.
    records: usize,
    /// How long the question's name is.
    question_name: usize,
    counts: [u16; 3],
    written: WrittenNames,
}

impl<'a> Writer<'a> {
    /// Begins with a question as it came (none if it is empty), whose name has this length.
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

    /// Leaves so much room at the end; what was left before is given back.
    pub(super) fn reserve(&mut self, limit: usize) -> SizeLimit {
        SizeLimit { limit: limit.min(self.out.len()) }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Forgets all records.
    pub(super) fn clear(&mut self) {
        self.written.forget(self.records);
        (self.len, self.counts) = (self.records, [0; 3]);
    }

    /// One record; nothing of it where there is no room.
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

    /// One record of a zone, whose data is compressed where readers expect that (RFC 3597, section
    /// 4).
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

    /// Where the question has this name, or one that ends in it. An owner's letters are those of
    /// the question.
    fn in_question(&self, owner: &[u8]) -> Option<usize> {
        let question = self.out.get(HEADER_LEN..HEADER_LEN + self.question_name)?;
        // The root is shorter than a pointer.
        let mut places = parents(question).filter(|_| owner.len() > 1);
        let found = places.find(|name| name.eq_ignore_ascii_case(owner))?;
        Some(HEADER_LEN + question.len() - found.len())
    }

    /// Writes a name as it is, its end by a pointer where the same letters stand already (RFC 1035,
    /// section 4.1.4).
    fn put_name(&mut self, limit: SizeLimit, name: &[u8]) -> Result<(), SizeExceeded> {
        let begin = self.len;
        if self.written.count == 0 {
            // Most answers have no name but that one.
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

    /// Writes the header; how long the message is.
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
    /// A name, whose letters are the same in either case (RFC 4343).
    Name(&'d [u8]),
    /// Anything else.
    Octets(&'d [u8]),
}

/// The parts of well-formed data of a type, in their order: what stands before the names, those,
/// and the rest.
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

/// The octets before the names in the data of a type, and how many names there are.
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

/// Whether names in the data of a type may be compressed: in those of RFC 1035 alone, since whoever
/// doesn't know a type can't read names in it (RFC 3597, section 4).
fn is_compressed(rtype: u16) -> bool {
    matches!(rtype, rtype::NS..=9 | 12 | 14 | rtype::MX)
}

/// How many names are found again. Beyond that they are written out.
const WRITTEN_MAX: usize = 64;
/// Where pointers lead at most.
const POINTER_MAX: usize = 0x3fff;

/// Where names, and what is above them, stand in a message.
struct WrittenNames {
    /// Where each is, and how long it would be without compression: few that differ are equally
    /// long.
    places: [(u16, u8); WRITTEN_MAX],
    count: usize,
}

impl Default for WrittenNames {
    fn default() -> Self {
        WrittenNames { places: [(0, 0); WRITTEN_MAX], count: 0 }
    }
}

impl WrittenNames {
    /// Notes a name that stands at `at`, of which so many octets are new there.
    fn add(&mut self, name: &[u8], at: usize, new: usize) {
        for rest in parents(name).filter(|rest| rest.len() > 1) {
            let behind = name.len() - rest.len();
            let place =
                self.places.get_mut(self.count).filter(|_| behind < new && at + behind <= POINTER_MAX);
            let Some(place) = place else { return };
            // Both are below what was looked at just now, or by who read the name.
            *place = ((at + behind) as u16, rest.len() as u8);
            self.count += 1;
        }
    }

    /// Forgets what stood behind that.
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

/// Whether a message has a name there, letter by letter. Its pointers were written here, and lead
/// back.
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

/// How far records may go.
#[derive(Clone, Copy)]
pub(super) struct SizeLimit {
    limit: usize,
}
