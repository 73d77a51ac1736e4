//! Zones from zone files (RFC 1035, section 5).

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use domain::base::iana::{Class, Rtype};
use domain::base::name::{ParsedName, ToName};
use domain::base::rdata::{ComposeRecordData, ParseAnyRecordData};
use domain::dep::octseq::Parser;
use domain::rdata::AllRecordData;
use domain::zonefile::inplace::{Entry, Zonefile};
use evener_core::dns::{Name, RecordError, Zone, is_of_signing, rtype};

use super::DnsConfig;
use super::zone_text::{self, PlainZone, SyntaxError};
use crate::runtime::files;

/// Defaults for a zone without a file: times of its SOA record, and TTL of its records, in seconds.
const REFRESH_S: u32 = 3_600;
const RETRY_S: u32 = 600;
const EXPIRE_S: u32 = 604_800;
const NEGATIVE_S: u32 = 60;
const TTL_S: u32 = 3_600;
/// Maximum size of a file, in bytes. Some million records fit.
const FILE_BYTES: u64 = 256 << 20;
/// Maximum number of faults reported for a file.
const FAULTS_MAX: usize = 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ZoneError {
    /// The zone's file can't be read.
    #[error("zone {zone}: failed to read {path}: {source}")]
    Unreadable {
        /// Name of the zone.
        zone: Name,
        path: PathBuf,
        source: io::Error,
    },
    /// The file has syntax errors.
    #[error("zone {zone}: {}", .faults.join("; "))]
    Malformed {
        /// Name of the zone.
        zone: Name,
        /// File, line and error of each fault.
        faults: Vec<String>,
    },
    #[error("{}", joined(.0))]
    Records(Vec<RecordFault>),
}

/// Error of a zone's records as a whole.
#[derive(Debug)]
pub(crate) struct RecordFault {
    /// File of the zone, if it has one, and line of the offending record.
    place: Option<(PathBuf, Option<usize>)>,
    error: RecordError,
}

impl fmt::Display for RecordFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some((path, Some(line))) => write!(f, "{}:{line}: {}", path.display(), self.error),
            Some((path, None)) => write!(f, "{}: {}", path.display(), self.error),
            None => write!(f, "{}", self.error),
        }
    }
}

