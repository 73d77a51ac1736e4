//! Summary of a client's request exactly as sent, for people. No decision depends on it.

/// Maximum number of bytes of a method, a target and a host in a summary.
const METHOD_MAX: usize = 32;
const TARGET_MAX: usize = 2_048;
const HOST_MAX: usize = 255;
/// First byte of a TLS record that contains a hello.
const HANDSHAKE: u8 = 0x16;
/// Number of bytes before a hello's session: headers of record and message, version and random (RFC
/// 8446, section 4.1.2).
const BEFORE_SESSION: usize = 5 + 4 + 2 + 32;
const SERVER_NAME: usize = 0;

/// Protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApplicationProtocol {
    /// HTTP/1, or text that begins like it.
    Http,
    Tls,
}

impl ApplicationProtocol {
    pub(super) fn name(self) -> &'static str {
        match self {
            ApplicationProtocol::Http => "http",
            ApplicationProtocol::Tls => "tls",
        }
    }
}

/// Summary of a connection's first bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestSummary<'b> {
    pub(super) kind: Option<ApplicationProtocol>,
    pub(super) method: Option<&'b [u8]>,
    /// Target of the request, with its query.
    pub(super) target: Option<&'b [u8]>,
    /// Value of the `Host` header, or server name of a hello.
    pub(super) host: Option<&'b [u8]>,
    /// True if a part is missing, or was cut off here.
    pub(super) cut: bool,
}

impl<'b> RequestSummary<'b> {
    /// Summarises the first bytes of a client.
    pub(super) fn of(bytes: &'b [u8]) -> RequestSummary<'b> {
        let blank = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        match (bytes.first(), bytes.get(blank)) {
            (Some(&HANDSHAKE), _) => hello(bytes),
            (_, Some(first)) if first.is_ascii_alphabetic() => {
                request(bytes.get(blank..).unwrap_or_default())
            }
            _ => RequestSummary::default(),
        }
    }
}

/// Returns the first `max` bytes, and whether there were more.
fn within(bytes: &[u8], max: usize) -> (&[u8], bool) {
    match bytes.get(..max) {
        Some(first) => (first, bytes.len() > max),
        None => (bytes, false),
    }
}

fn request(bytes: &[u8]) -> RequestSummary<'_> {
    let mut summary = RequestSummary { kind: Some(ApplicationProtocol::Http), ..RequestSummary::default() };
    let mut lines = bytes.split(|byte| *byte == b'\n').peekable();
    let first = lines.next().unwrap_or_default();
    // A line without an end may go on.
    let mut ends = lines.peek().is_some();
    let mut words = first.strip_suffix(b"\r").unwrap_or(first).splitn(3, |byte| *byte == b' ');
    let (method, target, rest) = (words.next(), words.next(), words.next());
    let (method, long_method) = within(method.unwrap_or_default(), METHOD_MAX);
    let (target, long_target) = target.map_or((None, false), |target| {
        let (target, long) = within(target, TARGET_MAX);
        (Some(target), long)
    });
    summary.method = Some(method);
    summary.target = target.filter(|target| !target.is_empty());
    summary.cut = long_method || long_target || !ends && rest.is_none();
    while let Some(line) = lines.next() {
        ends = lines.peek().is_some();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if ends && line.is_empty() {
            return summary;
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, value) = (line.get(..colon), line.get(colon + 1..));
        if ends && name.is_some_and(|name| name.eq_ignore_ascii_case(b"host")) {
            let (host, long) = within(value.unwrap_or_default().trim_ascii(), HOST_MAX);
            summary.host = Some(host);
            summary.cut |= long;
            return summary;
        }
    }
    // The head is incomplete, and the missing part may contain the host.
    summary.cut = true;
    summary
}

fn hello(bytes: &[u8]) -> RequestSummary<'_> {
    let (host, cut) = match server_name(bytes) {
        Some(name) => (name.map(|name| within(name, HOST_MAX).0), false),
        None => (None, true),
    };
    RequestSummary { kind: Some(ApplicationProtocol::Tls), host, cut, ..RequestSummary::default() }
}

