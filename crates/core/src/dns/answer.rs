//! Writes answers from zones and address pools, within the message length that the client accepts.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::Hasher;
use core::net::IpAddr;

use siphasher::sip::SipHasher13;

use super::address_pool::{AddressPool, ClientNetwork, TOP_MAX};
use super::edns::{EdnsOptions, OPTIONS_MAX, UDP_MAX, bare_edns};
use super::limit::{LimitExceeded, RateBucket};
use super::name::{Lowered, NAME_MAX, Name, parents};
use super::query::{self, Edns, Query, QueryError, Signature, Subnet};
use super::table::SharedList;
use super::wire::{
    AA, CLASS_ANY, CLASS_IN, QR, RD, Rcode, RecordSection, SizeExceeded, SizeLimit, TC, Writer, option, rtype,
};
use super::zone::{Lookup, RrSet, Zone, ZoneMatch, ZoneNode};
use super::{cookie, svcb};
use crate::net::prefix::client_prefix;
use crate::path::seed::Seed;

/// Message length that every client accepts (RFC 1035, section 4.2.1).
const UDP_LEAST: usize = 512;
const TCP_MAX: usize = 65_535;
/// Maximum number of CNAMEs that an answer follows. After that the client continues by itself.
const CNAMES_MAX: usize = 64;
/// Data of the answer to a query for ANY, and its TTL (RFC 8482).
const HINFO: &[u8] = b"\x07RFC8482\x00";
const HINFO_TTL_S: u32 = 3_600;
/// Extended error codes (RFC 8914).
const OTHER: u16 = 0;
const PROHIBITED: u16 = 18;
const NOT_AUTHORITATIVE: u16 = 20;
const NOT_SUPPORTED: u16 = 21;
/// TSIG error: unknown key (RFC 8945, section 3).
const BADKEY: u16 = 17;
/// If the rate limit of all networks together is exceeded, one query in this many gets a truncated
/// answer, and the others get none.
const SLIP: u64 = 2;

/// All zones and balanced names of the server, with the settings for answers.
#[derive(Debug)]
pub struct Catalog {
    zones: Arc<BTreeMap<Name, Arc<Zone>>>,
    balanced: SharedList<AddressPool>,
    key: Seed,
    cookies: cookie::Secrets,
    /// Identifier of this server, for clients that request it (RFC 5001).
    nsid: Vec<u8>,
}

/// Transport of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Datagram, whose source address may be forged.
    Udp,
    /// Over a TCP connection.
    Tcp,
}

/// A query with its client.
#[derive(Clone, Copy, Debug)]
pub struct DnsRequest<'a> {
    /// Bytes of the message.
    pub bytes: &'a [u8],
    pub client: IpAddr,
    pub transport: Transport,
    /// Unix time in seconds, modulo 2^32.
    pub now_s: u32,
    /// Monotonic clock in milliseconds, modulo 2^32.
    pub now_ms: u32,
    /// Number that differs for each query.
    pub turn: u64,
}

/// An answer in wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedResponse {
    pub len: usize,
    pub outcome: ResponseOutcome,
}

/// Outcome of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseOutcome {
    pub rcode: Rcode,
    /// True if the answer was too large, so that the client has to retry by TCP.
    pub truncated: bool,
    /// True if a rate limit was exceeded, so that the client has to retry by TCP.
    pub limited: bool,
}

/// Properties of the answer, collected while it is written.
#[derive(Default)]
struct ResponseContext {
    authoritative: bool,
    /// Extended error code with text.
    error: Option<(u16, &'static str)>,
    /// Scope prefix length of the client subnet (RFC 7871): clients with the same prefix of this
    /// length get the same answer.
    scope: u8,
}

impl Catalog {
    /// Returns a catalog of these zones. Balanced names in the zones refer to `balanced` by index.
    pub fn new(
        zones: impl IntoIterator<Item = Arc<Zone>>,
        balanced: impl IntoIterator<Item = Arc<AddressPool>>,
        key: Seed,
        nsid: &str,
    ) -> Catalog {
        let zones = zones.into_iter().map(|zone| (zone.apex().clone(), zone)).collect();
        let nsid = nsid.as_bytes().iter().copied().take(64).collect();
        let (zones, balanced) = (Arc::new(zones), balanced.into_iter().collect());
        Catalog { zones, balanced, key, cookies: cookie::Secrets::own(key), nsid }
    }