fn joined(faults: &[RecordFault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

type ZoneRecord = (Name, u16, u32, Vec<u8>);

/// Positions of a zone's records.
struct ZoneSource {
    path: Option<PathBuf>,
    /// Owner, type and line of each record.
    lines: Vec<(Name, u16, usize)>,
}

impl ZoneSource {
    fn fault(&self, error: RecordError) -> RecordFault {
        let place = self.path.clone().map(|path| (path, self.line_of(&error)));
        RecordFault { place, error }
    }

    /// Returns the line of an error. `None` if the error is a missing record.
    fn line_of(&self, error: &RecordError) -> Option<usize> {
        let is_address = |rtype: u16| matches!(rtype, rtype::A | rtype::AAAA);
        let lines = || self.lines.iter();
        let found = match error {
            RecordError::NoSoa(_) | RecordError::NoNs(_) => None,
            RecordError::Elsewhere(name, _) => lines().find(|(owner, ..)| owner == name),
            RecordError::SecondSoa(name) => {
                lines().rfind(|(owner, rtype, _)| owner == name && *rtype == rtype::SOA)
            }
            RecordError::TooLarge(name, rtype, _) => {
                lines().rfind(|(owner, of, _)| owner == name && of == rtype)
            }
            RecordError::OtherDataAtCname(name) => {
                lines().rfind(|(owner, rtype, _)| owner == name && *rtype == rtype::CNAME)
            }
            RecordError::Dname(name) => {
                lines().find(|(owner, rtype, _)| owner == name && *rtype == rtype::DNAME)
            }
            RecordError::Signed(name) => {
                lines().find(|(owner, rtype, _)| owner == name && is_of_signing(*rtype))
            }
            RecordError::Addresses(name) => {
                lines().find(|(owner, rtype, _)| owner == name && is_address(*rtype))
            }
            RecordError::Delegated(_, cut) => {
                lines().find(|(owner, rtype, _)| owner == cut && *rtype == rtype::NS)
            }
        };
        found.map(|(.., line)| *line)
    }
}

/// Reads all zones, and inserts the balanced names. A name's number is its index in the list.
/// `serial` is for zones without files.
///
/// # Errors
/// The first zone that can't be read, or all errors of records.
pub(crate) fn zones(dns: &DnsConfig, serial: u32) -> Result<Vec<Zone>, ZoneError> {
    let read = dns.zones.iter().map(|zone| read(&zone.name, zone.file.as_deref(), &dns.listen, serial));
    let mut zones: Vec<(Zone, ZoneSource)> = read.collect::<Result<_, _>>()?;
    let by_apex: BTreeMap<Name, usize> =
        (0..).zip(&zones).map(|(at, (zone, _))| (zone.apex().clone(), at)).collect();
    let mut faults = Vec::new();
    for (number, name) in dns.names.iter().enumerate() {
        let (settings, alpn) = (&name.name.settings, &name.alpn);
        let nearest = settings.name.and_above().find_map(|name| by_apex.get(name));
        let Some((zone, source)) = nearest.and_then(|at| zones.get_mut(*at)) else { continue };
        match zone.balance(&settings.name, number) {
            Ok(()) if alpn.is_empty() => {}
            Ok(()) => zone.add(&settings.name, rtype::HTTPS, settings.ttl_s, binding(alpn)),
            Err(error) => faults.push(source.fault(error)),
        }
    }
    match faults.is_empty() {
        true => Ok(zones.into_iter().map(|(zone, _)| zone).collect()),
        false => Err(ZoneError::Records(faults)),
    }
}

/// Returns an HTTPS record of the name itself, with these protocols (RFC 9460, section 7.1).
fn binding(alpn: &[String]) -> Vec<u8> {
    const ALPN: u16 = 1;
    let protocols: Vec<u8> =
        alpn.iter().flat_map(|name| [name.len() as u8].into_iter().chain(name.bytes())).collect();
    let param = [ALPN, protocols.len() as u16].map(u16::to_be_bytes).concat();
    [&[0, 1, 0][..], &param, &protocols].concat()
}

/// Reads a zone. A zone without a file gets the minimum of records, with name servers at these
/// addresses.
///
/// # Errors
/// If the zone can't be read.
fn read(
    zone: &Name,
    file: Option<&Path>,
    listen: &[SocketAddr],
    serial: u32,
) -> Result<(Zone, ZoneSource), ZoneError> {
    let records: Vec<(usize, ZoneRecord)> = match file {
        Some(path) => records(zone, path)?,
        None => least(zone, listen, serial).into_iter().map(|record| (0, record)).collect(),
    };
    let lines = records.iter().map(|(line, (owner, rtype, ..))| (owner.clone(), *rtype, *line)).collect();
    let source = ZoneSource { path: file.map(Path::to_owned), lines };
    let made = Zone::new(zone.clone(), records.into_iter().map(|(_, record)| record));
    match made {
        Ok(zone) => Ok((zone, source)),
        Err(errors) => Err(ZoneError::Records(errors.into_iter().map(|error| source.fault(error)).collect())),
    }
}

/// Reads a zone's file, or reports the error of each line that is not understood.
fn records(zone: &Name, path: &Path) -> Result<Vec<(usize, ZoneRecord)>, ZoneError> {
    let unreadable = |source| ZoneError::Unreadable { zone: zone.clone(), path: path.to_owned(), source };
    let text = files::bounded(path, FILE_BYTES).map_err(unreadable)?;
    parse(zone, text).map_err(|faults| {
        let at = |(line, what): &SyntaxError| format!("{}:{line}: {what}", path.display());
        ZoneError::Malformed { zone: zone.clone(), faults: faults.iter().map(at).collect() }
    })
}

/// Parses a zone's text into records with their lines.
/// Otherwise reports the error of each line that is not understood, up to [`FAULTS_MAX`].
fn parse(zone: &Name, mut text: Vec<u8>) -> Result<Vec<(usize, ZoneRecord)>, Vec<SyntaxError>> {
    let mut faults = Vec::new();
    loop {
        match parse_good(zone, &text) {
            Ok(records) if faults.is_empty() => return Ok(records),
            Ok(_) => return Err(faults),
            Err(fault) => {
                let is_single = blank(&mut text, fault.0);
                faults.push(fault);
                if !is_single || faults.len() == FAULTS_MAX {
                    return Err(faults);
                }
            }
        }
    }
}

/// Parses the text up to the first fault.
fn parse_good(zone: &Name, text: &[u8]) -> Result<Vec<(usize, ZoneRecord)>, SyntaxError> {
    let PlainZone { text, lines } = zone_text::plain(text, zone.as_wire())?;
    let mut lines = lines.into_iter();
    let mut file = Zonefile::from(text.as_slice());
    let origin = domain::base::Name::from_octets(zone.as_wire().to_vec().into());
    file.set_origin(origin.map_err(|error| (1, error.to_string()))?);
    file.set_default_class(Class::IN);
    let mut records = Vec::new();
    loop {
        match file.next_entry().map_err(|error| placed(&error.to_string(), &text))? {
            None => return Ok(records),
            Some(Entry::Include { path, .. }) => {
                let line = lines.next().unwrap_or(1);
                return Err((line, format!("$INCLUDE {path}: put the records into this file instead")));
            }
            Some(Entry::Record(record)) => {
                let mut data = Vec::new();
                // Writing to a vector does not fail.
                let _ = record.data().compose_rdata(&mut data);
                let owner: domain::base::Name<Vec<u8>> = record.owner().to_vec();
                let name = Name::from_wire(owner.as_slice()).filter(|_| is_sound(record.rtype(), &data));
                let line = lines.next().unwrap_or(1);
                let Some(name) = name else { return Err((line, "a name has an empty label".to_owned())) };
                records.push((line, (name, record.rtype().to_int(), record.ttl().as_secs(), data)));
            }
        }
    }
}

/// True if written data of a type can be parsed. The library accepts names with empty labels, which
/// then end too early.
fn is_sound(rtype: Rtype, data: &[u8]) -> bool {
    let mut parser = Parser::from_ref(data);
    let read = AllRecordData::<&[u8], ParsedName<&[u8]>>::parse_any_rdata(rtype, &mut parser);
    read.is_ok() && parser.remaining() == 0
}

/// Parses "LINE:COLUMN: WHAT", and makes a sentence of it. The column is after the wrong word, so
/// column 1 means the end of the previous line.
fn placed(message: &str, text: &[u8]) -> SyntaxError {
    let mut parts = message.splitn(3, ':');
    let mut number = || parts.next().and_then(|text| text.parse::<usize>().ok());
    let (Some(line), Some(column)) = (number(), number()) else { return (1, message.to_owned()) };
    let is_end = column == 1 && line > 1;
    let line = if is_end { line - 1 } else { line };
    let of_line = text.split(|byte| *byte == b'\n').nth(line - 1).unwrap_or_default();
    let before = of_line.get(..column - 1).filter(|_| !is_end).unwrap_or(of_line);
    let is_space = |byte: &u8| byte.is_ascii_whitespace();
    let word = before.split(is_space).rfind(|word| !word.is_empty()).unwrap_or_default();
    let what = parts.next().unwrap_or_default().trim();
    (line, sentence(what, word))
}

/// Turns a message of the library about a word into a sentence.
fn sentence(what: &str, word: &[u8]) -> String {
    let rtype = std::str::from_utf8(word).ok().and_then(|word| word.parse::<Rtype>().ok());
    let word = zone_text::shown(word);
    match (what, rtype) {
        ("unknown record type with concrete data", Some(rtype)) => {
            let number = rtype.to_int();
            format!(
                "data of type {rtype} is not read in its own form: write TYPE{number} \\# LENGTH HEX (RFC 3597)"
            )
        }
        ("expected rtype", _) => format!("{word} is not a record type, such as A, AAAA or TXT"),
        ("bad charstr" | "bad symbol", _) => {
            format!("{word} is no text: write it in quotes, each of 255 bytes at most")
        }
        ("unknown control", _) => format!("{word} is neither $TTL nor $ORIGIN"),
        ("unbalanced parens", _) => "a parenthesis is closed that none has opened".to_owned(),
        ("different class", _) => "its class is another one than before".to_owned(),
        _ => format!("{what}, at {word}"),
    }
}

/// Blanks a wrong line, so that the lines after it can be parsed. Returns false if the line is part
/// of a longer entry, since errors after it would be meaningless.
fn blank(text: &mut [u8], line: usize) -> bool {
    let mut depth = 0_usize;
    let mut lines = text.split_mut(|byte| *byte == b'\n');
    for before in lines.by_ref().take(line.saturating_sub(1)) {
        for byte in before {
            match *byte {
                b';' => break,
                b'(' => depth += 1,
                b')' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
    }
    let Some(wrong) = lines.next() else { return false };
    let is_single = depth == 0 && !wrong.contains(&b'(') && !wrong.contains(&b'"');
    wrong.fill(b' ');
    is_single
}

/// Returns the SOA and NS records of a zone, and one name server with all addresses.
fn least(zone: &Name, listen: &[SocketAddr], serial: u32) -> Vec<ZoneRecord> {
    let below = |label: &str| [&[label.len() as u8], label.as_bytes(), zone.as_wire()].concat();
    let (server, hostmaster) = (below("ns"), below("hostmaster"));
    let times = [serial, REFRESH_S, RETRY_S, EXPIRE_S, NEGATIVE_S].map(u32::to_be_bytes).concat();
    let soa = [server.as_slice(), &hostmaster, &times].concat();
    let mut records =
        vec![(zone.clone(), rtype::SOA, TTL_S, soa), (zone.clone(), rtype::NS, TTL_S, server.clone())];
    // The zone's name may be too long for a server's name below it. The zone's file must then name
    // the servers.
    let Some(server) = Name::from_wire(&server) else { return records };
    records.extend(listen.iter().map(|at| match at.ip() {
        IpAddr::V4(address) => (server.clone(), rtype::A, TTL_S, address.octets().to_vec()),
        IpAddr::V6(address) => (server.clone(), rtype::AAAA, TTL_S, address.octets().to_vec()),
    }));
    records
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "$TTL 60\n@ IN SOA ns host (\n 1 2 3\n 4 5 )\n@ IN NS ns\nns IN A 192.0.2.53\n\
                        txt IN TXT \"a b\" c\n*.x IN AAAA 2001:db8::1\nwww 300 IN CNAME ns\n\
                        svc IN HTTPS 1 . alpn=h2 ipv4hint=192.0.2.7\n\\#odd IN TYPE65280 \\# 3 010203\n";

    fn example() -> Name {
        Name::parse("example.com").unwrap()
    }

    fn lines(text: &str) -> Vec<usize> {
        parse(&example(), text.as_bytes().to_vec()).unwrap_err().into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn every_wrong_zone_line_is_reported() {
        assert_eq!(parse(&example(), TEXT.into()).unwrap().len(), 8);
        let wrong = TEXT.replace("192.0.2.53", "192.0.2.530").replace("2001:db8::1", "2001:db8:::1");
        assert_eq!(lines(&wrong), [6, 8]);
        assert_eq!(lines(&wrong.replace("CNAME ns", "CNAME a..b ; wrong")), [6, 8, 9]);
        assert_eq!(lines(&TEXT.replace("CNAME ns", "CNAME .b")), [9]);
        assert_eq!(lines(&TEXT.replace("www 300", "w..w 300")), [9]);
        assert_eq!(lines(&wrong.replace('\n', "\r\n")), [6, 8]);
        // Other errors in a multi-line entry can't be found without the entry.
        assert_eq!(lines(&wrong.replace("1 2 3", "1 x 3")), [3]);
        assert_eq!(lines(&format!("{TEXT}$include other\nx IN A 1\n")), [12, 13]);
        assert_eq!(lines(&format!("{TEXT}$GENERATE 1-4 h$ A 192.0.2.$\nx IN A 1\n")), [12, 13]);
        assert_eq!(lines(&"x IN A 1\n".repeat(50)).len(), FAULTS_MAX);
        let (line, what) =
            parse(&example(), b"@ IN NS ns\n@ 300 IN A 192.0.2.530\n".to_vec()).unwrap_err().remove(0);
        assert_eq!((line, &*what), (2, "expected IPv4 address, at \"192.0.2.530\""));
    }

    #[test]
    fn conflicting_records_are_reported_with_lines() {
        let path = std::env::temp_dir().join(format!("evener-zone-{}", std::process::id()));
        let faults = |more: &str| {
            fs::write(&path, format!("{TEXT}{more}")).unwrap();
            let error = read(&example(), Some(&path), &[], 0).err().unwrap().to_string();
            error.replace(&path.display().to_string(), "zone")
        };
        assert_eq!(
            faults("x.org. A 192.0.2.1\nmore (\n DNAME\n example.org.)\n"),
            "zone:12: x.org is not in zone example.com; zone:13: more.example.com has a DNAME record, which \
             Evener does not support"
        );
        assert!(faults("WWW A 192.0.2.1\n").starts_with("zone:9: www.example.com has a CNAME record"));
        assert!(faults("\n@ SOA ns host 1 1h 1d 1w 1\n").starts_with("zone:13: there is a second SOA"));
        let signed = "\n\n@ DNSKEY 257 3 13 AAAA\n@ NSEC3PARAM 1 0 0 -\n";
        assert!(faults(signed).starts_with("zone:14: example.com has DNSSEC records"), "{}", faults(signed));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn missing_or_endless_zone_file_is_refused() {
        for path in ["/dev/zero", "/", "/nonexistent"] {
            assert!(
                matches!(records(&example(), Path::new(path)), Err(ZoneError::Unreadable { .. })),
                "{path}"
            );
        }
    }

    #[test]
    fn truncated_zone_text_parses_or_is_reported() {
        for last in ["x TXT \"a\"", "x A 192.0.2.2", "x A 192.0.2.2 ", "x TXT \"a\" ; c", "x TXT a\r"] {
            assert_eq!(parse(&example(), format!("{TEXT}{last}").into()).unwrap().len(), 9, "{last}");
        }
        for (open, line) in
            [("x TXT ( abc\n", 12), ("\nx TXT ( \"v\"\n \"b\"\ny A 192.0.2.2\n", 13), ("x TXT \"a\n", 12)]
        {
            assert_eq!(lines(&format!("{TEXT}{open}")), [line], "{open}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_zone_file_never_panics(at in 0usize..300, len in 0usize..12, bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            let mut text = TEXT.as_bytes().to_vec();
            let at = at % text.len();
            let end = (at + len).min(text.len());
            text.splice(at..end, bytes);
            let lines = text.split(|byte| *byte == b'\n').count();
            for (line, what) in parse(&example(), text).err().unwrap_or_default() {
                prop_assert!((1..=lines).contains(&line) && !what.is_empty(), "{}: {}", line, what);
            }
        }
    }
}
