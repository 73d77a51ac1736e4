//! Services with method `redirect`: clients are redirected to a member of a group by HTTP.
//!
//! Threads with sockets of their own serve the clients ([`Connection`]), by rules that the control
//! loop publishes ([`Frontend`]).

mod connection;
mod fetch;
mod frontend;
mod frontends;
mod member_query;
mod protocol;
mod request_log;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustls::ServerConfig;
use socket2::{Domain, Socket, Type};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use crate::runtime::accept::accept_each;
use crate::runtime::group_tokens::GroupTokenError;
use crate::runtime::tls::{self, TlsError};

use connection::Connection;
pub(crate) use connection::{Clients, MemberMessage};
pub(crate) use frontend::{Frontend, Rules};
pub(crate) use frontends::{Frontends, ShownGroup};
pub(crate) use member_query::{MemberQuery, fetch_report, query_load};
pub(crate) use protocol::{GroupContext, JSON, MessageSender};
pub(crate) use request_log::RequestLog;

/// Length of each socket's queue of connections to accept.
const BACKLOG: i32 = 4_096;

/// Error of starting to serve a group.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    #[error("service {service} can't listen on {address}: {source}{help}")]
    Address {
        service: String,
        address: SocketAddr,
        source: io::Error,
        /// Remedy, after a semicolon.
        help: &'static str,
    },
    #[error("service {service}: {source}")]
    Tls {
        /// Name of the service.
        service: String,
        source: Box<TlsError>,
    },
    #[error("service {service}: {source}")]
    Tokens {
        /// Name of the service.
        service: String,
        source: GroupTokenError,
    },
    /// The threads can't be started.
    #[error("failed to start the threads that answer clients: {0}")]
    Threads(io::Error),
}

impl ListenError {
    fn address(service: &str, address: SocketAddr, source: io::Error) -> ListenError {
        let help = match source.kind() {
            io::ErrorKind::PermissionDenied => {
                "; ports below 1024 need CAP_NET_BIND_SERVICE: use another, or grant it"
            }
            io::ErrorKind::AddrInUse => "; another program listens there: stop it, or use another address",
            io::ErrorKind::AddrNotAvailable => {
                "; it is no address of this host: add it, or use 0.0.0.0 or [::]"
            }
            _ => "",
        };
        ListenError::Address { service: service.to_owned(), address, source, help }
    }
}

/// Order to a thread.
enum ResponderOrder {
    /// Serve a group's clients on this socket.
    Listen { listener: TcpListener, address: SocketAddr, front: Arc<Frontend> },
    /// Close the socket of this address.
    Silence { address: SocketAddr },
}

/// A thread, which ends when its order channel is closed.
struct Thread {
    orders: UnboundedSender<ResponderOrder>,
    handle: JoinHandle<()>,
}

impl Thread {
    fn start(number: usize, clients: Arc<Clients>) -> io::Result<Thread> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (orders, receiver) = unbounded_channel();
        let thread = thread::Builder::new().name(format!("redirect-{number}"));
        Ok(Thread { orders, handle: thread.spawn(move || run(runtime, receiver, &clients))? })
    }

    fn order(&self, order: ResponderOrder) {
        // A thread ends early only by a panic, which is printed.
        let _ = self.orders.send(order);
    }
}

/// Threads that serve all groups.
pub(crate) struct Responders {
    threads: Vec<Thread>,
    fronts: BTreeMap<SocketAddr, Arc<Frontend>>,
}

/// Sockets and TLS settings of a file's groups, before clients are served.
pub(crate) struct GroupSockets {
    /// Sockets for new addresses, with the names of their services.
    sockets: Vec<(SocketAddr, String, Vec<TcpListener>)>,
    /// TLS settings of services that use TLS.
    pub(crate) tls: BTreeMap<String, Arc<ServerConfig>>,
}

/// Reads a service's certificate and key, and the authority of members' certificates if there is
/// one.
///
/// # Errors
/// If a file can't be used.
pub(crate) fn read_tls(
    service: &str,
    certificate: &Path,
    key: &Path,
    client_ca: Option<&Path>,
) -> Result<Arc<ServerConfig>, ListenError> {
    let failed = |source| ListenError::Tls { service: service.to_owned(), source: Box::new(source) };
    tls::server(certificate, key, client_ca).map_err(failed)
}

impl Responders {
    /// Starts the threads.
    ///
    /// # Errors
    /// If a thread can't be started.
    pub(crate) fn start(threads: usize, clients: Clients) -> Result<Responders, ListenError> {
        let clients = Arc::new(clients);
        let threads = (0..threads.max(1)).map(|number| Thread::start(number, Arc::clone(&clients)));
        let threads = threads.collect::<io::Result<_>>().map_err(ListenError::Threads)?;
        Ok(Responders { threads, fronts: BTreeMap::new() })
    }

