//! A zone: records of its file, by name.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::name::{NAME_MAX, Name, parents};
use super::wire::{self, RdataPart, rtype};

/// Maximum number of labels of a name, without the root.
const LABELS_MAX: usize = 127;

/// The records of one type at one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RrSet {
    pub rtype: u16,
    /// Time to live, in seconds.
    pub ttl_s: u32,
    /// Data of each record in wire format, without compression.
    pub data: Vec<Box<[u8]>>,
}

impl RrSet {
    /// Returns the maximum size of an answer with all records of the set, for the longest question
    /// and with EDNS.
    fn answer_bytes(&self) -> usize {
        const HEADER: usize = 12;
        const QUESTION: usize = NAME_MAX + 4;
        const EDNS: usize = 11 + 4 + 40;
        // Name pointer, type, class, TTL and length.
        const RECORD: usize = 12;
        let data: usize = self.data.iter().map(|data| RECORD + data.len()).sum();
        HEADER + QUESTION + EDNS + data
    }
}

/// Records of a name.
#[derive(Clone, Debug, Default)]
pub(super) struct ZoneNode {
    sets: Vec<RrSet>,
    /// Index of the name's address pool, if it is balanced.
    pub(super) balanced: Option<usize>,
}

/// Reason why a zone is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record belongs to another zone.
    #[error("{0} is not in zone {1}")]
    Elsewhere(Name, Name),
    /// The zone has no SOA record.
    #[error("zone {0} has no SOA record")]
    NoSoa(Name),
    /// The zone has a second SOA record, or an SOA record at another name.
    #[error("there is a second SOA record at {0}; a zone has one, at its own name")]
    SecondSoa(Name),
    /// The zone has no NS record at its own name.
    #[error("zone {0} has no NS record at its own name")]
    NoNs(Name),
    /// A name has other records besides a CNAME (RFC 1034, section 3.6.2).
    #[error("{0} has a CNAME record and other records")]
    OtherDataAtCname(Name),
    /// The zone has a DNAME record, which is not supported.
    #[error("{0} has a DNAME record, which Evener does not support")]
    Dname(Name),
    /// A set exceeds the maximum message size.
    #[error(
        "the records of type {1} at {0} need {2} bytes in an answer, and a DNS message has at most 65535: have fewer of them"
    )]
    TooLarge(Name, u16, usize),
    /// The zone has DNSSEC records, which are not supported.
    #[error("{0} has DNSSEC records, which Evener does not support: use the unsigned zone")]
    Signed(Name),
    /// The zone file has addresses of a balanced name.
    #[error("{0} has addresses in the zone file and is a balanced name too: remove one of them")]
    Addresses(Name),
    /// A balanced name is below a delegation.
    #[error(
        "balanced name {0} can't be served here, because the zone file delegates {1} to other servers: remove its NS records or the name"
    )]
    Delegated(Name, Name),
}

#[derive(Clone, Debug)]
pub struct Zone {
    apex: Name,
    nodes: BTreeMap<Name, ZoneNode>,
    /// TTL of negative answers, in seconds (RFC 2308).
    negative_ttl_s: u32,
}

/// Result of a lookup.
pub enum Lookup<'z, 'n> {
    /// The name exists. Its records may lack the type of the query.
    Found(ZoneMatch<'z>),
    /// The name is delegated.
    Referral {
        /// Name of the delegated zone.
        cut: &'n [u8],
        /// Name servers of the delegated zone.
        servers: &'z RrSet,
    },
    /// The name does not exist.
    Absent,
}

/// Records of a name.
pub struct ZoneMatch<'z>(pub(super) &'z ZoneNode);

impl ZoneNode {
    pub(super) fn set(&self, rtype: u16) -> Option<&RrSet> {
        self.sets.iter().find(|set| set.rtype == rtype)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.balanced.is_none()
    }

    fn add(&mut self, rtype: u16, ttl_s: u32, data: Box<[u8]>) {
        match self.sets.iter_mut().find(|set| set.rtype == rtype) {
            // Duplicate records are dropped, and a set has the least of its TTLs (RFC 2181,
            // sections 5 and 5.2).
            Some(set) => {
                set.ttl_s = set.ttl_s.min(ttl_s);
                if !set.data.iter().any(|known| is_same(rtype, known, &data)) {
                    set.data.push(data);
                }
            }
            None => self.sets.push(RrSet { rtype, ttl_s, data: alloc::vec![data] }),
        }
    }
}

