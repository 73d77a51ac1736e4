//! A UDP service and its client: every datagram comes back with the server's name in front.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::host::Host;

/// The longest datagram, in bytes.
const DATAGRAM_MAX: usize = 65_535;
/// How soon a server notes that it shall stop.
const POLL: Duration = Duration::from_millis(50);

/// A UDP server on a host; dropping it ends it.
#[derive(Debug)]
pub struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Starts one at `address`, which is where its replies come from.
    pub fn start(host: &Host, address: SocketAddr) -> Result<Echo> {
        let name = host.name().to_owned();
        let socket = bind(host, address)?;
        socket.set_read_timeout(Some(POLL))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut buffer = vec![0; DATAGRAM_MAX];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((len, client)) = socket.recv_from(&mut buffer) else { continue };
                let reply = [name.as_bytes(), b" ", buffer.get(..len).unwrap_or_default()].concat();
                // a client that is gone by now is none of the server's business
                let _ = socket.send_to(&reply, client);
            }
        });
        Ok(Echo { stop, thread: Some(thread) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A UDP client on a host, with one port for as long as it lives.
#[derive(Debug)]
pub struct Client {
    socket: UdpSocket,
}

impl Client {
    /// Opens one that talks to `service`, and waits `timeout` for each answer.
    pub fn open(host: &Host, service: SocketAddr, timeout: Duration) -> Result<Client> {
        let socket = bind(host, SocketAddr::from(([0, 0, 0, 0], 0)))?;
        socket.connect(service)?;
        socket.set_read_timeout(Some(timeout))?;
        Ok(Client { socket })
    }

    /// Sends a text; the name of the server that sent it back. An error if none did, or it was changed.
    pub fn ask(&self, text: &str) -> io::Result<String> {
        self.socket.send(text.as_bytes())?;
        let mut buffer = vec![0; DATAGRAM_MAX];
        let len = self.socket.recv(&mut buffer)?;
        let reply = String::from_utf8_lossy(buffer.get(..len).unwrap_or_default()).into_owned();
        match reply.split_once(' ') {
            Some((server, echo)) if echo == text => Ok(server.to_owned()),
            _ => Err(io::Error::other(format!("{text:?} came back as {reply:?}"))),
        }
    }
}

fn bind(host: &Host, address: SocketAddr) -> Result<UdpSocket> {
    host.enter(|| UdpSocket::bind(address))?
        .with_context(|| format!("{address} is not free on {}", host.name()))
}
