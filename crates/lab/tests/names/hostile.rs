//! Harm that one client can do to others.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::Result;
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};

use crate::stage::{NAME, Stage, dig, file};

const QUERY: &[u8] = b"\xab\xcd\x01\0\0\x01\0\0\0\0\0\0\x03www\x07example\x03com\0\0\x01\0\x01";

fn socket(stage: &Stage) -> Result<UdpSocket> {
    let socket = stage.farm.client(0).enter(|| UdpSocket::bind("0.0.0.0:0"))??;
    socket.connect(stage.at())?;
    socket.set_read_timeout(Some(LONG))?;
    Ok(socket)
}

fn ask(socket: &UdpSocket, query: &[u8]) -> Result<Vec<u8>> {
    let mut answer = [0; 1_500];
    socket.send(query)?;
    let len = socket.recv(&mut answer)?;
    Ok(answer[..len].to_vec())
}

#[test]
fn flooding_network_gets_tc_and_others_are_answered() -> Result<()> {
    let stage = Stage::start(1, "")?;
    let limited = file(&stage.farm, "").replace("[dns]\n", "[dns]\nrate = 1\nburst = 20\n");
    stage.evener.reload(&limited)?;
    let socket = socket(&stage)?;
    // The kernel assigns each socket's flow to one thread, and each thread has a separate limit.
    let answers = (0..60).map(|_| ask(&socket, QUERY)).collect::<Result<Vec<_>>>()?;
    let is_limited = |answer: &Vec<u8>| answer[2] & 2 != 0;
    let truncated = answers.iter().filter(|answer| is_limited(answer)).count();
    assert!((30..=40).contains(&truncated), "{truncated}");
    assert!(answers.iter().filter(|answer| is_limited(answer)).all(|answer| answer.len() <= QUERY.len()));
    assert_eq!(stage.counted("limited")? as usize, truncated);
    assert_eq!(stage.addresses(&[NAME, "+tcp"])?, [stage.address(0)]);
    Ok(())
}

#[test]
fn non_query_does_not_block_next_query() -> Result<()> {
    let stage = Stage::start(1, "")?;
    let socket = socket(&stage)?;
    for len in 0..QUERY.len() {
        socket.send(&QUERY[..len])?;
    }
    socket.send(&[0xff; 1_400])?;
    socket.send(&[b"\xab\xcd\x81\0", &QUERY[4..]].concat())?;
    let own = [&[0x77, 0x77], &QUERY[2..]].concat();
    wait::until("a query is answered", || Ok(ask(&socket, &own)?.starts_with(&[0x77, 0x77])))?;
    // Messages have at least twelve octets. Shorter datagrams and responses are not answered.
    assert_eq!(stage.counted("unanswered")?, 14);
    Ok(())
}

fn connect(stage: &Stage, client: usize) -> Result<TcpStream> {
    let stream = stage.farm.client(client).enter(|| TcpStream::connect(stage.at()))??;
    stream.set_read_timeout(Some(LONG))?;
    Ok(stream)
}

/// Sends a query over TCP and returns the response.
fn exchange(stream: &mut TcpStream, query: &[u8]) -> Result<Vec<u8>> {
    stream.write_all(&[&(query.len() as u16).to_be_bytes(), query].concat())?;
    let mut len = [0; 2];
    stream.read_exact(&mut len)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(len))];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

#[test]
fn dns_connections_of_one_client_block_no_other() -> Result<()> {
    let farm = Farm::builder().bare().servers(1).clients(2).build()?;
    let config = file(&farm, "");
    // A limit of 64 connections follows from this limit of files.
    let evener = Evener::start_by(farm.director(), &config, &["prlimit", "--nofile=1024:1024"], &[])?;
    let stage = Stage { evener, farm };
    let mut held = Vec::new();
    for number in 0..1_100 {
        let mut stream = connect(&stage, 0)?;
        // Half of a length, a length without a query, and half of a query.
        let _ = stream.write_all([&b"\0"[..], b"\0\x21", b"\0\x21\xab\xcd"][number % 3]);
        held.push(stream);
    }
    let answer = dig(&stage.farm, 1, &[NAME, "+tcp", "+short"])?;
    assert_eq!(answer.trim(), stage.address(0));
    assert!(stage.counted("evicted")? >= 1_000);
    Ok(())
}

