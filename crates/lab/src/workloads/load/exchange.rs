//! HTTP request and response (RFC 9112), with every byte checked.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::Load;
use super::body::{Body, Fault, Framing};
use crate::servers::{cgi, nginx};

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
    /// Length of the body in bytes, and with heads and framing.
    pub(super) bytes: u64,
    pub(super) wire_bytes: u64,
    /// Times of connecting, of all redirects, and of the last request.
    pub(super) times: Times,
    /// True if the request opened a new connection.
    pub(super) fresh: bool,
    /// Header `Location`; empty if missing.
    pub(super) location: String,
}

/// Times of the parts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// Resolving the name, if there is one, and connecting.
    pub(super) connect: Duration,
    pub(super) redirect: Duration,
    pub(super) fetch: Duration,
}

impl Times {
    pub(super) fn add(&mut self, other: &Times) {
        self.connect += other.connect;
        self.redirect += other.redirect;
        self.fetch += other.fetch;
    }
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
        let by_length = name.strip_prefix(nginx::BY_LENGTH).or_else(|| name.strip_prefix(cgi::FOLDER));
        if let Some(Ok(len)) =
            by_length.and_then(|rest| rest.split('?').next()?.rsplit('/').next()).map(str::parse)
        {
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
    status: u16,
    len: usize,
    framing: Framing,
    server: String,
    location: String,
}

/// Client of a load, with one connection at a time.
#[derive(Debug)]
pub(super) struct Client<'a> {
    load: &'a Load,
    stop: &'a AtomicBool,
    /// Path of the requests, before redirects.
    path: String,
    page: Page,
    request: String,
    buffer: Vec<u8>,
    open: Option<TcpStream>,
    turn: usize,
    /// Address that a redirect has named; otherwise the targets' turn counts.
    redirected: Option<SocketAddr>,
}

/// Greatest number of redirects of a request.
const REDIRECTS_MAX: usize = 5;

