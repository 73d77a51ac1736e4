//! One connection of one client, step by step.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use socket2::{Domain, Protocol, Socket, Type};

use crate::family::Family;
use crate::host::Host;
use crate::wait;

/// What takes longer has failed.
const LIMIT: Duration = Duration::from_secs(5);

/// An open HTTP connection. Dropping it closes it, by FIN.
#[derive(Debug)]
pub struct Visit {
    stream: BufReader<TcpStream>,
    client: SocketAddr,
}

impl Visit {
    /// Connects to a service.
    pub fn open(host: &Host, service: SocketAddr) -> Result<Visit> {
        Self::open_from(host, 0, service)
    }

    /// The same from this port; 0 for any.
    pub fn open_from(host: &Host, port: u16, service: SocketAddr) -> Result<Visit> {
        let connect = || -> io::Result<TcpStream> {
            let socket = Socket::new(Domain::for_address(service), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            socket.bind(&SocketAddr::new(Family::of(service.ip()).any(), port).into())?;
            socket.connect_timeout(&service.into(), LIMIT)?;
            socket.set_read_timeout(Some(LIMIT))?;
            Ok(socket.into())
        };
        // until it has its own program, a process that starts elsewhere in this one holds the port's last socket
        let taken = |stream: &io::Result<TcpStream>| matches!(stream, Err(error) if error.kind() == ErrorKind::AddrNotAvailable);
        let stream = wait::for_value(LIMIT, || host.enter(connect), |stream| !taken(stream))?;
        let stream = stream.unwrap_or_else(|stream| stream);
        let stream = stream.with_context(|| format!("{service} took no connection"))?;
        let client = stream.local_addr()?;
        Ok(Visit { stream: BufReader::new(stream), client })
    }

    /// The client's own address and port.
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// Asks who serves; the server's name. The connection stays open.
    pub fn who(&mut self) -> Result<String> {
        self.get("/who", "keep-alive")
    }

    /// Asks who serves, and has the server close the connection, so that the port is free again at once.
    pub fn who_and_close(mut self) -> Result<String> {
        let server = self.get("/who", "close")?;
        self.stream.read_to_end(&mut Vec::new())?;
        Ok(server)
    }

    /// Closes the connection by RST.
    pub fn reset(self) -> Result<()> {
        let socket = Socket::from(self.stream.into_inner());
        Ok(socket.set_linger(Some(Duration::ZERO))?)
    }

    fn get(&mut self, path: &str, connection: &str) -> Result<String> {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: www.example.com\r\nConnection: {connection}\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut len = 0;
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line)? == 0 {
                bail!("The connection was closed instead of a reply");
            }
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.strip_prefix("Content-Length:") {
                len = value.trim().parse()?;
            }
        }
        let mut body = vec![0; len];
        self.stream.read_exact(&mut body)?;
        Ok(String::from_utf8_lossy(&body).trim().to_owned())
    }
}
