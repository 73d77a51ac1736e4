use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::farm::group::{Joiner, JoinerError, LoadInform};
use crate::net::http::{Url, UrlError};

fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

#[test]
fn verbs_are_called_as_in_the_paper() {
    assert!(Verb::ALL.iter().all(|verb| Verb::of(verb.name()) == Some(*verb)));
    assert_eq!(Verb::of("group-add"), None);
}

#[test]
fn members_join_and_leave_by_lines() {
    let body = b"http://m1:8080 weight=2\r\n\r\n  http://m2 anonymous path=/a path=/b \n";
    let Ok(GroupMessage::Add(joiners)) = GroupMessage::read(Verb::Add, body) else { panic!() };
    assert_eq!(write_joiners(&joiners), "http://m1:8080 weight=2\nhttp://m2 anonymous path=/a path=/b\n");
    let exit = GroupMessage::read(Verb::Exit, b"http://m1:8080/\nHTTP://m2");
    assert_eq!(exit, Ok(GroupMessage::Exit(vec![url("http://m1:8080"), url("http://m2")])));
    assert_eq!(GroupMessage::read(Verb::Query, b"anything"), Ok(GroupMessage::Query));
}

#[test]
fn load_inform_parses_load_time_and_url() {
    let report = |load, stamp_ms, of: Option<&str>| LoadInform { load, stamp_ms, url: of.map(url) };
    let cases = [
        ("93", report(93.0, None, None)),
        ("0.5 1764000000", report(0.5, Some(1_764_000_000_000), None)),
        (
            " 12\t1764000000.25  http://m1:81/\r\n",
            report(12.0, Some(1_764_000_000_250), Some("http://m1:81")),
        ),
        ("12 http://m1", report(12.0, None, Some("http://m1"))),
    ];
    for (body, wanted) in cases {
        assert_eq!(
            GroupMessage::read(Verb::Inform, body.as_bytes()),
            Ok(GroupMessage::Inform(wanted)),
            "{body:?}"
        );
    }
}

#[test]
fn each_bad_body_has_its_status_and_its_sentence() {
    let line = |line, why| MessageError::Line { line, why };
    let cases: [(Verb, &[u8], MessageError, u16); 18] = [
        (Verb::Add, b"", MessageError::NoMember, 400),
        (Verb::Exit, b"\r\n\n", MessageError::NoMember, 400),
        (Verb::Add, b"\xff", MessageError::Text, 400),
        (Verb::Add, b"http://m1\nhttp://m2 what", line(2, JoinerError::Unknown), 400),
        (Verb::Add, b"http://m1\nftp://m2", line(2, JoinerError::Url(UrlError::Scheme)), 422),
        (Verb::Add, b"http://me:x@m1", line(1, JoinerError::Url(UrlError::Credentials)), 422),
        (Verb::Add, b"http://m1/\x01", line(1, JoinerError::Url(UrlError::Characters)), 422),
        (Verb::Add, b"http://m1 weight=many", line(1, JoinerError::Weight), 422),
        (Verb::Exit, b"http://m1 now", MessageError::Exit { line: 1 }, 400),
        (Verb::Exit, b"m1", line(1, JoinerError::NoUrl), 400),
        (Verb::Inform, b"", MessageError::Inform, 400),
        (Verb::Inform, b"much", MessageError::Inform, 400),
        (Verb::Inform, b"1 2 3", MessageError::Inform, 400),
        (Verb::Inform, b"1 2 ftp://m1", MessageError::Url(UrlError::Scheme), 422),
        (Verb::Inform, b"NaN", MessageError::Load, 422),
        (Verb::Inform, b"-1", MessageError::Load, 422),
        (Verb::Inform, b"1e300", MessageError::Load, 422),
        (Verb::Inform, b"1 -5", MessageError::Time, 422),
    ];
    for (verb, body, error, status) in cases {
        assert_eq!(GroupMessage::read(verb, body), Err(error), "{body:?}");
        assert_eq!(error.status(), status, "{error}");
        assert!(error.to_string().lines().count() == 1 && error.to_string().len() > 20);
    }
    let long = vec![b'\n'; BODY_MAX + 1];
    assert_eq!(GroupMessage::read(Verb::Add, &long).map_err(MessageError::status), Err(413));
}

proptest! {
    #[test]
    fn no_body_is_too_odd(verb in 0usize..5, body: Vec<u8>) {
        let _ = GroupMessage::read(Verb::ALL[verb], &body);
    }

    #[test]
    fn messages_round_trip(load in 0.0..1e9, stamp_ms in proptest::option::of(0u64..90_000_000_000_000), has_url: bool, lines in 1usize..5) {
        let report = LoadInform { load, stamp_ms, url: has_url.then(|| url("https://m1/x")) };
        let read = GroupMessage::read(Verb::Inform, write_inform(&report).as_bytes());
        let Ok(GroupMessage::Inform(read)) = read else { panic!("{read:?}") };
        prop_assert_eq!((read.load, read.url), (report.load, report.url));
        let off = read.stamp_ms.unwrap_or_default().abs_diff(stamp_ms.unwrap_or_default());
        prop_assert!(read.stamp_ms.is_some() == stamp_ms.is_some() && off <= 1);
        let joiners = vec![Joiner::new(url("http://m1")); lines];
        prop_assert_eq!(GroupMessage::read(Verb::Add, write_joiners(&joiners).as_bytes()), Ok(GroupMessage::Add(joiners)));
    }
}
