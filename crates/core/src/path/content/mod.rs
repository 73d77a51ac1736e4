//! Parses a client's request and finds its route.
//!
//! [`read`] parses the first bytes that a client sends: the head of an HTTP/1 request, or a TLS
//! ClientHello. A doubtful request is *punted* to user space, which has time to read more and to
//! normalise the request. So parsers that disagree never cause a request to reach the wrong server.
//! Then [`RouteIndex`] finds the route, with a bounded number of lookups in a hash table.
//!
//! The parser makes one forward pass over at most [`READ_MAX`] bytes and allocates nothing.
//! `bpf/director/content.h` is its copy in C.

mod hash;
mod head;
mod hello;
mod pattern;
mod routes;
#[cfg(test)]
mod tests;

pub use hash::{ANY, EXACT, HashKey, PART, PRESENT, PRIME, RouteKey};
pub use hello::{HELLO_MAX, joined};
pub use pattern::{HostPattern, PathPattern, PatternError};
pub use routes::{NO_ROUTE, ROUTES_MAX, RouteEntry, RouteIndex, RouteMatch, RoutePattern};

/// Maximum number of bytes that are read of a request's head or of a hello. Longer heads and hellos
/// are punted.
pub const READ_MAX: usize = 2_048;
/// Maximum length of a host in bytes, including brackets.
pub const HOST_MAX: usize = 255;
/// Maximum number of a host's suffixes that are looked up. A host wildcard of a simple route has at
/// most as many labels.
pub const HOST_LABELS_MAX: usize = 8;
/// Maximum number of a path's prefixes that are looked up. A prefix of a simple route has at most
/// as many slashes.
pub const PATH_DEPTH_MAX: usize = 16;
/// Maximum length of a method in bytes.
pub const METHOD_MAX: usize = 16;
/// Maximum number of bytes of a segment in which [`later_request`] searches for a request line.
pub const LATER_MAX: usize = 256;
/// Number of routes in a [`RouteEntry`]: one for each [`RequestClass`], and one spare.
pub const CLASSES: usize = 8;

/// Class of a request, by which simple routes are looked up. Classes distinguish the common methods
/// and hellos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RequestClass {
    Get = 0,
    Head = 1,
    Post = 2,
    Put = 3,
    Delete = 4,
    Other = 5,
    /// TLS ClientHello in place of a request.
    Hello = 6,
}

impl RequestClass {
    pub const ALL: [RequestClass; 7] = [
        RequestClass::Get,
        RequestClass::Head,
        RequestClass::Post,
        RequestClass::Put,
        RequestClass::Delete,
        RequestClass::Other,
        RequestClass::Hello,
    ];

    /// Returns the class of a method, which is case-sensitive (RFC 9110, section 9.1).
    pub fn of(method: &[u8]) -> RequestClass {
        match method {
            b"GET" => RequestClass::Get,
            b"HEAD" => RequestClass::Head,
            b"POST" => RequestClass::Post,
            b"PUT" => RequestClass::Put,
            b"DELETE" => RequestClass::Delete,
            _ => RequestClass::Other,
        }
    }
}

/// Fields of a client's request that routes match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKey<'a> {
    pub class: RequestClass,
    /// Host as sent, in any case, without the port. Empty if the request has none.
    pub host: &'a [u8],
    /// Path without the query. Empty for a hello.
    pub path: &'a [u8],
    /// Method. Empty for a hello.
    pub method: &'a [u8],
}

/// Result of parsing a connection's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentParse<'a> {
    /// The request or hello is unambiguous.
    Request(RequestKey<'a>),
    /// The data plane can't decide the request.
    Punt(PuntReason),
}

/// Reason why the data plane can't decide a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PuntReason {
    /// The request is valid so far. More bytes may complete it.
    Incomplete,
    /// The request is malformed, ambiguous, too long or of unknown kind. More bytes don't change
    /// this.
    Odd,
    /// The hello is split over several records, which [`joined`] joins.
    Split,
}

/// Returns the request in a segment of an open connection, from its method on. `None` if the
/// segment does not begin with a method and a target, and is not the first part of both. Empty
/// lines before the method are skipped, as servers skip them (RFC 9112, section 2.2). A request's
/// body may look like a request, too.
pub fn later_request(payload: &[u8]) -> Option<&[u8]> {
    let looked = payload.get(..LATER_MAX).unwrap_or(payload);
    let empty = looked.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let line = looked.get(empty..).unwrap_or_default();
    let is_method = |byte: &&u8| matches!(byte, b'A'..=b'Z' | b'-' | b'_');
    let method_len = line.iter().take(METHOD_MAX).take_while(is_method).count();
    // Some servers accept several spaces after the method.
    let behind = line.get(method_len..).unwrap_or_default();
    let spaces = behind.iter().take_while(|byte| **byte == b' ').count();
    let is_one = match behind.get(spaces) {
        // A target is a path, a full URL, or an asterisk (RFC 9112, section 3.2).
        Some(byte) if matches!(byte, b'/' | b'*' | b'h' | b'H') && method_len > 0 && spaces > 0 => {
            may_be_line(line, method_len + spaces)
        }
        Some(_) => false,
        // The line ends within the method or the spaces.
        None => method_len > 0 || (line.is_empty() && payload.len() > looked.len()),
    };
    if is_one { payload.get(empty..) } else { None }
}

/// True if `line` may be a request line as far as it goes: text, with an HTTP version before the
/// end of the line. HTTP/0.9 has no version and only `GET`. The method and the start of the target
/// were checked before. One segment in 100,000 of a body begins like a request line by chance. No
/// segment has a whole request line by chance.
fn may_be_line(line: &[u8], target: usize) -> bool {
    let end = line.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    let text = line.get(target..end.unwrap_or(line.len())).unwrap_or_default();
    let is_text = text.iter().all(|byte| !byte.is_ascii_control() || *byte == b'\t');
    is_text && (end.is_none() || line.starts_with(b"GET ") || text.windows(5).any(|part| part == b"HTTP/"))
}

/// Parses the first bytes that a client sends, as the data plane does. Bytes after the head or
/// hello are ignored.
pub fn read(payload: &[u8]) -> ContentParse<'_> {
    read_within(payload, READ_MAX)
}

/// Parses like [`read`], but up to `limit` bytes of a head or hello, for user space. No hello is
/// longer than [`HELLO_MAX`].
pub fn read_within(payload: &[u8], limit: usize) -> ContentParse<'_> {
    let read = match payload.first() {
        None => Err(PuntReason::Incomplete),
        Some(&hello::HANDSHAKE) => hello::read(payload, limit),
        Some(_) => head::read(payload, limit),
    };
    read.map_or_else(ContentParse::Punt, ContentParse::Request)
}

/// True for a character of a host name: a letter, a digit or a hyphen (RFC 1123, section 2.1), the
/// dot between labels, or the underscore, which is in use.
const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')
}

/// True for a character between the brackets of an IPv6 address (RFC 3986, section 3.2.2). Zones
/// are not supported.
const fn is_v6_byte(byte: u8) -> bool {
    byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')
}
