use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};

use proptest::prelude::*;

use super::super::{
    ContentParse, HELLO_MAX, LATER_MAX, METHOD_MAX, PuntReason, READ_MAX, later_request, read, read_within,
};
use super::{key_of, reading, request};

const ODD: ContentParse<'_> = ContentParse::Punt(PuntReason::Odd);
const INCOMPLETE: ContentParse<'_> = ContentParse::Punt(PuntReason::Incomplete);

#[test]
fn requests_are_read() {
    let cases: [(&str, _); 17] = [
        ("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", request("GET", "a.example", "/")),
        ("HEAD /x?y=/../%2e#z HTTP/1.1\r\nhost:A.Example\r\n\r\n", request("HEAD", "A.Example", "/x")),
        ("POST /? HTTP/1.1\r\nHOST: \t a:80 \t\r\n\r\nbody\r\nHost: b", request("POST", "a", "/")),
        ("PUT /a/b.c/..d/.e/... HTTP/1.1\r\nhOsT: a\r\n\r\n", request("PUT", "a", "/a/b.c/..d/.e/...")),
        ("DELETE /a/ HTTP/1.1\r\nHost: [2001:DB8::1]\r\n\r\n", request("DELETE", "[2001:DB8::1]", "/a/")),
        (
            "OPTIONS /a HTTP/1.1\r\nHost: [::ffff:192.0.2.1]:8080\r\n\r\n",
            request("OPTIONS", "[::ffff:192.0.2.1]", "/a"),
        ),
        ("GET /a HTTP/1.0\r\n\r\n", request("GET", "", "/a")),
        ("GET /a HTTP/1.0\r\nHost: a\r\n\r\n", request("GET", "a", "/a")),
        (
            "GET /~!$&'()*+,;=:@[]|\\\"<>^`{} HTTP/1.1\r\nHost: a\r\n\r\n",
            request("GET", "a", "/~!$&'()*+,;=:@[]|\\\"<>^`{}"),
        ),
        ("GET / HTTP/1.1\r\nAccept:\r\nX:\t \x7e\r\nHost: a_b-c.9\r\n\r\n", request("GET", "a_b-c.9", "/")),
        ("GET / HTTP/1.1\r\nHost: a\r\nHosts: b\r\nXhost: c\r\nHos: d\r\n\r\n", request("GET", "a", "/")),
        ("GET / HTTP/1.1\r\nX-Forwarded-Host: b\r\nHost: a\r\n\r\n", request("GET", "a", "/")),
        ("GET / HTTP/1.1\r\nhosthost: b\r\n\x48ost: a\r\n\r\n", request("GET", "a", "/")),
        ("GET / HTTP/1.1\r\nX: Host: b\r\nHost: a \r\n\r\nGET /c HTTP/1.1\r\n\r\n", request("GET", "a", "/")),
        ("M / HTTP/1.1\r\nHost: ..a\r\n\r\n", request("M", "..a", "/")),
        ("ABCDEFGHIJKLMNOP / HTTP/1.1\r\nHost: a\r\n\r\n", request("ABCDEFGHIJKLMNOP", "a", "/")),
        ("GETS / HTTP/1.1\r\nX: \u{e9}\r\nHost: a\r\n\r\n", request("GETS", "a", "/")),
    ];
    for (text, wanted) in cases {
        assert_eq!(key_of(text.as_bytes()), wanted, "{text:?}");
    }
}

#[test]
fn odd_request_lines_are_punted() {
    let cases = [
        " / HTTP/1.1",
        "get / HTTP/1.1",
        "GeT / HTTP/1.1",
        "G-T / HTTP/1.1",
        "ABCDEFGHIJKLMNOPQ / HTTP/1.1",
        "GET  / HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GET /",
        "GET / ",
        "GET /  HTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET / HTTP/1.2",
        "GET / HTTP/2.0",
        "GET / HTTP/1.",
        "GET / HTTP/1.11",
        "GET / http/1.1",
        "GET / HTTP/0.9",
        "GET / XHTTP/1.1",
        "\r\nGET / HTTP/1.1",
        "\0",
        "{}",
        "SSH-2.0-x",
        "\u{16}",
    ];
    for case in cases {
        let head = format!("{case}\r\nHost: a\r\n\r\n");
        assert_eq!(reading(head.as_bytes()), ODD, "{head:?}");
    }
}

