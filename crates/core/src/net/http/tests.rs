use alloc::format;
use alloc::string::String;

use proptest::prelude::*;

use super::*;

fn one(text: &str) -> Request<'_> {
    match read(text.as_bytes()) {
        HeadParse::Request(request) => request,
        other => panic!("{text:?}: {other:?}"),
    }
}

impl HeadParse<'_> {
    fn refused(self) -> Option<HttpRefusal> {
        match self {
            HeadParse::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

#[test]
fn heads_are_read() {
    let text = "GET /a?b=c HTTP/1.1\r\nHost: www.example.com:80\r\nX: y\r\n\r\nGET ";
    let request = one(text);
    assert_eq!((request.method, request.target, request.host), ("GET", "/a?b=c", &b"www.example.com:80"[..]));
    assert!(request.keeps_alive && !request.is_old && !request.waits);
    assert_eq!((request.body, request.len), (BodyFraming::Length(0), text.len() - 4));
    for end in 0..text.len() - 4 {
        assert_eq!(read(&text.as_bytes()[..end]), HeadParse::Incomplete, "{end}");
    }
}

#[test]
fn targets_that_lead_out_of_the_root_are_refused() {
    let reading =
        |target: &str| read(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).refused();
    for inside in ["/a/../b", "/%2e/a", "/a/%2E%2e/b", "/a?/../..", "/a..b/..c", "/x%5cy"] {
        assert_eq!(reading(inside), None, "{inside}");
    }
    let outside = [
        "/..",
        "/../a",
        "/%2e%2e/a",
        "/.%2E/a",
        "/a/../../b",
        "/..%2fa",
        "//../a",
        "/..\\a",
        "/..%5Ca",
        "/a%00",
        "/%",
        "/%zz",
    ];
    for target in outside {
        assert_eq!(reading(target), Some(HttpRefusal::Target), "{target}");
    }
}

#[test]
fn heads_that_two_readers_would_take_differently_are_refused() {
    let refused = |text: &str| read(text.as_bytes()).refused();
    assert_eq!(refused("GET / HTTP/1.1\nHost: a\n\n"), Some(HttpRefusal::Malformed));
    assert_eq!(refused("GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n"), Some(HttpRefusal::Malformed));
    assert_eq!(refused("GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n"), Some(HttpRefusal::Misdirected));
}

#[test]
fn keep_alive_follows_http_version() {
    let kept = |version: &str, line: &str| {
        one(&format!("GET / HTTP/{version}\r\nHost: a\r\n{line}\r\n")).keeps_alive
    };
    assert!(kept("1.1", "") && !kept("1.0", ""));
    assert!(!kept("1.1", "Connection: close\r\n") && kept("1.0", "Connection: Keep-Alive\r\n"));
    assert!(!kept("1.1", "Connection: x, Close\r\n") && !kept("1.0", "Connection: keep-alive, close\r\n"));
}

#[test]
fn targets_and_hosts_of_every_form_are_read() {
    let cases = [
        ("GET / HTTP/1.0\r\n\r\n", "", "/"),
        ("GET http://a.example/x?y HTTP/1.1\r\nHost: A.example:80\r\n\r\n", "a.example", "/x?y"),
        ("GET HTTP://a.example HTTP/1.1\r\nHost: A.example:80\r\n\r\n", "a.example", "/"),
        ("GET http://a.example?q HTTP/1.1\r\nHost: A.example:80\r\n\r\n", "a.example", "?q"),
        ("GROUP-QUERY * HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n", "[2001:db8::1]:80", "*"),
        ("GET //evil/ HTTP/1.1\r\nHost:\r\n\r\n", "", "//evil/"),
    ];
    for (text, host, target) in cases {
        let request = one(text);
        assert_eq!((request.host, request.target), (host.as_bytes(), target), "{text:?}");
    }
}

#[test]
fn malformed_requests_map_to_statuses() {
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(HEAD_MAX));
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX));
    let post = |lines: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
    let cases = [
        (String::from("GET / HTTP/1.1\r\n\r\n"), 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n".into(), 400),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n".into(), 400),
        ("GET / HTTP/1.1\r\nHost: me@a\r\n\r\n".into(), 400),
        ("GET http://me@a/ HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("GET http:/// HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("GET x HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n".into(), 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n".into(), 400),
        ("\x16\x03\x01 rubbish".into(), 400),
        (post("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"), 400),
        (post("Content-Length: 1\r\nContent-Length: 1\r\n"), 400),
        (post("Content-Length: +1\r\n"), 400),
        (post("Content-Length: 99999999999999999999\r\n"), 400),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".into(), 400),
        (post("Transfer-Encoding: gzip, chunked\r\n"), 501),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), 505),
        ("GET / HTTP/3.0\r\n\r\n".into(), 505),
        (long, 431),
        (many, 431),
        (format!("GET /{}", "x".repeat(HEAD_MAX)), 431),
    ];
    for (text, status) in cases {
        let read = read(text.as_bytes());
        let HeadParse::Refused(refusal) = read else { panic!("{:?}: {read:?}", &text[..text.len().min(60)]) };
        assert_eq!(refusal.status(), status, "{:?}", &text[..text.len().min(60)]);
    }
}

