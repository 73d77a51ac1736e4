//! WebSocket (RFC 6455): a connection with one HTTP request and arbitrary data in both directions
//! afterwards.

use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use evener_lab::evener::{Handoff, Offer, route};
use evener_lab::farm::{Farm, WEB_PORT};
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use socket2::SockRef;

use crate::talk::{Talk, get};

on_both_engines! { frames_go_both_ways }

/// The key of RFC 6455, section 1.3, with its accept value. The test server knows no other key.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ANSWER: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// First bytes of single-frame messages: FIN bit and opcode (section 5.2).
const TEXT: u8 = 0x81;
const CLOSE: u8 = 0x88;
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
const MASKED: u8 = 0x80;
const PAUSE: Duration = Duration::from_millis(100);

/// Frames pass in both directions, with a path that the data plane routes and with a path that is
/// read in user space.
fn frames_go_both_ways(engine: &str) -> Result<()> {
    let mut farm = Farm::builder().bare().servers(2).build()?;
    farm.stop_web(1)?;
    let _echo = Echo::start(farm.server(1))?;
    let routes = [route("path = \"/chat\"", &["web2"]), route("path = \"/*\"", &["web1"])];
    let health = "[service.health]\nkind = \"tcp\"\ninterval = \"500ms\"\n".to_owned();
    let handoff = Handoff::start(farm, Offer { health, ..Offer::new(engine, 2, &routes) })?;
    let mut chats = Vec::new();
    for family in Family::BOTH {
        for path in ["/chat", "/./chat"] {
            let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
            let upgrade = format!(
                "GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
            );
            let reply = talk.request(&upgrade).with_context(|| format!("{family}: {path}"))?;
            assert_eq!((reply.status, reply.server.as_str()), (101, "web2"), "{family}: {path}");
            chats.push(talk);
        }
    }
    // With pauses, and with data of other connections in between.
    for round in 0_usize..20 {
        for (number, talk) in chats.iter_mut().enumerate() {
            let text: Vec<u8> =
                (0..(round * 379 + number) % 7_000).map(|at| (at * (round + 3)) as u8).collect();
            talk.send(frame(TEXT, &text, true))?;
            let echo = frame(TEXT, &text, false);
            let heard = talk.take(echo.len()).with_context(|| format!("chat {number}, round {round}"))?;
            assert!(heard == echo, "chat {number}, round {round}: other bytes came");
        }
        let mut other = Talk::open(handoff.client(), handoff.service(Family::V4))?;
        assert_eq!(other.request(&get("x", "/who"))?.server, "web1");
        thread::sleep(PAUSE);
    }
    // The server can also send first after a silence, and it answers a close frame.
    for talk in &mut chats {
        let greeting = frame(TEXT, b"still there?", false);
        talk.send(frame(TEXT, b"ask me", true))?;
        assert_eq!(talk.take(frame(TEXT, b"ask me", false).len())?, frame(TEXT, b"ask me", false));
        assert_eq!(talk.take(greeting.len())?, greeting);
        talk.send(frame(CLOSE, &[], true))?;
        assert_eq!(talk.rest()?, frame(CLOSE, &[], false));
    }
    Ok(())
}

/// Returns a complete message. Messages of clients are masked (section 5.3).
fn frame(first: u8, payload: &[u8], masked: bool) -> Vec<u8> {
    let mut frame = vec![first];
    let flag = if masked { MASKED } else { 0 };
    match payload.len() {
        len @ 0..126 => frame.push(flag | len as u8),
        len => {
            frame.push(flag | 126);
            frame.extend((len as u16).to_be_bytes());
        }
    }
    if masked {
        frame.extend(MASK);
        frame.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    } else {
        frame.extend(payload);
    }
    frame
}

/// An echo server. Dropping this value stops the server.
struct Echo {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    fn start(host: &Host) -> Result<Echo> {
        let name = host.name().to_owned();
        let listener = host.enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, WEB_PORT)))??;
        let clients = listener.try_clone()?;
        let serve = move || {
            while let Ok((stream, _)) = clients.accept() {
                let name = name.clone();
                // The server ignores errors of clients; a test notices missing data.
                thread::spawn(move || serve(stream, &name));
            }
        };
        Ok(Echo { listener, thread: Some(thread::spawn(serve)) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // Makes `accept` fail, which ends the thread.
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
        self.thread.take().map(JoinHandle::join);
    }
}

fn serve(mut stream: TcpStream, name: &str) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    ensure!(String::from_utf8_lossy(&head).contains(KEY), "another key");
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Server: {name}\r\n\
         Sec-WebSocket-Accept: {ANSWER}\r\n\r\n"
    );
    stream.write_all(answer.as_bytes())?;
    loop {
        let (first, payload) = hear(&mut stream)?;
        stream.write_all(&frame(first, &payload, false))?;
        match (first, payload.as_slice()) {
            (CLOSE, _) => return Ok(()),
            (_, b"ask me") => {
                thread::sleep(PAUSE);
                stream.write_all(&frame(TEXT, b"still there?", false))?;
            }
            _ => {}
        }
    }
}

/// Reads a client's message. Returns its first byte and its payload.
fn hear(stream: &mut TcpStream) -> Result<(u8, Vec<u8>)> {
    let mut start = [0; 2];
    stream.read_exact(&mut start)?;
    let [first, len] = start;
    ensure!(len & MASKED != 0, "clients mask what they say");
    let len = match len & !MASKED {
        126 => {
            let mut len = [0; 2];
            stream.read_exact(&mut len)?;
            u16::from_be_bytes(len).into()
        }
        127 => bail!("nobody says so much at once"),
        len => usize::from(len),
    };
    let mut mask = [0; 4];
    stream.read_exact(&mut mask)?;
    let mut payload = vec![0; len];
    stream.read_exact(&mut payload)?;
    payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    Ok((first, payload))
}