#[test]
fn odd_targets_are_punted() {
    let cases = [
        "",
        "*",
        "a",
        "http://a/",
        "a:443",
        "?",
        "//",
        "//a",
        "/a//b",
        "/a//",
        "/.",
        "/..",
        "/./",
        "/../a",
        "/a/.",
        "/a/..",
        "/a/./b",
        "/a/../b",
        "/a/.?b",
        "/a/..?b",
        "/%61",
        "/a%",
        "/a#b",
        "/a\tb",
        "/a\0",
        "/a\x7f",
        "/\u{e9}",
        "/a?\u{e9}",
        "/a?b\tc",
        "/a?b\x7f",
    ];
    for case in cases {
        let head = format!("GET {case} HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(reading(head.as_bytes()), ODD, "{head:?}");
    }
}

#[test]
fn odd_headers_are_punted() {
    let cases = [
        "X: y",
        "Host:",
        "Host: ",
        "Host:\t",
        "Host: a\r\nHost: a",
        "Host: a\r\nhOST: b",
        "Host : a",
        "Host\t: a",
        " Host: a",
        "\tHost: a",
        ": a\r\nHost: a",
        "Host: a\r\n:",
        "X\r\nHost: a",
        "Host: a\r\n b",
        "Host: a\r\n\tb",
        "Host: a\rX: y",
        "Host: a\nX: y",
        "X: a\rb\r\nHost: a",
        "X: a\nHost: a",
        "X: \0\r\nHost: a",
        "X: \x7f\r\nHost: a",
        "X\0: b\r\nHost: a",
        "X\u{e9}: b\r\nHost: a",
        "X y: b\r\nHost: a",
        "Host: a.",
        "Host: a.:80",
        "Host: .",
        "Host: a b",
        "Host: a,b",
        "Host: a/b",
        "Host: u@a",
        "Host: a%62",
        "Host: \u{e9}",
        "Host: a:",
        "Host: a: 80",
        "Host: a:8o",
        "Host: a:80:80",
        "Host: a:80 80",
        "Host: a :80",
        "Host: []",
        "Host: [::1",
        "Host: ::1",
        "Host: [::1]a",
        "Host: [::g]",
        "Host: [fe80::1%25eth0]",
        "Host: [::1]:",
        "Host: [::1]]",
        "Host: [::1 ]",
        "Host: \"a\"",
        "Host: a;",
        "Host: *.a",
    ];
    for case in cases {
        let head = format!("GET / HTTP/1.1\r\n{case}\r\n\r\n");
        assert_eq!(reading(head.as_bytes()), ODD, "{head:?}");
    }
}

#[test]
fn odd_head_is_detected_as_early_as_possible() {
    for start in
        ["g", "1", "\r", "GET a", "GET /%", "GET / HTTP/2", "GET / HTTP/1.1\n", "GET / HTTP/1.1\r\n\r"]
    {
        let (last, before) = start.as_bytes().split_last().unwrap();
        assert!(last.is_ascii() && read(before) == INCOMPLETE, "{start:?}");
        assert_eq!(read(start.as_bytes()), ODD, "{start:?}");
    }
}

#[test]
fn sizes_are_bounded() {
    let host = |len| format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "a".repeat(len));
    assert_eq!(key_of(host(255).as_bytes()).host.len(), 255);
    assert_eq!(reading(host(256).as_bytes()), ODD);
    let v6 = |len| format!("GET / HTTP/1.1\r\nHost: [{}]\r\n\r\n", ":".repeat(len));
    assert_eq!(key_of(v6(253).as_bytes()).host.len(), 255);
    assert_eq!(reading(v6(254).as_bytes()), ODD);
    let method = |len| format!("{} / HTTP/1.0\r\n\r\n", "A".repeat(len));
    assert_eq!(key_of(method(METHOD_MAX).as_bytes()).method.len(), METHOD_MAX);
    assert_eq!(reading(method(METHOD_MAX + 1).as_bytes()), ODD);

    let head = |len| {
        let frame = "GET / HTTP/1.0\r\nX: \r\n\r\n";
        format!("GET / HTTP/1.0\r\nX: {}\r\n\r\n", "x".repeat(len - frame.len()))
    };
    assert_eq!(key_of(head(READ_MAX).as_bytes()).path, b"/");
    let (long, body) = (head(READ_MAX + 1), "x".repeat(READ_MAX));
    assert_eq!(reading(long.as_bytes()), ODD);
    assert_eq!(read(&long.as_bytes()[..READ_MAX - 1]), INCOMPLETE);
    assert_eq!(read(&long.as_bytes()[..READ_MAX]), ODD, "there is no room left to complete it");
    assert_eq!(key_of(format!("{}{body}", head(READ_MAX)).as_bytes()).path, b"/", "a body doesn't count");
    assert!(matches!(read_within(long.as_bytes(), HELLO_MAX), ContentParse::Request(_)));
    assert_eq!(read_within(&long.as_bytes()[..READ_MAX], HELLO_MAX), INCOMPLETE);
}