impl<'a> Client<'a> {
    /// Returns a client that connects to the targets in turn, starting at index `turn`.
    pub(super) fn new(load: &'a Load, turn: usize, stop: &'a AtomicBool) -> Client<'a> {
        let mut client = Client {
            load,
            stop,
            path: String::new(),
            page: Page::Any,
            request: String::new(),
            buffer: vec![0; BUFFER_LEN],
            open: None,
            turn,
            redirected: None,
        };
        client.aim(&load.path);
        client
    }

    /// Sets the path of later requests.
    pub(super) fn aim(&mut self, path: &str) {
        path.clone_into(&mut self.path);
        self.prepare(path);
    }

    fn prepare(&mut self, path: &str) {
        let close = if self.load.keep_alive { "" } else { "Connection: close\r\n" };
        self.request = format!("GET {path} HTTP/1.1\r\nHost: www.example.com\r\n{close}\r\n");
        self.page = Page::of(path);
    }

    /// Sends a request and reads the response, and follows redirects if the load does. Returns
    /// `None` if the load was stopped within a download with limited rate.
    pub(super) fn send_request(&mut self) -> Result<Option<Reply>, Failure> {
        let outcome = self.follow();
        if self.redirected.take().is_some() {
            let path = std::mem::take(&mut self.path);
            self.aim(&path);
        }
        outcome
    }

    fn follow(&mut self) -> Result<Option<Reply>, Failure> {
        let mut times = Times::default();
        for _ in 0..=REDIRECTS_MAX {
            let Some((status, mut reply)) = self.exchange(&mut times)? else { return Ok(None) };
            if !(self.load.follow && status == 302) {
                reply.times = times;
                return Ok(Some(reply));
            }
            let Some((member, path)) = place(&reply.location) else {
                return Err(Failure::Wrong(format!("sent on to {:?}", reply.location)));
            };
            self.prepare(&format!("/{path}"));
            (self.redirected, self.open) = (Some(member), None);
            times.redirect += times.fetch;
        }
        Err(Failure::Wrong(format!("sent on more than {REDIRECTS_MAX} times")))
    }

    /// Sends the request once. Returns status and reply.
    fn exchange(&mut self, times: &mut Times) -> Result<Option<(u16, Reply)>, Failure> {
        let fresh = self.open.is_none();
        let started = Instant::now();
        let mut stream = match self.open.take() {
            Some(stream) => stream,
            None => self.connect()?,
        };
        let connected = Instant::now();
        times.connect += connected - started;
        stream.write_all(self.request.as_bytes()).map_err(|error| failure(&error))?;
        let (head, filled) = self.read_head(&mut stream)?;
        let is_page = head.status == self.load.status;
        if let (Page::Pattern(len), Framing::Length(announced), true) = (&self.page, &head.framing, is_page)
            && len != announced
        {
            return Err(Failure::Wrong(format!("{announced} bytes were announced instead of {len}")));
        }
        if !is_page {
            // the body of a redirect is any
            self.page = Page::Any;
        }
        let Some(body) = self.read_body(&mut stream, &head, filled)? else { return Ok(None) };
        let until_close = matches!(head.framing, Framing::UntilClose);
        if self.load.keep_alive && !until_close {
            self.open = Some(stream);
        } else if !until_close && self.read(&mut stream, 0..1)? != 0 {
            return Err(Failure::Wrong(format!("{} sent more than it announced", head.server)));
        }
        // otherwise the server has closed first, so TIME-WAIT (RFC 9293, section 3.6) uses up none
        // of our ports
        times.fetch = connected.elapsed();
        let reply = Reply {
            server: head.server,
            bytes: body.len as u64,
            wire_bytes: (head.len + body.framed_len) as u64,
            times: *times,
            fresh,
            location: head.location,
        };
        Ok(Some((head.status, reply)))
    }

    /// Connects to the next target.
    fn connect(&mut self) -> Result<TcpStream, Failure> {
        let targets = &self.load.targets;
        let target = targets.get(self.turn % targets.len().max(1)).copied();
        let target = target.ok_or_else(|| Failure::Connect("no target was given".to_owned()))?;
        let target: SocketAddr = match (self.redirected, &self.load.name) {
            (Some(member), _) => member,
            (None, None) => target,
            (None, Some(name)) => {
                let address = name.resolve(self.load.timeout);
                let address =
                    address.map_err(|error| Failure::Connect(format!("{}: {error:#}", name.name)))?;
                SocketAddr::new(address, target.port())
            }
        };
        self.turn += usize::from(self.redirected.is_none());
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
            if let Some(head) = parse_head(self.buffer.get(..filled).unwrap_or_default())? {
                if head.status != self.load.status && !(self.load.follow && head.status == 302) {
                    return Err(Failure::Wrong(format!("status {}", head.status)));
                }
                return Ok((head, filled));
            }
        }
        Err(Failure::Wrong(format!("the head of the reply is longer than {BUFFER_LEN} bytes")))
    }

    /// Reads the body, which may partly be in the buffer already. Returns `None` if the load was
    /// stopped.
    fn read_body(
        &mut self,
        stream: &mut TcpStream,
        head: &Head,
        filled: usize,
    ) -> Result<Option<Body>, Failure> {
        let mut body = Body::new(&head.framing);
        let (mut from, mut filled) = (head.len, filled);
        loop {
            let (page, server) = (&self.page, &head.server);
            let bytes = self.buffer.get(from..filled).unwrap_or_default();
            let is_whole = body.take(bytes, |at, part| page.holds(server, at, part)).map_err(|fault| {
                Failure::Wrong(match fault {
                    Fault::Other(at) => format!("{server} sent other bytes than it has, from byte {at} on"),
                    Fault::Longer => format!("{server} sent more than the {} bytes it announced", body.len),
                    Fault::Framing => format!("{server} sent a chunk without its length"),
                })
            })?;
            if is_whole {
                break;
            }
            if let Some(pace) = self.load.pace {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                thread::sleep(Duration::from_secs_f64(bytes.len() as f64 / pace.max(1) as f64));
            }
            let buffer = if self.load.pace.is_some() { PACED_LEN } else { BUFFER_LEN };
            (from, filled) = (0, self.read(stream, 0..buffer)?);
            if filled == 0 {
                if matches!(head.framing, Framing::UntilClose) {
                    break;
                }
                return Err(Failure::Short(format!("{} closed after {} bytes", head.server, body.len)));
            }
        }
        match self.page {
            Page::Pattern(len) if len != body.len => {
                Err(Failure::Short(format!("{} sent {} bytes instead of {len}", head.server, body.len)))
            }
            _ => Ok(Some(body)),
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

/// Returns the address and the path, without its slash, of a URL with an IP address.
fn place(url: &str) -> Option<(SocketAddr, &str)> {
    let (place, path) = url.strip_prefix("http://")?.split_once('/')?;
    let address = place.trim_start_matches('[').trim_end_matches(']');
    let default = || Some(SocketAddr::new(address.parse().ok()?, 80));
    Some((place.parse().ok().or_else(default)?, path))
}

/// Parses the head of a response; `None` while the head is incomplete.
fn parse_head(bytes: &[u8]) -> Result<Option<Head>, Failure> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let status = response.parse(bytes).map_err(|error| Failure::Wrong(format!("not a reply: {error}")))?;
    let httparse::Status::Complete(len) = status else { return Ok(None) };
    let header = |name: &str| {
        let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    let framing = match (header("Transfer-Encoding"), header("Content-Length")) {
        (Some(encoding), _) if encoding.eq_ignore_ascii_case("chunked") => Framing::Chunked,
        (Some(encoding), _) => return Err(Failure::Wrong(format!("the reply is encoded as {encoding}"))),
        (None, Some(len)) => {
            let wrong = |_| Failure::Wrong(format!("the reply's Content-Length is {len}"));
            Framing::Length(len.parse().map_err(wrong)?)
        }
        (None, None) => Framing::UntilClose,
    };
    let [server, location] = ["X-Server", "Location"].map(|name| header(name).unwrap_or_default().to_owned());
    Ok(Some(Head { status: response.code.unwrap_or_default(), len, framing, server, location }))
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
    fn place_of_url_has_address_and_path() {
        let found = |url| place(url).map(|(address, path)| (address.to_string(), path));
        let expected = |address: &str, path| Some((address.to_owned(), path));
        assert_eq!(found("http://192.0.2.1/a?b"), expected("192.0.2.1:80", "a?b"));
        assert_eq!(found("http://192.0.2.1:8080/"), expected("192.0.2.1:8080", ""));
        assert_eq!(found("http://[2001:db8::1]/a"), expected("[2001:db8::1]:80", "a"));
        assert_eq!(found("http://[2001:db8::1]:81/a"), expected("[2001:db8::1]:81", "a"));
        assert!(found("https://192.0.2.1/").is_none() && found("http://name/").is_none());
    }

    #[test]
    fn heads_are_read_or_refused() {
        let framing = |head: &str| {
            let text = format!("HTTP/1.1 200 OK\r\n{head}X-Server: web1\r\n\r\nweb1\n");
            parse_head(text.as_bytes()).map(|head| head.unwrap().framing)
        };
        assert_eq!(framing("Content-Length: 5\r\n").unwrap(), Framing::Length(5));
        assert_eq!(framing("transfer-encoding: Chunked\r\n").unwrap(), Framing::Chunked);
        assert_eq!(framing("").unwrap(), Framing::UntilClose);
        assert!(framing("Content-Length: x\r\n").is_err() && framing("Transfer-Encoding: gzip\r\n").is_err());
        assert!(parse_head(b"HTTP/1.1 200 OK\r\nContent-Le").unwrap().is_none());
        assert!(parse_head(b"SSH-2.0-x\r\n\r\n").is_err());
    }
}