    /// Sets the cookie secrets that several servers share (RFC 9018). The server makes cookies with
    /// the first secret, and accepts cookies of all secrets. If the list is empty, the server uses
    /// a secret of its own.
    #[must_use]
    pub fn with_cookie_secrets(mut self, secrets: &[[u8; 16]]) -> Catalog {
        self.cookies = cookie::Secrets::shared(secrets).unwrap_or(self.cookies);
        self
    }

    /// Returns a catalog with other pools at these indexes. The cost depends only on the number of
    /// changes.
    #[must_use]
    pub fn with(&self, changed: impl IntoIterator<Item = (usize, Arc<AddressPool>)>) -> Catalog {
        let (zones, balanced) = (Arc::clone(&self.zones), self.balanced.with(changed));
        Catalog { zones, balanced, key: self.key, cookies: self.cookies.clone(), nsid: self.nsid.clone() }
    }

    /// Returns the address pools, by index.
    pub fn balanced(&self) -> &SharedList<AddressPool> {
        &self.balanced
    }

    /// Writes the answer to a query. Returns `None` if the query must not be answered. UDP queries
    /// are subject to the rate limit.
    pub fn answer(
        &self,
        request: &DnsRequest<'_>,
        allowance: Option<&mut RateBucket>,
        out: &mut [u8],
    ) -> Option<EncodedResponse> {
        let header = query::header(request.bytes)?;
        // Flags copied from the query.
        let kept = QR | header.flags & (0xf << 11 | RD);
        let query = match query::read(request.bytes, header) {
            Ok(query) => query,
            Err(unread) => {
                if allowance.is_some_and(|left| left.spend(request.client, request.now_ms).is_err()) {
                    return None;
                }
                let len = write_error(out, unread, (header.id, kept))?;
                let outcome = ResponseOutcome { rcode: unread.rcode, truncated: false, limited: false };
                return Some(EncodedResponse { len, outcome });
            }
        };
        let shown = query
            .edns
            .and_then(|edns| edns.cookie)
            .is_some_and(|(own, ours)| self.cookies.is_valid(request.client, own, ours, request.now_s));
        let taken = match allowance.filter(|_| !shown) {
            Some(left) => left.spend(request.client, request.now_ms),
            None => Ok(()),
        };
        if let Err(exceeded) = taken {
            // A truncated answer has only header and question, so it is never longer than the
            // query.
            let sends_truncated =
                exceeded == LimitExceeded::Network || self.number(request.turn).is_multiple_of(SLIP);
            let len = Writer::begin(out, query.question, 0).ok()?.finish(header.id, kept | TC);
            let outcome = ResponseOutcome { rcode: Rcode::NoError, truncated: true, limited: true };
            return sends_truncated.then_some(EncodedResponse { len, outcome });
        }
        self.write(request, &query, (header.id, kept), out)
    }

    /// Returns a random number that clients can't predict, since they don't know the key.
    fn number(&self, turn: u64) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        hasher.write_u64(turn);
        hasher.finish()
    }

