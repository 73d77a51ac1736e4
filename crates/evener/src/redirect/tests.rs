//! Talks, and a responder on a loopback socket.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::time::Duration;

use evener_core::farm::group::{self, Dispatch, MemberCandidate};
use evener_core::net::http::{RedirectStatus, Url};
use evener_core::path::seed::Seed;
use evener_core::pool::policy::Choice;
use evener_core::pool::policy::score::GAIN_PERCENT;

use super::http_connection::{AnswerContext, ConnectionAction, HttpConnection};
use super::*;
use crate::record::Recorder;
use crate::request_heads::{Expected, vectors};

pub(super) fn rules(members: &[&str]) -> Rules {
    rules_of(Choice::Turn, members)
}

fn rules_of(choice: Choice, members: &[&str]) -> Rules {
    let candidates = members.iter().enumerate().map(|(id, url)| MemberCandidate {
        id,
        url: Arc::new(Url::parse(url).unwrap()),
        anonymous: url.contains("hidden"),
        reach: None,
        backup: false,
        weight: 1,
        load: 0,
        permille: 1_000,
        dispatched: Arc::default(),
    });
    let by = group::GroupRules {
        status: RedirectStatus::Found,
        dispatch: Arc::new(Dispatch::new(choice, GAIN_PERCENT, candidates.collect(), &[], Seed(1, 2))),
        names: members.iter().map(|url| (*url).to_owned()).enumerate().collect(),
        retry_after_s: 2,
    };
    Rules::new(by, &Arc::from([]))
}

/// The answers to bytes that come in these pieces, and the next action.
fn answers(rules: &Rules, pieces: &[&[u8]], ends: bool) -> (String, ConnectionAction) {
    let (mut talk, mut out, mut next) = (HttpConnection::default(), Vec::new(), ConnectionAction::Read);
    let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let setting = AnswerContext { client, rules, date: "Sun, 06 Nov 1994 08:49:37 GMT", ends };
    for piece in pieces {
        assert!(matches!(next, ConnectionAction::Read), "{next:?} before {piece:?}");
        next = talk.receive(piece, &setting, &mut out, &mut |_| {});
    }
    (String::from_utf8(out).unwrap(), next)
}

fn statuses(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("HTTP/1.1 ")).map(|rest| &rest[..3]).collect()
}

fn locations(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("Location: ")).collect()
}

#[test]
fn requests_are_judged_as_at_every_door() {
    let rules = rules(&["http://m1"]);
    for vector in vectors() {
        let (answer, next) = answers(&rules, &[&vector.bytes], false);
        let expected = match vector.expected {
            Expected::Accepted { method: "GET", .. } => "302".to_owned(),
            Expected::Accepted { .. } => "307".to_owned(),
            Expected::Refused { status, .. } => {
                assert_eq!(next, ConnectionAction::End { lingers: true }, "{}", vector.text);
                status.to_string()
            }
        };
        assert_eq!(statuses(&answer), [expected], "{}", vector.text);
    }
}

const GET: &str = "GET /a HTTP/1.1\r\nHost: shop\r\n\r\n";

#[test]
fn however_a_pipeline_is_cut_its_answers_are_the_same() {
    let rules = rules(&["http://m1", "http://m2"]);
    let text = format!(
        "{GET}HEAD /b HTTP/1.1\r\nHost: shop\r\n\r\nPOST /c HTTP/1.1\r\nHost: shop\r\nContent-Length: 5\r\n\r\nhello{GET}"
    );
    let (whole, next) = answers(&rules, &[text.as_bytes()], false);
    assert_eq!((statuses(&whole), next), (vec!["302", "302", "307", "302"], ConnectionAction::Read));
    assert_eq!(locations(&whole), ["http://m1/a", "http://m2/b", "http://m1/c", "http://m2/a"]);
    for at in 1..text.len() {
        let (first, second) = text.as_bytes().split_at(at);
        assert_eq!(
            answers(&rules, &[first, second], false),
            (whole.clone(), ConnectionAction::Read),
            "cut at {at}"
        );
    }
    let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
    assert_eq!(answers(&rules, &bytes, false), (whole, ConnectionAction::Read));
}

