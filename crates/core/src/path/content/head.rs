//! Parses the head of an HTTP/1 request (RFC 9112), byte by byte.
//!
//! The parser is stricter than servers are. A head is *odd* if two servers could disagree about its
//! path or host. The data plane punts odd heads.

use super::{HOST_MAX, METHOD_MAX, PuntReason, RequestClass, RequestKey, is_name_byte, is_v6_byte};

const VERSION: &[u8] = b"HTTP/1.";
/// Value of [`HeadParser::name`] for the header "Host".
const HOST: u64 = u32::from_be_bytes(*b"host") as u64;

/// Parses a head of at most `limit` bytes, including its blank line.
pub(super) fn read(payload: &[u8], limit: usize) -> Result<RequestKey<'_>, PuntReason> {
    let mut head = HeadParser::new();
    for (at, byte) in payload.iter().copied().take(limit).enumerate() {
        head.state = head.step(at, byte).ok_or(PuntReason::Odd)?;
        if head.state == HeadState::Done {
            return Ok(head.key(payload));
        }
    }
    Err(if payload.len() < limit { PuntReason::Incomplete } else { PuntReason::Odd })
}

/// Part of the head to which the next byte belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeadState {
    Method,
    /// First byte of the target.
    Target,
    Path,
    Query,
    Version,
    /// CR was read at the end of a line, so LF must follow.
    Cr,
    Lf,
    LineStart,
    Name,
    Value,
    BeforeHost,
    HostName,
    HostV6,
    /// The closing bracket of an IPv6 address was read.
    AfterV6,
    /// First digit of a port.
    Colon,
    Port,
    AfterHost,
    /// LF of the blank line.
    LastLf,
    Done,
}

/// Last segment of a path, as far as it was read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathSegment {
    Empty,
    Dot,
    Dots,
    Named,
}

/// State of the parser. Positions are offsets from the first byte.
struct HeadParser {
    state: HeadState,
    /// End of the method. The path begins after the space that follows.
    method_end: usize,
    path_end: usize,
    segment: PathSegment,
    /// Number of bytes of [`VERSION`] read.
    version: usize,
    /// True for HTTP/1.0, in which a request needs no header "Host" (RFC 9112, section 3.2).
    old: bool,
    /// Last eight bytes of a header's name in lower case, which are enough to recognise [`HOST`].
    name: u64,
    host: usize,
    /// End of the host; 0 if no header "Host" was read.
    host_end: usize,
    /// True if the last byte of the host is a dot.
    dot: bool,
}

impl HeadParser {
    fn new() -> HeadParser {
        HeadParser {
            state: HeadState::Method,
            method_end: 0,
            path_end: 0,
            segment: PathSegment::Empty,
            version: 0,
            old: false,
            name: 0,
            host: 0,
            host_end: 0,
            dot: false,
        }
    }

