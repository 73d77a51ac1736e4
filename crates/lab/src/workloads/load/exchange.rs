//! HTTP request and response (RFC 9112), with every byte checked.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::Load;
use crate::servers::nginx;

const BUFFER_LEN: usize = 64 * 1024;
/// Bytes per read of a connection with limited rate.
const PACED_LEN: usize = 16 * 1024;

/// Failure of an exchange.
#[derive(Debug)]
pub(super) enum Failure {
    Connect(String),
    Reset(String),
    Timeout(String),
    /// The response ended early.
    Short(String),
    /// The response differed from the expected one.
    Wrong(String),
}

#[derive(Debug)]
pub(super) struct Reply {
    /// Header `X-Server`; empty if missing.
    pub(super) server: String,
    /// Length of the body in bytes.
    pub(super) bytes: u64,
    /// True if the request opened a new connection.
    pub(super) fresh: bool,
    /// Header `Location`; empty if missing.
    pub(super) location: String,
}

#[derive(Debug)]
enum Page {
    /// This number of bytes of the pattern.
    Pattern(usize),
    /// Name of the server, and a newline.
    Name,
    /// Any body of the announced length.
    Any,
}

impl Page {
    fn of(path: &str) -> Page {
        let name = path.trim_start_matches('/');
        if let Some(Ok(len)) = name.strip_prefix(nginx::BY_LENGTH).map(str::parse) {
            return Page::Pattern(len);
        }
        match nginx::PAGES.iter().find(|(page, _)| *page == name) {
            Some((_, len)) => Page::Pattern(*len),
            None if name == "who" => Page::Name,
            None => Page::Any,
        }
    }

    /// True if `bytes`, at offset `at` of the body, are right.
    fn holds(&self, server: &str, at: usize, bytes: &[u8]) -> bool {
        match self {
            Page::Pattern(_) => {
                let start = at % nginx::PATTERN.len();
                patterns().get(start..start + bytes.len()) == Some(bytes)
            }
            Page::Name => server.bytes().chain([b'\n']).skip(at).take(bytes.len()).eq(bytes.iter().copied()),
            Page::Any => true,
        }
    }
}

/// Returns the pattern repeated, long enough to compare a whole buffer at any offset.
fn patterns() -> &'static [u8] {
    static PATTERNS: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERNS.get_or_init(|| nginx::PATTERN.repeat(BUFFER_LEN / nginx::PATTERN.len() + 1))
}

/// Head of a response.
struct Head {
    len: usize,
    body_len: usize,
    server: String,
    location: String,
}

/// Client of a load, with one connection at a time.
#[derive(Debug)]
pub(super) struct Client<'a> {
    load: &'a Load,
    stop: &'a AtomicBool,
    page: Page,
    request: String,
    buffer: Vec<u8>,
    open: Option<TcpStream>,
    turn: usize,
}