/// Returns the location of a redirect.
fn location(response: &Response) -> &str {
    let (name, value) = response.fields.first().unwrap();
    assert_eq!(*name, "Location");
    value
}

#[test]
fn redirect_has_location_and_page() {
    let response = Response::redirect(RedirectStatus::Found, "http://m1.example:8080", "/a?b=c&d=e");
    assert_eq!((response.status, response.kind), (302, Some("text/html")));
    assert_eq!(location(&response), "http://m1.example:8080/a?b=c&d=e");
    let link = "<a href=\"http://m1.example:8080/a?b=c&amp;d=e\">";
    assert!(response.body.contains(link), "{response:?}");
}

#[test]
fn a_location_is_always_the_members() {
    let cases = [
        ("//evil.example/x", "/evil.example/x"),
        ("/\\evil.example", "/evil.example"),
        ("\\\\evil", "/evil"),
        ("?q", "/?q"),
        ("*", "/*"),
        ("/a\"b<c>'d", "/a%22b%3Cc%3E%27d"),
        ("/a\r\nX: y", "/a%0D%0AX:%20y"),
        ("/%0d%0aX: y", "/%0d%0aX:%20y"),
        ("/é#f", "/%C3%A9"),
        ("/a@b:c", "/a@b:c"),
    ];
    for (path, expected) in cases {
        let response = Response::redirect(RedirectStatus::Found, "http://m1.example:8080", path);
        assert_eq!(location(&response), format!("http://m1.example:8080{expected}"), "{path:?}");
    }
}

#[test]
fn only_get_and_head_may_become_get() {
    for status in RedirectStatus::ALL {
        assert_eq!(RedirectStatus::of(status.code()), Some(status));
        assert_eq!((status.keeping("GET"), status.keeping("HEAD")), (status, status));
        let kept = if status.code() < 307 { RedirectStatus::Temporary } else { status };
        for method in ["POST", "PUT", "get", "OPTIONS"] {
            assert_eq!(status.keeping(method), kept);
        }
    }
    assert_eq!(RedirectStatus::of(301), None);
}

proptest! {
    #[test]
    fn any_path_becomes_location_below_member(path in "\\PC*|(/|\\\\|%|\r|\n|[&<>\"'a-z])*") {
        let response = Response::redirect(RedirectStatus::Found, "http://m1", &path);
        let to = location(&response);
        let rest = to.strip_prefix("http://m1/").unwrap();
        prop_assert!(!rest.starts_with(['/', '\\']), "{}", to);
        prop_assert!(to.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>'\\".contains(&byte)), "{}", to);
        prop_assert!(response.body.contains(&to.replace('&', "&amp;")));
    }

    #[test]
    fn no_bytes_are_too_odd_to_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let HeadParse::Request(request) = read(&bytes) {
            prop_assert!(request.len <= bytes.len());
        }
    }

    #[test]
    fn a_request_that_is_cut_is_waited_for(
        method in "[A-Z]{1,9}(-[A-Z]{1,6})?", path in "/([a-z0-9/?&=]|\\.[a-z]|%2[0-9d]){0,40}", length in 0u64..100_000, cut in 0usize..200
    ) {
        let text = format!("{method} {path} HTTP/1.1\r\nHost: a.example\r\nContent-Length: {length}\r\n\r\n");
        let request = one(&text);
        prop_assert_eq!((request.method, request.target), (&method[..], &path[..]));
        prop_assert_eq!((request.body, request.len), (BodyFraming::Length(length), text.len()));
        prop_assert_eq!(read(&text.as_bytes()[..cut.min(text.len() - 1)]), HeadParse::Incomplete);
    }

    #[test]
    fn hosts_and_paths_have_one_form(host in "[a-zA-Z0-9.-]{1,40}", path in "\\PC{0,40}") {
        if let Ok(normal) = host_of(host.as_bytes()) {
            prop_assert_eq!(host_of(&normal).ok(), Some(normal));
        }
        if let Ok(normal) = normal_path(&path) {
            prop_assert!(normal.starts_with(b"/") && !normal.windows(2).any(|pair| pair == b"//"));
        }
    }
}

#[test]
fn dot_segments_of_other_readings_are_found() {
    for path in [
        "/..;/manager/html",
        "/..;a=b/x",
        "/%2e%2e;/x",
        "/..%09/",
        "/%252e%252e/x",
        "/%25252e%252e/x",
        "/%25zz/%252e%252e/x",
        "/a/%c0%ae%c0%ae/b",
        "/a/.%c0%ae/b",
        "/a%c0%af..%c0%afb",
        "/a/..%5cb",
        "/a%5c..%5cb",
        "/%20../x",
        "/.;/x",
        "/../x",
        "/%",
    ] {
        assert!(has_hidden_dots(path), "{path}");
    }
    for path in ["/", "/a;b=c/d", "/a..b/..c/d../...", "/%c3%a9/100%25", "/a/../b", "/caf%e9/%25zz", "/a;..;"]
    {
        assert!(!has_hidden_dots(path), "{path}");
    }
}
