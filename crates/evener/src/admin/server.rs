//! Where the daemon answers: sockets, and what bounds whoever connects to them.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use nix::sys::stat::{Mode, fchmod};
use rustls::ServerConfig;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use super::access::{Access, OwnAddress, Peer, PeerNames, PeerUser};
use super::api::{self, Entrance};
use super::live::LiveFeed;
use super::progress::{Progress, Stage};
use super::tls::{AdminTlsError, AdminTlsServer};
use crate::board::request::Handle;
use crate::config;
use crate::http::client_stream::ClientStream;
use crate::http::server::{self, ConnectionBounds};
use crate::runtime::accept::accept;
use crate::runtime::certificate_names::names_of;
use crate::runtime::connection_limit::{ConnectionLimit, ConnectionSlot};
use crate::runtime::token::TokenError;
use crate::views::ViewSource;

/// Connections at once, for each of the two sockets, and streams of events and of frames, which
/// don't count among them any more. Who comes when there are so many has the oldest of the source
/// that has most of them end.
const CONNECTIONS: usize = 64;
pub(super) const STREAMS: usize = 256;
/// A client that sends no request for this long is disconnected.
const HEADER_TIMEOUT: Duration = Duration::from_secs(3);
/// A connection carries one request, and is over after this long whatever the other end does,
/// unless it is a stream.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// The time that a connection has for an answer once its place is needed.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// A client that takes none of what is sent for this long is disconnected: a stream may have a
/// frame as large as the farm on its way.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// A client that has gone ends its stream of events.
const BOUNDS: ConnectionBounds = ConnectionBounds { head: HEADER_TIMEOUT, idle: None, half_close: false };
const EVICTED: &str = "an admin connection ended to make room for another";

