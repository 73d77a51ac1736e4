//! The head of an HTTP/1 request (RFC 9112), byte by byte.
//!
//! Stricter than servers are: where two of them could disagree about the path or the host, it is odd.

use super::{Asked, Class, HOST_MAX, METHOD_MAX, Why, is_name_byte, is_v6_byte};

const VERSION: &[u8] = b"HTTP/1.";
/// A header's name as [`Head::name`] has it.
const HOST: u64 = u32::from_be_bytes(*b"host") as u64;

/// Reads a head of at most `limit` bytes, its blank line included.
pub(super) fn read(payload: &[u8], limit: usize) -> Result<Asked<'_>, Why> {
    let mut head = Head::new();
    for (at, byte) in payload.iter().copied().take(limit).enumerate() {
        head.state = head.step(at, byte).ok_or(Why::Odd)?;
        if head.state == State::Done {
            return Ok(head.asked(payload));
        }
    }
    Err(if payload.len() < limit { Why::Incomplete } else { Why::Odd })
}

/// What the next byte belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Method,
    /// The target's first byte.
    Target,
    Path,
    Query,
    Version,
    /// A line's end, where its CR is due, or its LF.
    Cr,
    Lf,
    LineStart,
    Name,
    Value,
    BeforeHost,
    HostName,
    HostV6,
    /// Behind a bracket.
    AfterV6,
    /// A port's first digit.
    Colon,
    Port,
    AfterHost,
    /// The blank line's LF.
    LastLf,
    Done,
}

/// What a path's last segment is, as far as it has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Segment {
    Empty,
    Dot,
    Dots,
    Named,
}

/// What was seen so far. Places are offsets from the first byte.
struct Head {
    state: State,
    /// Where the method ends; the path begins behind the space that follows.
    method_end: usize,
    path_end: usize,
    segment: Segment,
    /// Bytes of [`VERSION`] that were met.
    version: usize,
    /// HTTP/1.0, which needs no host (RFC 9112, section 3.2).
    old: bool,
    /// A header's name in lower case, its last eight bytes: enough to know [`HOST`].
    name: u64,
    host: usize,
    /// 0: there was no host.
    host_end: usize,
    /// Whether the host's last byte is a dot.
    dot: bool,
}

impl Head {
    fn new() -> Head {
        Head {
            state: State::Method,
            method_end: 0,
            path_end: 0,
            segment: Segment::Empty,
            version: 0,
            old: false,
            name: 0,
            host: 0,
            host_end: 0,
            dot: false,
        }
    }

