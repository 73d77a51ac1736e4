//! Client that reads exactly as much of a response as a test wants, so the number of missing bytes
//! is known.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Socket, Type};

use crate::network::host::Host;

/// Size of the receive buffer in bytes.
const RECEIVE_BUFFER: usize = 32 * 1024;
/// Read timeout, so that a test fails instead of hanging.
const LIMIT: Duration = Duration::from_secs(60);

/// Connection with a request.
#[derive(Debug)]
pub struct Reader {
    stream: TcpStream,
    /// Head of the response as read so far; number of bytes read; and total length, once known.
    head: Vec<u8>,
    read: u64,
    length: Option<u64>,
}

impl Reader {
    /// Connects from a host.
    ///
    /// # Errors
    /// Fails if the connection is refused.
    pub fn connect(from: &Host, to: SocketAddr) -> Result<Reader> {
        let stream = from.enter(|| -> Result<TcpStream> {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
            socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
            socket.connect(&to.into())?;
            Ok(socket.into())
        })??;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(Reader { stream, head: Vec::new(), read: 0, length: None })
    }

    /// Sends a request, and resets the counters of the previous response.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub fn send_request(&mut self, request: &str) -> Result<()> {
        (self.head, self.read, self.length) = (Vec::new(), 0, None);
        Ok(self.stream.write_all(request.as_bytes())?)
    }

    /// Requests a page and keeps the connection open.
    ///
    /// # Errors
    /// Fails if the request can't be sent.
    pub fn get(&mut self, path: &str) -> Result<()> {
        self.send_request(&format!("GET {path} HTTP/1.1\r\nHost: evener.test\r\n\r\n"))
    }

    /// Reads until this number of bytes of the response has arrived, or the whole response.
    ///
    /// # Errors
    /// Fails if the connection breaks or ends before.
    pub fn read_to(&mut self, bytes: u64) -> Result<()> {
        while self.length.is_none_or(|length| self.read < length.min(bytes)) {
            self.read_some(bytes.saturating_sub(self.read).max(1))?;
        }
        Ok(())
    }

    /// Reads available bytes, at least one and at most `most`.
    ///
    /// # Errors
    /// See [`Reader::read_to`].
    pub fn read_some(&mut self, most: u64) -> Result<()> {
        let mut buffer = [0; 16 * 1024];
        let len_max = buffer.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        let len = loop {
            match self.stream.read(&mut buffer[..len_max]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                done => break done?,
            }
        };
        ensure!(len > 0, "the answer ends after {} bytes", self.read);
        self.read += len as u64;
        if self.length.is_none() {
            self.head.extend_from_slice(&buffer[..len]);
            self.length = length(&self.head)?;
        }
        Ok(())
    }

    /// Returns a second handle, which can shut the connection down during a read.
    ///
    /// # Errors
    /// Fails if there are too many open files.
    pub fn end(&self) -> Result<TcpStream> {
        Ok(self.stream.try_clone()?)
    }

    /// Reads the whole response.
    ///
    /// # Errors
    /// See [`Reader::read_to`].
    pub fn read_all(&mut self) -> Result<()> {
        self.read_to(u64::MAX)
    }

    /// Number of missing bytes of the response, head and body.
    ///
    /// # Errors
    /// Fails before the head is read.
    pub fn lacks(&self) -> Result<u64> {
        Ok(self.length.context("no head was read")?.saturating_sub(self.read))
    }

    /// Local address and port.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn address(&self) -> Result<SocketAddr> {
        Ok(self.stream.local_addr()?)
    }
}

/// Returns the length of head and body; `None` while the head is incomplete.
fn length(answer: &[u8]) -> Result<Option<u64>> {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let body = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let body: u64 = body.with_context(|| format!("no length in {head}"))?.trim().parse()?;
    Ok(Some(end as u64 + 4 + body))
}