impl Zone {
    /// Builds a zone of records: name, type, TTL in seconds, data.
    ///
    /// # Errors
    /// All errors of the records.
    pub fn new(
        apex: Name,
        records: impl IntoIterator<Item = (Name, u16, u32, Vec<u8>)>,
    ) -> Result<Zone, Vec<RecordError>> {
        let mut errors = Vec::new();
        let mut zone = Zone { nodes: BTreeMap::new(), negative_ttl_s: 0, apex };
        zone.nodes.insert(zone.apex.clone(), ZoneNode::default());
        for (name, rtype, ttl_s, data) in records {
            if !name.is_in(&zone.apex) {
                errors.push(RecordError::Elsewhere(name, zone.apex.clone()));
            } else if rtype == rtype::DNAME {
                errors.push(RecordError::Dname(name));
            } else if is_of_signing(rtype) {
                if !errors.iter().any(|error| matches!(error, RecordError::Signed(_))) {
                    errors.push(RecordError::Signed(name));
                }
            } else if rtype == rtype::SOA && (name != zone.apex || zone.soa().is_some()) {
                errors.push(RecordError::SecondSoa(name));
            } else {
                zone.node(&name).add(rtype, ttl_s, data.into());
            }
        }
        errors.extend(zone.complaints());
        zone.negative_ttl_s = zone.soa().map_or(0, negative_ttl);
        if errors.is_empty() { Ok(zone) } else { Err(errors) }
    }

    fn complaints(&self) -> Vec<RecordError> {
        let mut errors = Vec::new();
        let apex = self.nodes.get(&self.apex);
        if self.soa().is_none() {
            errors.push(RecordError::NoSoa(self.apex.clone()));
        }
        if apex.is_none_or(|apex| apex.set(rtype::NS).is_none()) {
            errors.push(RecordError::NoNs(self.apex.clone()));
        }
        for (name, node) in &self.nodes {
            let alone = |set: &RrSet| node.sets.len() == 1 && set.data.len() == 1;
            if node.set(rtype::CNAME).is_some_and(|set| !alone(set)) {
                errors.push(RecordError::OtherDataAtCname(name.clone()));
            }
            for set in &node.sets {
                let bytes = set.answer_bytes();
                if bytes > usize::from(u16::MAX) {
                    errors.push(RecordError::TooLarge(name.clone(), set.rtype, bytes));
                }
            }
        }
        errors
    }

    /// Balances the addresses of a name by the pool with this number.
    ///
    /// # Errors
    /// The name can't be balanced.
    pub fn balance(&mut self, name: &Name, number: usize) -> Result<(), RecordError> {
        if !name.is_in(&self.apex) {
            return Err(RecordError::Elsewhere(name.clone(), self.apex.clone()));
        }
        if let Lookup::Referral { cut, .. } = self.find(name.as_wire(), rtype::A) {
            let cut = Name::from_wire(cut).unwrap_or_else(|| name.clone());
            return Err(RecordError::Delegated(name.clone(), cut));
        }
        let node = self.node(name);
        if node.set(rtype::CNAME).is_some() {
            return Err(RecordError::OtherDataAtCname(name.clone()));
        }
        if node.set(rtype::A).is_some() || node.set(rtype::AAAA).is_some() {
            return Err(RecordError::Addresses(name.clone()));
        }
        node.balanced = Some(number);
        Ok(())
    }

    /// Adds a record at a name in the zone.
    pub fn add(&mut self, name: &Name, rtype: u16, ttl_s: u32, data: Vec<u8>) {
        debug_assert!(name.is_in(&self.apex) && rtype != rtype::CNAME);
        self.node(name).add(rtype, ttl_s, data.into());
    }

    /// Returns the node of a name in the zone. Creates the node and the nodes above it if they are
    /// missing, since empty non-terminals exist (RFC 4592, section 2.2.2).
    fn node(&mut self, name: &Name) -> &mut ZoneNode {
        let between = parents(name.as_wire()).skip(1).take_while(|parent| *parent != self.apex.as_wire());
        let missing: Vec<Name> =
            between.filter(|parent| !self.nodes.contains_key(*parent)).filter_map(Name::from_wire).collect();
        self.nodes.extend(missing.into_iter().map(|name| (name, ZoneNode::default())));
        self.nodes.entry(name.clone()).or_default()
    }