/// Returns the server name of a hello, if the hello has one (RFC 6066, section 3). The outer `None`
/// means that the bytes end too early.
fn server_name(bytes: &[u8]) -> Option<Option<&[u8]>> {
    let mut rest = bytes.get(BEFORE_SESSION..)?;
    let session = usize::from(*rest.first()?);
    rest = rest.get(1 + session..)?;
    let suites = u16_at(rest, 0)?;
    rest = rest.get(2 + suites..)?;
    let compression = usize::from(*rest.first()?);
    rest = rest.get(1 + compression..)?;
    if rest.is_empty() {
        // A hello needs no extensions. The extensions of a hello that is cut off may be missing
        // here.
        let len = usize::from(*bytes.get(6)?) << 16 | u16_at(bytes, 7)?;
        return (bytes.len() >= 9 + len).then_some(None);
    }
    let mut left = u16_at(rest, 0)?;
    rest = rest.get(2..)?;
    while left >= 4 {
        let (kind, len) = (u16_at(rest, 0)?, u16_at(rest, 2)?);
        if kind == SERVER_NAME {
            let name = u16_at(rest, 7)?;
            return rest.get(9..9 + name).map(Some);
        }
        rest = rest.get(4 + len..)?;
        left = left.saturating_sub(4 + len);
    }
    Some(None)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at..at + 2) {
        Some(&[high, low]) => Some(u16::from_be_bytes([high, low]).into()),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use evener_core::net::http::{HeadParse, host_of, read};

    use super::*;

    /// Builds a hello with these extensions, as (kind, content).
    fn a_hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let two = |n: usize| u16::try_from(n).unwrap().to_be_bytes();
        let each = |(kind, content): &(u16, Vec<u8>)| {
            [&kind.to_be_bytes(), &two(content.len())[..], content].concat()
        };
        let extensions = extensions.iter().flat_map(each).collect::<Vec<u8>>();
        let body = [&[3, 3], &[7; 32][..], &[2, 9, 9], &two(4), &[1, 2, 3, 4], &[1, 0]].concat();
        let body = [&body[..], &two(extensions.len()), &extensions].concat();
        [&[0x16, 3, 1], &two(body.len() + 4)[..], &[1, 0], &two(body.len()), &body].concat()
    }

    fn named(name: &str) -> (u16, Vec<u8>) {
        let two = |n: usize| u16::try_from(n).unwrap().to_be_bytes();
        (0, [&two(name.len() + 3)[..], &[0], &two(name.len()), name.as_bytes()].concat())
    }

    #[test]
    fn summary_shows_request_as_parsed() {
        for vector in crate::request_heads::vectors() {
            let HeadParse::Request(request) = read(&vector.bytes) else { continue };
            let shown = RequestSummary::of(&vector.bytes);
            let host = host_of(shown.host.unwrap_or_default()).ok();
            assert_eq!(host, host_of(request.host).ok(), "{}", vector.text);
            assert_eq!(shown.method, Some(request.method.as_bytes()), "{}", vector.text);
            assert!(shown.target.unwrap().ends_with(request.target.as_bytes()) || request.target == "/");
        }
    }

    fn parts<'b>(summary: &RequestSummary<'b>) -> [Option<&'b str>; 3] {
        [summary.method, summary.target, summary.host].map(|part| part.map(|p| str::from_utf8(p).unwrap()))
    }

    #[test]
    fn requests_as_they_were_sent() {
        let text = b"\r\nGET //a%41/?q=1 HTTP/1.1\r\nA: b\r\nhOST:  WWW.example.com:8080 \r\nX: y";
        let summary = RequestSummary::of(text);
        assert_eq!(parts(&summary), [Some("GET"), Some("//a%41/?q=1"), Some("WWW.example.com:8080")]);
        assert_eq!((summary.kind, summary.cut), (Some(ApplicationProtocol::Http), false));

        let old = RequestSummary::of(b"HEAD / HTTP/1.0\r\n\r\nHost: x\r\n");
        assert_eq!((parts(&old), old.cut), ([Some("HEAD"), Some("/"), None], false));
    }

    #[test]
    fn partial_head_gives_the_parts_it_has() {
        let cases: [(&[u8], [Option<&str>; 3]); 6] = [
            (b"GE", [Some("GE"), None, None]),
            (b"GET ", [Some("GET"), None, None]),
            (b"GET /ab", [Some("GET"), Some("/ab"), None]),
            (b"GET /ab HT", [Some("GET"), Some("/ab"), None]),
            (b"GET /ab HTTP/1.1\r\nHo", [Some("GET"), Some("/ab"), None]),
            (b"GET /ab HTTP/1.1\r\nHost: a.exam", [Some("GET"), Some("/ab"), None]),
        ];
        for (bytes, expected) in cases {
            let summary = RequestSummary::of(bytes);
            assert_eq!((parts(&summary), summary.cut), (expected, true), "{}", bytes.escape_ascii());
        }
        let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(5_000));
        let summary = RequestSummary::of(long.as_bytes());
        assert_eq!(
            (summary.target.unwrap().len(), summary.host, summary.cut),
            (2_048, Some(&b"a"[..]), true)
        );
    }

    #[test]
    fn hellos_by_their_name() {
        let first = a_hello(&[named("www.example.com"), (43, vec![1, 2, 3])]);
        let last = a_hello(&[(43, vec![1, 2, 3]), named("www.example.com")]);
        for hello in [&first, &last] {
            let summary = RequestSummary::of(hello);
            assert_eq!(parts(&summary), [None, None, Some("www.example.com")]);
            assert_eq!((summary.kind, summary.cut), (Some(ApplicationProtocol::Tls), false));
        }
        let none = a_hello(&[(43, vec![1, 2, 3])]);
        let summary = RequestSummary::of(&none);
        assert_eq!((summary.host, summary.cut), (None, false));
        for len in 1..last.len() {
            let summary = RequestSummary::of(&last[..len]);
            assert_eq!(
                (summary.kind, summary.host, summary.cut),
                (Some(ApplicationProtocol::Tls), None, true),
                "{len}"
            );
        }
    }

    #[test]
    fn summary_of_other_protocol_is_empty() {
        for bytes in [&b""[..], b"\r\n", b"\x7f\x7f\x7f", b"\0GET / HTTP/1.1\r\n\r\n"] {
            assert_eq!(RequestSummary::of(bytes), RequestSummary::default(), "{}", bytes.escape_ascii());
        }
    }
}
