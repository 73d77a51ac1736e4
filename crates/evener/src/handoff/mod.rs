//! Connections that the data plane can't assign to a server: because of a partial or unusual
//! request, or a route too complex for the data plane. The data plane punts them to this process,
//! which reads the request and hands the connection off.
//!
//! Memory and time per client are bounded, and so is the number of clients
//! ([`connection_limit`](crate::runtime::connection_limit)).

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

/// Length of the queue of connections to accept.
const BACKLOG: i32 = 1_024;
/// Source MAC address of replayed frames, which is on no link.
pub(crate) const FROM_HERE: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// MAC address of the loopback interface.
pub(crate) const LOOPBACK: Mac = Mac([0; 6]);

/// Query or order to the control loop about a connection.
pub(crate) enum ControlQuery {
    /// Select the server for a request. Until the connection is [assigned](ControlQuery::Give), the
    /// client's segments are buffered. `advice` is the dispatcher's choice.
    Choose {
        ends: FourTuple,
        matched: MatchedRoute,
        advice: Option<SocketAddr>,
        answer: oneshot::Sender<ControlReply<Option<ChosenTarget>>>,
    },
    /// Select the server for another node's request.
    Decide {
        ends: FourTuple,
        matched: MatchedRoute,
        answer: oneshot::Sender<ControlReply<Option<SocketAddr>>>,
    },
    /// Check if the connection's server also answers this request.
    Stays {
        ends: FourTuple,
        matched: MatchedRoute,
        server: u16,
        answer: oneshot::Sender<ControlReply<bool>>,
    },
    /// Leave the connection with its server, and send the segment to the server.
    Pass {
        ends: FourTuple,
        held: HeldSegment,
    },
    /// Another node has assigned this connection to a server.
    Forward {
        ends: FourTuple,
        server: SocketAddr,
        answer: oneshot::Sender<Option<()>>,
    },
    /// The connection has ended.
    Close {
        ends: FourTuple,
    },
    /// Assign the connection to the selected server, and send these packets of the client first.
    Give {
        ends: FourTuple,
        server: u16,
        packets: Vec<Vec<u8>>,
        answer: oneshot::Sender<bool>,
    },
    /// The connection stays with this host.
    Keep {
        ends: FourTuple,
    },
    /// The connection stays with its previous server.
    Return {
        ends: FourTuple,
        server: u16,
    },
    End {
        ends: FourTuple,
        held: HeldSegment,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ChosenTarget {
    /// Slot of the server.
    pub(crate) server: u16,
    /// Address and port at which the server listens, for a spliced connection.
    pub(crate) own: SocketAddr,
    /// True if the server expects the PROXY protocol at that address.
    pub(crate) proxied: bool,
    /// Maximum segment size on the path to the server, in bytes.
    pub(crate) mss: u16,
    /// True if the server accepts handed-off connections.
    pub(crate) takes: bool,
    /// True if the dispatcher selected this server.
    pub(crate) advised: bool,
}

/// Number of connections that were read here, by outcome.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// Handed off to a server.
    pub(crate) handed_off: AtomicU64,
    /// Spliced, because a handoff was impossible.
    pub(crate) spliced: AtomicU64,
    /// Answered with an error, or reset.
    pub(crate) refused: AtomicU64,
    /// No server was available.
    pub(crate) no_server: AtomicU64,
    /// The client sent no complete request in time.
    pub(crate) client_timeout: AtomicU64,
    /// The client closed the connection before a complete request.
    pub(crate) client_closed: AtomicU64,
    /// Reset to make room, as the source had the most connections.
    pub(crate) evicted: AtomicU64,
    /// Reset, because the previous server did not release the connection.
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
            // The data plane has assigned the connection, which was not read here.
            Mechanism::Kernel => return,
        };
        outcome.fetch_add(1, Relaxed);
    }

    fn count_not_moved(&self) {
        self.not_moved.fetch_add(1, Relaxed);
    }

    /// Returns the counters by name, for views and metrics.
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

/// State shared by all conversations.
#[derive(Clone)]
pub(crate) struct ConversationContext {
    control: ControlLink,
    pub(crate) outcomes: Arc<Outcomes>,
    /// Limits of clients whose request is read, and of spliced connections.
    limit: ConnectionLimit,
    carried: ConnectionLimit,
    recorder: Arc<Recorder>,
    /// LCCP node for exchanges with other nodes.
    pub(crate) lccp_node: LccpNode,
}

impl ConversationContext {
    /// Creates the state. `recorder` gets the outcome of each connection.
    pub(crate) fn new(
        control: ControlLink,
        recorder: Arc<Recorder>,
        lccp_node: LccpNode,
        limits: ClientLimits,
    ) -> ConversationContext {
        let (read_limit, carried) = (ConnectionLimit::new(limits.read), ConnectionLimit::new(limits.carried));
        ConversationContext {
            control,
            outcomes: Arc::default(),
            limit: read_limit,
            carried,
            recorder,
            lccp_node,
        }
    }

    fn limit_of(&self, quota: transfer::Quota) -> &ConnectionLimit {
        match quota {
            transfer::Quota::Reading => &self.limit,
            transfer::Quota::Carrying => &self.carried,
        }
    }
}

/// Listener on a service address for punted connections.
pub(crate) struct PuntListener {
    pub(crate) port: u16,
    task: JoinHandle<()>,
}

impl PuntListener {
    /// Opens a listener on an address that this host has, or will have.
    pub(crate) fn open(address: IpAddr, reader: &ConversationContext) -> io::Result<PuntListener> {
        let socket = Socket::new(Domain::for_address((address, 0).into()), Type::STREAM, None)?;
        match address {
            IpAddr::V4(_) => socket.set_freebind_v4(true)?,
            IpAddr::V6(_) => socket.set_freebind_v6(true)?,
        }
        socket.set_nonblocking(true)?;
        socket.bind(&SocketAddr::new(address, 0).into())?;
        socket.listen(BACKLOG)?;
        // Accepted connections occupy the service's port. With this option, the host's own web
        // server can still listen on that port.
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
                tracing::debug!(%error, "failed to accept a connection");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        // The local port is the service's, not the listener's, because the socket was made for the
        // original packet.
        let Ok(service) = stream.local_addr() else { continue };
        let ends = FourTuple { client: canonical(client), service: canonical(service) };
        let slot = reader.limit.acquire(ends.client.ip()).await;
        let reader = reader.clone();
        tokio::spawn(async move { conversation::accepted(stream, ends, slot, &reader).await });
    }
}

/// Configures the socket so that closing it resets the connection.
fn reset(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Restores a saved connection into a socket of this process. The error is a text.
fn restore(saved: &Saved) -> Result<TcpStream, String> {
    let stream = repair::restore(saved).map_err(|error| error.to_string())?;
    let ready = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
    ready.map_err(|error| error.to_string())
}

/// Returns a client's IP packet in a frame, to be sent again.
pub(crate) fn framed(to: Mac, packet: &[u8]) -> Vec<u8> {
    let v6 = packet.first().is_some_and(|first| first >> 4 == 6);
    let ethertype = if v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
    [Ethernet { dst: to, src: FROM_HERE, ethertype: ethertype.into() }.as_bytes(), packet].concat()
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
