//! Wire format of a host's report to another host, as in `docs/how-it-works/peers.md`.
//!
//! Datagrams of every version have the same prefix, and a tag of the same format at the end. So a
//! host can see that a host of another version is alive.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::host::BITS;
use super::hosted::HostedServer;
use crate::net::wire::Mac;
use crate::node::association::Numbers;
use crate::node::envelope::{Envelope, PREFIX_LEN};
pub use crate::node::envelope::{MAGIC, ReadError};
use crate::node::secret::{Key, TAG_LEN};

/// Version of the datagrams that this release writes. For other versions see [`Body::Foreign`]. New
/// records, and new fields at the end of a record, need no new version.
pub const VERSION: u8 = 2;
/// Length of a datagram of [`VERSION`] without records, in bytes.
pub const LEN: usize = PREFIX_LEN + size_of::<ReportFields>() + TAG_LEN;
/// Maximum number of MAC addresses in a report.
pub const MACS_MAX: usize = 8;

/// Value of the kind field in datagrams between hosts.
const KIND_REPORT: u8 = 1;
/// Bit of [`ReportFields::flags`], set if the host takes part ([`HostReport::ready`]).
const FLAG_READY: u8 = 1;
const FLAG_ACCOMPANIED: u8 = 2;
/// Value of the kind field in records that contain a [`ServerFields`].
const RECORD_SERVER: u8 = 1;
/// Bit of [`ServerFields::flags`], set if the server refuses new sessions.
const FLAG_REFUSES: u8 = 1;
/// Bit of [`ServerFields::flags`], set if the server's load is known.
const FLAG_LOAD: u8 = 2;
/// Bit of [`ServerFields::flags`], set if the server is full.
const FLAG_FULL: u8 = 4;
/// Bit of [`ServerFields::flags`], set if the server is healthy.
const FLAG_UP: u8 = 8;
/// Bit of [`ServerFields::flags`], set if the operator drains the server.
const FLAG_DRAINED: u8 = 16;

/// Fields after the prefix, in version [`VERSION`].
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ReportFields {
    generation: U64,
    load: U32,
    flags: u8,
    macs_len: u8,
    reserved: U16,
    owned: U64,
    macs: [Mac; MACS_MAX],
}

/// Prefix of a record. Records follow [`ReportFields`]. Records of unknown kinds are skipped.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RecordPrefix {
    kind: u8,
    /// Length of the fields that follow, in bytes.
    len: u8,
}

/// Fields of a record about the host's server of one service.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ServerFields {
    /// Position of the service in [`super::PeerSettings::services`].
    service: u8,
    flags: u8,
    weight: U16,
    tenths: U16,
    load: U64,
}

/// A datagram with a valid tag, or a datagram to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Digest of the sender's name.
    pub sender: u64,
    /// Digest of the receiver's name.
    pub receiver: u64,
    /// Numbers of the datagram.
    pub numbers: Numbers,
    /// Last numbers that the sender has received from the receiver.
    pub echo: Numbers,
    pub body: Body,
}

/// The body of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A report of version [`VERSION`].
    Report(HostReport),
    /// The datagram has another version. The sender is alive, but its report can't be read.
    Foreign { version: u8 },
}

/// Report of a host about itself.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HostReport {
    /// Digest of the configuration. The following fields are valid only for hosts with the same
    /// digest.
    pub generation: u64,
    /// Sessions being served by the host.
    pub load: u32,
    /// True if the host takes part in rings and as an owner of addresses.
    pub ready: bool,
    /// True if the host knows of hosts other than the receiver that take part.
    pub accompanied: bool,
    /// Bit `i` is set if the host owns address `i` of [`super::PeerSettings::addresses`].
    pub owned: u64,
    /// Source MAC addresses of the host's frames; at most [`MACS_MAX`].
    pub macs: Vec<Mac>,
    /// The host's servers, by the position of their service; at most [`super::BITS`].
    pub servers: BTreeMap<u8, HostedServer>,
}

