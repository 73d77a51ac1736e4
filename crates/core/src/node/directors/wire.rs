//! Body of a datagram between directors, as in `docs/how-it-works/directors.md`. The body consists
//! of items. Unknown items are skipped, so that later releases can add kinds of items.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};

use crate::node::envelope::ReadError;

/// Version of the datagrams that this release writes. Bodies of other versions are not decoded.
pub const VERSION: u8 = 1;
/// Value of the kind field in datagrams between directors.
pub(super) const KIND: u8 = 2;
/// Maximum length of the release's name in a report, in bytes.
const RELEASE_LEN: usize = 32;
/// Maximum length of the reason why a director is not ready, in bytes.
const REASON_LEN: usize = 240;
/// Maximum length of the lines of [`Changes`] together, in bytes.
const CHANGES_LEN: usize = 512;

/// Kinds of items in a report, as the first byte of an item.
const FINGERPRINT: u8 = 1;
const RELEASE: u8 = 2;
const READINESS: u8 = 3;
const CHANGES_DIGEST: u8 = 4;
const CHANGES: u8 = 5;
const ADDRESSES: u8 = 6;
const HELD: u8 = 7;
const REPLICATES: u8 = 8;
/// Maximum number of addresses in an item.
const ADDRESSES_MAX: usize = 8;

/// Report of a director. An item that the datagram lacks is `None`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DirectorReport {
    /// Digest of the farm file, computed with the farm's key.
    pub fingerprint: Option<u64>,
    /// Release of the program.
    pub release: Option<String>,
    /// `Ok` if the director is ready for clients, or else the reason why it is not.
    pub readiness: Option<Result<(), String>>,
    /// Values that operators have set.
    pub changes: Option<Changes>,
    /// Addresses of the director in the file. Empty if the file has only one.
    pub addresses: Vec<IpAddr>,
    /// Service addresses that another program, such as keepalived, has given to the director.
    pub held: Vec<IpAddr>,
    /// True if the director exchanges sessions.
    pub replicates: bool,
}

/// Values that operators have set.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Changes {
    /// Digest of all lines, also of those that the datagram lacks.
    pub digest: u64,
    /// Lines of text, one for each value. A datagram contains only the first lines that fit.
    pub lines: Vec<String>,
}

impl DirectorReport {
    /// Encodes the items. Long items are truncated.
    pub(super) fn write(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let mut item = |kind: u8, bytes: &[u8]| {
            body.push(kind);
            body.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
            body.extend_from_slice(bytes);
        };
        if let Some(fingerprint) = self.fingerprint {
            item(FINGERPRINT, &fingerprint.to_be_bytes());
        }
        if let Some(release) = &self.release {
            item(RELEASE, cut(release, RELEASE_LEN).as_bytes());
        }
        if let Some(readiness) = &self.readiness {
            let reason = readiness.as_ref().err().map_or("", String::as_str);
            let mut bytes = alloc::vec![u8::from(readiness.is_ok())];
            bytes.extend_from_slice(cut(reason, REASON_LEN).as_bytes());
            item(READINESS, &bytes);
        }
        if let Some(Changes { digest, lines }) = &self.changes {
            item(CHANGES_DIGEST, &digest.to_be_bytes());
            item(CHANGES, whole_lines(lines).as_bytes());
        }
        if self.replicates {
            item(REPLICATES, &[]);
        }
        for (kind, addresses) in [(ADDRESSES, &self.addresses), (HELD, &self.held)] {
            if !addresses.is_empty() {
                let octets: Vec<[u8; 16]> =
                    addresses.iter().take(ADDRESSES_MAX).map(|address| mapped(*address)).collect();
                item(kind, octets.as_flattened());
            }
        }
        body
    }

    /// Decodes the items.
    ///
    /// # Errors
    /// An item of a known kind has an invalid length or content.
    pub(super) fn read(mut body: &[u8]) -> Result<DirectorReport, ReadError> {
        let mut report = DirectorReport::default();
        let (mut digest, mut lines) = (None, Vec::new());
        while let Some((kind, rest)) = body.split_first() {
            let (length, rest) = rest.split_first_chunk().ok_or(ReadError::Malformed)?;
            let length = usize::from(u16::from_be_bytes(*length));
            let (bytes, rest) = rest.split_at_checked(length).ok_or(ReadError::Malformed)?;
            body = rest;
            match *kind {
                FINGERPRINT => report.fingerprint = Some(number(bytes)?),
                RELEASE => report.release = Some(text(bytes)?),
                READINESS => {
                    let (ready, reason) = bytes.split_first().ok_or(ReadError::Malformed)?;
                    report.readiness = Some(if *ready == 1 { Ok(()) } else { Err(text(reason)?) });
                }
                CHANGES_DIGEST => digest = Some(number(bytes)?),
                CHANGES => lines = text(bytes)?.lines().map(ToOwned::to_owned).collect(),
                ADDRESSES => report.addresses = addresses(bytes)?,
                HELD => report.held = addresses(bytes)?,
                REPLICATES => report.replicates = true,
                _ => {}
            }
        }
        report.changes = digest.map(|digest| Changes { digest, lines });
        Ok(report)
    }
}

