//! The corpus of request heads, as core's reader and the data plane's have it.

use evener_core::net::http::{self, HeadParse, HttpRefusal, host_of, normal_path};
use evener_core::path::content;

use crate::request_heads::{Expected, vectors};

#[test]
fn http_reader_follows_rfc_9112() {
    for vector in vectors() {
        match (http::read(&vector.bytes), vector.expected) {
            (HeadParse::Request(request), Expected::Accepted { method, host, path }) => {
                let target = request.target.split('?').next().unwrap();
                let normal = if target == "*" { b"*".to_vec() } else { normal_path(target).unwrap() };
                let read = (request.method, host_of(request.host).unwrap(), normal);
                assert_eq!(read, (method, host.into(), path.into()), "{}", vector.text);
            }
            (HeadParse::Refused(refusal), Expected::Refused { status, .. }) => {
                assert_eq!(refusal.status(), status, "{}: {refusal:?}", vector.text);
            }
            (read, _) => panic!("{}: {read:?}", vector.text),
        }
    }
}

/// Where it doesn't leave a head to the daemon, it has read what that would have.
#[test]
fn data_plane_accepts_no_head_the_daemon_refuses() {
    let mut decided = 0;
    for vector in vectors() {
        let content::ContentParse::Request(key) = content::read(&vector.bytes) else { continue };
        decided += 1;
        match vector.expected {
            Expected::Accepted { method, host, path } => {
                let read = (key.method, key.host.to_ascii_lowercase(), key.path);
                assert_eq!(read, (method.as_bytes(), host.into(), path.as_bytes()), "{}", vector.text);
            }
            Expected::Refused { by_server, .. } => assert!(by_server, "{}", vector.text),
        }
    }
    assert!(decided > 5);
}

#[test]
fn a_head_may_be_longer_where_there_is_room() {
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    assert_eq!(http::read(head.as_bytes()), HeadParse::Refused(HttpRefusal::TooLarge));
    assert!(matches!(http::read_within(head.as_bytes(), 32 * 1024), HeadParse::Request(_)));
    assert_eq!(http::read_within(head.as_bytes(), 20_000), HeadParse::Refused(HttpRefusal::TooLarge));
}
