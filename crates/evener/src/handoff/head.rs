//! Parses a client's request that the data plane left open: reads it in full, and normalises or
//! refuses it.

use evener_core::net::http;
use evener_core::node::lccp::ClientRequest;
use evener_core::path::content::{
    ContentParse, HELLO_MAX, PuntReason, RequestClass, RequestKey, joined, read_within,
};

/// Maximum length of a head, in bytes. Servers don't accept longer heads either.
pub(super) const HEAD_MAX: usize = 32 * 1024;
/// Connection preface of HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// First byte of a TLS record that contains a hello.
const HANDSHAKE: u8 = 0x16;

/// A normalised request or hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NormalizedRequest {
    class: RequestClass,
    method: Vec<u8>,
    host: Vec<u8>,
    path: Vec<u8>,
}

/// Reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadRefusal {
    /// A request that must not be forwarded.
    Request(http::HttpRefusal),
    /// HTTP/2, which can't be routed as HTTP/1.
    Http2,
    /// Neither HTTP nor TLS. The connection is reset.
    Unreadable,
}

/// Classification of a connection's first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeadClass {
    Wanted(NormalizedRequest),
    /// More bytes are needed.
    Incomplete,
    Refused(HeadRefusal),
}

impl NormalizedRequest {
    /// Returns the key for a lookup in routes.
    pub(crate) fn key(&self) -> RequestKey<'_> {
        RequestKey { class: self.class, host: &self.host, path: &self.path, method: &self.method }
    }

    /// Returns the request for a query to a dispatcher. `None` if it is too long.
    pub(crate) fn content(&self) -> Option<ClientRequest> {
        let (method, path) =
            if self.is_hello() { (&[][..], &[][..]) } else { (&self.method[..], &self.path[..]) };
        ClientRequest::new(&self.host, method, path)
    }

    /// Returns the request of a node's query to the dispatcher. A hello only has a host.
    pub(crate) fn from_peer(content: &ClientRequest) -> NormalizedRequest {
        let is_hello = content.method().is_empty() && content.path().is_empty();
        NormalizedRequest {
            class: if is_hello { RequestClass::Hello } else { RequestClass::of(content.method()) },
            method: content.method().to_vec(),
            host: content.host().to_vec(),
            path: content.path().to_vec(),
        }
    }

    /// True if the client only understands TLS.
    pub(super) fn is_hello(&self) -> bool {
        self.class == RequestClass::Hello
    }

    /// Formats the request as one line.
    pub(crate) fn text(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match self.class {
            RequestClass::Hello => format!("hello {}", text(&self.host)),
            _ => format!("{} {}{}", text(&self.method), text(&self.host), text(&self.path)),
        }
    }
}

/// Classifies the bytes received so far.
pub(crate) fn classify(bytes: &[u8]) -> HeadClass {
    if bytes.first() != Some(&HANDSHAKE) {
        return request(bytes);
    }
    match read_within(bytes, HELLO_MAX) {
        ContentParse::Request(key) => HeadClass::Wanted(hello(&key)),
        ContentParse::Punt(PuntReason::Incomplete) => HeadClass::Incomplete,
        ContentParse::Punt(PuntReason::Split) => match joined(bytes) {
            Ok(hello) => classify(&hello),
            Err(PuntReason::Incomplete) => HeadClass::Incomplete,
            Err(_) => HeadClass::Refused(HeadRefusal::Unreadable),
        },
        ContentParse::Punt(PuntReason::Odd) => HeadClass::Refused(HeadRefusal::Unreadable),
    }
}

fn hello(key: &RequestKey<'_>) -> NormalizedRequest {
    NormalizedRequest {
        class: key.class,
        method: key.method.to_vec(),
        host: key.host.to_ascii_lowercase(),
        path: key.path.to_vec(),
    }
}

