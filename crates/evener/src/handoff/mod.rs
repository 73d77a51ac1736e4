//! Connections whose server the data plane couldn't choose: half a request, an unusual one, or a
//! route that it can't look up. The data plane gives them to this process, which reads as much as
//! it needs, and gives them on.
//!
//! Memory and time for each client are bounded, and so is the number of clients
//! ([`seats`](crate::runtime::seats)).

mod control_link;
mod conversation;
mod head;
pub(crate) mod lccp;
mod proxy;
mod rehandoff;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use evener_core::director::transfer;
use evener_core::net::wire::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, Mac};
use evener_dataplane::repair::{self, Saved};
use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use zerocopy::IntoBytes;

pub(crate) use control_link::{ControlLink, ControlReply, MatchedRoute};
pub(crate) use conversation::rehandoff;
pub(crate) use evener_core::path::cookie::FourTuple;
pub(crate) use head::{HeadClass, HeadRefusal, NormalizedRequest, classify};
use lccp::LccpNode;
pub(crate) use rehandoff::{HeldSegment, Rehandoff};

use crate::record::{Mechanism, Recorder};
use crate::runtime::connection_limit::ConnectionLimit;
use crate::runtime::descriptors::ClientLimits;

/// Connections that wait to be taken.
const BACKLOG: i32 = 1_024;
/// Source MAC of replayed frames: a station's address on no link.
pub(crate) const FROM_HERE: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// The loopback interface's own.
pub(crate) const LOOPBACK: Mac = Mac([0; 6]);

/// A conversation's questions to the control loop.
pub(crate) enum ControlQuery {
    /// Which server is to serve this? Until it is [given](ControlQuery::Give), the client's
    /// segments are dropped, and come again. The dispatcher may have said who.
    Choose {
        ends: FourTuple,
        matched: MatchedRoute,
        advice: Option<SocketAddr>,
        answer: oneshot::Sender<ControlReply<Option<ChosenTarget>>>,
    },
    /// Another node asks who is to serve this.
    Decide {
        ends: FourTuple,
        matched: MatchedRoute,
        answer: oneshot::Sender<ControlReply<Option<SocketAddr>>>,
    },
    /// Does the server that has the connection answer this?
    Stays { ends: FourTuple, matched: MatchedRoute, server: u16, answer: oneshot::Sender<ControlReply<bool>> },
    /// Then the segment goes there.
    Pass { ends: FourTuple, held: HeldSegment },
    /// Another node has given this connection to a server.
    Forward { ends: FourTuple, server: SocketAddr, answer: oneshot::Sender<Option<()>> },
    /// It is over.
    Close { ends: FourTuple },
    /// Send these packets, the client's own, to the server that was chosen, and what follows too.
    Give { ends: FourTuple, server: u16, packets: Vec<Vec<u8>>, answer: oneshot::Sender<bool> },
    /// The client stays here.
    Keep { ends: FourTuple },
    /// It stays with the server that it had.
    Return { ends: FourTuple, server: u16 },
    /// The client is told that its connection is over.
    End { ends: FourTuple, held: HeldSegment },
}

/// The server that is to serve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChosenTarget {
    /// The server's slot.
    pub(crate) server: u16,
    /// Where it listens itself, for want of a better way.
    pub(crate) own: SocketAddr,
    /// Whether it wants to be told there who the client is.
    pub(crate) proxied: bool,
    /// The largest segment on the way to it, in bytes.
    pub(crate) mss: u16,
    /// Whether it makes sockets of what it is given.
    pub(crate) takes: bool,
    /// Whether it is the one that the dispatcher named.
    pub(crate) advised: bool,
}

/// The outcomes of the connections that were read here.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// Given to a server.
    pub(crate) handed_off: AtomicU64,
    /// Passed on byte by byte: they could not be given.
    pub(crate) spliced: AtomicU64,
    /// Answered with an error, or reset.
    pub(crate) refused: AtomicU64,
    /// No server for them.
    pub(crate) no_server: AtomicU64,
    /// Silent for too long.
    pub(crate) client_timeout: AtomicU64,
    /// Ended by the client before it had said anything whole.
    pub(crate) client_closed: AtomicU64,
    /// Reset, since there were too many, and most of them from there.
    pub(crate) evicted: AtomicU64,
    /// Reset, since they could not be taken from the server that had them.
    pub(crate) not_moved: AtomicU64,
}

