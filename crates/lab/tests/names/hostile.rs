//! What one client can do to others.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::Result;
use evener_lab::wait::{self, LONG};

use crate::stage::{NAME, Stage, dig, file};

/// `www.example.com A`.
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
fn a_network_that_floods_is_told_to_come_by_tcp_and_others_are_answered() -> Result<()> {
    let stage = Stage::start(1, "")?;
    let limited = file(&stage.farm, "").replace("[dns]\n", "[dns]\nrate = 1\nburst = 20\n");
    stage.evener.reload(&limited)?;
    let socket = socket(&stage)?;
    // The kernel gives each socket's flow to one of the threads, each of which has its own count.
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
fn what_is_no_query_is_answered_or_not_and_the_next_one_is() -> Result<()> {
    let stage = Stage::start(1, "")?;
    let socket = socket(&stage)?;
    for len in 0..QUERY.len() {
        socket.send(&QUERY[..len])?;
    }
    socket.send(&[0xff; 1_400])?;
    socket.send(&[b"\xab\xcd\x81\0", &QUERY[4..]].concat())?;
    let own = [&[0x77, 0x77], &QUERY[2..]].concat();
    wait::until("a query is answered", || Ok(ask(&socket, &own)?.starts_with(&[0x77, 0x77])))?;
    // Twelve octets are a message; what is shorter, or an answer, is nobody's.
    assert_eq!(stage.counted("unanswered")?, 14);
    Ok(())
}

#[test]
fn connections_of_one_client_keep_nobody_out() -> Result<()> {
    let stage = Stage::start(1, "")?;
    let mut held = Vec::new();
    for number in 0..1_100 {
        let mut stream = stage.farm.client(0).enter(|| TcpStream::connect(stage.at()))??;
        // Half of a length, a length alone, half of a query.
        let _ = stream.write_all([&b"\0"[..], b"\0\x21", b"\0\x21\xab\xcd"][number % 3]);
        held.push(stream);
    }
    let answer = dig(&stage.farm, 1, &[NAME, "+tcp", "+short"])?;
    assert_eq!(answer.trim(), stage.address(0));
    assert!(stage.counted("evicted")? >= 100);
    Ok(())
}

#[test]
fn queries_come_in_pieces_and_several_at_once() -> Result<()> {
    use std::io::Read;
    let stage = Stage::start(1, "")?;
    let mut stream = stage.farm.client(0).enter(|| TcpStream::connect(stage.at()))??;
    stream.set_read_timeout(Some(LONG))?;
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