/// Classifies an HTTP request by its whole head, including parts that the data plane leaves to
/// servers.
fn request(bytes: &[u8]) -> HeadClass {
    if bytes.starts_with(PREFACE) {
        return HeadClass::Refused(HeadRefusal::Http2);
    }
    if PREFACE.starts_with(bytes) {
        return HeadClass::Incomplete;
    }
    let first = bytes.iter().find(|byte| !matches!(byte, b'\r' | b'\n'));
    if first.is_some_and(|first| !first.is_ascii_alphabetic()) {
        return HeadClass::Refused(HeadRefusal::Unreadable);
    }
    match http::read_within(bytes, HEAD_MAX) {
        http::HeadParse::Request(request) => {
            normal(&request).map_or_else(HeadClass::refused, HeadClass::Wanted)
        }
        http::HeadParse::Incomplete => HeadClass::Incomplete,
        http::HeadParse::Refused(refusal) => HeadClass::refused(refusal),
    }
}

/// Normalises a request as servers interpret it.
fn normal(request: &http::Request<'_>) -> Result<NormalizedRequest, http::HttpRefusal> {
    let path = match request.target {
        "*" => b"*".to_vec(),
        target => http::normal_path(target.split(['?', '#']).next().unwrap_or_default())?,
    };
    let method = request.method.as_bytes();
    Ok(NormalizedRequest {
        class: RequestClass::of(method),
        method: method.to_vec(),
        host: http::host_of(request.host)?,
        path,
    })
}

impl HeadClass {
    fn refused(refusal: http::HttpRefusal) -> HeadClass {
        HeadClass::Refused(HeadRefusal::Request(refusal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_heads::{Expected, vectors};

    fn judged(text: &str) -> HeadClass {
        classify(text.as_bytes())
    }

    fn line(text: &str) -> String {
        match judged(text) {
            HeadClass::Wanted(wanted) => wanted.text(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn unusual_head_is_normalised() {
        let cases = [
            ("GET /a%2Fb//c/./d/../e HTTP/1.1\r\nHost: A.example:80\r\n\r\n", "GET a.example/a/b/c/e"),
            ("GET http://A.example./x?y HTTP/1.1\r\nHost: a.example\r\n\r\n", "GET a.example/x"),
            ("GET http://a.example HTTP/1.1\r\nHost: a.example\r\n\r\n", "GET a.example/"),
            ("OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\n", "OPTIONS a.example*"),
            ("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET a/"),
            ("GET /./ HTTP/1.0\r\n\r\n", "GET /"),
            ("GET /a/.. HTTP/1.1\r\nHost: [2001:DB8::1]:80\r\n\r\n", "GET [2001:db8::1]/"),
        ];
        for (text, expected) in cases {
            assert_eq!(line(text), expected, "{text:?}");
        }
    }

    #[test]
    fn requests_are_judged_as_at_every_door() {
        for vector in vectors() {
            let judged = classify(&vector.bytes);
            match (&judged, vector.expected) {
                (HeadClass::Wanted(wanted), Expected::Accepted { method, host, path }) => {
                    assert_eq!(wanted.text(), format!("{method} {host}{path}"), "{}", vector.text);
                }
                (HeadClass::Refused(HeadRefusal::Request(refusal)), Expected::Refused { status, .. }) => {
                    assert_eq!(refusal.status(), status, "{}", vector.text);
                }
                // White space before a request may belong to another protocol.
                (HeadClass::Refused(HeadRefusal::Unreadable), Expected::Refused { .. }) => {
                    assert!(vector.bytes.starts_with(b" "), "{}", vector.text);
                }
                _ => panic!("{}: {judged:?}", vector.text),
            }
        }
    }

    #[test]
    fn http2_and_unreadable_bytes_have_refusals_of_their_own() {
        let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(HEAD_MAX - 100));
        assert_eq!(line(&long), "GET a/");
        let cases = [
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HeadRefusal::Http2),
            ("\x16\x03\x09rubbish", HeadRefusal::Unreadable),
            ("\u{7f}\u{7f}", HeadRefusal::Unreadable),
        ];
        for (text, refusal) in cases {
            assert_eq!(judged(text), HeadClass::Refused(refusal), "{text:?}");
        }
    }

    #[test]
    fn incomplete_head_waits_for_more() {
        let whole = "GET http://a.example/%41 HTTP/1.1\r\nHost: a.example\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(judged(&whole[..end]), HeadClass::Incomplete, "{:?}", &whole[..end]);
        }
        assert_eq!(line(whole), "GET a.example/A");
        assert_eq!(judged("PRI * HTTP"), HeadClass::Incomplete);
        assert_eq!(judged("\r\n"), HeadClass::Incomplete);
    }
}
