#![allow(clippy::unwrap_used)]
use std::path::PathBuf;

use evener_core::farm::plan::{Plan, ServerName};
use tokio::sync::mpsc::Receiver;

use super::*;

const CLIENT: &str = "198.51.100.7:40000";
const SERVICE: &str = "192.0.2.100:80";

/// Returns a recorder that knows one server, and a trace of the client.
fn recorder() -> (Recorder, Receiver<Traced>) {
    let mut plan = Plan::default();
    plan.servers.insert(3, ServerName { service: "web".into(), server: "web1".into() });
    let recorder = Recorder::default();
    recorder.name(TableNames::of(&plan, Arc::default()));
    let lines = recorder.follow(CLIENT.parse().unwrap()).unwrap();
    (recorder, lines)
}

fn at() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_323_045_678)
}

fn connection(head: &[u8]) -> ConnectionEvent {
    ConnectionEvent {
        at_ns: 0,
        latency_ns: 1_250,
        client: CLIENT.parse().unwrap(),
        service: SERVICE.parse().unwrap(),
        server: 3,
        reason: Reason::Forwarded,
        also_counted: None,
        route: Some(1),
        head: head.to_vec(),
    }
}

fn packet(src: &str, dst: &str) -> PacketEvent {
    PacketEvent {
        at_ns: 0,
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        protocol: 6,
        tcp_flags: 0x12,
        len: 60,
        verdict: TracedVerdict::Forward,
        reason: Reason::CookieSent,
        also_counted: None,
        server: NO_SERVER,
    }
}

fn lines(receiver: &mut Receiver<Traced>) -> Vec<String> {
    let mut lines = Vec::new();
    while let Ok(line) = receiver.try_recv() {
        lines.push(json(&line));
    }
    lines
}