/// Returns method, path and all hosts of a head, as another parser reads them.
fn oracle(payload: &[u8]) -> Option<(String, String, Vec<String>)> {
    let mut headers = vec![httparse::EMPTY_HEADER; READ_MAX];
    let mut request = httparse::Request::new(&mut headers);
    if !request.parse(payload).is_ok_and(|status| status.is_complete()) {
        return None;
    }
    let path = request.path?.split('?').next()?.to_string();
    let hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let hosts = hosts.map(|header| String::from_utf8_lossy(header.value).into_owned()).collect();
    Some((request.method?.to_string(), path, hosts))
}

/// Generates heads, of which many are valid and the others nearly valid.
fn heads() -> impl Strategy<Value = Vec<u8>> {
    let method = prop_oneof![4 => "[A-Z]{1,17}", 1 => "[A-Za-z -]{0,4}"];
    let path = prop_oneof![8 => "(/[a-z.]{1,3}){0,4}/?(\\?[!-~]{0,9})?", 1 => "[!-~]{0,9}"];
    let version = prop_oneof![9 => "HTTP/1\\.[01]", 1 => "HTTP/[12]\\.[0-9]?"];
    let host = prop_oneof![
        6 => "Host:[ \t]{0,2}[A-Za-z0-9._-]{1,20}(:[0-9]{1,5})?[ \t]{0,2}",
        2 => "[hH][oO][sS][tT]: ?\\[[0-9a-fA-F:.]{1,9}\\](:[0-9]{0,2})?",
        1 => "Host ?:[!-~]{0,5}",
    ];
    let header = prop_oneof![8 => "[A-Za-z-]{1,9}: ?[ -~\t]{0,9}", 1 => "[ -~]{0,9}"];
    let lines = (prop::collection::vec(header.clone(), 0..3), host, prop::collection::vec(header, 0..3));
    let change = prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>()));
    (method, path, version, lines, change).prop_map(
        |(method, path, version, (before, host, after), change)| {
            let lines = [before, vec![host], after].concat().join("\r\n");
            let mut head = format!("{method} {path} {version}\r\n{lines}\r\n\r\nbody").into_bytes();
            if let Some((at, byte)) = change {
                let at = at.index(head.len());
                head[at] = byte;
            }
            head
        },
    )
}

