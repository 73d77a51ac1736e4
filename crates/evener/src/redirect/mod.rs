//! Services of method `redirect`: clients are told by HTTP which member of a group to ask.
//!
//! Threads with sockets of their own answer ([`responder`]), by rules that the control loop
//! publishes ([`Frontend`]); what is said on a connection is [`http_connection`]'s. Requests that
//! they don't answer go with their connection to the [`slow_path`]: messages of members, and those
//! fetched for clients.

mod client_stream;
mod fetch;
mod frontend;
mod frontends;
mod http_connection;
mod member_query;
mod protocol;
mod request_log;
mod request_stream;
mod responder;
mod slow_path;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use mio::{Poll, Waker};
use rustls::ServerConfig;
use socket2::{Domain, Socket, Type};

use crate::runtime::group_tokens::GroupTokenError;
use crate::runtime::tls::{self, TlsError};

pub(crate) use frontend::{Frontend, Rules};
pub(crate) use frontends::{Frontends, ShownGroup};
pub(crate) use member_query::{MemberQuery, fetch_report, query_load};
pub(crate) use protocol::{GroupContext, JSON, MessageSender};
pub(crate) use request_log::RequestLog;
use responder::{Delegate, ORDERS, Responder, ResponderOrder};
pub(crate) use slow_path::{MemberMessage, SlowPathServer};

/// Connections that wait to be taken, of each socket.
const BACKLOG: i32 = 4_096;

/// Why a group can't be answered for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    /// The address can't be had.
    #[error("service {service} can't listen on {address}: {source}{help}")]
    Address {
        /// The service's name.
        service: String,
        /// Its address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
        /// The remedy, behind a semicolon.
        help: &'static str,
    },
    /// A certificate or key can't be had.
    #[error("service {service}: {source}")]
    Tls {
        /// The service's name.
        service: String,
        /// Why.
        source: Box<TlsError>,
    },
    /// The tokens of its members can't be had.
    #[error("service {service}: {source}")]
    Tokens {
        /// The service's name.
        service: String,
        /// Why.
        source: GroupTokenError,
    },
    /// The threads can't be had.
    #[error("the threads that answer clients can't be started: {0}")]
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

/// One thread, and the way to it.
struct Thread {
    orders: Sender<ResponderOrder>,
    waker: Waker,
    handle: Option<JoinHandle<()>>,
}

impl Thread {
    fn order(&self, order: ResponderOrder) {
        // One that has ended has said why.
        if self.orders.send(order).is_ok() {
            let _ = self.waker.wake();
        }
    }
}

/// All that answers clients of groups.
pub(crate) struct Responders {
    threads: Vec<Thread>,
    /// The frontends by address.
    fronts: BTreeMap<SocketAddr, Arc<Frontend>>,
}

/// The needs of a file's groups, before any request is answered by it.
pub(crate) struct GroupSockets {
    /// Sockets for addresses that nobody answered on before, and whom they are for.
    sockets: Vec<(SocketAddr, String, Vec<TcpListener>)>,
    /// The TLS settings of clients, of services that have TLS.
    pub(crate) tls: BTreeMap<String, Arc<ServerConfig>>,
}

/// Reads a service's certificate and key, and the authority of members' certificates if there is
/// one.
///
/// # Errors
/// When they can't be had.
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
    /// Starts so many threads, with so many places for clients together.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn start(
        threads: usize,
        places: usize,
        taker: &Delegate,
        request_log: &RequestLog,
    ) -> Result<Responders, ListenError> {
        let threads = threads.max(1);
        let one = |number: usize| -> io::Result<Thread> {
            let poll = Poll::new()?;
            let waker = Waker::new(poll.registry(), ORDERS)?;
            let (orders, receiver) = channel();
            let (taker, request_log) = (Arc::clone(taker), request_log.clone());
            let responder = Responder::new(poll, receiver, taker, request_log, places / threads);
            let thread = thread::Builder::new().name(format!("redirect-{number}"));
            Ok(Thread { orders, waker, handle: Some(thread.spawn(move || responder.run())?) })
        };
        let threads = (0..threads).map(one).collect::<io::Result<_>>().map_err(ListenError::Threads)?;
        Ok(Responders { threads, fronts: BTreeMap::new() })
    }

    /// Opens sockets for what is to be answered for and isn't yet: addresses, each with its
    /// service's name. Nothing changes by that.
    ///
    /// # Errors
    /// When an address can't be had.
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

    /// Answers by these fronts from now on, each by its name, on the sockets that were opened and
    /// on those of before; open connections go on. An address without a frontend falls silent.
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
        self.threads.iter().for_each(|thread| thread.order(ResponderOrder::Stop));
        for thread in &mut self.threads {
            if let Some(handle) = thread.handle.take() {
                // A thread that panicked has said so.
                let _ = handle.join();
            }
        }
    }
}

/// One of several sockets that share an address: the kernel spreads connections over them by their
/// ports.
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
