//! UDP echo service and its client: each datagram is returned with the server's name in front.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

use evener_core::net::wire::Mac;

use crate::clients::fragments::{Datagram, Order};
use crate::clients::raw_frames::Raw;
use crate::farm::Farm;
use crate::harness::wait;
use crate::network::family::Family;
use crate::network::host::Host;

/// Maximum length of a datagram in bytes.
const DATAGRAM_MAX: usize = 65_535;
/// Bytes of a datagram in each of its fragments.
const PART_LEN: usize = 1400;
/// Interval at which a server checks whether to stop.
const POLL: Duration = Duration::from_millis(50);

/// UDP server on a host. Dropping the value stops it.
#[derive(Debug)]
pub struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Starts a server at `address`, which is the source of its replies.
    pub fn start(host: &Host, address: SocketAddr) -> Result<Echo> {
        let socket = bind(host, address)?;
        let replies = socket.try_clone()?;
        Self::serve(host, socket, move |reply, client| {
            // a client may be gone by now
            let _ = replies.send_to(reply, client);
        })
    }

    /// Starts a server that fragments its replies itself, and sends the fragments in this order.
    pub fn start_cut(farm: &Farm, host: &Host, address: SocketAddr, order: Order) -> Result<Echo> {
        let socket = bind(host, address)?;
        let cutter = Cutter::open(farm, host)?;
        Self::serve(host, socket, move |reply, client| {
            let _ = cutter.send(address, client, reply, order);
        })
    }

    fn serve(
        host: &Host,
        socket: UdpSocket,
        answer: impl Fn(&[u8], SocketAddr) + Send + 'static,
    ) -> Result<Echo> {
        let name = host.name().to_owned();
        socket.set_read_timeout(Some(POLL))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut buffer = vec![0; DATAGRAM_MAX];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((len, client)) = socket.recv_from(&mut buffer) else { continue };
                answer(&[name.as_bytes(), b" ", buffer.get(..len).unwrap_or_default()].concat(), client);
            }
        });
        Ok(Echo { stop, thread: Some(thread) })
    }
}

/// Sends fragmented datagrams, bypassing the host's own stack.
#[derive(Debug)]
struct Cutter {
    raw: Raw,
    gateway: Mac,
}

impl Cutter {
    fn open(farm: &Farm, host: &Host) -> Result<Cutter> {
        Ok(Cutter { raw: host.raw(0)?, gateway: farm.gateway_of(host).parse()? })
    }

    fn send(&self, from: SocketAddr, to: SocketAddr, payload: &[u8], order: Order) -> Result<()> {
        static IDS: AtomicU16 = AtomicU16::new(1);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let datagram = Datagram { from: (self.raw.mac(), from), to: (self.gateway, to), payload, id };
        datagram.frames(PART_LEN, order)?.iter().try_for_each(|frame| self.raw.send(frame))
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// UDP client on a host, with one port for its whole life.
#[derive(Debug)]
pub struct Client {
    socket: UdpSocket,
}

impl Client {
    /// Opens a client of `service`, with this timeout for each reply.
    pub fn open(host: &Host, service: SocketAddr, timeout: Duration) -> Result<Client> {
        let socket = bind(host, SocketAddr::new(Family::of(service.ip()).any(), 0))?;
        socket.connect(service)?;
        socket.set_read_timeout(Some(timeout))?;
        Ok(Client { socket })
    }

    /// Sends a text and returns the name of the server that replied. Fails without a reply, or if
    /// the text was changed.
    pub fn request(&self, text: &str) -> io::Result<String> {
        self.socket.send(text.as_bytes())?;
        self.answer(text)
    }

    /// Like [`Client::request`], with a fragmented datagram whose fragments are sent in this order.
    /// `host` is the client's host.
    pub fn request_truncated(&self, farm: &Farm, host: &Host, text: &str, order: Order) -> Result<String> {
        let (from, to) = (self.socket.local_addr()?, self.socket.peer_addr()?);
        Cutter::open(farm, host)?.send(from, to, text.as_bytes(), order)?;
        Ok(self.answer(text)?)
    }

    fn answer(&self, text: &str) -> io::Result<String> {
        let mut buffer = vec![0; DATAGRAM_MAX];
        let len = self.socket.recv(&mut buffer)?;
        let reply = String::from_utf8_lossy(buffer.get(..len).unwrap_or_default()).into_owned();
        match reply.split_once(' ') {
            Some((server, echo)) if echo == text => Ok(server.to_owned()),
            _ => Err(io::Error::other(format!("{text:.40?} came back as {reply:.40?}, {len} bytes"))),
        }
    }
}

/// Binds a socket. The kernel may take a moment to release the port of a closed socket.
fn bind(host: &Host, address: SocketAddr) -> Result<UdpSocket> {
    let mut bound = None;
    wait::until(&format!("{address} is free on {}", host.name()), || {
        match host.enter(|| UdpSocket::bind(address))? {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(false),
            socket => {
                bound = Some(socket.with_context(|| format!("{address} on {}", host.name()))?);
                Ok(true)
            }
        }
    })?;
    bound.context("no socket was bound")
}
