//! Tests of the parsers and of routes. They use tables of cases, compare with other parsers, and
//! try random bytes.

mod head;
mod hello;
mod patterns;
mod routes;

use super::{ContentParse, PuntReason, READ_MAX, RequestClass, RequestKey, read};

/// Returns the result for a payload. Asserts that beginnings of the payload are incomplete up to
/// some length, and have the payload's result from that length on.
fn reading(payload: &[u8]) -> ContentParse<'_> {
    let whole = read(payload);
    let mut decided = None;
    for len in 0..=payload.len() {
        let now = read(payload.get(..len).unwrap_or_default());
        match decided {
            None if now != ContentParse::Punt(PuntReason::Incomplete) => decided = Some(now),
            None => {}
            Some(then) => assert_eq!(now, then, "at {len} bytes"),
        }
    }
    assert_eq!(whole, decided.unwrap_or(ContentParse::Punt(PuntReason::Incomplete)));
    assert!(payload.len() < READ_MAX || whole != ContentParse::Punt(PuntReason::Incomplete));
    whole
}

/// Returns the key of a payload. Panics if the payload is punted.
fn key_of(payload: &[u8]) -> RequestKey<'_> {
    match reading(payload) {
        ContentParse::Request(key) => key,
        ContentParse::Punt(why) => panic!("{why:?}: {:?}", payload.escape_ascii()),
    }
}

fn request<'a>(method: &'a str, host: &'a str, path: &'a str) -> RequestKey<'a> {
    let (host, path, method) = (host.as_bytes(), path.as_bytes(), method.as_bytes());
    RequestKey { class: RequestClass::of(method), host, path, method }
}