    fn write(
        &self,
        request: &DnsRequest<'_>,
        query: &Query<'_>,
        (id, kept): (u16, u16),
        out: &mut [u8],
    ) -> Option<EncodedResponse> {
        let most = match (request.transport, query.edns) {
            (Transport::Tcp, _) => TCP_MAX,
            (Transport::Udp, None) => UDP_LEAST,
            (Transport::Udp, Some(edns)) => usize::from(edns.udp_len).clamp(UDP_LEAST, UDP_MAX),
        };
        let mut writer = Writer::begin(out, query.question, query.name.as_wire().len()).ok()?;
        let mut response = ResponseContext::default();
        let options = if query.edns.is_some() { OPTIONS_MAX + self.nsid.len() } else { 0 };
        let limit = writer.reserve(most - options);
        let (rcode, truncated) = match query.edns {
            _ if query.signature.is_some() => (Rcode::NotAuth, false),
            Some(edns) if edns.version > 0 => (Rcode::BadVers, false),
            _ => match self.resolve(&mut writer, limit, query, request, &mut response) {
                Ok(rcode) => (rcode, false),
                Err(SizeExceeded) => {
                    writer.clear();
                    (Rcode::NoError, true)
                }
            },
        };
        if let Some(edns) = &query.edns {
            let whole = writer.reserve(most);
            // If there is no room for all options, the OPT record is sent without options.
            if self.options(&mut writer, whole, edns, request, rcode, &response).is_err() {
                let _ = bare_edns(&mut writer, whole, rcode);
            }
        }
        if let Some(signature) = &query.signature {
            let whole = writer.reserve(most);
            // There is room, since the query was longer by its signature.
            let _ = refuse_key(&mut writer, whole, signature);
        }
        let aa = if response.authoritative { AA } else { 0 };
        let tc = if truncated { TC } else { 0 };
        debug_assert!(writer.len() <= most, "no answer is longer than its client takes");
        let len = writer.finish(id, kept | aa | tc | rcode.code() & 0xf);
        Some(EncodedResponse { len, outcome: ResponseOutcome { rcode, truncated, limited: false } })
    }

    /// Writes the records of an answer.
    fn resolve(
        &self,
        writer: &mut Writer<'_>,
        limit: SizeLimit,
        query: &Query<'_>,
        request: &DnsRequest<'_>,
        response: &mut ResponseContext,
    ) -> Result<Rcode, SizeExceeded> {
        if !query.is_internet() {
            return Ok(Rcode::Refused);
        }
        if matches!(query.rtype, rtype::AXFR | rtype::IXFR) {
            response.error = Some((PROHIBITED, ""));
            return Ok(Rcode::Refused);
        }
        // `wanted` is in lower case, for lookups. `name` has the letter case of the client or of
        // the file.
        let mut lowered;
        let mut wanted = query.name.as_wire();
        let mut name: &[u8] = query.question.get(..wanted.len()).unwrap_or_default();
        // Earlier name of the chain of CNAMEs, which is replaced at growing intervals. A chain that
        // loops returns to this name (Brent's algorithm).
        let mut landmark = name;
        for hop in 0..=CNAMES_MAX {
            let Some(zone) = self.zone(wanted, query.rtype) else {
                // After a CNAME to another server's name the client continues by itself.
                let rcode = if hop > 0 { Rcode::NoError } else { Rcode::Refused };
                response.error = (hop == 0).then_some((NOT_AUTHORITATIVE, "")).or(response.error);
                return Ok(rcode);
            };
            match zone.find(wanted, query.rtype) {
                Lookup::Referral { cut, servers } => {
                    refer(writer, limit, zone, cut, servers)?;
                    return Ok(Rcode::NoError);
                }
                Lookup::Absent => {
                    response.authoritative = true;
                    write_negative(writer, limit, zone)?;
                    return Ok(Rcode::NxDomain);
                }
                Lookup::Found(ZoneMatch(node)) => {
                    response.authoritative = true;
                    let cname = node.set(rtype::CNAME).and_then(|set| Some((set, set.data.first()?)));
                    if let Some((set, target)) = cname {
                        write_set(writer, limit, RecordSection::Answer, name, set, 0)?;
                        // ANY queries get the CNAME itself (RFC 8482, section 4.1).
                        if matches!(query.rtype, rtype::CNAME | rtype::ANY) {
                            return Ok(Rcode::NoError);
                        }
                        if target.eq_ignore_ascii_case(landmark) {
                            break;
                        }
                        let Some(read) = Lowered::read(target).filter(|_| hop < CNAMES_MAX) else {
                            return Ok(Rcode::NoError);
                        };
                        lowered = read;
                        (wanted, name) = (lowered.as_wire(), target);
                        if (hop + 1).is_power_of_two() {
                            landmark = target;
                        }
                        continue;
                    }
                    return self.found(writer, limit, (zone, node, name), query, request, response);
                }
            }
        }
        writer.clear();
        *response = ResponseContext {
            error: Some((OTHER, "its CNAME records lead in a circle")),
            ..ResponseContext::default()
        };
        Ok(Rcode::ServFail)
    }