impl<'a> Client<'a> {
    /// Returns a client that connects to the targets in turn, starting at index `turn`.
    pub(super) fn new(load: &'a Load, turn: usize, stop: &'a AtomicBool) -> Client<'a> {
        let mut client = Client {
            load,
            stop,
            page: Page::Any,
            request: String::new(),
            buffer: vec![0; BUFFER_LEN],
            open: None,
            turn,
        };
        client.aim(&load.path);
        client
    }

    /// Sets the path of later requests.
    pub(super) fn aim(&mut self, path: &str) {
        let close = if self.load.keep_alive { "" } else { "Connection: close\r\n" };
        self.request = format!("GET {path} HTTP/1.1\r\nHost: www.example.com\r\n{close}\r\n");
        self.page = Page::of(path);
    }

    /// Sends a request and reads the response. Returns `None` if the load was stopped within a
    /// download with limited rate.
    pub(super) fn send_request(&mut self) -> Result<Option<Reply>, Failure> {
        let fresh = self.open.is_none();
        let mut stream = match self.open.take() {
            Some(stream) => stream,
            None => self.connect()?,
        };
        stream.write_all(self.request.as_bytes()).map_err(|error| failure(&error))?;
        let (head, filled) = self.read_head(&mut stream)?;
        if let Page::Pattern(len) = self.page
            && len != head.body_len
        {
            return Err(Failure::Wrong(format!("{} bytes were announced instead of {len}", head.body_len)));
        }
        if !self.read_body(&mut stream, &head, filled)? {
            return Ok(None);
        }
        if self.load.keep_alive {
            self.open = Some(stream);
        } else if self.read(&mut stream, 0..1)? != 0 {
            return Err(Failure::Wrong(format!("{} sent more than it announced", head.server)));
        }
        // otherwise the server has closed first, so TIME-WAIT (RFC 9293, section 3.6) uses up none
        // of our ports
        Ok(Some(Reply { server: head.server, bytes: head.body_len as u64, fresh, location: head.location }))
    }

    /// Connects to the next target.
    fn connect(&mut self) -> Result<TcpStream, Failure> {
        let targets = &self.load.targets;
        let target = targets.get(self.turn % targets.len().max(1)).copied();
        let target: SocketAddr = target.ok_or_else(|| Failure::Connect("no target was given".to_owned()))?;
        self.turn += 1;
        let connect = || -> io::Result<TcpStream> {
            let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_read_timeout(Some(self.load.timeout))?;
            // the write timeout also applies to connect
            socket.set_write_timeout(Some(self.load.timeout))?;
            socket.connect(&target.into())?;
            Ok(socket.into())
        };
        connect().map_err(|error| Failure::Connect(format!("{target}: {error}")))
    }

    /// Reads the response's head. Returns the head and the number of bytes in the buffer.
    fn read_head(&mut self, stream: &mut TcpStream) -> Result<(Head, usize), Failure> {
        let mut filled = 0;
        while filled < BUFFER_LEN {
            let got = self.read(stream, filled..BUFFER_LEN)?;
            if got == 0 {
                let what = if filled == 0 { "instead of a reply" } else { "within the head of the reply" };
                return Err(Failure::Short(format!("the connection was closed {what}")));
            }
            filled += got;
            if let Some(head) = parse_head(self.buffer.get(..filled).unwrap_or_default(), self.load.status)? {
                return Ok((head, filled));
            }
        }
        Err(Failure::Wrong(format!("the head of the reply is longer than {BUFFER_LEN} bytes")))
    }

    /// Reads the body, which may partly be in the buffer already. Returns false if the load was
    /// stopped.
    fn read_body(&mut self, stream: &mut TcpStream, head: &Head, mut filled: usize) -> Result<bool, Failure> {
        let (Head { len, body_len, server, .. }, mut at) = (head, 0);
        let mut from = *len;
        loop {
            let bytes = self.buffer.get(from..filled).unwrap_or_default();
            if !self.page.holds(server, at, bytes) {
                return Err(Failure::Wrong(format!(
                    "{server} sent other bytes than it has, from byte {at} on"
                )));
            }
            at += bytes.len();
            match at.cmp(body_len) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Ok(true),
                std::cmp::Ordering::Greater => {
                    return Err(Failure::Wrong(format!(
                        "{server} sent more than the {body_len} bytes it announced"
                    )));
                }
            }
            if let Some(pace) = self.load.pace {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                thread::sleep(Duration::from_secs_f64(bytes.len() as f64 / pace.max(1) as f64));
            }
            let buffer = if self.load.pace.is_some() { PACED_LEN } else { BUFFER_LEN };
            (from, filled) = (0, self.read(stream, 0..buffer)?);
            if filled == 0 {
                return Err(Failure::Short(format!("{server} closed after {at} of {body_len} bytes")));
            }
        }
    }

    fn read(&mut self, stream: &mut TcpStream, buffer: Range<usize>) -> Result<usize, Failure> {
        stream.read(self.buffer.get_mut(buffer).unwrap_or_default()).map_err(|error| failure(&error))
    }
}

fn failure(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::Timeout(error.to_string()),
        _ => Failure::Reset(error.to_string()),
    }
}

/// Parses the head of a response; `None` while the head is incomplete.
fn parse_head(bytes: &[u8], good: u16) -> Result<Option<Head>, Failure> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let status = response.parse(bytes).map_err(|error| Failure::Wrong(format!("not a reply: {error}")))?;
    let httparse::Status::Complete(len) = status else { return Ok(None) };
    if response.code != Some(good) {
        return Err(Failure::Wrong(format!("status {:?}", response.code.unwrap_or_default())));
    }
    let header = |name: &str| {
        let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    let body_len = header("Content-Length").and_then(|value| value.parse().ok());
    let body_len = body_len.ok_or_else(|| Failure::Wrong("the reply has no Content-Length".to_owned()))?;
    let [server, location] = ["X-Server", "Location"].map(|name| header(name).unwrap_or_default().to_owned());
    Ok(Some(Head { len, body_len, server, location }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn expected_page_differs_from_others() {
        let page = Page::of("/2k");
        assert!(page.holds("", 0, &nginx::PATTERN[..]));
        assert!(page.holds("", 130, &nginx::PATTERN[2..]));
        assert!(!page.holds("", 1, &nginx::PATTERN[..]));
        let who = Page::of("/who");
        assert!(who.holds("web1", 0, b"web1\n"));
        assert!(who.holds("web1", 3, b"1\n"));
        assert!(!who.holds("web1", 0, b"web2\n"));
        assert!(!who.holds("web1", 0, b"web1\n+"));
    }

    #[test]
    fn heads_are_read_or_refused() {
        let head = parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Server: web1\r\n\r\nweb1\n", 200)
            .unwrap()
            .unwrap();
        assert_eq!((head.body_len, head.server.as_str()), (5, "web1"));
        assert!(parse_head(b"HTTP/1.1 200 OK\r\nContent-Le", 200).unwrap().is_none());
        for bad in
            ["SSH-2.0-x\r\n\r\n", "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"]
        {
            assert!(parse_head(bad.as_bytes(), 200).is_err(), "{bad}");
        }
    }
}
