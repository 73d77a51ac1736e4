//! What messages are made of, and the writer of one.

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
    /// An IPv6 address.
    pub const AAAA: u16 = 28;
    /// Another name for all below this one.
    pub const DNAME: u16 = 39;
    /// What is said about the message itself (RFC 6891).
    pub const OPT: u16 = 41;
    /// The key of a zone below.
    pub const DS: u16 = 43;
    /// A service: where it is, and how it is spoken to (RFC 9460).
    pub const SVCB: u16 = 64;
    /// The same of a web site.
    pub const HTTPS: u16 = 65;
    /// A zone's changes.
    pub const IXFR: u16 = 251;
    /// A whole zone.
    pub const AXFR: u16 = 252;
    /// Whatever there is.
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
/// The client has seen to DNSSEC (RFC 4035): kept as it came.
pub(super) const CD: u16 = 1 << 4;

/// Options of [`rtype::OPT`].
pub(super) mod option {
    pub(crate) const NSID: u16 = 3;
    pub(crate) const SUBNET: u16 = 8;
    pub(crate) const COOKIE: u16 = 10;
    pub(crate) const ERROR: u16 = 15;
}

/// What became of a query (RFC 1035, section 4.1.1; RFC 6891).
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
    /// Of an EDNS version that isn't known here.
    BadVers,
}

impl Rcode {
    /// All of them, in order.
    pub const ALL: [Rcode; 7] = [
        Rcode::NoError,
        Rcode::FormErr,
        Rcode::ServFail,
        Rcode::NxDomain,
        Rcode::NotImp,
        Rcode::Refused,
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
            Rcode::BadVers => "badvers",
        }
    }
}

/// There is no room for a record.
#[derive(Debug)]
pub(super) struct Full;

/// The sections of records (RFC 1035, section 4.1).
#[derive(Clone, Copy)]
pub(super) enum Place {
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
}

impl<'a> Writer<'a> {
    /// Begins with a question as it came (none if it is empty), whose name has this length.
    pub(super) fn begin(out: &'a mut [u8], question: &[u8], name_len: usize) -> Result<Writer<'a>, Full> {
        let records = HEADER_LEN + question.len();
        out.get_mut(HEADER_LEN..records).ok_or(Full)?.copy_from_slice(question);
        Ok(Writer { out, len: records, records, question_name: name_len, counts: [0; 3] })
    }

    /// Leaves so much room at the end; what was left before is given back.
    pub(super) fn leave(&mut self, limit: usize) -> Room {
        Room { limit: limit.min(self.out.len()) }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Forgets all records.
    pub(super) fn clear(&mut self) {
        (self.len, self.counts) = (self.records, [0; 3]);
    }

    /// One record; nothing of it where there is no room.
    pub(super) fn record(
        &mut self,
        room: Room,
        place: Place,
        owner: &[u8],
        (rtype, class): (u16, u16),
        ttl: u32,
        data: &[&[u8]],
    ) -> Result<(), Full> {
        let before = self.len;
        let written = self.try_record(room, owner, (rtype, class), ttl, data);
        match written {
            Ok(()) => self.counts[place as usize] += 1,
            Err(Full) => self.len = before,
        }
        written
    }

    fn try_record(
        &mut self,
        room: Room,
        owner: &[u8],
        (rtype, class): (u16, u16),
        ttl: u32,
        data: &[&[u8]],
    ) -> Result<(), Full> {
        match self.in_question(owner) {
            Some(at) => self.put(room, &(0xc000 | at as u16).to_be_bytes())?,
            None => self.put(room, owner)?,
        }
        let len: usize = data.iter().map(|part| part.len()).sum();
        let len = u16::try_from(len).map_err(|_| Full)?;
        self.put(room, &rtype.to_be_bytes())?;
        self.put(room, &class.to_be_bytes())?;
        self.put(room, &ttl.to_be_bytes())?;
        self.put(room, &len.to_be_bytes())?;
        data.iter().try_for_each(|part| self.put(room, part))
    }

    /// Where the question has this name, or one that ends in it: names are compressed by that alone (RFC 1035, section 4.1.4).
    fn in_question(&self, owner: &[u8]) -> Option<usize> {
        let asked = self.out.get(HEADER_LEN..HEADER_LEN + self.question_name)?;
        // The root is shorter than a pointer.
        let mut places = parents(asked).filter(|_| owner.len() > 1);
        let found = places.find(|name| name.eq_ignore_ascii_case(owner))?;
        Some(HEADER_LEN + asked.len() - found.len())
    }

    fn put(&mut self, room: Room, bytes: &[u8]) -> Result<(), Full> {
        let end = self.len + bytes.len();
        if end > room.limit {
            return Err(Full);
        }
        self.out.get_mut(self.len..end).ok_or(Full)?.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }

    /// Writes the header; how long the message is.
    pub(super) fn finish(self, id: u16, flags: u16) -> usize {
        let asked = u16::from(self.records > HEADER_LEN);
        let words = [id, flags, asked, self.counts[0], self.counts[1], self.counts[2]];
        for (place, word) in self.out.chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        self.len
    }
}

/// How far records may go.
#[derive(Clone, Copy)]
pub(super) struct Room {
    limit: usize,
}