    /// Name of the zone.
    pub fn apex(&self) -> &Name {
        &self.apex
    }

    /// SOA record of the zone; `None` only while the zone is being built.
    pub(super) fn soa(&self) -> Option<&RrSet> {
        self.nodes.get(&self.apex)?.set(rtype::SOA)
    }

    /// Serial number of the zone.
    pub fn serial(&self) -> Option<u32> {
        let numbers = self.soa()?.data.first()?.last_chunk::<20>()?;
        numbers.first_chunk().map(|serial| u32::from_be_bytes(*serial))
    }

    pub(super) fn negative_ttl_s(&self) -> u32 {
        self.negative_ttl_s
    }

    /// Returns the node with the addresses of a name server, whose name is in lower case. The node
    /// is at this name, even below a delegation, or at a wildcard.
    pub(super) fn glue(&self, name: &[u8]) -> Option<&ZoneNode> {
        let of_wildcard = || {
            let closest = parents(name).find(|parent| self.nodes.contains_key(*parent))?;
            match self.wildcard(closest) {
                Lookup::Found(ZoneMatch(node)) => Some(node),
                _ => None,
            }
        };
        self.nodes.get(name).or_else(of_wildcard)
    }

    /// Looks up the records for a question about a name in the zone, in lower case (RFC 1034,
    /// section 4.3.2).
    pub fn find<'z, 'n>(&'z self, name: &'n [u8], rtype: u16) -> Lookup<'z, 'n> {
        let mut below = [&[] as &[u8]; LABELS_MAX];
        let mut count = 0;
        for (place, parent) in
            below.iter_mut().zip(parents(name).take_while(|parent| *parent != self.apex.as_wire()))
        {
            *place = parent;
            count += 1;
        }
        let mut node = match self.nodes.get(&self.apex) {
            Some(node) => node,
            None => return Lookup::Absent,
        };
        let mut closest = self.apex.as_wire();
        for (left, parent) in below[..count].iter().rev().enumerate() {
            let Some(next) = self.nodes.get(*parent) else { return self.wildcard(closest) };
            (node, closest) = (next, parent);
            // DS records of a delegated zone belong to the zone above (RFC 4035, section 3.1.4.1).
            let is_its_key = rtype == rtype::DS && left + 1 == count;
            if let Some(servers) = node.set(rtype::NS).filter(|_| !is_its_key) {
                return Lookup::Referral { cut: parent, servers };
            }
        }
        Lookup::Found(ZoneMatch(node))
    }

    /// Returns the wildcard for names below `closest` (RFC 4592).
    fn wildcard<'n>(&self, closest: &[u8]) -> Lookup<'_, 'n> {
        let mut name = [0; NAME_MAX + 2];
        name[..2].copy_from_slice(b"\x01*");
        let len = 2 + closest.len();
        let Some(place) = name.get_mut(2..len) else { return Lookup::Absent };
        place.copy_from_slice(closest);
        match self.nodes.get(&name[..len]) {
            Some(node) => Lookup::Found(ZoneMatch(node)),
            None => Lookup::Absent,
        }
    }
}

/// True if two records of a type have equal data. Names in the data are case-insensitive (RFC 4343,
/// section 3).
fn is_same(rtype: u16, one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len()
        && wire::parts(rtype, one).zip(wire::parts(rtype, other)).all(|parts| match parts {
            (RdataPart::Name(one), RdataPart::Name(other)) => one.eq_ignore_ascii_case(other),
            (RdataPart::Octets(one), RdataPart::Octets(other)) => one == other,
            _ => false,
        })
}

/// True if records of a type exist only in signed zones.
pub fn is_of_signing(rtype: u16) -> bool {
    matches!(rtype, rtype::RRSIG | rtype::NSEC | rtype::DNSKEY | rtype::NSEC3 | rtype::NSEC3PARAM)
}

/// Returns the lesser of the SOA's TTL and its minimum field (RFC 2308, section 5).
fn negative_ttl(soa: &RrSet) -> u32 {
    let minimum = soa.data.first().and_then(|data| data.last_chunk::<4>());
    minimum.map_or(0, |minimum| u32::from_be_bytes(*minimum)).min(soa.ttl_s)
}
