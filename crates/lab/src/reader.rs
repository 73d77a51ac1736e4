//! A client that reads of an answer what a test wants, and no more: what it lacks is known to the
//! byte.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Socket, Type};

use crate::host::Host;

/// The room beside the bytes that it has read, in bytes.
const RECEIVE_BUFFER: usize = 32 * 1024;
/// A reader that hangs should fail.
const LIMIT: Duration = Duration::from_secs(60);

/// A connection with a request.
#[derive(Debug)]
pub struct Reader {
    stream: TcpStream,
    /// Of the answer: its head, as far as it was read; all that was read; and all there is, once
    /// that is known.
    head: Vec<u8>,
    read: u64,
    length: Option<u64>,
}

impl Reader {
    /// Connects from a host.
    ///
    /// # Errors
    /// When nobody takes the connection.
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

    /// Sends a request; what was read before was another answer.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn send_request(&mut self, request: &str) -> Result<()> {
        (self.head, self.read, self.length) = (Vec::new(), 0, None);
        Ok(self.stream.write_all(request.as_bytes())?)
    }

    /// Asks for a page, and keeps the connection.
    ///
    /// # Errors
    /// Fails if the request can't be sent.
    pub fn get(&mut self, path: &str) -> Result<()> {
        self.send_request(&format!("GET {path} HTTP/1.1\r\nHost: evener.test\r\n\r\n"))
    }

    /// Reads until it has so many bytes of the answer, or all of it.
    ///
    /// # Errors
    /// When the connection breaks, or ends before that.
    pub fn read_to(&mut self, bytes: u64) -> Result<()> {
        while self.length.is_none_or(|length| self.read < length.min(bytes)) {
            self.read_some(bytes.saturating_sub(self.read).max(1))?;
        }
        Ok(())
    }

    /// Reads what there is, once there is anything, and so much at most.
    ///
    /// # Errors
    /// As for [`Reader::read_to`].
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

    /// The stream that ends the connection while it is read.
    ///
    /// # Errors
    /// When there are too many files.
    pub fn end(&self) -> Result<TcpStream> {
        Ok(self.stream.try_clone()?)
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// As for [`Reader::read_to`].
    pub fn read_all(&mut self) -> Result<()> {
        self.read_to(u64::MAX)
    }

    /// The bytes that it lacks of the answer, head and body.
    ///
    /// # Errors
    /// Before the head is read.
    pub fn lacks(&self) -> Result<u64> {
        Ok(self.length.context("no head was read")?.saturating_sub(self.read))
    }

    /// Its own address and port.
    ///
    /// # Errors
    /// When the kernel doesn't say.
    pub fn address(&self) -> Result<SocketAddr> {
        Ok(self.stream.local_addr()?)
    }
}

/// Head and body together, once the head is there.
fn length(answer: &[u8]) -> Result<Option<u64>> {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let body = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let body: u64 = body.with_context(|| format!("no length in {head}"))?.trim().parse()?;
    Ok(Some(end as u64 + 4 + body))
}