/// Why the daemon can't be reached.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The Unix socket can't be made.
    #[error("the admin socket {path} can't be made: {source}; make its folder one that evener may write to")]
    Socket {
        /// Where it should be.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The TCP address can't be had.
    #[error(
        "the admin address {address} can't be listened on: {source}; give another as `listen` in [admin], or \
         \"none\""
    )]
    Address {
        /// As configured.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The tokens can't be had.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// There can be no TLS.
    #[error(transparent)]
    Tls(#[from] AdminTlsError),
}

impl From<AdminError> for io::Error {
    fn from(error: AdminError) -> io::Error {
        let kind = match &error {
            AdminError::Socket { source, .. } | AdminError::Address { source, .. } => source.kind(),
            AdminError::Token(_) | AdminError::Tls(_) => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}

/// Binds as [`AdminSockets::bind`] does, and answers for as long as the runtime lives.
///
/// # Errors
/// As for [`AdminSockets::bind`].
pub async fn start(
    farm: Arc<dyn ViewSource>,
    control: Handle,
    path: &Path,
    admin: &config::AdminConfig,
) -> io::Result<()> {
    let server = AdminSockets::bind(path, admin)?;
    tokio::spawn(server.run(farm, control));
    Ok(())
}

/// The sockets, before anyone is answered.
#[derive(Debug)]
pub struct AdminSockets {
    unix: UnixListener,
    tcp: Option<(TcpListener, Access, Option<AdminTlsServer>)>,
    path: SocketPath,
}

impl AdminSockets {
    /// Makes the admin socket at `path`, for this user only, and listens on the TCP address of
    /// `admin` if there is one. A socket that is already at `path` is replaced: the caller holds
    /// the lock, so nobody answers there. Needs a tokio runtime.
    ///
    /// # Errors
    /// When either can't be had.
    pub fn bind(path: &Path, admin: &config::AdminConfig) -> Result<AdminSockets, AdminError> {
        let unix = bind_unix(path)
            .map_err(|source| AdminError::Socket { path: path.display().to_string(), source })?;
        let path = SocketPath(path.to_owned());
        let tcp = admin.listen.map(|address| {
            let tcp = bind_tcp(address).map_err(|source| AdminError::Address { address, source })?;
            let tls = admin.tls.clone().map(AdminTlsServer::new).transpose()?;
            Ok((tcp, Access::new(admin, address)?, tls))
        });
        Ok(AdminSockets { unix, tcp: tcp.transpose().map_err(|error: AdminError| error)?, path })
    }

    /// The TCP address listened on, its port known even where port 0 was asked for.
    pub fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|(tcp, ..)| tcp.local_addr().ok())
    }

    /// Shows this farm, and gives orders to its loop, forever. Dropping the future closes every
    /// connection and removes the socket.
    pub async fn run(self, farm: Arc<dyn ViewSource>, control: Handle) {
        let AdminSockets { unix, tcp, path: _path } = self;
        let live = LiveFeed::new(Arc::clone(&farm));
        let everything = api::routes(Arc::clone(&farm), control.clone(), Arc::clone(&live), Entrance::Socket);
        // The output of a command of this host may be paused for any time.
        let (unix_limits, tcp_limits) = (SocketLimits::new(), SocketLimits::new());
        let by_unix = || async {
            let (stream, _) = unix.accept().await?;
            let user = PeerUser(stream.peer_cred().ok().map(|credentials| credentials.uid()));
            let visitor = unix_limits.admit(Ipv4Addr::LOCALHOST.into()).await;
            Ok((stream, everything.clone().layer(Extension(user)), visitor))
        };
        let unix = accept(by_unix, |(stream, routes, visitor)| serve(stream, routes, visitor));
        match tcp {
            Some((tcp, access, tls)) => {
                let by_address = api::routes(farm, control, live, Entrance::Address(Arc::new(access)));
                let by_tcp = || async {
                    let (stream, peer) = tcp.accept().await?;
                    let reached = OwnAddress(stream.local_addr()?.ip());
                    let routes = by_address.clone().layer(Extension(reached));
                    let tls = tls.as_ref().map(AdminTlsServer::current);
                    let visitor = tcp_limits.admit(peer.ip()).await;
                    Ok((stream, routes.layer(Extension(Peer(peer.ip()))), tls, visitor))
                };
                let tcp =
                    accept(by_tcp, |(stream, routes, tls, visitor)| serve_tcp(stream, routes, tls, visitor));
                tokio::join!(unix, tcp);
            }
            None => unix.await,
        }
    }
}

/// The places of one socket.
struct SocketLimits {
    connections: ConnectionLimit,
    streams: ConnectionLimit,
    /// As many again, of those that have lost their place while they are answered.
    finishing: Semaphore,
}

/// A connection with its place.
struct Visitor {
    client: IpAddr,
    slot: ConnectionSlot,
    limits: Arc<SocketLimits>,
}

impl SocketLimits {
    fn new() -> Arc<SocketLimits> {
        Arc::new(SocketLimits {
            connections: ConnectionLimit::new(CONNECTIONS),
            streams: ConnectionLimit::new(STREAMS),
            finishing: Semaphore::new(CONNECTIONS),
        })
    }

    async fn admit(self: &Arc<Self>, client: IpAddr) -> Visitor {
        Visitor { client, slot: self.connections.acquire(client).await, limits: Arc::clone(self) }
    }
}

/// Removes the socket with the server.
#[derive(Debug)]
struct SocketPath(PathBuf);

impl Drop for SocketPath {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = fs::remove_file(&self.0);
    }
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Linux gives the file the mode that the socket has when it is bound: there is no moment at
    // which others could connect, as there would be with a chmod afterwards.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(CONNECTIONS as i32)?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(socket.into())
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if address.ip().is_loopback() {
        // In a new network namespace the loopback interface may come up later than the daemon.
        match address {
            SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
            SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
        }
    }
    socket.bind(&address.into())?;
    socket.listen(CONNECTIONS as i32)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

/// Serves one that comes by TCP, and by TLS where it has to.
async fn serve_tcp(stream: TcpStream, routes: Router, tls: Option<Arc<ServerConfig>>, mut visitor: Visitor) {
    let stream = ClientStream::new(stream, WRITE_TIMEOUT);
    let Some(tls) = tls else {
        return serve(stream, routes.layer(Extension(PeerNames::default())), visitor).await;
    };
    let handshake = tokio::time::timeout(HEADER_TIMEOUT, TlsAcceptor::from(tls).accept(stream));
    match visitor.slot.unless_needed(handshake).await {
        Some(Ok(Ok(stream))) => {
            let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let names = PeerNames(shown.map(names_of).unwrap_or_default().into());
            serve(stream, routes.layer(Extension(names)), visitor).await;
        }
        Some(Ok(Err(error))) => tracing::debug!(%error, "an admin client speaks no TLS that is understood"),
        Some(Err(_)) => tracing::debug!("an admin client's handshake took too long"),
        None => tracing::debug!("{EVICTED}"),
    }
}

/// Serves one for a bounded time, by the routes that are for him; a stream for as long as its place
/// isn't needed.
async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    routes: Router,
    visitor: Visitor,
) {
    let Visitor { client, mut slot, limits } = visitor;
    let (progress, mut stage) = Progress::new();
    let routes = TowerToHyperService::new(routes.layer(Extension(progress.clone())));
    let answer = |request| {
        let answered = routes.call(request);
        async move { answered.await.unwrap_or_else(|never| match never {}) }
    };
    let connection = server::serve(stream, &BOUNDS, answer, |_, _| {});
    tokio::pin!(connection);
    let at_first = async {
        tokio::select! {
            biased;
            done = &mut connection => Some(done),
            Ok(_) = stage.wait_for(|stage| *stage == Stage::Waiting) => None,
            () = tokio::time::sleep(CONNECTION_TIMEOUT) => {
                tracing::debug!("an admin connection took too long");
                Some(())
            }
        }
    };
    let done = match slot.unless_needed(at_first).await {
        Some(None) => {
            drop(slot);
            let mut slot = limits.streams.acquire(client).await;
            progress.place();
            slot.unless_needed(connection).await
        }
        Some(done) => done,
        // An order has an answer, and nobody waits for that.
        None if *stage.borrow() == Stage::Answering => match limits.finishing.try_acquire() {
            Ok(_place) => {
                drop(slot);
                tokio::time::timeout(FINISH_TIMEOUT, connection).await.ok()
            }
            Err(_) => None,
        },
        None => None,
    };
    if done.is_none() {
        tracing::debug!("{EVICTED}");
    }
}
