//! Tests of connections, and of a responder on a loopback socket.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use evener_core::farm::group::{self, Dispatch, MemberCandidate};
use evener_core::net::http::{RedirectStatus, Url};
use evener_core::path::seed::Seed;
use evener_core::pool::policy::Choice;
use evener_core::pool::policy::score::GAIN_PERCENT;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};
use tokio::sync::mpsc;

use super::*;
use crate::record::Recorder;
use crate::request_heads::{Expected, vectors};

pub(super) fn rules_of(choice: Choice, members: &[&str]) -> Rules {
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

/// Returns clients of groups, with this number of slots.
pub(super) fn clients(places: usize) -> Clients {
    Clients::new(places, mpsc::channel(1).0, RequestLog::new(Arc::new(Recorder::default())))
}

/// Sends bytes in these pieces, and returns the responses. With `ends`, the client then closes its
/// direction. Otherwise a kept connection would never end.
async fn answers(front: &Arc<Frontend>, pieces: &[&[u8]], ends: bool) -> String {
    let address = ([127, 0, 0, 1], 1).into();
    let clients = Arc::new(clients(1));
    let place = clients.admit(address, front).await;
    let connection = Connection::new(address, Arc::clone(front), clients, place);
    let (client, server) = duplex(1024 * 1024);
    let (mut reader, mut writer) = split(client);
    let write = async move {
        for piece in pieces {
            writer.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        if ends {
            writer.shutdown().await.unwrap();
        }
    };
    let read = async move {
        let mut text = String::new();
        reader.read_to_string(&mut text).await.unwrap();
        text
    };
    let ((), text, ()) = tokio::join!(write, read, connection.converse(server));
    text
}

pub(super) fn front(members: &[&str]) -> Arc<Frontend> {
    Arc::new(Frontend::new("shop", rules_of(Choice::Turn, members)))
}

fn statuses(text: &str) -> Vec<&str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("HTTP/1."));
    lines.map(|rest| &rest[2..5]).filter(|status| status.bytes().all(|byte| byte.is_ascii_digit())).collect()
}

fn locations(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("Location: ")).collect()
}

const GET: &str = "GET /a HTTP/1.1\r\nHost: shop\r\n\r\n";

#[tokio::test]
async fn requests_are_judged_as_at_every_door_also_later_ones() {
    let post = "POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n\n\0G";
    for vector in vectors() {
        for (first, answered) in [("", None), (GET, Some("302")), (post, Some("307"))] {
            let answer = answers(&front(&["http://m1"]), &[first.as_bytes(), &vector.bytes], true).await;
            let expected = match vector.expected {
                Expected::Accepted { method: "GET", .. } => "302".to_owned(),
                Expected::Accepted { .. } => "307".to_owned(),
                Expected::Refused { status, .. } => status.to_string(),
            };
            let expected: Vec<&str> = answered.into_iter().chain([expected.as_str()]).collect();
            assert_eq!(statuses(&answer), expected, "{}", vector.text);
        }
    }
}

#[tokio::test]
async fn however_a_pipeline_is_cut_its_answers_are_the_same() {
    let text = format!(
        "{GET}HEAD /b HTTP/1.1\r\nHost: shop\r\n\r\nPOST /c HTTP/1.1\r\nHost: shop\r\nContent-Length: 5\r\n\r\nhello{GET}"
    );
    let check = async |pieces: &[&[u8]]| {
        let answer = answers(&front(&["http://m1", "http://m2"]), pieces, true).await;
        assert_eq!(statuses(&answer), ["302", "302", "307", "302"], "{pieces:?}");
        let expected = ["http://m1/a", "http://m2/b", "http://m1/c", "http://m2/a"];
        assert_eq!(locations(&answer), expected, "{pieces:?}");
    };
    for at in 0..text.len() {
        let (first, second) = text.as_bytes().split_at(at);
        check(&[first, second]).await;
    }
    check(&text.as_bytes().chunks(1).collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn connections_end_where_the_next_request_could_not_be_found() {
    let post = |lines: &str, body: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n{body}");
    for (text, status) in [
        ("GET / HTTP/1.0\r\n\r\n".to_owned(), "302"),
        ("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned(), "302"),
        (format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n{GET}"), "302"),
        (post("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"), "307"),
        (post("Content-Length: 70000\r\n", ""), "307"),
        (post("Content-Length: 5\r\nExpect: 100-continue\r\n", ""), "307"),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400"),
    ] {
        let answer = answers(&front(&["http://m1"]), &[text.as_bytes()], false).await;
        assert_eq!(statuses(&answer), [status], "{text:?}");
        let says_so = answer.contains("\r\nConnection: close\r\n");
        assert!(says_so || answer.starts_with("HTTP/1.0"), "{answer}");
    }
    let over = front(&["http://m1"]);
    over.end();
    assert_eq!(statuses(&answers(&over, &[GET.as_bytes()], false).await), ["302"]);
}

#[tokio::test]
async fn http_1_0_answer_has_keep_alive() {
    let text = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".repeat(2);
    let answer = answers(&front(&["http://m1"]), &[text.as_bytes()], true).await;
    assert_eq!(statuses(&answer), ["302"; 2], "{answer}");
    assert_eq!(answer.matches("\r\nConnection: keep-alive\r\n").count(), 2, "{answer}");
}

#[tokio::test]
async fn no_live_member_gives_503_with_retry_after() {
    let answer = answers(&front(&[]), &[GET.as_bytes(), GET.as_bytes()], true).await;
    assert_eq!(statuses(&answer), ["503"; 2]);
    assert!(answer.contains("\r\nRetry-After: 2\r\n"), "{answer}");
}

/// Returns a responder with this number of slots, and its address.
fn responders(places: usize) -> (Responders, Arc<Frontend>, SocketAddr) {
    let front = front(&["http://m1"]);
    let mut responders = Responders::start(1, clients(places)).unwrap();
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
    front.publish(rules_of(Choice::Turn, &["http://m2"]));
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
    // Sequential, so that their order is known.
    let mut idle: Vec<TcpStream> = (0..7).map(|_| connect(address)).collect();
    read_answer(&mut busy);
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
