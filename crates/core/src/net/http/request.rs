//! Head of a request.

use core::mem::MaybeUninit;

use super::host::{host_of, normal_path};
use super::refusal::HttpRefusal;

/// Maximum length of a head, in bytes.
pub const HEAD_MAX: usize = 16 * 1024;
/// Maximum number of header fields of a request, for all listeners.
pub const HEADERS_MAX: usize = 128;
/// Methods that act on one resource, so that their target can't be an asterisk (RFC 9112, section
/// 3.2.4).
const METHODS_OF_PATHS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE"];

/// Head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'b> {
    /// Method as the client wrote it. Methods are case-sensitive (RFC 9110, section 9.1).
    pub method: &'b str,
    /// Path and query, which begin with a slash, or `*`.
    pub target: &'b str,
    /// Host as the client wrote it, in an absolute target or else in the Host field. Empty if an
    /// HTTP/1.0 request has no host.
    pub host: &'b [u8],
    /// True if the request has version HTTP/1.0.
    pub is_old: bool,
    /// True if more requests may follow on the connection.
    pub keeps_alive: bool,
    /// Body after the head.
    pub body: BodyFraming,
    /// True if the client waits for 100 Continue before it sends the body (RFC 9110, section
    /// 10.1.1).
    pub waits: bool,
    /// Authorization field, as written.
    pub authorization: Option<&'b [u8]>,
    /// Length of the head, in bytes.
    pub len: usize,
}

/// Framing of the body after a head (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// Length of the body in bytes. Most requests have length 0.
    Length(u64),
    Chunked,
}

/// Result of parsing a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadParse<'b> {
    Request(Request<'b>),
    /// The head is incomplete.
    Incomplete,
    Refused(HttpRefusal),
}

/// Parses a head of at most [`HEAD_MAX`] bytes at the start of `bytes`.
pub fn read(bytes: &[u8]) -> HeadParse<'_> {
    read_within(bytes, HEAD_MAX)
}

/// Parses a head of at most `max` bytes. All listeners use this parser, so they refuse the same
/// requests.
pub fn read_within(bytes: &[u8], max: usize) -> HeadParse<'_> {
    let mut lines = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse_with_uninit_headers(bytes, &mut lines) {
        Ok(httparse::Status::Complete(len)) if len > max => HeadParse::Refused(HttpRefusal::TooLarge),
        Ok(httparse::Status::Complete(len)) => {
            match has_bare_line_feed(bytes.get(..len).unwrap_or_default()) {
                true => HeadParse::Refused(HttpRefusal::Malformed),
                false => request(&parsed, len).map_or_else(HeadParse::Refused, HeadParse::Request),
            }
        }
        Ok(httparse::Status::Partial) if bytes.len() < max => HeadParse::Incomplete,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            HeadParse::Refused(HttpRefusal::TooLarge)
        }
        Err(httparse::Error::Version) if has_other_version(bytes) => HeadParse::Refused(HttpRefusal::Version),
        Err(_) => HeadParse::Refused(HttpRefusal::Malformed),
    }
}

/// True if the first line ends in another HTTP version (RFC 9112, section 2.3).
fn has_other_version(bytes: &[u8]) -> bool {
    let line =
        bytes.trim_ascii_start().split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ').skip(2);
    let is_version = |word: &[u8]| match word.strip_prefix(b"HTTP/") {
        Some([major, b'.', minor]) => major.is_ascii_digit() && minor.is_ascii_digit(),
        _ => false,
    };
    words.next().is_some_and(is_version) && words.next().is_none()
}

/// True if a line ends in LF alone. Some recipients accept LF as CR LF, and others don't (RFC 9112,
/// section 2.2), which allows request smuggling.
fn has_bare_line_feed(head: &[u8]) -> bool {
    let mut before = 0;
    head.iter().any(|byte| core::mem::replace(&mut before, *byte) != b'\r' && *byte == b'\n')
}

fn request<'b>(parsed: &httparse::Request<'_, 'b>, len: usize) -> Result<Request<'b>, HttpRefusal> {
    let method = parsed.method.ok_or(HttpRefusal::Malformed)?;
    let is_old = parsed.version == Some(0);
    let lines = HeaderFields::read(parsed.headers, is_old)?;
    let (authority, target) = target(method, parsed.path.ok_or(HttpRefusal::Malformed)?)?;
    // RFC 9112, section 3.2.2: the target's host takes precedence over the Host field. The Host
    // field is still required.
    let host = match (authority, lines.host) {
        (_, None) if !is_old => return Err(HttpRefusal::Host),
        (Some(authority), _) => authority.as_bytes(),
        (None, named) => named.unwrap_or_default(),
    };
    if !is_plain(host) {
        host_of(host)?;
    }
    if authority.is_some() && host.is_empty() {
        return Err(HttpRefusal::Target);
    }
    if let (Some(authority), Some(named)) = (authority, lines.host) {
        agree(authority.as_bytes(), named)?;
    }
    stays_inside(target)?;
    Ok(Request {
        method,
        target,
        host,
        is_old,
        keeps_alive: if is_old { lines.keep_alive && !lines.close } else { !lines.close },
        body: lines.body()?,
        waits: lines.waits && !is_old,
        authorization: lines.authorization,
        len,
    })
}

