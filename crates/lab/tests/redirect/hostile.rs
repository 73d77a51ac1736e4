//! Malicious messages.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use anyhow::{Result, ensure};
use evener_lab::farm::Farm;
use evener_lab::harness::wait;

use crate::stage::{Stage, member, statuses};

#[test]
fn redirect_never_leaves_member_sites() -> Result<()> {
    let stage = Stage::start(1, "")?;
    let own = format!("http://{}/", stage.farm.server(0).address());
    let targets = [
        "//evil.example/x",
        "///evil.example",
        "/\\evil.example",
        "/%5Cevil.example",
        "/@evil.example",
        "/%0d%0aLocation:%20http://evil.example",
        "http://evil.example//evil.example/",
        "http://evil.example?//evil.example",
    ];
    for target in targets {
        let request = format!("GET {target} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
        let text = stage.say(request.as_bytes())?;
        let locations: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("Location: ")).collect();
        ensure!(locations.len() == 1, "{target}: {text}");
        let rest = locations[0].strip_prefix(&own);
        ensure!(rest.is_some_and(|rest| !rest.starts_with(['/', '\\'])), "{target}: {locations:?}");
    }
    Ok(())
}

#[test]
fn bad_requests_get_their_status_and_are_counted() -> Result<()> {
    let stage = Stage::start(1, "")?;
    let huge = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(40_000));
    let cases = [
        ("GET / HTTP/1.1\r\n\r\n", "400", "bad_host"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400", "bad_host"),
        ("GET http://me@evil/ HTTP/1.1\r\nHost: a\r\n\r\n", "400", "bad_host"),
        ("GET evil HTTP/1.1\r\nHost: a\r\n\r\n", "400", "bad_target"),
        ("GET /../x HTTP/1.1\r\nHost: a\r\n\r\n", "400", "bad_target"),
        ("GET /a/%2e%2E%2f..%5cx HTTP/1.1\r\nHost: a\r\n\r\n", "400", "bad_target"),
        ("GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", "400", "bad_target"),
        ("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", "421", "misdirected"),
        ("GET / HTTP/1.1\nHost: a\n\n", "400", "malformed"),
        ("\x16\x03\x01\x02\r\n\r\n", "400", "malformed"),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "400",
            "bad_length",
        ),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "501", "bad_encoding"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505", "bad_version"),
        (huge.as_str(), "431", "head_too_large"),
    ];
    for (text, status, counted) in cases {
        let before = stage.counted(counted)?;
        let output = stage.say(text.as_bytes())?;
        let beginning = text.get(..text.len().min(60));
        assert_eq!(
            (statuses(&output), stage.counted(counted)?),
            (vec![status], before + 1),
            "{beginning:?}: {output}"
        );
    }
    Ok(())
}

#[test]
fn an_endless_body_is_answered_and_ended() -> Result<()> {
    let stage = Stage::start(1, "")?;
    let mut stream = stage.connect(0)?;
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    let piece = format!("{:x}\r\n{}\r\n", 8_000, "x".repeat(8_000));
    let broke = (0..1_000_000).find_map(|_| stream.write_all(piece.as_bytes()).err());
    let kind = broke.map(|error| error.kind());
    assert!(matches!(kind, Some(ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)), "{kind:?}");
    Ok(())
}

#[test]
fn slow_request_gets_408() -> Result<()> {
    let stage = Stage::start(1, "")?;
    let mut stream = stage.connect(0)?;
    stream.write_all(b"GET / HTTP/1.1\r\nHo")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    assert_eq!((statuses(&text), stage.counted("client_timeout")?), (vec!["408"], 1));
    Ok(())
}

#[test]
fn idle_connections_block_no_clients() -> Result<()> {
    let farm = Farm::builder().bare().servers(1).clients(2).build()?;
    let members = member(&farm, 0, "");
    // A limit of 256 clients follows from this limit of files.
    let stage = Stage::start_with(farm, &["prlimit", "--nofile=1024"], "", &members)?;
    let idle: Vec<TcpStream> = (0..2_000).map(|_| stage.connect(1)).collect::<Result<_>>()?;
    for _ in 0..20 {
        assert_eq!(stage.follow("/who")?, "web1");
    }
    wait::until("those who held most gave places up", || Ok(stage.counted("evicted")? >= 1_700))?;
    drop(idle);
    assert_eq!(stage.follow("/who")?, "web1");
    Ok(())
}
