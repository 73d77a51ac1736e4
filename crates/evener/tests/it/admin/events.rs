//! Live events over real sockets.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use evener::events::DaemonEvent;
use serde_json::{Value, json};

use super::{Daemon, error};

/// Starts `evener events` and waits until it is subscribed.
fn listening(daemon: &Daemon, args: &[&str]) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_evener"))
        .arg("events")
        .args(args)
        .arg("--socket")
        .arg(daemon.socket())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut output).unwrap();
    assert_eq!(output, "evener: listening\n");
    child
}

fn dispatcher(decides: bool) -> DaemonEvent {
    DaemonEvent::Dispatcher { address: IpAddr::from([192, 0, 2, 3]), decides }
}

#[test]
fn events_are_shown_while_they_happen() {
    let daemon = Daemon::start();
    daemon.bus.publish(DaemonEvent::Stopping);
    let (people, programs) =
        (listening(&daemon, &["--count", "2"]), listening(&daemon, &["--count", "2", "--json"]));
    daemon.bus.publish(dispatcher(false));
    daemon.bus.publish(DaemonEvent::Reloaded {
        file: "evener.toml".into(),
        restart_needed_for: None,
        trouble: None,
    });
    let people = String::from_utf8(people.wait_with_output().unwrap().stdout).unwrap();
    let lines: Vec<&str> = people.lines().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
    let silent = "the dispatcher 192.0.2.3 doesn't answer: this host decides by its own tables until it does";
    let expected = format!("dispatcher_silent 192.0.2.3: {silent}");
    assert_eq!(lines, [expected.as_str(), "reloaded: reloaded"], "nothing of what was before");
    let programs = String::from_utf8(programs.wait_with_output().unwrap().stdout).unwrap();
    let lines: Vec<Value> = programs.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let time = &lines[0]["time"];
    let first = json!({"what": "event", "number": 2, "time": time, "event": "dispatcher_silent", "level": "warning",
                       "address": "192.0.2.3", "text": silent});
    assert_eq!((&lines[0], &lines[1]["number"], lines.len()), (&first, &json!(3), 2));
}

/// Returns the event numbers in lines of JSON.
fn numbers(output: &[u8]) -> Vec<u64> {
    let lines = std::str::from_utf8(output).unwrap().lines();
    lines.map(|line| serde_json::from_str::<Value>(line).unwrap()["number"].as_u64().unwrap()).collect()
}

#[test]
fn past_events_are_shown_before_live_ones() {
    let daemon = Daemon::start();
    assert_eq!(daemon.shown(&["events", "--since", "1h"]), "");
    (0..3).for_each(|_| daemon.bus.publish(DaemonEvent::Stopping));
    let past = daemon.command(&["events", "--since", "1h", "--json"]);
    assert_eq!((numbers(&past.stdout), past.stderr.as_slice()), (vec![1, 2, 3], &b""[..]));
    assert_eq!(
        numbers(daemon.shown(&["events", "--since", "1h", "--count", "2", "--json"]).as_bytes()),
        [1, 2]
    );
    let all = listening(&daemon, &["--since", "3599500ms", "-f", "--count", "4", "--json"]);
    daemon.bus.publish(DaemonEvent::Stopping);
    assert_eq!(numbers(&all.wait_with_output().unwrap().stdout), [1, 2, 3, 4]);
    let (status, body) = daemon.tcp("GET", "/v1/events?since_seconds=60&follow=false");
    assert_eq!((status, body.matches("\nid: ").count()), (200, 4), "{body}");
    for (query, expected) in [
        ("follow=false", "give since_seconds"),
        ("since_seconds=-1", "since_seconds: invalid digit"),
        ("follow=perhaps", "follow is \"perhaps\""),
    ] {
        let (status, why) = error(daemon.tcp("GET", &format!("/v1/events?{query}")));
        assert!(status == 400 && why.contains(expected), "{query}: {why}");
    }
}

#[test]
fn a_browser_gets_server_sent_events() {
    let daemon = Daemon::start();
    let mut stream = TcpStream::connect(daemon.tcp).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET /v1/events HTTP/1.0\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    assert!(
        head[0].contains(" 200 ") && head.contains(&"Content-Type: text/event-stream".to_owned()),
        "{head:?}"
    );
    assert_eq!(lines.next().unwrap(), ": listening");
    daemon.bus.publish(dispatcher(true));
    daemon.bus.end();
    let lines: Vec<String> = lines.collect();
    assert_eq!(lines[..3], ["", "event: dispatcher_responding", "id: 1"].map(str::to_owned));
    let data: Value = serde_json::from_str(lines[3].strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!((&data["event"], &data["level"]), (&json!("dispatcher_responding"), &json!("info")));
    assert_eq!(lines[4..], [String::new()], "and that is the end");
}

#[test]
fn stream_that_comes_when_all_places_are_taken_ends_the_oldest() {
    /// The limit in docs/operating/dashboard.md.
    const STREAMS: usize = 256;
    let daemon = Daemon::start();
    let listen = || {
        let mut stream = TcpStream::connect(daemon.tcp).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(stream, "GET /v1/events HTTP/1.0\r\n\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while line != ": listening\n" {
            line.clear();
            assert_ne!(reader.read_line(&mut line).unwrap(), 0, "each that comes is answered");
        }
        reader
    };
    let mut all: Vec<_> = (0..=STREAMS).map(|_| listen()).collect();
    // Unread bytes may turn the close into a reset.
    let ended = all.remove(0).read_to_end(&mut Vec::new());
    assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    daemon.bus.publish(dispatcher(true));
    for reader in &mut all {
        let mut line = String::new();
        while !line.starts_with("event: ") {
            line.clear();
            assert_ne!(reader.read_line(&mut line).unwrap(), 0, "all others stay");
        }
    }
}
