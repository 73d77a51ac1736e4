//! A client's request, and its route.
//!
//! [`read`] takes the first bytes that a client sends: the head of an HTTP/1 request, or a TLS
//! ClientHello. Whatever it can't be sure of it doesn't decide: such a connection is *asked* about,
//! in application space, which has time to read on and to normalise. So a request is never sent to
//! a wrong server because somebody read it otherwise. [`RouteIndex`] then says where it goes, by a
//! bounded number of look-ups in a hash table.
//!
//! Reading is one pass forward over at most [`READ_MAX`] bytes that allocates nothing.
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

/// Bytes of a request's head or of a hello that are looked at. A longer one is asked about.
pub const READ_MAX: usize = 2_048;
/// Bytes of a host, brackets included.
pub const HOST_MAX: usize = 255;
/// Labels of the longest wildcard that is looked up: so many ends of a host are, from the right.
pub const HOST_LABELS_MAX: usize = 8;
/// Slashes in the longest prefix that is looked up: so many beginnings of a path are.
pub const PATH_DEPTH_MAX: usize = 16;
/// Bytes of a method.
pub const METHOD_MAX: usize = 16;
/// Bytes that are looked at for where a later request begins.
pub const LATER_MAX: usize = 256;
/// Places in a [`RouteEntry`]: one for each [`RequestClass`], and one to spare.
pub const CLASSES: usize = 8;

/// The methods that routes tell apart without asking, and hellos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RequestClass {
    Get = 0,
    Head = 1,
    Post = 2,
    Put = 3,
    Delete = 4,
    Other = 5,
    /// No request but a TLS ClientHello.
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

/// Request of a client, as far as routes read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKey<'a> {
    pub class: RequestClass,
    /// The host as it was sent, in whatever case, without the port. Empty if none was named.
    pub host: &'a [u8],
    /// The path, without a query. Empty for a hello.
    pub path: &'a [u8],
    /// The method. Empty for a hello.
    pub method: &'a [u8],
}

/// The meaning of a connection's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentParse<'a> {
    /// A request or hello that leaves no doubt.
    Request(RequestKey<'a>),
    /// Not decided in the data plane.
    Punt(PuntReason),
}

/// Reason why a request is not decided in the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PuntReason {
    /// Nothing is wrong with it; more bytes may complete it.
    Incomplete,
    /// Malformed, ambiguous, too long or of no known kind. Whatever follows, it stays so.
    Odd,
    /// A hello that comes in several records: [`joined`] makes one of them.
    Split,
}

/// The request that bytes in the middle of a connection look like: a method and a target, or the
/// beginning of these where no more has come yet, behind the empty lines that servers pass over
/// (RFC 9112, section 2.2). Bytes behind a request may look like another one, and be part of it.
pub fn later_request(payload: &[u8]) -> Option<&[u8]> {
    let looked = payload.get(..LATER_MAX).unwrap_or(payload);
    let empty = looked.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let line = looked.get(empty..).unwrap_or_default();
    let is_method = |byte: &&u8| matches!(byte, b'A'..=b'Z' | b'-' | b'_');
    let method_len = line.iter().take(METHOD_MAX).take_while(is_method).count();
    // Servers differ on how many spaces there may be.
    let behind = line.get(method_len..).unwrap_or_default();
    let spaces = behind.iter().take_while(|byte| **byte == b' ').count();
    let is_one = match behind.get(spaces) {
        // RFC 9112, section 3.2: a path, a whole URL, or an asterisk.
        Some(byte) if matches!(byte, b'/' | b'*' | b'h' | b'H') && method_len > 0 && spaces > 0 => {
            may_be_line(line, method_len + spaces)
        }
        Some(_) => false,
        // As far as it was looked at.
        None => method_len > 0 || (line.is_empty() && payload.len() > looked.len()),
    };
    if is_one { payload.get(empty..) } else { None }
}

/// True if bytes with a method, and at `target` the like of a target, may be a request line as far
/// as they go: text, with a version before its end. HTTP/0.9 has no version and only `GET`. Of body
/// bytes one segment in 100,000 begins so by chance, and none has such a line.
fn may_be_line(line: &[u8], target: usize) -> bool {
    let end = line.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    let text = line.get(target..end.unwrap_or(line.len())).unwrap_or_default();
    let is_text = text.iter().all(|byte| !byte.is_ascii_control() || *byte == b'\t');
    is_text && (end.is_none() || line.starts_with(b"GET ") || text.windows(5).any(|part| part == b"HTTP/"))
}

/// Reads the first bytes that a client sends, as the data plane does. Bytes behind the head or the
/// hello don't count.
pub fn read(payload: &[u8]) -> ContentParse<'_> {
    read_within(payload, READ_MAX)
}

/// The same for heads and hellos of up to `limit` bytes: for application space, where there is room
/// for them. No hello is longer than [`HELLO_MAX`].
pub fn read_within(payload: &[u8], limit: usize) -> ContentParse<'_> {
    let read = match payload.first() {
        None => Err(PuntReason::Incomplete),
        Some(&hello::HANDSHAKE) => hello::read(payload, limit),
        Some(_) => head::read(payload, limit),
    };
    read.map_or_else(ContentParse::Punt, ContentParse::Request)
}

/// The characters of a host's name: the letters, digits and hyphens of RFC 1123, section 2.1, and
/// others that occur.
const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')
}

/// The characters between the brackets of an IPv6 address (RFC 3986, section 3.2.2). Zones are left
/// to the kernel.
const fn is_v6_byte(byte: u8) -> bool {
    byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')
}