impl Datagram {
    /// Encodes the datagram. MAC addresses beyond [`MACS_MAX`] are left out. A datagram of another
    /// version is written without a body.
    pub fn write(&self, key: &Key) -> Vec<u8> {
        let (version, body) = match &self.body {
            Body::Report(report) => (VERSION, report.write()),
            Body::Foreign { version } => (*version, Vec::new()),
        };
        let Datagram { sender, receiver, numbers, echo, .. } = *self;
        Envelope { version, kind: KIND_REPORT, sender, receiver, numbers, echo, body: &body }.write(key)
    }

    /// Decodes a received datagram. The tag is checked before all other fields, in constant time.
    ///
    /// # Errors
    /// [`ReadError::Forged`] if the tag is wrong. [`ReadError::Malformed`] for bytes in another
    /// format, and for an authentic datagram that violates the rules of its version.
    pub fn read(bytes: &[u8], key: &Key) -> Result<Datagram, ReadError> {
        let Envelope { version, kind, sender, receiver, numbers, echo, body } = Envelope::read(bytes, key)?;
        let body = match version {
            VERSION if kind != KIND_REPORT => return Err(ReadError::Malformed),
            VERSION => Body::Report(HostReport::read(body)?),
            version => Body::Foreign { version },
        };
        Ok(Datagram { sender, receiver, numbers, echo, body })
    }
}

impl HostReport {
    fn write(&self) -> Vec<u8> {
        let mut body = ReportFields::of(self).as_bytes().to_vec();
        for (service, server) in self.servers.iter().take(BITS) {
            let fields = ServerFields::of(*service, server);
            let prefix = RecordPrefix { kind: RECORD_SERVER, len: size_of::<ServerFields>() as u8 };
            body.extend_from_slice(prefix.as_bytes());
            body.extend_from_slice(fields.as_bytes());
        }
        body
    }

    fn read(body: &[u8]) -> Result<HostReport, ReadError> {
        let (fields, mut records) = ReportFields::ref_from_prefix(body).map_err(|_| ReadError::Malformed)?;
        let mut report = fields.report()?;
        while !records.is_empty() {
            let (prefix, rest) = RecordPrefix::ref_from_prefix(records).map_err(|_| ReadError::Malformed)?;
            let (record, rest) = rest.split_at_checked(prefix.len.into()).ok_or(ReadError::Malformed)?;
            if prefix.kind == RECORD_SERVER {
                let (fields, _) = ServerFields::ref_from_prefix(record).map_err(|_| ReadError::Malformed)?;
                report.servers.extend(fields.server());
            }
            records = rest;
        }
        Ok(report)
    }
}

impl ServerFields {
    fn of(service: u8, server: &HostedServer) -> ServerFields {
        let flags = [
            (server.refuses, FLAG_REFUSES),
            (server.load.is_some(), FLAG_LOAD),
            (server.is_full, FLAG_FULL),
            (server.is_up, FLAG_UP),
            (server.is_drained, FLAG_DRAINED),
        ];
        ServerFields {
            service,
            flags: flags.into_iter().filter(|(is_set, _)| *is_set).fold(0, |flags, (_, flag)| flags | flag),
            // a host knows the weight of its own server
            weight: server.weight.unwrap_or_default().into(),
            tenths: server.tenths.into(),
            load: server.load.unwrap_or_default().into(),
        }
    }

    /// Returns the server with the position of its service; `None` for an impossible position.
    fn server(&self) -> Option<(u8, HostedServer)> {
        let is_set = |flag| self.flags & flag != 0;
        let server = HostedServer {
            is_up: is_set(FLAG_UP),
            is_drained: is_set(FLAG_DRAINED),
            weight: Some(self.weight.get()),
            tenths: self.tenths.get(),
            refuses: is_set(FLAG_REFUSES),
            is_full: is_set(FLAG_FULL),
            load: is_set(FLAG_LOAD).then_some(self.load.get()),
        };
        (usize::from(self.service) < BITS).then_some((self.service, server))
    }
}

