//! Single connection of a client, step by step.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use socket2::{Domain, Protocol, Socket, Type};

use crate::harness::wait;
use crate::network::family::Family;
use crate::network::host::Host;

/// Timeout of a request. A SYN lost on a busy machine is retransmitted after 1, 3, 7 and 15
/// seconds.
const LIMIT: Duration = Duration::from_secs(20);

/// Open HTTP connection. Dropping the value closes it with a FIN.
#[derive(Debug)]
pub struct HttpConnection {
    stream: BufReader<TcpStream>,
    client: SocketAddr,
}

impl HttpConnection {
    /// Connects to a service.
    pub fn open(host: &Host, service: SocketAddr) -> Result<HttpConnection> {
        Self::open_from(host, 0, service)
    }

    /// Connects from this port; 0 for any.
    pub fn open_from(host: &Host, port: u16, service: SocketAddr) -> Result<HttpConnection> {
        Self::open_at(host, SocketAddr::new(Family::of(service.ip()).any(), port), service)
    }

    /// Connects from this address of the client; port 0 for any.
    pub fn open_at(host: &Host, from: SocketAddr, service: SocketAddr) -> Result<HttpConnection> {
        let connect = || -> io::Result<TcpStream> {
            let socket = Socket::new(Domain::for_address(service), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            socket.bind(&from.into())?;
            socket.connect_timeout(&service.into(), LIMIT)?;
            socket.set_read_timeout(Some(LIMIT))?;
            Ok(socket.into())
        };
        // a process forked from this one holds the port's previous socket until its exec
        let taken = |stream: &io::Result<TcpStream>| matches!(stream, Err(error) if error.kind() == ErrorKind::AddrNotAvailable);
        let stream = wait::for_value(LIMIT, || host.enter(connect), |stream| !taken(stream))?;
        let stream = stream.unwrap_or_else(|stream| stream);
        let stream = stream.with_context(|| format!("{service} took no connection"))?;
        let client = stream.local_addr()?;
        Ok(HttpConnection { stream: BufReader::new(stream), client })
    }

    /// Connection, for socket options.
    pub fn stream(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Address and port of the client.
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// Requests the name of the server. The connection stays open.
    pub fn who(&mut self) -> Result<String> {
        self.get("/who", "keep-alive")
    }

    /// Requests the name of the server, which closes the connection, so that the port is free again
    /// at once.
    pub fn who_and_close(mut self) -> Result<String> {
        let server = self.get("/who", "close")?;
        self.stream.read_to_end(&mut Vec::new())?;
        Ok(server)
    }

    /// Uploads a file of `len` bytes below /upload/; the server closes the connection.
    pub fn upload_and_close(mut self, name: &str, len: usize) -> Result<()> {
        let head = format!(
            "PUT /upload/{name} HTTP/1.1\r\nHost: www.example.com\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
        );
        self.stream.get_mut().write_all(&[head.as_bytes(), &vec![b'x'; len]].concat())?;
        let mut reply = String::new();
        self.stream.read_to_string(&mut reply)?;
        match reply.split_whitespace().nth(1) {
            Some("201" | "204") => Ok(()),
            _ => bail!("The upload was answered with {:.60?}", reply),
        }
    }

    /// Downloads the big file on this connection with a limited rate in bytes per second, and
    /// checks its length. `timeout` limits each read. Shows whether the connection survives changes
    /// of the farm.
    pub fn download(&mut self, bytes_per_second: u32, timeout: Duration) -> Result<()> {
        const STEP: usize = 16 * 1024;
        self.stream.get_ref().set_read_timeout(Some(timeout))?;
        let mut left = self.request("/big", "keep-alive")?;
        let mut bytes = vec![0; STEP];
        while left > 0 {
            let got = self.stream.read(bytes.get_mut(..left.min(STEP)).unwrap_or_default())?;
            if got == 0 {
                bail!("The connection was closed {left} bytes before the end");
            }
            left -= got;
            thread::sleep(Duration::from_secs_f64(got as f64 / f64::from(bytes_per_second.max(1))));
        }
        Ok(())
    }

    /// Lets the server close the connection, and answers its FIN with a RST.
    pub fn reset_behind_the_end(mut self) -> Result<()> {
        self.request("/who", "close")?;
        self.stream.read_to_end(&mut Vec::new())?;
        self.reset()
    }

    /// Closes the connection with a RST.
    pub fn reset(self) -> Result<()> {
        let socket = Socket::from(self.stream.into_inner());
        Ok(socket.set_linger(Some(Duration::ZERO))?)
    }

    fn get(&mut self, path: &str, connection: &str) -> Result<String> {
        let mut body = vec![0; self.request(path, connection)?];
        self.stream.read_exact(&mut body)?;
        Ok(String::from_utf8_lossy(&body).trim().to_owned())
    }

    /// Sends a request and reads the head of the response. Returns the length of the body in bytes.
    fn request(&mut self, path: &str, connection: &str) -> Result<usize> {
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
                return Ok(len);
            }
            if let Some(value) = line.strip_prefix("Content-Length:") {
                len = value.trim().parse()?;
            }
        }
    }
}