#[test]
fn connections_end_where_the_next_request_could_not_be_found() {
    let rules = rules(&["http://m1"]);
    let post = |lines: &str, body: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n{body}");
    let cases = [
        ("GET / HTTP/1.0\r\n\r\n".to_owned(), "302", false),
        ("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned(), "302", false),
        (format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n{GET}"), "302", true),
        (post("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"), "307", true),
        (post("Content-Length: 70000\r\n", ""), "307", true),
        (post("Content-Length: 5\r\nExpect: 100-continue\r\n", ""), "307", true),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400", true),
    ];
    for (text, status, lingers) in cases {
        let (answer, next) = answers(&rules, &[text.as_bytes()], false);
        assert_eq!((statuses(&answer), next), (vec![status], ConnectionAction::End { lingers }), "{text:?}");
        assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
    }
    assert_eq!(answers(&rules, &[GET.as_bytes()], true).1, ConnectionAction::End { lingers: false });
}

#[test]
fn http_1_0_answer_has_keep_alive() {
    let text = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    let (answer, next) = answers(&rules(&["http://m1"]), &[text.as_bytes()], false);
    assert!(answer.contains("\r\nConnection: keep-alive\r\n") && next == ConnectionAction::Read, "{answer}");
}

#[test]
fn no_live_member_gives_503_with_retry_after() {
    let (answer, next) = answers(&rules(&[]), &[GET.as_bytes()], false);
    assert_eq!((statuses(&answer), next), (vec!["503"], ConnectionAction::Read));
    assert!(answer.contains("\r\nRetry-After: 2\r\n"), "{answer}");
}

#[test]
fn request_for_slow_path_is_left_unread() {
    for (members, text) in [
        (["http://m1"], "GROUP-QUERY * HTTP/1.1\r\nHost: a\r\n\r\n"),
        (["http://hidden"], "GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ] {
        let rules = rules(&members);
        let (mut talk, mut out) = (HttpConnection::default(), Vec::new());
        let setting =
            AnswerContext { client: IpAddr::V4(Ipv4Addr::LOCALHOST), rules: &rules, date: "", ends: false };
        let next = talk.receive(text.as_bytes(), &setting, &mut out, &mut |_| {});
        assert_eq!((next, out.len()), (ConnectionAction::GiveAway, 0));
        let (unread, chosen) = talk.into_unread();
        assert_eq!(unread, text.as_bytes());
        assert_eq!(chosen.map(|member| member.id), members[0].contains("hidden").then_some(0));
    }
}

#[test]
fn anonymous_members_beside_plain_ones_have_their_share_by_each_policy() {
    const CLIENTS: u8 = 40;
    for choice in [Choice::Turn, Choice::Hash, Choice::Random, Choice::Head, Choice::Two] {
        let rules = rules_of(choice, &["http://m1", "http://hidden"]);
        let mut out = Vec::new();
        let fetched = (0..CLIENTS).filter(|client| {
            let client = Ipv4Addr::new(192, 0, 2, *client).into();
            let setting = AnswerContext { client, rules: &rules, date: "", ends: false };
            let next = HttpConnection::default().receive(GET.as_bytes(), &setting, &mut out, &mut |_| {});
            next == ConnectionAction::GiveAway
        });
        let fetched = fetched.count();
        let dispatched = rules.dispatch.given().map(|(_, given)| given);
        assert_eq!(dispatched.sum::<u64>(), u64::from(CLIENTS), "{choice:?}");
        assert!((8..=32).contains(&fetched), "{choice:?}: {fetched} of {CLIENTS} are fetched");
    }
}

#[test]
fn many_answers_are_sent_before_more_are_made() {
    let rules = rules(&["http://m1"]);
    let text = GET.repeat(1_000);
    let (mut talk, mut out) = (HttpConnection::default(), Vec::new());
    let setting =
        AnswerContext { client: IpAddr::V4(Ipv4Addr::LOCALHOST), rules: &rules, date: "", ends: false };
    let (mut next, mut turns) = (talk.receive(text.as_bytes(), &setting, &mut out, &mut |_| {}), 1);
    let mut count = 0;
    loop {
        assert!(out.len() < 70_000);
        count += statuses(&String::from_utf8(std::mem::take(&mut out)).unwrap()).len();
        if next != ConnectionAction::GoOn {
            break;
        }
        next = talk.receive(&[], &setting, &mut out, &mut |_| {});
        turns += 1;
    }
    assert_eq!((count, next, talk.is_in_request()), (1_000, ConnectionAction::Read, false));
    assert!(turns > 2);
}

/// A responder with so many places, and where it answers.
fn responders(places: usize) -> (Responders, Arc<Frontend>, SocketAddr) {
    let front = Arc::new(Frontend::new("shop", rules(&["http://m1"])));
    let taker: Delegate = Arc::new(|_| false);
    let request_log = RequestLog::new(Arc::new(Recorder::default()));
    let mut responders = Responders::start(1, places, &taker, &request_log).unwrap();
    // A port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let wanted = [(address, "shop")];
    let opened = responders.open(&wanted).unwrap();
    responders.follow(opened, &BTreeMap::from([("shop".to_owned(), Arc::clone(&front))]), &wanted);
    (responders, front, address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn read_answer(stream: &mut TcpStream) -> String {
    stream.write_all(GET.as_bytes()).unwrap();
    let mut text = String::new();
    while !text.ends_with("</a>.\n") {
        let mut buffer = [0; 4096];
        let len = stream.read(&mut buffer).unwrap();
        assert_ne!(len, 0, "closed after {text:?}");
        text += std::str::from_utf8(&buffer[..len]).unwrap();
    }
    text
}

#[test]
fn a_responder_answers_and_falls_silent() {
    let (mut responders, front, address) = responders(16);
    let mut client = connect(address);
    assert_eq!(locations(&read_answer(&mut client)), ["http://m1/a"]);
    front.publish(rules(&["http://m2"]));
    assert_eq!(locations(&read_answer(&mut client)), ["http://m2/a"]);
    assert!(front.counted().any(|counted| counted == ("redirected", 2)));
    let opened = responders.open(&[]).unwrap();
    front.end();
    responders.follow(opened, &BTreeMap::new(), &[]);
    let mut rest = String::new();
    client.write_all(GET.as_bytes()).unwrap();
    client.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("Connection: close"), "open connections end with an answer: {rest:?}");
    drop(responders);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn client_with_most_connections_evicts_its_own() {
    let (_responders, front, address) = responders(8);
    let mut busy = connect(address);
    read_answer(&mut busy);
    // One after the other, so that the order in which they come is known.
    let mut idle: Vec<TcpStream> = (0..7).map(|_| connect(address)).collect();
    let mut late = connect(address);
    read_answer(&mut late);
    read_answer(&mut busy);
    let mut rest = Vec::new();
    assert_eq!(
        idle[0].read_to_end(&mut rest).unwrap_or_default(),
        0,
        "the oldest that never asked is let go"
    );
    read_answer(&mut idle[6]);
    assert!(front.counted().any(|counted| counted == ("evicted", 1)));
}

#[test]
fn address_in_use_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (responders, ..) = responders(1);
    let address = taken.local_addr().unwrap();
    let error = responders.open(&[(address, "shop")]).err().unwrap().to_string();
    assert!(error.contains("another program listens there"), "{error}");
}