    /// Writes the records of a type at a name.
    fn found(
        &self,
        writer: &mut Writer<'_>,
        limit: SizeLimit,
        (zone, node, name): (&Zone, &ZoneNode, &[u8]),
        query: &Query<'_>,
        request: &DnsRequest<'_>,
        response: &mut ResponseContext,
    ) -> Result<Rcode, SizeExceeded> {
        let balanced = node.balanced.and_then(|number| self.balanced.get(number));
        let set = node.set(query.rtype);
        let is_drawn = match query.rtype {
            rtype::A | rtype::AAAA => true,
            rtype::HTTPS | rtype::SVCB => set.is_some(),
            _ => false,
        };
        if let Some(balanced) = balanced.filter(|_| is_drawn) {
            let client = self.client(balanced, query, request, response);
            let Some(client) = client else { return Ok(Rcode::Refused) };
            match set {
                Some(set) => write_svcb(writer, limit, name, set, balanced, client)?,
                None => write_addresses(writer, limit, (zone, name), balanced, query.rtype, client)?,
            }
            return Ok(Rcode::NoError);
        }
        match set {
            Some(set) => write_set(writer, limit, RecordSection::Answer, name, set, request.turn)?,
            None if query.rtype == rtype::ANY && !node.is_empty() => {
                let kind = (rtype::HINFO, CLASS_IN);
                writer.record(limit, RecordSection::Answer, name, kind, HINFO_TTL_S, &[HINFO])?;
            }
            None => write_negative(writer, limit, zone)?,
        }
        Ok(Rcode::NoError)
    }

    /// Returns the zone of a name. DS records belong to the parent zone.
    fn zone(&self, name: &[u8], rtype: u16) -> Option<&Zone> {
        let mut holding = parents(name).filter_map(|parent| self.zones.get(parent));
        let first = holding.next()?;
        let is_its_key = rtype == rtype::DS && first.apex().as_wire() == name;
        let above = if is_its_key { holding.next() } else { None };
        Some(above.unwrap_or(first))
    }

    /// Returns the client network by which addresses are selected. `None` if the query must get an
    /// error.
    fn client(
        &self,
        balanced: &AddressPool,
        query: &Query<'_>,
        request: &DnsRequest<'_>,
        response: &mut ResponseContext,
    ) -> Option<ClientNetwork> {
        if balanced.refuses() {
            (response.authoritative, response.error) = (false, Some((OTHER, "no server of this name lives")));
            return None;
        }
        if balanced.all_down {
            response.error = Some((OTHER, "no server of this name is known to live"));
        }
        // Without a client subnet the resolver's address counts (RFC 7871, section 7.1.2).
        let subnet = query.edns.and_then(|edns| edns.subnet).filter(|subnet| subnet.prefix_len > 0);
        let named = subnet.and_then(|Subnet { address, prefix_len }| Some((address?, prefix_len)));
        let network = client_prefix(named.map_or(request.client, |(address, _)| address));
        if let Some((_, prefix_len)) = named.filter(|_| balanced.goes_by_client()) {
            response.scope = network.length().min(prefix_len);
        }
        Some(ClientNetwork { network: network.address(), draw: self.number(request.turn) })
    }