fn number(bytes: &[u8]) -> Result<u64, ReadError> {
    bytes.try_into().map(u64::from_be_bytes).map_err(|_| ReadError::Malformed)
}

/// Returns the bytes of an address on the wire. An IPv4 address is mapped (RFC 4291, section
/// 2.5.5.2).
pub(super) fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(four) => four.to_ipv6_mapped().octets(),
        IpAddr::V6(six) => six.octets(),
    }
}

fn addresses(bytes: &[u8]) -> Result<Vec<IpAddr>, ReadError> {
    match bytes.as_chunks() {
        (addresses, []) => {
            let read = addresses.iter().map(|octets| Ipv6Addr::from(*octets).to_canonical());
            Ok(read.take(ADDRESSES_MAX).collect())
        }
        _ => Err(ReadError::Malformed),
    }
}

fn text(bytes: &[u8]) -> Result<String, ReadError> {
    core::str::from_utf8(bytes).map(ToOwned::to_owned).map_err(|_| ReadError::Malformed)
}

/// Returns the longest start of a text that has at most `len` bytes and only whole characters.
fn cut(text: &str, len: usize) -> &str {
    let end = (0..=len.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}

/// Returns the first lines that fit together into [`CHANGES_LEN`].
fn whole_lines(lines: &[String]) -> String {
    let mut all = String::new();
    for line in lines {
        if all.len() + line.len() + 1 > CHANGES_LEN {
            break;
        }
        all.push_str(line);
        all.push('\n');
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec;
    use proptest::prelude::*;

    fn sample() -> DirectorReport {
        DirectorReport {
            fingerprint: Some(7),
            release: Some("0.2.0".to_owned()),
            readiness: Some(Err("no server works".to_owned())),
            changes: Some(Changes { digest: 9, lines: vec!["web/web1: state = \"drain\"".to_owned()] }),
            addresses: vec![[192, 0, 2, 2].into(), Ipv6Addr::LOCALHOST.into()],
            held: vec![[192, 0, 2, 100].into()],
            replicates: true,
        }
    }

    #[test]
    fn items_have_the_documented_layout() {
        let body = DirectorReport {
            changes: None,
            addresses: Vec::new(),
            held: Vec::new(),
            replicates: false,
            ..sample()
        }
        .write();
        assert_eq!(body[..11], [1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(body[11..19], *b"\x02\x00\x050.2.0");
        assert_eq!(body[19..], *b"\x03\x00\x10\x00no server works");
    }

    #[test]
    fn unknown_items_are_skipped_and_missing_ones_are_unsaid() {
        let later = [&[77, 0, 3, 1, 2, 3][..], &sample().write(), &[78, 0, 0]].concat();
        assert_eq!(DirectorReport::read(&later), Ok(sample()));
        assert_eq!(DirectorReport::read(&[]), Ok(DirectorReport::default()));
    }

    #[test]
    fn truncated_bodies_are_refused_or_shorter_reports() {
        let body = sample().write();
        for len in 0..body.len() {
            let read = DirectorReport::read(&body[..len]);
            assert!(read.is_err() || read.unwrap() != sample(), "{len}");
        }
        assert_eq!(DirectorReport::read(&[1, 0, 7, 0, 0, 0, 0, 0, 0, 0]), Err(ReadError::Malformed));
        assert_eq!(DirectorReport::read(&[2, 0, 1, 0xff]), Err(ReadError::Malformed), "no UTF-8");
        assert_eq!(DirectorReport::read(&[3, 0, 0]), Err(ReadError::Malformed));
        assert_eq!(DirectorReport::read(&[6, 0, 2, 0, 0]), Err(ReadError::Malformed));
    }

    #[test]
    fn long_texts_are_cut() {
        let lines: Vec<String> = (0..100).map(|line| format!("web/server{line}: weight = {line}")).collect();
        let report = DirectorReport {
            release: Some("é".repeat(40)),
            readiness: Some(Err("x".repeat(1_000))),
            changes: Some(Changes { digest: 1, lines: lines.clone() }),
            ..sample()
        };
        let body = report.write();
        assert!(body.len() < 900, "{}", body.len());
        let read = DirectorReport::read(&body).unwrap();
        assert_eq!(read.release.unwrap(), "é".repeat(16));
        let read = read.changes.unwrap();
        assert_eq!(read.lines, lines[..read.lines.len()]);
        assert!((15..30).contains(&read.lines.len()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = DirectorReport::read(&body);
        }
    }
}