    fn asked<'a>(&self, payload: &'a [u8]) -> Asked<'a> {
        let part = |from, to| payload.get(from..to).unwrap_or_default();
        let method = part(0, self.method_end);
        Asked {
            class: Class::of(method),
            host: part(self.host, self.host_end),
            path: part(self.method_end + 1, self.path_end),
            method,
        }
    }

    /// What follows this byte, or nothing if it makes the head odd.
    fn step(&mut self, at: usize, byte: u8) -> Option<State> {
        match self.state {
            State::Method | State::Target | State::Query | State::Version => self.request_line(at, byte),
            State::Path => self.path(at, byte),
            State::Cr => (byte == b'\r').then_some(State::Lf),
            State::Lf => (byte == b'\n').then_some(State::LineStart),
            State::LineStart | State::Name | State::Value => self.header(byte),
            State::BeforeHost | State::HostName | State::HostV6 => self.host(at, byte),
            State::AfterV6 | State::Colon | State::Port | State::AfterHost => self.after_host(byte),
            State::LastLf => (byte == b'\n').then_some(State::Done),
            State::Done => None,
        }
    }

    fn request_line(&mut self, at: usize, byte: u8) -> Option<State> {
        match (self.state, byte) {
            (State::Method, b'A'..=b'Z') if at < METHOD_MAX => Some(State::Method),
            (State::Method, b' ') if at > 0 => {
                self.method_end = at;
                Some(State::Target)
            }
            // only the origin form (RFC 9112, section 3.2.1): others name a host of their own, or none
            (State::Target, b'/') => Some(State::Path),
            (State::Query, b' ') => Some(State::Version),
            (State::Query, 0x21..=0x7e) => Some(State::Query),
            (State::Version, b'0' | b'1') if self.version == VERSION.len() => {
                self.old = byte == b'0';
                Some(State::Cr)
            }
            (State::Version, _) if VERSION.get(self.version) == Some(&byte) => {
                self.version += 1;
                Some(State::Version)
            }
            _ => None,
        }
    }

    /// A path that is normal already, so that whoever normalises it gets the same one (RFC 3986, section 6.2.2):
    /// nothing encoded, no dot segments, no empty ones. Some servers take `#` for the path's end.
    fn path(&mut self, at: usize, byte: u8) -> Option<State> {
        let dotted = matches!(self.segment, Segment::Dot | Segment::Dots);
        match byte {
            b'?' | b' ' if !dotted => {
                self.path_end = at;
                return Some(if byte == b'?' { State::Query } else { State::Version });
            }
            b'/' if self.segment == Segment::Named => self.segment = Segment::Empty,
            b'.' => {
                self.segment = match self.segment {
                    Segment::Empty => Segment::Dot,
                    Segment::Dot => Segment::Dots,
                    Segment::Dots | Segment::Named => Segment::Named,
                }
            }
            b'/' | b'?' | b'%' | b'#' => return None,
            0x21..=0x7e => self.segment = Segment::Named,
            _ => return None,
        }
        Some(State::Path)
    }

    /// The blank line, a header's name, or a value that doesn't matter.
    fn header(&mut self, byte: u8) -> Option<State> {
        match (self.state, byte) {
            (State::LineStart, b'\r') => (self.old || self.host_end > 0).then_some(State::LastLf),
            (State::LineStart, b':') => None,
            (State::Name, b':') if self.name == HOST => (self.host_end == 0).then_some(State::BeforeHost),
            (State::Name, b':') => Some(State::Value),
            // neither a space before the colon nor a folded line (RFC 9112, section 5): servers differ on them
            (State::LineStart | State::Name, 0x21..=0x7e) => {
                let before = if self.state == State::Name { self.name << 8 } else { 0 };
                self.name = before | u64::from(byte | 0x20);
                Some(State::Name)
            }
            (State::Value, b'\r') => Some(State::Lf),
            (State::Value, b'\t' | 0x20..=0x7e | 0x80..) => Some(State::Value),
            _ => None,
        }
    }

    fn host(&mut self, at: usize, byte: u8) -> Option<State> {
        match (self.state, byte) {
            (State::BeforeHost, b' ' | b'\t') => return Some(State::BeforeHost),
            (State::BeforeHost, b'[') => {
                self.host = at;
                return Some(State::HostV6);
            }
            (State::BeforeHost, _) if is_name_byte(byte) => self.host = at,
            (State::HostName, _) if is_name_byte(byte) => {}
            (State::HostName, _) if !self.dot => {
                self.host_end = at;
                return self.after_host(byte);
            }
            (State::HostV6, b']') if at > self.host + 1 => {
                self.host_end = at + 1;
                return (at - self.host < HOST_MAX).then_some(State::AfterV6);
            }
            (State::HostV6, _) if is_v6_byte(byte) => {
                return (at - self.host < HOST_MAX).then_some(State::HostV6);
            }
            _ => return None,
        }
        // "example.com." is another spelling of "example.com"
        self.dot = byte == b'.';
        (at - self.host < HOST_MAX).then_some(State::HostName)
    }

    /// A port, and white space at the end. At `HostName` it is the byte that ends the name.
    fn after_host(&mut self, byte: u8) -> Option<State> {
        match (self.state, byte) {
            (State::HostName | State::AfterV6, b':') => Some(State::Colon),
            (State::Colon | State::Port, b'0'..=b'9') => Some(State::Port),
            (State::Colon, _) => None,
            (_, b' ' | b'\t') => Some(State::AfterHost),
            (_, b'\r') => Some(State::Lf),
            _ => None,
        }
    }
}