    /// Writes the EDNS options.
    fn options(
        &self,
        writer: &mut Writer<'_>,
        limit: SizeLimit,
        edns: &Edns<'_>,
        request: &DnsRequest<'_>,
        rcode: Rcode,
        response: &ResponseContext,
    ) -> Result<(), SizeExceeded> {
        let mut options = EdnsOptions::default();
        if let Some((own, _)) = edns.cookie {
            let ours = self.cookies.make(request.client, own, request.now_s);
            options.push_option(option::COOKIE, &[own, &ours]);
        }
        if edns.wants_nsid && !self.nsid.is_empty() {
            options.push_option(option::NSID, &[&self.nsid]);
        }
        if let Some(subnet) = edns.subnet {
            options.put_subnet(subnet, response.scope);
        }
        let unsupported = (rcode == Rcode::NotImp).then_some((NOT_SUPPORTED, ""));
        if let Some((code, text)) = response.error.or(unsupported) {
            options.push_option(option::ERROR, &[&code.to_be_bytes(), text.as_bytes()]);
        }
        let dnssec_ok = if edns.dnssec_ok { 1 << 15 } else { 0 };
        let ttl = u32::from(rcode.code() >> 4) << 24 | dnssec_ok;
        writer.record(
            limit,
            RecordSection::Additional,
            &[0],
            (rtype::OPT, UDP_MAX as u16),
            ttl,
            &[options.bytes()],
        )
    }
}

/// Writes an error to a malformed query: a header, and an OPT record if the query had one (RFC
/// 6891, section 7).
fn write_error(out: &mut [u8], unread: QueryError, (id, kept): (u16, u16)) -> Option<usize> {
    let mut writer = Writer::begin(out, &[], 0).ok()?;
    let limit = writer.reserve(UDP_LEAST);
    if unread.has_edns {
        bare_edns(&mut writer, limit, unread.rcode).ok()?;
    }
    Some(writer.finish(id, kept | unread.rcode.code()))
}

/// Writes a TSIG error for an unknown key, unsigned (RFC 8945, section 5.3.2).
fn refuse_key(
    writer: &mut Writer<'_>,
    limit: SizeLimit,
    signature: &Signature<'_>,
) -> Result<(), SizeExceeded> {
    let no_mac = 0_u16.to_be_bytes();
    let nothing_else = 0_u16.to_be_bytes();
    let data = [
        signature.algorithm,
        signature.time_fudge,
        &no_mac,
        &signature.id,
        &BADKEY.to_be_bytes(),
        &nothing_else,
    ];
    let mut key = [0; NAME_MAX];
    let key = signature.key(&mut key).and_then(|len| key.get(..len)).unwrap_or(&[0]);
    writer.record(limit, RecordSection::Additional, key, (rtype::TSIG, CLASS_ANY), 0, &data)
}

fn write_addresses(
    writer: &mut Writer<'_>,
    limit: SizeLimit,
    (zone, name): (&Zone, &[u8]),
    balanced: &AddressPool,
    rtype: u16,
    client: ClientNetwork,
) -> Result<(), SizeExceeded> {
    let (mut done, mut count) = (Ok(()), 0);
    balanced.draw(rtype == rtype::A, client, |address| {
        let mut write = |data: &[u8]| {
            let kind = (rtype, CLASS_IN);
            writer.record(limit, RecordSection::Answer, name, kind, balanced.settings.ttl_s, &[data])
        };
        let written = match address.address {
            IpAddr::V4(address) => write(&address.octets()),
            IpAddr::V6(address) => write(&address.octets()),
        };
        count += 1;
        // A subset of the addresses is a valid answer, too.
        if count == 1 {
            done = written;
        }
    });
    done?;
    if count == 0 { write_negative(writer, limit, zone) } else { Ok(()) }
}