impl Outcomes {
    fn count(&self, mechanism: Mechanism) {
        let outcome = match mechanism {
            Mechanism::Punted => &self.handed_off,
            Mechanism::Spliced => &self.spliced,
            Mechanism::Refused => &self.refused,
            Mechanism::NoServer => &self.no_server,
            Mechanism::ClientTimeout => &self.client_timeout,
            Mechanism::ClientClosed => &self.client_closed,
            Mechanism::Evicted => &self.evicted,
            // Not read here at all.
            Mechanism::Kernel => return,
        };
        outcome.fetch_add(1, Relaxed);
    }

    fn count_not_moved(&self) {
        self.not_moved.fetch_add(1, Relaxed);
    }

    /// By name, for views and metrics.
    pub(crate) fn counted(&self) -> [(&'static str, u64); 8] {
        [
            ("handed_off", &self.handed_off),
            ("spliced", &self.spliced),
            ("refused", &self.refused),
            ("no_server", &self.no_server),
            ("client_timeout", &self.client_timeout),
            ("client_closed", &self.client_closed),
            ("evicted", &self.evicted),
            ("not_moved", &self.not_moved),
        ]
        .map(|(name, count)| (name, count.load(Relaxed)))
    }
}

/// The state that all conversations share.
#[derive(Clone)]
pub(crate) struct ConversationContext {
    control: ControlLink,
    pub(crate) outcomes: Arc<Outcomes>,
    /// For clients that are read, and those whose bytes are carried.
    limit: ConnectionLimit,
    carried: ConnectionLimit,
    recorder: Arc<Recorder>,
    /// By whom other nodes are spoken with.
    pub(crate) speaker: LccpNode,
}

impl ConversationContext {
    /// The recorder gets everything that is read.
    pub(crate) fn new(
        control: ControlLink,
        recorder: Arc<Recorder>,
        speaker: LccpNode,
        limits: ClientLimits,
    ) -> ConversationContext {
        let (read_limit, carried) = (ConnectionLimit::new(limits.read), ConnectionLimit::new(limits.carried));
        ConversationContext {
            control,
            outcomes: Arc::default(),
            limit: read_limit,
            carried,
            recorder,
            speaker,
        }
    }

    fn limit_of(&self, quota: transfer::Quota) -> &ConnectionLimit {
        match quota {
            transfer::Quota::Reading => &self.limit,
            transfer::Quota::Carrying => &self.carried,
        }
    }
}

/// A port on a service address where the data plane's connections arrive.
pub(crate) struct PuntListener {
    /// Its number.
    pub(crate) port: u16,
    task: JoinHandle<()>,
}

impl PuntListener {
    /// Opens one on an address that this host has, or will have.
    pub(crate) fn open(address: IpAddr, reader: &ConversationContext) -> io::Result<PuntListener> {
        let socket = Socket::new(Domain::for_address((address, 0).into()), Type::STREAM, None)?;
        match address {
            IpAddr::V4(_) => socket.set_freebind_v4(true)?,
            IpAddr::V6(_) => socket.set_freebind_v6(true)?,
        }
        socket.set_nonblocking(true)?;
        socket.bind(&SocketAddr::new(address, 0).into())?;
        socket.listen(BACKLOG)?;
        // An accepted connection has the service's port, which this host's own web server must be
        // able to take meanwhile.
        socket.set_reuse_address(true)?;
        let listener = TcpListener::from_std(socket.into())?;
        let port = listener.local_addr()?.port();
        let task = tokio::spawn(listen(listener, reader.clone()));
        Ok(PuntListener { port, task })
    }
}

impl Drop for PuntListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(listener: TcpListener, reader: ConversationContext) {
    loop {
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        // The port is the service's own, not the listener's, as the connection was made for that.
        let Ok(service) = stream.local_addr() else { continue };
        let ends = FourTuple { client: canonical(client), service: canonical(service) };
        let slot = reader.limit.acquire(ends.client.ip()).await;
        let reader = reader.clone();
        tokio::spawn(async move { conversation::accepted(stream, ends, slot, &reader).await });
    }
}

/// Has the connection end without a word once it is dropped.
fn reset(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// A connection in a socket of this process. Its error where there can be none is for people.
fn restore(saved: &Saved) -> Result<TcpStream, String> {
    let stream = repair::restore(saved).map_err(|error| error.to_string())?;
    let ready = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
    ready.map_err(|error| error.to_string())
}

/// A client's IP packet in a frame, to be sent once more.
pub(crate) fn framed(to: Mac, packet: &[u8]) -> Vec<u8> {
    let v6 = packet.first().is_some_and(|first| first >> 4 == 6);
    let ethertype = if v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
    [Ethernet { dst: to, src: FROM_HERE, ethertype: ethertype.into() }.as_bytes(), packet].concat()
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