impl ReportFields {
    fn of(report: &HostReport) -> ReportFields {
        let mut macs = [Mac::default(); MACS_MAX];
        for (place, mac) in macs.iter_mut().zip(&report.macs) {
            *place = *mac;
        }
        ReportFields {
            generation: report.generation.into(),
            load: report.load.into(),
            flags: if report.ready { FLAG_READY } else { 0 }
                | if report.accompanied { FLAG_ACCOMPANIED } else { 0 },
            macs_len: report.macs.len().min(MACS_MAX) as u8,
            reserved: U16::ZERO,
            owned: report.owned.into(),
            macs,
        }
    }

    fn report(&self) -> Result<HostReport, ReadError> {
        let macs = self.macs.get(..usize::from(self.macs_len)).ok_or(ReadError::Malformed)?;
        Ok(HostReport {
            generation: self.generation.get(),
            load: self.load.get(),
            ready: self.flags & FLAG_READY != 0,
            accompanied: self.flags & FLAG_ACCOMPANIED != 0,
            owned: self.owned.get(),
            // A MAC address that is a group address identifies no host, so it is ignored.
            macs: macs.iter().copied().filter(|mac| mac.is_unicast()).collect(),
            servers: BTreeMap::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: Key = Key([7; 32]);

    const WHOLE: HostedServer = HostedServer { weight: Some(1), ..HostedServer::HEALTHY };

    fn sample() -> Datagram {
        let macs = (1..=3).map(|last| Mac([2, 0, 0, 0, 0, last])).collect();
        let body = HostReport {
            generation: 5,
            load: 77,
            ready: true,
            accompanied: false,
            owned: 1 << 63,
            macs,
            servers: BTreeMap::from([
                (0, HostedServer { weight: Some(300), tenths: 4, refuses: true, ..WHOLE }),
                (2, HostedServer { is_drained: true, is_full: true, load: Some(750), ..WHOLE }),
            ]),
        };
        Datagram {
            sender: 1,
            receiver: 2,
            numbers: Numbers { incarnation: 3, sequence: 4 },
            echo: Numbers { incarnation: 5, sequence: 6 },
            body: Body::Report(body),
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let bytes = sample().write(&KEY);
        assert_eq!((PREFIX_LEN, bytes.len(), LEN), (56, 176, 144));
        assert_eq!(bytes[..8], *b"EVNR\x02\x01\x00\xb0");
        assert_eq!(bytes[64..70], [0, 0, 0, 77, 1, 3]);
        assert_eq!(bytes[72], 0x80);
        assert_eq!(bytes[80..86], [2, 0, 0, 0, 0, 1]);
        assert_eq!(bytes[128..144], [1, 14, 0, 9, 1, 44, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[144..160], [1, 14, 2, 30, 0, 1, 0, 10, 0, 0, 0, 0, 0, 0, 2, 238]);
        assert_eq!(Datagram::read(&bytes, &KEY), Ok(sample()));
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_is_refused() {
        let bytes = sample().write(&KEY);
        for len in 0..bytes.len() {
            assert_eq!(Datagram::read(&bytes[..len], &KEY), Err(ReadError::Malformed), "{len}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Datagram::read(&flipped, &KEY).is_err(), "bit {bit}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(Datagram::read(&longer, &KEY), Err(ReadError::Malformed));
        assert_eq!(Datagram::read(&bytes, &Key([8; 32])), Err(ReadError::Forged { claimed: 1 }));
    }

    #[test]
    fn an_authentic_datagram_may_still_be_malformed_or_foreign() {
        let bytes = sample().write(&KEY);
        let changed = |at: usize, to: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = to;
            bytes.truncate(bytes.len() - TAG_LEN);
            Datagram::read(&KEY.seal(&[], bytes), &KEY)
        };
        assert_eq!(changed(5, 2), Err(ReadError::Malformed), "an unknown kind");
        assert_eq!(changed(69, 9), Err(ReadError::Malformed), "more MACs than there is room for");
        assert_eq!(changed(4, 9).unwrap().body, Body::Foreign { version: 9 });
        let foreign = Datagram { body: Body::Foreign { version: 3 }, ..sample() };
        assert_eq!(Datagram::read(&foreign.write(&KEY), &KEY), Ok(foreign), "whatever its length");
    }

    /// Returns the report of the sample's datagram with this body.
    fn read_with(change: impl FnOnce(&mut Vec<u8>)) -> Result<HostReport, ReadError> {
        let Body::Report(report) = sample().body else { panic!() };
        let mut body = report.write();
        change(&mut body);
        let Datagram { sender, receiver, numbers, echo, .. } = sample();
        let envelope =
            Envelope { version: VERSION, kind: KIND_REPORT, sender, receiver, numbers, echo, body: &body };
        match Datagram::read(&envelope.write(&KEY), &KEY)?.body {
            Body::Report(report) => Ok(report),
            Body::Foreign { .. } => panic!(),
        }
    }

    /// A later release may add records, and fields to known records.
    #[test]
    fn unknown_records_and_fields_are_skipped() {
        let Body::Report(expected) = sample().body else { panic!() };
        let with_record = read_with(|body| body.extend([200, 3, 1, 2, 3]));
        assert_eq!(with_record.as_ref(), Ok(&expected));
        let record = [1, 16, 5, 8, 0, 9, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 99, 99];
        let longer = read_with(|body| body.extend(record)).unwrap();
        let server = HostedServer { weight: Some(9), ..WHOLE };
        assert_eq!(longer.servers.get(&5), Some(&server));
        let impossible = read_with(|body| body.extend([1, 14, 64, 0, 0, 9, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(impossible, Ok(expected), "more services than a farm has");
    }

    #[test]
    fn records_that_end_early_are_malformed() {
        for record in [&[1][..], &[200, 3, 1], &[1, 13, 5, 0, 0, 9, 0, 10, 0, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(read_with(|body| body.extend(record)), Err(ReadError::Malformed), "{record:?}");
        }
        assert_eq!(read_with(|body| body.truncate(80)), Err(ReadError::Malformed));
    }

    #[test]
    fn largest_datagram_fits_the_least_ipv6_mtu() {
        let mut datagram = sample();
        if let Body::Report(report) = &mut datagram.body {
            report.servers = (0..200).map(|service| (service, WHOLE)).collect();
        }
        // RFC 8200, section 5; the headers of IPv6 and UDP have 48 bytes.
        assert!(datagram.write(&KEY).len() <= 1_280 - 48);
    }

    proptest! {
        #[test]
        fn datagrams_round_trip(
            numbers in any::<[u64; 6]>(), [generation, owned] in any::<[u64; 2]>(), load: u32, (ready, accompanied) in any::<(bool, bool)>(),
            macs in prop::collection::vec(any::<[u8; 6]>(), 0..12),
            servers in prop::collection::btree_map(0..64u8, any::<(u16, [bool; 4], Option<u64>)>(), 0..64),
        ) {
            let servers: BTreeMap<u8, HostedServer> = servers
                .into_iter()
                .map(|(at, (weight, [is_up, is_drained, refuses, is_full], load))| {
                    (at, HostedServer { is_up, is_drained, weight: Some(weight), tenths: 3, refuses, is_full, load })
                })
                .collect();
            let records = servers.len();
            let macs: Vec<Mac> = macs.into_iter().map(Mac).filter(|mac| mac.is_unicast()).collect();
            let mut report = HostReport { generation, load, ready, accompanied, owned, macs, servers };
            let mut datagram = Datagram {
                sender: numbers[0],
                receiver: numbers[1],
                numbers: Numbers { incarnation: numbers[2], sequence: numbers[3] },
                echo: Numbers { incarnation: numbers[4], sequence: numbers[5] },
                body: Body::Report(report.clone()),
            };
            let bytes = datagram.write(&KEY);
            prop_assert_eq!(bytes.len(), LEN + 16 * records);
            report.macs.truncate(MACS_MAX);
            datagram.body = Body::Report(report);
            prop_assert_eq!(Datagram::read(&bytes, &KEY), Ok(datagram));
        }
    }
}