/// Checks that the target's host is that of the Host field, so that servers which use either agree
/// (RFC 9112, section 3.2.2).
///
/// # Errors
/// [`HttpRefusal::Misdirected`] if they differ, [`HttpRefusal::Host`] if one is malformed.
fn agree(authority: &[u8], named: &[u8]) -> Result<(), HttpRefusal> {
    match host_of(authority)? == host_of(named)? {
        true => Ok(()),
        false => Err(HttpRefusal::Misdirected),
    }
}

/// Checks that a target's path stays below its root for any parser: it must not escape from a
/// member's URL (RFC 3986, section 5.2.4). Backslashes count as separators, as in some servers.
///
/// # Errors
/// [`HttpRefusal::Target`] if the path leaves the root, or is malformed.
fn stays_inside(target: &str) -> Result<(), HttpRefusal> {
    let path = target.split(['?', '#']).next().unwrap_or_default();
    if !path.contains('%') && !path.contains("..") {
        return Ok(());
    }
    normal_path(path)?;
    let separated = path.replace('\\', "/").replace("%5c", "/").replace("%5C", "/");
    normal_path(&separated).map(drop)
}

/// True if a host is a plain name, with or without a port, that needs no further checks.
fn is_plain(host: &[u8]) -> bool {
    let (name, port) = match host.iter().rposition(|byte| *byte == b':') {
        Some(at) => (host.get(..at).unwrap_or_default(), host.get(at + 1..).unwrap_or_default()),
        None => (host, &[][..]),
    };
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    name.len() <= 64
        && name.first().is_some_and(u8::is_ascii_alphanumeric)
        && name.iter().all(fits)
        && port.iter().all(u8::is_ascii_digit)
}

/// Header fields that this parser evaluates.
#[derive(Default)]
struct HeaderFields<'b> {
    host: Option<&'b [u8]>,
    close: bool,
    keep_alive: bool,
    length: Option<u64>,
    chunked: bool,
    waits: bool,
    authorization: Option<&'b [u8]>,
}

impl<'b> HeaderFields<'b> {
    fn read(headers: &[httparse::Header<'b>], is_old: bool) -> Result<HeaderFields<'b>, HttpRefusal> {
        let mut lines = HeaderFields::default();
        for header in headers {
            let (name, value) = (header.name, header.value);
            let is = |other: &str| name.eq_ignore_ascii_case(other);
            match name.len() {
                4 if is("host") => lines.host(value)?,
                6 if is("expect") => lines.waits = value.eq_ignore_ascii_case(b"100-continue"),
                10 if is("connection") => lines.connection(value),
                13 if is("authorization") => lines.authorization = Some(value),
                14 if is("content-length") => lines.length(value)?,
                17 if is("transfer-encoding") => lines.encoding(value, is_old)?,
                _ => {}
            }
        }
        Ok(lines)
    }

    fn host(&mut self, value: &'b [u8]) -> Result<(), HttpRefusal> {
        match self.host.replace(value) {
            Some(_) => Err(HttpRefusal::Host),
            None => Ok(()),
        }
    }

    fn connection(&mut self, value: &[u8]) {
        for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    fn length(&mut self, value: &[u8]) -> Result<(), HttpRefusal> {
        let digits = core::str::from_utf8(value).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
        let length = digits.and_then(|digits| digits.parse().ok()).ok_or(HttpRefusal::Length)?;
        match self.length.replace(length) {
            Some(_) => Err(HttpRefusal::Length),
            None => Ok(()),
        }
    }

    fn encoding(&mut self, value: &[u8], is_old: bool) -> Result<(), HttpRefusal> {
        if is_old || core::mem::replace(&mut self.chunked, true) {
            return Err(HttpRefusal::Length);
        }
        // RFC 9112, section 6.3: if the last coding isn't chunked, the end of the body is unknown.
        // Section 7.1: chunked is applied once.
        let is_chunked = |coding: &&[u8]| coding.eq_ignore_ascii_case(b"chunked");
        let mut codings = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).rev();
        if !codings.next().is_some_and(|last| is_chunked(&last)) {
            return Err(HttpRefusal::Length);
        }
        let (others, again) =
            codings.fold((0, false), |(others, again), c| (others + 1, again || is_chunked(&c)));
        match (others, again) {
            (0, _) => Ok(()),
            (_, true) => Err(HttpRefusal::Length),
            (_, false) => Err(HttpRefusal::Encoding),
        }
    }

    fn body(&self) -> Result<BodyFraming, HttpRefusal> {
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(HttpRefusal::Length),
            (true, None) => Ok(BodyFraming::Chunked),
            (false, length) => Ok(BodyFraming::Length(length.unwrap_or_default())),
        }
    }
}

/// Returns the host of a target, if it names one, and its path and query.
fn target<'t>(method: &str, target: &'t str) -> Result<(Option<&'t str>, &'t str), HttpRefusal> {
    if target == "*" && METHODS_OF_PATHS.contains(&method) {
        return Err(HttpRefusal::Target);
    }
    if target.starts_with('/') || target == "*" {
        return Ok((None, target));
    }
    let (scheme, rest) = target.split_once("://").ok_or(HttpRefusal::Target)?;
    // RFC 9112, section 3.2.2. The scheme is case-insensitive (RFC 3986, section 3.1).
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(HttpRefusal::Target);
    }
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    Ok((Some(authority), if rest.is_empty() { "/" } else { rest }))
}