proptest! {
    #[test]
    fn another_reader_reads_the_same(head in heads()) {
        if let (ContentParse::Request(key), Some((method, path, hosts))) = (reading(&head), oracle(&head)) {
            prop_assert_eq!(key.method, method.as_bytes());
            prop_assert_eq!(key.path, path.as_bytes());
            let host = core::str::from_utf8(key.host).unwrap();
            match hosts.as_slice() {
                [] => prop_assert_eq!(host, ""),
                [value] => {
                    let port = value.trim().strip_prefix(host).unwrap();
                    prop_assert!(port.is_empty() || port.strip_prefix(':').unwrap().parse::<u64>().is_ok());
                }
                _ => prop_assert!(false, "two hosts: {:?}", hosts),
            }
        }
    }

    #[test]
    fn valid_head_is_decided(
        method in "[A-Z]{1,16}", path in "/([a-z0-9]{1,9}/){0,9}", query in "(\\?[!-~]{0,20})?",
        host in "[a-z0-9]{1,9}(\\.[a-z0-9-]{1,9}){0,9}", header in "[A-GI-Z][a-z-]{0,9}: [ -~]{0,30}",
    ) {
        let head = format!("{method} {path}{query} HTTP/1.1\r\n{header}\r\nHost: {host}\r\n\r\n");
        prop_assert_eq!(key_of(head.as_bytes()), request(&method, &host, &path));
        prop_assert_eq!(oracle(head.as_bytes()), Some((method, path, vec![host])));
        prop_assert_eq!(read(&head.as_bytes()[..head.len() - 1]), INCOMPLETE);
    }

    #[test]
    fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        reading(&bytes);
    }
}

#[test]
fn later_requests_are_known_by_their_beginning() {
    for (payload, rest) in [
        ("GET / HTTP/1.1", "GET / HTTP/1.1"),
        ("G", "G"),
        ("GET", "GET"),
        ("GET ", "GET "),
        ("GET /", "GET /"),
        ("GET /img", "GET /img"),
        ("\r\nGET /img", "GET /img"),
        ("\n\r\r\n\nPOST", "POST"),
        ("GET  /two/spaces", "GET  /two/spaces"),
        ("GET http://other/", "GET http://other/"),
        ("GET HTTP://other/", "GET HTTP://other/"),
        ("OPTIONS * HTTP/1.1", "OPTIONS * HTTP/1.1"),
        ("VERSION-CONTROL /", "VERSION-CONTROL /"),
        ("ABCDEFGHIJKLMNOP /", "ABCDEFGHIJKLMNOP /"),
        ("POST /a\u{e9} HTTP/1.1\r\n\r\n", "POST /a\u{e9} HTTP/1.1\r\n\r\n"),
        ("PUT /a b\tc HTTP/1.0  \n\0", "PUT /a b\tc HTTP/1.0  \n\0"),
        ("GET /simple\r\n", "GET /simple\r\n"),
        ("PUT HTTP/\n", "PUT HTTP/\n"),
    ] {
        assert_eq!(later_request(payload.as_bytes()), Some(rest.as_bytes()), "{payload:?}");
    }
    for payload in [
        "",
        "\r\n",
        "\r\n\r\n",
        " GET /",
        "get / HTTP/1.1",
        "ABCDEFGHIJKLMNOPQ /",
        "GET\t/",
        "GET x",
        "A sentence",
        "0\r\n\r\n",
        "\r\n1A\r\n",
        "\r\nA\r\n",
        "{}",
        "\x16\x03\x01",
        "A /b\r\n",
        "A /b\x01 HTTP/1.1\r\n",
        "GET /\x7f HTTP/1.1\r\n",
        "GET  / HTTP/1\0.1",
        "POST /http/1.1\n",
        "GETS /\n",
    ] {
        assert_eq!(later_request(payload.as_bytes()), None, "{payload:?}");
    }
    let lines = |count| "\n".repeat(count);
    assert_eq!(later_request(lines(LATER_MAX).as_bytes()), None);
    assert!(later_request(lines(LATER_MAX + 1).as_bytes()).is_some(), "nobody knows what follows");
    let spaces = format!("GET {}x", " ".repeat(LATER_MAX));
    assert!(later_request(spaces.as_bytes()).is_some());
}

/// A segment of an upload may begin like a request by chance, but never contains a whole request
/// line.
#[test]
fn bodies_are_no_later_requests() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for number in 0..20_000 {
        let mut segment = b"PUT /".to_vec();
        for _ in 0..40 {
            // xorshift (Marsaglia 2003)
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            segment.extend(state.to_le_bytes());
        }
        assert_eq!(later_request(&segment), None, "segment {number}");
    }
}
