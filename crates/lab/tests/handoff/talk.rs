//! A client that sends arbitrary bytes, in arbitrary pieces.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evener_lab::harness::wait;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Longer than the director's timeout for requests.
const LIMIT: Duration = Duration::from_secs(15);
/// Pause between pieces, so that each is a separate segment.
const PAUSE: Duration = Duration::from_millis(5);

/// An open connection. Dropping this value closes the connection by FIN.
pub(crate) struct Talk {
    stream: BufReader<TcpStream>,
}

/// Connects from this port. `buffer` is the size of the receive buffer in bytes.
fn connect(port: u16, service: SocketAddr, buffer: Option<usize>) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(service), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if let Some(buffer) = buffer {
        socket.set_recv_buffer_size(buffer)?;
    }
    socket.bind(&SocketAddr::new(Family::of(service.ip()).any(), port).into())?;
    socket.connect_timeout(&service.into(), LIMIT)?;
    Ok(socket.into())
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Name of the responding server. Empty if the response is not from a server of the farm.
    pub(crate) server: String,
    pub(crate) body: Vec<u8>,
}

impl Talk {
    pub(crate) fn open(host: &Host, service: SocketAddr) -> Result<Talk> {
        Self::open_from(host, 0, service)
    }

    /// Opens a connection from this port; 0 selects any port.
    pub(crate) fn open_from(host: &Host, port: u16, service: SocketAddr) -> Result<Talk> {
        // A child process of another thread holds a copy of the port's last socket until it calls
        // exec.
        let taken = |stream: &io::Result<TcpStream>| matches!(stream, Err(error) if error.kind() == ErrorKind::AddrNotAvailable);
        let connect = || host.enter(|| connect(port, service, None));
        let stream = wait::for_value(LIMIT, connect, |stream| !taken(stream))?;
        Self::of(stream.unwrap_or_else(|stream| stream), service)
    }

    /// Opens a connection with the smallest receive buffer that the kernel allows.
    pub(crate) fn open_narrow(host: &Host, service: SocketAddr) -> Result<Talk> {
        Self::of(host.enter(|| connect(0, service, Some(1)))?, service)
    }

    pub(crate) fn open_many(host: &Host, count: usize, service: SocketAddr) -> Result<Vec<Talk>> {
        host.enter(|| (0..count).map(|_| Self::of(connect(0, service, None), service)).collect())?
    }

    /// Returns the client's address and port.
    pub(crate) fn client(&self) -> Result<SocketAddr> {
        Ok(self.stream.get_ref().local_addr()?)
    }

    fn of(stream: io::Result<TcpStream>, service: SocketAddr) -> Result<Talk> {
        let stream = stream.with_context(|| format!("{service} took no connection"))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        stream.set_nodelay(true)?;
        Ok(Talk { stream: BufReader::new(stream) })
    }

    /// Sends bytes, in one segment if they are few.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        Ok(self.stream.get_mut().write_all(bytes.as_ref())?)
    }

    /// Sends bytes and FIN in one segment.
    pub(crate) fn send_and_end(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        let socket = SockRef::from(self.stream.get_ref());
        socket.set_tcp_cork(true)?;
        (&*socket).write_all(bytes.as_ref())?;
        Ok(socket.shutdown(Shutdown::Write)?)
    }

    /// Sends bytes in pieces of `len` bytes.
    pub(crate) fn send_slowly(&mut self, bytes: impl AsRef<[u8]>, len: usize) -> Result<()> {
        for piece in bytes.as_ref().chunks(len) {
            self.send(piece)?;
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    pub(crate) fn end(&self) -> Result<()> {
        Ok(self.stream.get_ref().shutdown(Shutdown::Write)?)
    }

    pub(crate) fn reset(self) -> Result<()> {
        let socket = Socket::from(self.stream.into_inner());
        Ok(socket.set_linger(Some(Duration::ZERO))?)
    }

    /// Sends a request and returns the response.
    pub(crate) fn request(&mut self, request: &str) -> Result<Reply> {
        self.send(request)?;
        let reply = self.reply_to(request);
        reply.with_context(|| format!("to {:?}", request.get(..request.len().min(100)).unwrap_or_default()))
    }

    /// Returns the next response.
    pub(crate) fn reply(&mut self) -> Result<Reply> {
        self.reply_to("GET")
    }

    /// Returns the next response, read in pieces of `len` bytes with a pause before each.
    pub(crate) fn reply_slowly(&mut self, len: usize) -> Result<Reply> {
        let (mut reply, left) = self.head("GET")?;
        for at in (0..left).step_by(len) {
            thread::sleep(PAUSE);
            reply.body.extend(self.take(len.min(left - at))?);
        }
        Ok(reply)
    }

    /// Returns all bytes until the other end closes.
    pub(crate) fn rest(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the next `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn reply_to(&mut self, request: &str) -> Result<Reply> {
        let (reply, len) = self.head(request)?;
        Ok(Reply { body: self.take(len)?, ..reply })
    }

    /// Returns a response without its body, and the length of the body.
    fn head(&mut self, request: &str) -> Result<(Reply, usize)> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("no status: {first:?}"))?;
        let (mut len, mut server) = (0, String::new());
        loop {
            let line = self.line()?;
            match line.split_once(": ") {
                _ if line.is_empty() => break,
                Some(("Content-Length", value)) => len = value.parse()?,
                Some(("X-Server", value)) => server = value.to_owned(),
                _ => {}
            }
        }
        let len = if request.starts_with("HEAD") { 0 } else { len };
        Ok((Reply { status, server, body: Vec::new() }, len))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("the connection was closed instead of an answer");
        }
        Ok(line.trim_end().to_owned())
    }
}

/// Returns a GET request for a path of a host.
pub(crate) fn get(host: &str, path: &str) -> String {
    request("GET", host, path)
}

pub(crate) fn request(method: &str, host: &str, path: &str) -> String {
    let body = if matches!(method, "POST" | "PUT") { "Content-Length: 0\r\n" } else { "" };
    format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{body}\r\n")
}