    fn key<'a>(&self, payload: &'a [u8]) -> RequestKey<'a> {
        let part = |from, to| payload.get(from..to).unwrap_or_default();
        let method = part(0, self.method_end);
        RequestKey {
            class: RequestClass::of(method),
            host: part(self.host, self.host_end),
            path: part(self.method_end + 1, self.path_end),
            method,
        }
    }

    /// Returns the state after the byte at offset `at`. `None` if the byte makes the head odd.
    fn step(&mut self, at: usize, byte: u8) -> Option<HeadState> {
        match self.state {
            HeadState::Method | HeadState::Target | HeadState::Query | HeadState::Version => {
                self.request_line(at, byte)
            }
            HeadState::Path => self.path(at, byte),
            HeadState::Cr => (byte == b'\r').then_some(HeadState::Lf),
            HeadState::Lf => (byte == b'\n').then_some(HeadState::LineStart),
            HeadState::LineStart | HeadState::Name | HeadState::Value => self.header(byte),
            HeadState::BeforeHost | HeadState::HostName | HeadState::HostV6 => self.host(at, byte),
            HeadState::AfterV6 | HeadState::Colon | HeadState::Port | HeadState::AfterHost => {
                self.after_host(byte)
            }
            HeadState::LastLf => (byte == b'\n').then_some(HeadState::Done),
            HeadState::Done => None,
        }
    }

    fn request_line(&mut self, at: usize, byte: u8) -> Option<HeadState> {
        match (self.state, byte) {
            (HeadState::Method, b'A'..=b'Z') if at < METHOD_MAX => Some(HeadState::Method),
            (HeadState::Method, b' ') if at > 0 => {
                self.method_end = at;
                Some(HeadState::Target)
            }
            // Only the origin form is accepted (RFC 9112, section 3.2.1), since other forms contain
            // a host of their own or no path.
            (HeadState::Target, b'/') => Some(HeadState::Path),
            (HeadState::Query, b' ') => Some(HeadState::Version),
            (HeadState::Query, 0x21..=0x7e) => Some(HeadState::Query),
            (HeadState::Version, b'0' | b'1') if self.version == VERSION.len() => {
                self.old = byte == b'0';
                Some(HeadState::Cr)
            }
            (HeadState::Version, _) if VERSION.get(self.version) == Some(&byte) => {
                self.version += 1;
                Some(HeadState::Version)
            }
            _ => None,
        }
    }

    /// Reads a byte of the path. Accepts only normal paths, which every normaliser leaves unchanged
    /// (RFC 3986, section 6.2.2). They have no percent-encoding, dot segments or empty segments.
    /// Rejects `#`, which some servers treat as the end of the path.
    fn path(&mut self, at: usize, byte: u8) -> Option<HeadState> {
        let dotted = matches!(self.segment, PathSegment::Dot | PathSegment::Dots);
        match byte {
            b'?' | b' ' if !dotted => {
                self.path_end = at;
                return Some(if byte == b'?' { HeadState::Query } else { HeadState::Version });
            }
            b'/' if self.segment == PathSegment::Named => self.segment = PathSegment::Empty,
            b'.' => {
                self.segment = match self.segment {
                    PathSegment::Empty => PathSegment::Dot,
                    PathSegment::Dot => PathSegment::Dots,
                    PathSegment::Dots | PathSegment::Named => PathSegment::Named,
                }
            }
            b'/' | b'?' | b'%' | b'#' => return None,
            0x21..=0x7e => self.segment = PathSegment::Named,
            _ => return None,
        }
        Some(HeadState::Path)
    }

    /// Reads the blank line, a header's name, or the value of a header other than "Host".
    fn header(&mut self, byte: u8) -> Option<HeadState> {
        match (self.state, byte) {
            (HeadState::LineStart, b'\r') => (self.old || self.host_end > 0).then_some(HeadState::LastLf),
            (HeadState::LineStart, b':') => None,
            (HeadState::Name, b':') if self.name == HOST => {
                (self.host_end == 0).then_some(HeadState::BeforeHost)
            }
            (HeadState::Name, b':') => Some(HeadState::Value),
            // A space before the colon and a folded line are odd (RFC 9112, section 5), since
            // servers treat them differently.
            (HeadState::LineStart | HeadState::Name, 0x21..=0x7e) => {
                let before = if self.state == HeadState::Name { self.name << 8 } else { 0 };
                self.name = before | u64::from(byte | 0x20);
                Some(HeadState::Name)
            }
            (HeadState::Value, b'\r') => Some(HeadState::Lf),
            (HeadState::Value, b'\t' | 0x20..=0x7e | 0x80..) => Some(HeadState::Value),
            _ => None,
        }
    }

    fn host(&mut self, at: usize, byte: u8) -> Option<HeadState> {
        match (self.state, byte) {
            (HeadState::BeforeHost, b' ' | b'\t') => return Some(HeadState::BeforeHost),
            (HeadState::BeforeHost, b'[') => {
                self.host = at;
                return Some(HeadState::HostV6);
            }
            (HeadState::BeforeHost, _) if is_name_byte(byte) => self.host = at,
            (HeadState::HostName, _) if is_name_byte(byte) => {}
            (HeadState::HostName, _) if !self.dot => {
                self.host_end = at;
                return self.after_host(byte);
            }
            (HeadState::HostV6, b']') if at > self.host + 1 => {
                self.host_end = at + 1;
                return (at - self.host < HOST_MAX).then_some(HeadState::AfterV6);
            }
            (HeadState::HostV6, _) if is_v6_byte(byte) => {
                return (at - self.host < HOST_MAX).then_some(HeadState::HostV6);
            }
            _ => return None,
        }
        // A host that ends with a dot is odd: "example.com." is the same name as "example.com", but
        // only some servers remove the dot.
        self.dot = byte == b'.';
        (at - self.host < HOST_MAX).then_some(HeadState::HostName)
    }

    /// Reads a port, and white space at the end. In the state `HostName`, `byte` is the first byte
    /// after the name.
    fn after_host(&mut self, byte: u8) -> Option<HeadState> {
        match (self.state, byte) {
            (HeadState::HostName | HeadState::AfterV6, b':') => Some(HeadState::Colon),
            (HeadState::Colon | HeadState::Port, b'0'..=b'9') => Some(HeadState::Port),
            (HeadState::Colon, _) => None,
            (_, b' ' | b'\t') => Some(HeadState::AfterHost),
            (_, b'\r') => Some(HeadState::Lf),
            _ => None,
        }
    }
}
