//! What a client wants, where the data plane wasn't sure: read in full, made normal, or refused as the protocol says.

use evener_core::net::http;
use evener_core::node::lccp::Content;
use evener_core::path::content::{Asked, Class, HELLO_MAX, Reading, Why, joined, read_within};

/// The longest head that is read, in bytes; servers take no longer ones either.
pub(super) const HEAD_MAX: usize = 32 * 1024;
/// Header lines of a request.
const HEADERS_MAX: usize = 128;
/// What HTTP/2 begins with (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first byte of a TLS record that has a hello.
const HANDSHAKE: u8 = 0x16;

/// A request or hello, made normal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    class: Class,
    method: Vec<u8>,
    host: Vec<u8>,
    path: Vec<u8>,
}

/// Why a client is told off instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No HTTP/1 that anybody should act on.
    BadRequest,
    /// For another host than it is sent to.
    Misdirected,
    /// Too much before the end of the head.
    HeadTooLarge,
    /// HTTP/2, which a router of HTTP/1 can't speak.
    Http2,
    /// Neither HTTP nor TLS: a reset says enough.
    Unreadable,
}

/// What the first bytes of a connection come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    Wanted(Wanted),
    /// More is to come.
    Incomplete,
    Refused(Refusal),
}

impl Wanted {
    /// As routes want it.
    pub(crate) fn asked(&self) -> Asked<'_> {
        Asked { class: self.class, host: &self.host, path: &self.path, method: &self.method }
    }

    /// What a dispatcher is told of it; `None` if that is too long.
    pub(crate) fn content(&self) -> Option<Content> {
        let (method, path) =
            if self.is_hello() { (&[][..], &[][..]) } else { (&self.method[..], &self.path[..]) };
        Content::new(&self.host, method, path)
    }

    /// What a node tells the dispatcher of it: a hello has a host alone.
    pub(crate) fn told(content: &Content) -> Wanted {
        let is_hello = content.method().is_empty() && content.path().is_empty();
        Wanted {
            class: if is_hello { Class::Hello } else { Class::of(content.method()) },
            method: content.method().to_vec(),
            host: content.host().to_vec(),
            path: content.path().to_vec(),
        }
    }

    /// Whether nothing can be told to the client but by TLS.
    pub(super) fn is_hello(&self) -> bool {
        self.class == Class::Hello
    }

    /// One line for people.
    pub(crate) fn text(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match self.class {
            Class::Hello => format!("hello {}", text(&self.host)),
            _ => format!("{} {}{}", text(&self.method), text(&self.host), text(&self.path)),
        }
    }
}

/// Judges what has come so far.
pub(crate) fn judge(bytes: &[u8]) -> Judged {
    let is_hello = bytes.first() == Some(&HANDSHAKE);
    let limit = if is_hello { HELLO_MAX } else { HEAD_MAX };
    match read_within(bytes, limit) {
        Reading::Asked(asked) => Judged::Wanted(wanted(&asked)),
        Reading::Ask(Why::Incomplete) => Judged::Incomplete,
        Reading::Ask(Why::Split) => match joined(bytes) {
            Ok(hello) => judge(&hello),
            Err(Why::Incomplete) => Judged::Incomplete,
            Err(_) => Judged::Refused(Refusal::Unreadable),
        },
        Reading::Ask(Why::Odd) if is_hello => Judged::Refused(Refusal::Unreadable),
        Reading::Ask(Why::Odd) => odd(bytes),
    }
}

fn wanted(asked: &Asked<'_>) -> Wanted {
    let own = |bytes: &[u8]| bytes.to_vec();
    Wanted {
        class: asked.class,
        method: own(asked.method),
        host: asked.host.to_ascii_lowercase(),
        path: own(asked.path),
    }
}

/// What is unusual: some of it is allowed (RFC 9112).
fn odd(bytes: &[u8]) -> Judged {
    if bytes.starts_with(PREFACE) {
        return Judged::Refused(Refusal::Http2);
    }
    if PREFACE.starts_with(bytes) {
        return Judged::Incomplete;
    }
    let Some(first) = bytes.iter().find(|byte| !matches!(byte, b'\r' | b'\n')) else {
        return Judged::Incomplete;
    };
    if !first.is_ascii_uppercase() && !first.is_ascii_lowercase() {
        return Judged::Refused(Refusal::Unreadable);
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(len)) if len > HEAD_MAX => Judged::Refused(Refusal::HeadTooLarge),
        Ok(httparse::Status::Complete(len)) => {
            let head = bytes.get(..len).unwrap_or_default();
            judge_head(head, &request).map_or_else(Judged::Refused, Judged::Wanted)
        }
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => Judged::Incomplete,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            Judged::Refused(Refusal::HeadTooLarge)
        }
        Err(_) => Judged::Refused(Refusal::BadRequest),
    }
}