    /// Opens sockets for addresses that aren't served yet, each with its service's name. Has no
    /// effect on existing sockets.
    ///
    /// # Errors
    /// If an address is not available.
    pub(crate) fn open(&self, wanted: &[(SocketAddr, &str)]) -> Result<GroupSockets, ListenError> {
        let is_new = |address: &SocketAddr, service: &str| {
            self.fronts.get(address).is_none_or(|front| front.name != service)
        };
        let new = wanted.iter().filter(|(address, service)| is_new(address, service));
        let opened = new.map(|(address, service)| {
            let sockets = self.threads.iter().map(|_| listener(*address)).collect::<io::Result<_>>();
            let sockets = sockets.map_err(|error| ListenError::address(service, *address, error))?;
            Ok((*address, (*service).to_owned(), sockets))
        });
        Ok(GroupSockets { sockets: opened.collect::<Result<_, _>>()?, tls: BTreeMap::new() })
    }

    /// Serves these frontends, which are looked up by their names, on the new and on the existing
    /// sockets. Open connections continue. Sockets of addresses without a frontend are closed.
    pub(crate) fn follow(
        &mut self,
        opened: GroupSockets,
        fronts: &BTreeMap<String, Arc<Frontend>>,
        wanted: &[(SocketAddr, &str)],
    ) {
        let stays = |address: &SocketAddr, front: &Arc<Frontend>| {
            wanted.iter().any(|(kept, service)| kept == address && *service == front.name)
        };
        let gone: Vec<SocketAddr> =
            self.fronts.iter().filter(|(address, front)| !stays(address, front)).map(|(a, _)| *a).collect();
        for address in gone {
            self.fronts.remove(&address);
            self.threads.iter().for_each(|thread| thread.order(ResponderOrder::Silence { address }));
        }
        for (address, service, sockets) in opened.sockets {
            let Some(front) = fronts.get(&service) else { continue };
            self.fronts.insert(address, Arc::clone(front));
            for (thread, listener) in self.threads.iter().zip(sockets) {
                thread.order(ResponderOrder::Listen { listener, address, front: Arc::clone(front) });
            }
        }
    }
}

impl Drop for Responders {
    fn drop(&mut self) {
        let threads = self.threads.drain(..).map(|Thread { handle, .. }| handle);
        for handle in threads.collect::<Vec<_>>() {
            // The panic of a thread is already printed.
            let _ = handle.join();
        }
    }
}

/// Interval of a timer that is always armed, which saves system calls. The runtime writes to an
/// eventfd whenever a new timer becomes the earliest one. Without this timer, each timer of a lone
/// connection would be the earliest.
const TICK: Duration = Duration::from_secs(1);

/// Executes orders until the channel is closed.
fn run(runtime: Runtime, mut orders: UnboundedReceiver<ResponderOrder>, clients: &Arc<Clients>) {
    runtime.block_on(async {
        tokio::spawn(async {
            loop {
                tokio::time::sleep(TICK).await;
            }
        });
        let mut listeners: BTreeMap<SocketAddr, AbortHandle> = BTreeMap::new();
        while let Some(order) = orders.recv().await {
            let gone = match order {
                ResponderOrder::Listen { listener, address, front } => {
                    let listening = tokio::spawn(listen(listener, front, Arc::clone(clients)));
                    listeners.insert(address, listening.abort_handle())
                }
                ResponderOrder::Silence { address } => listeners.remove(&address),
            };
            if let Some(gone) = gone {
                gone.abort();
            }
        }
    });
    // Does not wait for threads that still resolve names.
    runtime.shutdown_background();
}

/// Accepts connections at an address. Accepted connections outlive the listener.
async fn listen(listener: TcpListener, front: Arc<Frontend>, clients: Arc<Clients>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            return tracing::error!(%error, service = front.name, "one of the threads failed to accept clients; the others still do");
        }
    };
    let next = || async {
        let (stream, client) = listener.accept().await?;
        Ok((stream, client, clients.admit(client, &front).await))
    };
    accept_each(next, |(stream, client, place)| {
        let connection = Connection::new(client, Arc::clone(&front), Arc::clone(&clients), place);
        tokio::spawn(connection.serve(stream));
    })
    .await;
}

/// Opens a socket on an address that several sockets share (SO_REUSEPORT). The kernel spreads
/// connections over them.
fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}