/// Writes service bindings of a balanced name, with the addresses of A and AAAA records as hints.
fn write_svcb(
    writer: &mut Writer<'_>,
    limit: SizeLimit,
    name: &[u8],
    set: &RrSet,
    balanced: &AddressPool,
    client: ClientNetwork,
) -> Result<(), SizeExceeded> {
    let (mut four, mut six) = (Hint::new(svcb::IPV4_HINT), Hint::new(svcb::IPV6_HINT));
    balanced.hint(true, client, |address| four.add(address.address));
    balanced.hint(false, client, |address| six.add(address.address));
    let mut write = |ttl_s: u32, data: &[&[u8]]| {
        writer.record(limit, RecordSection::Answer, name, (set.rtype, CLASS_IN), ttl_s, data)
    };
    set.data.iter().try_for_each(|data| match svcb::around(data, name) {
        Some(svcb::SvcbRecord { before, between, behind }) => {
            let data = [before, four.bytes(), between, six.bytes(), behind];
            write(set.ttl_s.min(balanced.settings.ttl_s), &data)
        }
        None => write(set.ttl_s, &[data]),
    })
}

/// An address hint: a service parameter with key, length and addresses.
struct Hint {
    bytes: [u8; 4 + TOP_MAX * 16],
    len: usize,
}

impl Hint {
    fn new(key: u16) -> Hint {
        let mut bytes = [0; 4 + TOP_MAX * 16];
        bytes[..2].copy_from_slice(&key.to_be_bytes());
        Hint { bytes, len: 4 }
    }

    fn add(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.push_octets(&address.octets()),
            IpAddr::V6(address) => self.push_octets(&address.octets()),
        }
    }

    fn push_octets(&mut self, octets: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.len..self.len + octets.len()) {
            place.copy_from_slice(octets);
            self.len += octets.len();
            let value_len = (self.len - 4) as u16;
            self.bytes[2..4].copy_from_slice(&value_len.to_be_bytes());
        }
    }

    /// Returns the bytes of the parameter. They are empty if there are no addresses, since a
    /// parameter without an address is malformed.
    fn bytes(&self) -> &[u8] {
        let len = if self.len > 4 { self.len } else { 0 };
        self.bytes.get(..len).unwrap_or_default()
    }
}

/// Writes the SOA record of a negative answer, with its TTL (RFC 2308).
fn write_negative(writer: &mut Writer<'_>, limit: SizeLimit, zone: &Zone) -> Result<(), SizeExceeded> {
    let Some(soa) = zone.soa() else { return Ok(()) };
    soa.data.iter().take(1).try_for_each(|data| {
        let ttl_s = zone.negative_ttl_s();
        writer.stored(limit, RecordSection::Authority, zone.apex().as_wire(), rtype::SOA, ttl_s, data)
    })
}

/// Writes a referral: the servers of a delegated zone, and their addresses in this zone.
fn refer(
    writer: &mut Writer<'_>,
    limit: SizeLimit,
    zone: &Zone,
    cut: &[u8],
    servers: &RrSet,
) -> Result<(), SizeExceeded> {
    write_set(writer, limit, RecordSection::Authority, cut, servers, 0)?;
    for server in &servers.data {
        let Some(lowered) = Lowered::read(server) else { continue };
        let Some(node) = zone.glue(lowered.as_wire()) else { continue };
        let is_below = parents(lowered.as_wire()).any(|parent| parent == cut);
        for set in [rtype::A, rtype::AAAA].into_iter().filter_map(|rtype| node.set(rtype)) {
            let written = write_set(writer, limit, RecordSection::Additional, server, set, 0);
            // A client can't resolve a name server below the cut without glue, so missing glue is
            // an error (RFC 9471).
            if is_below {
                written?;
            }
        }
    }
    Ok(())
}

/// Writes a set in a rotated order, so that clients that use the first address get another address
/// each time (RFC 1794).
fn write_set(
    writer: &mut Writer<'_>,
    limit: SizeLimit,
    place: RecordSection,
    name: &[u8],
    set: &RrSet,
    turn: u64,
) -> Result<(), SizeExceeded> {
    let first = (turn % set.data.len().max(1) as u64) as usize;
    let (behind, begin) = set.data.split_at(first.min(set.data.len()));
    begin
        .iter()
        .chain(behind)
        .try_for_each(|data| writer.stored(limit, place, name, set.rtype, set.ttl_s, data))
}
