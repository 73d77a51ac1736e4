//! Normal forms of hosts and paths.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use super::refusal::HttpRefusal;

/// Maximum length of a host, in bytes: that of a DNS name (RFC 1035, section 2.3.4).
const HOST_MAX: usize = 255;
/// Maximum number of nested percent-encodings that are decoded. No known server decodes more than
/// twice.
const CODES_MAX: usize = 4;

/// Returns a host in lower case, without its port.
///
/// # Errors
/// The host is malformed.
pub fn host_of(value: &[u8]) -> Result<Vec<u8>, HttpRefusal> {
    let text = core::str::from_utf8(value).map_err(|_| HttpRefusal::Host)?.trim();
    // User information before the host is refused (RFC 9110, section 4.2.4).
    let host = match text.strip_prefix('[') {
        Some(rest) => rest
            .split_once(']')
            .map(|(host, port)| (host, port.strip_prefix(':').or(port.is_empty().then_some("")))),
        None => Some(text.rsplit_once(':').map_or((text, Some("")), |(host, port)| (host, Some(port)))),
    };
    let (host, port) = host.and_then(|(host, port)| Some((host, port?))).ok_or(HttpRefusal::Host)?;
    let bracketed = text.starts_with('[');
    let fits = |byte: u8| match bracketed {
        true => byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'),
        false => byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'),
    };
    let good =
        host.len() <= HOST_MAX && host.bytes().all(fits) && port.bytes().all(|byte| byte.is_ascii_digit());
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    match good && (!host.is_empty() || text.is_empty()) {
        true if bracketed => Ok(format!("[{host}]").into_bytes()),
        true => Ok(host.into_bytes()),
        false => Err(HttpRefusal::Host),
    }
}

/// Returns the decoded path without empty and dot segments (RFC 3986, section 6.2.2), as servers
/// see it.
///
/// # Errors
/// The path is malformed, or leads out of the root.
pub fn normal_path(path: &str) -> Result<Vec<u8>, HttpRefusal> {
    let decoded = decoded(path.as_bytes())?;
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut ends_in_slash = true;
    for segment in decoded.split(|byte| *byte == b'/') {
        ends_in_slash = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop().ok_or(HttpRefusal::Target)?),
            other => segments.push(other),
        }
    }
    let mut path = vec![b'/'];
    path.extend(segments.join(&b'/'));
    if ends_in_slash && path.len() > 1 {
        path.push(b'/');
    }
    Ok(path)
}

/// True if a server that parses paths differently from [`normal_path`] may resolve this path to
/// another resource. Such paths have dot segments with parameters (`..;a=b`), white space or
/// control characters beside dots, backslashes, or nested encodings (`%252e`, `%c0%ae`).
pub fn has_hidden_dots(path: &str) -> bool {
    let Ok(mut path) = normal_path(path) else { return true };
    for _ in 0..CODES_MAX {
        path = decode_once(&path);
    }
    path.split(|byte| matches!(byte, b'/' | b'\\')).any(|segment| {
        let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        let is_graphic = |byte: &u8| *byte > b' ' && *byte != 0x7f;
        let from = name.iter().position(is_graphic).unwrap_or_default();
        let to = name.iter().rposition(is_graphic).map_or(0, |last| last + 1);
        matches!(name.get(from..to), Some(b"." | b".."))
    })
}

/// Decodes percent codes once. Also decodes dots and slashes in overlong UTF-8, which is invalid
/// but which some servers accept.
fn decode_once(path: &[u8]) -> Vec<u8> {
    let mut read = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, behind @ ..] = rest {
        let coded = match behind {
            [high, low, ..] if *first == b'%' => byte_of(*high, *low),
            _ => None,
        };
        let (byte, len) = match (coded, rest) {
            (Some(byte), _) => (byte, 3),
            (None, [0xc0, 0xae, ..]) => (b'.', 2),
            (None, [0xc0, 0xaf, ..]) => (b'/', 2),
            (None, [0xc1, 0x9c, ..]) => (b'\\', 2),
            _ => (*first, 1),
        };
        read.push(byte);
        rest = rest.get(len..).unwrap_or_default();
    }
    read
}

/// Returns the byte of two hexadecimal digits.
fn byte_of(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    digit(high).zip(digit(low)).and_then(|(high, low)| u8::try_from(high << 4 | low).ok())
}

/// Decodes percent codes. A percent sign without two hexadecimal digits is an error, and so is a
/// NUL.
fn decoded(bytes: &[u8]) -> Result<Vec<u8>, HttpRefusal> {
    let (mut decoded, mut rest) = (Vec::with_capacity(bytes.len()), bytes);
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match (first, after) {
            (b'%', [high, low, after @ ..]) => (byte_of(*high, *low).ok_or(HttpRefusal::Target)?, after),
            (b'%', _) => return Err(HttpRefusal::Target),
            (byte, after) => (*byte, after),
        };
        if byte == 0 {
            return Err(HttpRefusal::Target);
        }
        decoded.push(byte);
        rest = after;
    }
    Ok(decoded)
}