#[test]
fn kernel_decision_makes_access_log_line() {
    let (recorder, mut trace) = recorder();
    recorder.connection(&connection(b"GET /a?b=%41 HTTP/1.1\r\nHost: www.example.com\r\n\r\n"), at());
    let hello = ConnectionEvent { route: None, ..connection(&[0x16, 3, 1]) };
    recorder.connection(&hello, at());
    recorder.connection(&ConnectionEvent { server: NO_SERVER, route: None, ..connection(b"\x7f\n\"") }, at());
    insta::assert_snapshot!(lines(&mut trace).concat(), @r#"
    {"what":"decision","time":"2026-01-02T03:04:05.678Z","service":"192.0.2.100:80","client":"198.51.100.7:40000","kind":"http","method":"GET","host":"www.example.com","path":"/a?b=%41","route":2,"server":"web1","mechanism":"kernel","decide_us":1.25}
    {"what":"decision","time":"2026-01-02T03:04:05.678Z","service":"192.0.2.100:80","client":"198.51.100.7:40000","kind":"tls","cut":true,"route":null,"server":"web1","mechanism":"kernel","decide_us":1.25}
    {"what":"decision","time":"2026-01-02T03:04:05.678Z","service":"192.0.2.100:80","client":"198.51.100.7:40000","kind":null,"route":null,"server":null,"mechanism":"no_server","decide_us":1.25}
    "#);
    // The user-space reader records this connection.
    let punted = ConnectionEvent { also_counted: Some(Reason::Punted), ..connection(b"GE") };
    recorder.connection(&punted, at());
    let other = ConnectionEvent { client: "198.51.100.7:1".parse().unwrap(), ..connection(b"GE") };
    recorder.connection(&other, at());
    assert_eq!(lines(&mut trace), [] as [String; 0]);
    let latency: Vec<_> = recorder.latencies_shown().map(|(name, latency)| (name, latency.count)).collect();
    assert_eq!(latency, [("kernel".to_owned(), 3), ("no_server".to_owned(), 1)]);
}

#[test]
fn punted_request_makes_access_log_line() {
    let (recorder, mut trace) = recorder();
    let ends = FourTuple { client: CLIENT.parse().unwrap(), service: SERVICE.parse().unwrap() };
    let head = b"POST /\xff\x1b HTTP/1.1\r\n".as_slice();
    let (latency, mechanism) = (Duration::from_millis(10), Mechanism::Refused);
    let decided = HandoffRecord {
        ends,
        mechanism,
        head,
        route: None,
        server: None,
        status: Some(400),
        at: at(),
        latency,
    };
    recorder.decided(&decided);
    recorder.decided(&HandoffRecord {
        mechanism: Mechanism::Punted,
        server: Some(3),
        status: None,
        head: b"",
        ..decided
    });
    insta::assert_snapshot!(lines(&mut trace).concat(), @r#"
    {"what":"decision","time":"2026-01-02T03:04:05.678Z","service":"192.0.2.100:80","client":"198.51.100.7:40000","kind":"http","method":"POST","path":"/\\xff\u001b","cut":true,"route":null,"server":null,"mechanism":"refused","status":400,"decide_us":10000.0}
    {"what":"decision","time":"2026-01-02T03:04:05.678Z","service":"192.0.2.100:80","client":"198.51.100.7:40000","kind":null,"route":null,"server":"web1","mechanism":"punted","decide_us":10000.0}
    "#);
}

#[test]
fn packets_both_ways() {
    let (recorder, mut trace) = recorder();
    recorder.packet(&packet(CLIENT, SERVICE), at());
    recorder.packet(&packet(SERVICE, "198.51.100.7:40001"), at());
    // Another trace gets packets without a port, and of other ports.
    let mut all = recorder.follow("198.51.100.7".parse().unwrap()).unwrap();
    let icmp = PacketEvent { protocol: 1, server: 3, ..packet("198.51.100.7:0", "192.0.2.100:0") };
    recorder.packet(&icmp, at());
    insta::assert_snapshot!(lines(&mut all).concat(), @r#"
    {"what":"packet","time":"2026-01-02T03:04:05.678Z","protocol":"icmp","src":"198.51.100.7","dst":"192.0.2.100","bytes":60,"verdict":"forward","reason":"cookie_sent","server":"web1"}
    "#);
    let back = PacketEvent {
        also_counted: Some(Reason::NoSession),
        verdict: TracedVerdict::Drop,
        ..packet(SERVICE, CLIENT)
    };
    recorder.packet(&back, at());
    insta::assert_snapshot!(lines(&mut trace).concat(), @r#"
    {"what":"packet","time":"2026-01-02T03:04:05.678Z","protocol":"tcp","flags":"syn,ack","src":"198.51.100.7:40000","dst":"192.0.2.100:80","bytes":60,"verdict":"forward","reason":"cookie_sent","server":null}
    {"what":"packet","time":"2026-01-02T03:04:05.678Z","protocol":"tcp","flags":"syn,ack","src":"192.0.2.100:80","dst":"198.51.100.7:40000","bytes":60,"verdict":"drop","reason":"cookie_sent","also_counted":"no_session","server":null}
    "#);
}

#[test]
fn engine_watch_covers_only_wanted_events() {
    let recorder = Recorder::default();
    assert_eq!(recorder.wanted(), TraceFilter::default());
    let file = std::env::temp_dir().join(format!("evener-wanted-{}", std::process::id()));
    let open = |file: &PathBuf| AccessLogFile::open(&LogTarget::File(file.clone())).unwrap();
    recorder.log(Some(open(&file))).unwrap();
    assert_eq!(recorder.wanted(), TraceFilter { connections: true, ..TraceFilter::default() });
    let trace = recorder.follow("198.51.100.7:1".parse().unwrap()).unwrap();
    recorder.log(None).unwrap();
    assert_eq!(
        recorder.wanted(),
        TraceFilter { connections: true, clients: ["198.51.100.7".parse().unwrap()].into() }
    );
    drop(trace);
    assert_eq!(recorder.wanted(), TraceFilter::default());
    std::fs::remove_file(file).unwrap();
}

#[test]
fn lost_events_are_counted_and_reported() {
    let (recorder, mut trace) = recorder();
    recorder.missed(3);
    recorder.packet(&packet(CLIENT, SERVICE), at());
    assert!(lines(&mut trace).concat().starts_with("{\"what\":\"lost\",\"count\":3}\n{\"what\":\"packet\""));
    assert_eq!(recorder.show_log().lost, 0, "there is no log that could miss them");
}
