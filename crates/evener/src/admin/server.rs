//! Sockets of the admin interface, and limits of their clients.

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

/// Maximum number of connections of each socket, and of streams, which are counted separately.
/// If all slots are taken, a new connection evicts the oldest connection of the source with the
/// most connections.
const CONNECTIONS: usize = 64;
pub(super) const STREAMS: usize = 256;
/// Time in which a client must send its request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum duration of a connection, which carries one request, unless it is a stream.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for an evicted connection to finish its response.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without progress after which a blocked write fails. A stream's frame may be as large as the
/// farm.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// A client that disconnects ends its stream.
const BOUNDS: ConnectionBounds = ConnectionBounds { head: HEADER_TIMEOUT, idle: None, half_close: false };
const EVICTED: &str = "an admin connection ended to make room for another";

#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The Unix socket can't be made.
    #[error("failed to create the admin socket {path}: {source}; evener needs write access to its folder")]
    Socket {
        /// Path of the admin socket.
        path: String,
        source: io::Error,
    },
    #[error(
        "failed to listen on the admin address {address}: {source}; set another `listen` in [admin], or \"none\""
    )]
    Address { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Token(#[from] TokenError),
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

/// Binds as [`AdminSockets::bind`] does, and serves while the runtime lives.
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

/// Bound sockets, before any request is served.
#[derive(Debug)]
pub struct AdminSockets {
    unix: UnixListener,
    tcp: Option<(TcpListener, Access, Option<AdminTlsServer>)>,
    path: SocketPath,
}

impl AdminSockets {
    /// Creates the admin socket at `path`, for this user only, and listens on the TCP address of
    /// `admin` if there is one. An existing socket at `path` is replaced: the caller holds the
    /// lock, so no daemon listens there. Needs a tokio runtime.
    ///
    /// # Errors
    /// If either socket can't be opened.
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

    /// Returns the TCP address, with the actual port if port 0 was requested.
    pub fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|(tcp, ..)| tcp.local_addr().ok())
    }

    /// Serves the farm's views, and passes orders to its loop, forever. Dropping the future closes
    /// every connection and removes the socket.
    pub async fn run(self, farm: Arc<dyn ViewSource>, control: Handle) {
        let AdminSockets { unix, tcp, path: _path } = self;
        let live = LiveFeed::new(Arc::clone(&farm));
        let everything = api::routes(Arc::clone(&farm), control.clone(), Arc::clone(&live), Entrance::Socket);
        // Separate limits, since a local command's output may be paused for any time.
        let (unix_limits, tcp_limits) = (SocketLimits::new(), SocketLimits::new());
        let by_unix = || async {
            let (stream, _) = unix.accept().await?;
            let user = PeerUser(stream.peer_cred().ok().map(|credentials| credentials.uid()));
            let connection = unix_limits.admit(Ipv4Addr::LOCALHOST.into()).await;
            Ok((stream, everything.clone().layer(Extension(user)), connection))
        };
        let unix = accept(by_unix, |(stream, routes, connection)| serve(stream, routes, connection));
        match tcp {
            Some((tcp, access, tls)) => {
                let by_address = api::routes(farm, control, live, Entrance::Address(Arc::new(access)));
                let by_tcp = || async {
                    let (stream, peer) = tcp.accept().await?;
                    let reached = OwnAddress(stream.local_addr()?.ip());
                    let routes = by_address.clone().layer(Extension(reached));
                    let tls = tls.as_ref().map(AdminTlsServer::current);
                    let connection = tcp_limits.admit(peer.ip()).await;
                    Ok((stream, routes.layer(Extension(Peer(peer.ip()))), tls, connection))
                };
                let tcp = accept(by_tcp, |(stream, routes, tls, connection)| {
                    serve_tcp(stream, routes, tls, connection)
                });
                tokio::join!(unix, tcp);
            }
            None => unix.await,
        }
    }
}

/// Connection limits of one socket.
struct SocketLimits {
    connections: ConnectionLimit,
    streams: ConnectionLimit,
    /// Slots for evicted connections that finish their response.
    finishing: Semaphore,
}

/// A connection with its slot.
struct AdminConnection {
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

    async fn admit(self: &Arc<Self>, client: IpAddr) -> AdminConnection {
        AdminConnection { client, slot: self.connections.acquire(client).await, limits: Arc::clone(self) }
    }
}

/// Removes the socket when dropped.
#[derive(Debug)]
struct SocketPath(PathBuf);

impl Drop for SocketPath {
    fn drop(&mut self) {
        // The socket may be removed already.
        let _ = fs::remove_file(&self.0);
    }
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Linux creates the file with the socket's mode at the time of bind. Before a later chmod,
    // other users could connect.
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

/// Serves a TCP connection, with TLS if configured.
async fn serve_tcp(
    stream: TcpStream,
    routes: Router,
    tls: Option<Arc<ServerConfig>>,
    mut connection: AdminConnection,
) {
    let stream = ClientStream::new(stream, WRITE_TIMEOUT);
    let Some(tls) = tls else {
        return serve(stream, routes.layer(Extension(PeerNames::default())), connection).await;
    };
    let handshake = tokio::time::timeout(HEADER_TIMEOUT, TlsAcceptor::from(tls).accept(stream));
    match connection.slot.unless_evicted(handshake).await {
        Some(Ok(Ok(stream))) => {
            let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let names = PeerNames(shown.map(names_of).unwrap_or_default().into());
            serve(stream, routes.layer(Extension(names)), connection).await;
        }
        Some(Ok(Err(error))) => tracing::debug!(%error, "an admin client's TLS handshake failed"),
        Some(Err(_)) => tracing::debug!("an admin client's TLS handshake timed out"),
        None => tracing::debug!("{EVICTED}"),
    }
}

/// Serves a connection for a bounded time, or a stream until it is evicted.
async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    routes: Router,
    connection: AdminConnection,
) {
    let AdminConnection { client, mut slot, limits } = connection;
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
                tracing::debug!("an admin connection timed out");
                Some(())
            }
        }
    };
    let done = match slot.unless_evicted(at_first).await {
        Some(None) => {
            drop(slot);
            let mut slot = limits.streams.acquire(client).await;
            progress.place();
            slot.unless_evicted(connection).await
        }
        Some(done) => done,
        // A response in progress is finished, since the requested change may already be in force.
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