fn judge_head(head: &[u8], request: &httparse::Request<'_, '_>) -> Result<Wanted, Refusal> {
    // A line that ends in LF alone is a line to some and none to others (RFC 9112, section 2.2).
    let bare = |at: usize| head.get(at) == Some(&b'\n') && (at == 0 || head.get(at - 1) != Some(&b'\r'));
    if (0..head.len()).any(bare) || has_two_lengths(request) {
        return Err(Refusal::BadRequest);
    }
    let method = request.method.unwrap_or_default().as_bytes();
    let (authority, path) = target(method, request.path.unwrap_or_default())?;
    let named = host_header(request)?;
    let host = match (authority, named) {
        (Some(authority), Some(named)) if host_of(authority)? != host_of(named)? => {
            return Err(Refusal::Misdirected);
        }
        (Some(authority), _) => host_of(authority)?,
        (None, Some(named)) => host_of(named)?,
        // RFC 9112, section 3.2
        (None, None) if request.version == Some(1) => return Err(Refusal::BadRequest),
        (None, None) => Vec::new(),
    };
    Ok(Wanted { class: Class::of(method), method: method.to_vec(), host, path })
}

/// Whether it is said in two ways how long the body is: what smuggling needs (RFC 9112, section 6.3).
fn has_two_lengths(request: &httparse::Request<'_, '_>) -> bool {
    let values = |name: &'static str| {
        let headers = request.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
        headers.map(|header| header.value)
    };
    let lengths = values("content-length").count();
    let encodings = values("transfer-encoding").count();
    lengths + encodings > 1 || encodings > 0 && request.version == Some(0)
}

fn host_header<'b>(request: &httparse::Request<'_, 'b>) -> Result<Option<&'b [u8]>, Refusal> {
    let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => Err(Refusal::BadRequest),
        (host, _) => Ok(host.map(|host| host.value)),
    }
}

/// The host of a request's target, where it names one, and its path, normal.
fn target<'t>(method: &[u8], target: &'t str) -> Result<(Option<&'t [u8]>, Vec<u8>), Refusal> {
    if method == b"OPTIONS" && target == "*" {
        return Ok((None, b"*".to_vec()));
    }
    let (authority, rest) = match target.split_once("://") {
        // RFC 9112, section 3.2.2; the scheme in any case (RFC 3986, section 3.1)
        Some((scheme, rest))
            if scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https") =>
        {
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            let (authority, rest) = rest.split_at(end);
            (Some(authority.as_bytes()), rest)
        }
        _ if target.starts_with('/') => (None, target),
        _ => return Err(Refusal::BadRequest),
    };
    let path = rest.split(['?', '#']).next().unwrap_or_default();
    Ok((authority, normal(path)?))
}

fn normal(path: &str) -> Result<Vec<u8>, Refusal> {
    http::normal_path(path).map_err(|_| Refusal::BadRequest)
}

fn host_of(value: &[u8]) -> Result<Vec<u8>, Refusal> {
    http::host_of(value).map_err(|_| Refusal::BadRequest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(text: &str) -> Judged {
        judge(text.as_bytes())
    }

    fn line(text: &str) -> String {
        match judged(text) {
            Judged::Wanted(wanted) => wanted.text(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn what_is_unusual_is_made_normal() {
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
    fn what_is_wrong_is_refused_as_the_protocol_says() {
        use Refusal::{BadRequest, HeadTooLarge, Http2, Misdirected, Unreadable};
        let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(HEAD_MAX));
        let many = format!("GET /%41 HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX));
        let cases = [
            ("GET / HTTP/1.1\r\n\r\n", BadRequest),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", BadRequest),
            ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", BadRequest),
            ("GET / HTTP/1.1\nHost: a\n\n", BadRequest),
            ("GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", BadRequest),
            ("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", BadRequest),
            ("GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", BadRequest),
            ("GET /%4 HTTP/1.1\r\nHost: a\r\n\r\n", BadRequest),
            ("GET /../x HTTP/1.1\r\nHost: a\r\n\r\n", BadRequest),
            ("GET x HTTP/1.1\r\nHost: a\r\n\r\n", BadRequest),
            (
                "POST /%41 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                BadRequest,
            ),
            ("POST /%41 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", BadRequest),
            ("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", Misdirected),
            (long.as_str(), HeadTooLarge),
            (many.as_str(), HeadTooLarge),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Http2),
            ("\x16\x03\x09rubbish", Unreadable),
            ("\u{7f}\u{7f}", Unreadable),
        ];
        for (text, refusal) in cases {
            assert_eq!(judged(text), Judged::Refused(refusal), "{:?}", &text[..text.len().min(60)]);
        }
    }

    #[test]
    fn what_may_still_become_a_request_is_waited_for() {
        let whole = "GET http://a.example/%41 HTTP/1.1\r\nHost: a.example\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(judged(&whole[..end]), Judged::Incomplete, "{:?}", &whole[..end]);
        }
        assert_eq!(line(whole), "GET a.example/A");
        assert_eq!(judged("PRI * HTTP"), Judged::Incomplete);
        assert_eq!(judged("\r\n"), Judged::Incomplete);
    }
}