#[test]
fn active_dns_connection_outlives_idle_ones_of_its_network() -> Result<()> {
    let farm = Farm::builder().bare().servers(1).clients(2).build()?;
    let config = file(&farm, "");
    let evener = Evener::start_by(farm.director(), &config, &["prlimit", "--nofile=1024:1024"], &[])?;
    let stage = Stage { evener, farm };
    let mut busy = connect(&stage, 0)?;
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.extend((0..20).map(|_| connect(&stage, 0)).collect::<Result<Vec<_>>>()?);
        // A later connection is answered, so the silent ones have been accepted. They are older
        // than the busy connection's next query.
        exchange(&mut connect(&stage, 0)?, QUERY)?;
        assert_eq!(exchange(&mut busy, QUERY)?[..2], QUERY[..2]);
    }
    wait::until("those that ask nothing have given places up", || Ok(stage.counted("evicted")? >= 130))
}

/// Returns the query with a client cookie, and with the server cookie if it is known (RFC 7873).
fn with_cookie(id: [u8; 2], server: &[u8]) -> Vec<u8> {
    let option = [&[0, 10, 0, 8 + server.len() as u8][..], b"8 octets", server].concat();
    let opt = [&[0, 0, 41, 4, 0xd0, 0, 0, 0, 0, 0, option.len() as u8][..], &option].concat();
    [&id, &QUERY[2..11], &[1], &QUERY[12..], &opt].concat()
}

#[test]
fn floods_get_no_more_bytes_than_they_send_and_cookies_and_tcp_go_on() -> Result<()> {
    let farm = Farm::builder().bare().servers(1).clients(1).build()?;
    // Without a limit per network, only the total limit applies.
    let limited = file(&farm, "").replace("[dns]\n", "[dns]\nrate = 0\ntotal_rate = 1\n");
    let stage = Stage { evener: Evener::start(farm.director(), &limited)?, farm };
    let socket = socket(&stage)?;
    let first = exchange(&mut connect(&stage, 0)?, &with_cookie([0, 0], &[]))?;
    let at = first.windows(8).position(|octets| octets == b"8 octets").expect("the client's cookie");
    let cookie = first[at + 8..at + 24].to_vec();

    let (began, mut answer) = (Instant::now(), [0; 1_500]);
    let (mut whole, mut truncated, mut bytes) = (0, 0, 0);
    for round in 0..20 {
        for _ in 0..20 {
            socket.send(QUERY)?;
        }
        // The query and its response follow the flood on the same socket.
        let own = [1, round];
        socket.send(&with_cookie(own, &cookie))?;
        loop {
            let len = socket.recv(&mut answer)?;
            match answer[..2] == own {
                true if answer[7] == 1 => break,
                true => anyhow::bail!("a client with a cookie is not answered: {:?}", &answer[..len]),
                false if answer[2] & 2 == 0 => whole += 1,
                false => (truncated, bytes) = (truncated + 1, bytes + len),
            }
        }
        assert_eq!(exchange(&mut connect(&stage, 0)?, QUERY)?[7], 1, "by TCP");
    }
    let silent = 400 - whole - truncated;
    assert!(whole <= 2 + began.elapsed().as_secs(), "{whole} whole answers");
    assert!(
        bytes <= (truncated + silent) as usize * QUERY.len() && silent > 50 && truncated > 50,
        "{truncated} {silent}"
    );
    Ok(())
}

#[test]
fn queries_come_in_pieces_and_several_at_once() -> Result<()> {
    let stage = Stage::start(1, "")?;
    let mut stream = connect(&stage, 0)?;
    let framed = [&(QUERY.len() as u16).to_be_bytes(), QUERY].concat();
    for byte in &framed {
        stream.write_all(&[*byte])?;
        std::thread::sleep(Duration::from_millis(1));
    }
    stream.write_all(&framed.repeat(20))?;
    for _ in 0..21 {
        let mut len = [0; 2];
        stream.read_exact(&mut len)?;
        let mut answer = vec![0; usize::from(u16::from_be_bytes(len))];
        stream.read_exact(&mut answer)?;
        assert_eq!((&answer[..2], answer[7]), (&QUERY[..2], 1));
    }
    Ok(())
}
