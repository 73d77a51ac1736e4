//! DNS sockets: for each address one UDP socket and thread per processor, and one TCP socket.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use evener_core::dns::{Catalog, DnsRequest, EncodedResponse, Limit, RateBucket, SharedBudget, Transport};
use evener_core::path::seed::Seed;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::task::AbortHandle;

use super::datagrams::Datagrams;
use super::{QueryCounts, stream};
use crate::runtime::connection_limit::ConnectionLimit;
use crate::runtime::descriptors::ClientLimits;
use crate::runtime::receive_buffer;

/// Interval at which an idle thread checks if it is to end.
const LOOK: Duration = Duration::from_millis(200);
/// Length of the queue of connections to accept.
const BACKLOG: i32 = 1_024;

/// Error of opening DNS sockets.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NamesError {
    #[error("[dns] can't listen on {address}: {source}{help}")]
    Address {
        address: SocketAddr,
        source: io::Error,
        /// Remedy, after a semicolon.
        help: &'static str,
    },
    /// A thread can't be started.
    #[error("failed to start the threads that answer queries: {0}")]
    Threads(io::Error),
}

/// State from which queries are answered. Each part is replaced as a whole.
#[derive(Debug)]
pub(crate) struct QueryContext {
    pub(crate) names: ArcSwap<Catalog>,
    pub(crate) limit: ArcSwap<Limit>,
    /// Remaining budget of answers, for all threads together.
    total: Arc<SharedBudget>,
    pub(crate) counts: Arc<QueryCounts>,
    key: Seed,
    turn: AtomicU64,
}

impl QueryContext {
    pub(crate) fn new(names: Catalog, key: Seed, counts: Arc<QueryCounts>) -> QueryContext {
        let limit = ArcSwap::from_pointee(Limit::default());
        let names = ArcSwap::from_pointee(names);
        QueryContext { names, limit, total: Arc::default(), counts, key, turn: AtomicU64::new(0) }
    }

    /// Answers a query, and counts it.
    pub(super) fn answer(
        &self,
        bytes: &[u8],
        client: IpAddr,
        transport: Transport,
        allowance: Option<&mut RateBucket>,
        out: &mut [u8],
    ) -> Option<usize> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let request = DnsRequest {
            bytes,
            client,
            transport,
            // Both clocks wrap, as their readers expect.
            now_s: since.as_secs() as u32,
            now_ms: (evener_dataplane::now_ns() / 1_000_000) as u32,
            turn: self.turn.fetch_add(1, Relaxed),
        };
        let answered = self.names.load().answer(&request, allowance, out);
        self.counts.count(transport, answered.map(|answered| answered.outcome));
        answered.map(|EncodedResponse { len, .. }| len)
    }
}

/// Bound sockets of addresses that are not served yet.
pub(crate) struct BoundSockets(Vec<(SocketAddr, Vec<UdpSocket>, TcpListener)>);

/// Server of one address.
struct DnsServer {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    stream: AbortHandle,
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        self.stream.abort();
        for thread in self.threads.drain(..) {
            // The panic of a thread is already printed.
            let _ = thread.join();
        }
    }
}

/// Servers of all addresses.
pub(crate) struct DnsServers {
    answering: Arc<QueryContext>,
    running: BTreeMap<SocketAddr, DnsServer>,
    /// Sockets that are not served yet. Queries to them wait in the kernel.
    waiting: Vec<BoundSockets>,
    has_started: bool,
    /// Limit of connections on all addresses. Created with the first address.
    limit: OnceCell<ConnectionLimit>,
}

impl DnsServers {
    pub(crate) fn new(answering: Arc<QueryContext>) -> DnsServers {
        DnsServers {
            answering,
            running: BTreeMap::new(),
            waiting: Vec::new(),
            has_started: false,
            limit: OnceCell::new(),
        }
    }

    /// Opens sockets for addresses that are not served yet. Has no effect on existing sockets.
    ///
    /// # Errors
    /// If an address is not available.
    pub(crate) fn open(&self, wanted: &[SocketAddr]) -> Result<BoundSockets, NamesError> {
        let waits =
            |at: &SocketAddr| self.waiting.iter().any(|opened| opened.0.iter().any(|(o, ..)| o == at));
        let new = wanted.iter().filter(|at| !self.running.contains_key(at) && !waits(at));
        let opened = new.map(|address| {
            let threads = thread::available_parallelism().map_or(1, NonZero::get);
            let failed =
                |source: io::Error| NamesError::Address { address: *address, help: help(&source), source };
            let udp = (0..threads).map(|_| datagrams(*address)).collect::<io::Result<_>>().map_err(failed)?;
            Ok((*address, udp, listener(*address).map_err(failed)?))
        });
        Ok(BoundSockets(opened.collect::<Result<_, NamesError>>()?))
    }

    /// Serves exactly these addresses, once [`DnsServers::begin`] has been called.
    ///
    /// # Errors
    /// If threads can't be started.
    pub(crate) fn follow(&mut self, opened: BoundSockets, wanted: &[SocketAddr]) -> Result<(), NamesError> {
        self.running.retain(|address, _| wanted.contains(address));
        self.waiting.push(opened);
        for BoundSockets(waiting) in &mut self.waiting {
            waiting.retain(|(address, ..)| wanted.contains(address));
        }
        if self.has_started { self.start() } else { Ok(()) }
    }

    /// Starts to serve: the state of the servers is known.
    ///
    /// # Errors
    /// If threads can't be started.
    pub(crate) fn begin(&mut self) -> Result<(), NamesError> {
        self.has_started = true;
        self.start()
    }

    fn start(&mut self) -> Result<(), NamesError> {
        for BoundSockets(waiting) in std::mem::take(&mut self.waiting) {
            for (address, sockets, listener) in waiting {
                let server = self.serve(address, sockets, listener).map_err(NamesError::Threads)?;
                self.running.insert(address, server);
            }
        }
        Ok(())
    }

    fn serve(
        &self,
        address: SocketAddr,
        sockets: Vec<UdpSocket>,
        listener: TcpListener,
    ) -> io::Result<DnsServer> {
        let is_over = Arc::new(AtomicBool::new(false));
        let stream = tokio::net::TcpListener::from_std(listener)?;
        let limit = self.limit.get_or_init(|| ConnectionLimit::new(ClientLimits::make().names)).clone();
        let stream = tokio::spawn(stream::serve(stream, Arc::clone(&self.answering), limit)).abort_handle();
        let mut server = DnsServer { is_over, threads: Vec::new(), stream };
        for (number, socket) in sockets.into_iter().enumerate() {
            let (answering, is_over) = (Arc::clone(&self.answering), Arc::clone(&server.is_over));
            let thread = thread::Builder::new().name(format!("dns-{number}"));
            let thread = thread.spawn(move || answer_datagrams(&socket, address, &answering, &is_over))?;
            server.threads.push(thread);
        }
        Ok(server)
    }
}

fn answer_datagrams(socket: &UdpSocket, address: SocketAddr, answering: &QueryContext, is_over: &AtomicBool) {
    let mut allowance =
        RateBucket::new(**answering.limit.load(), answering.key, Arc::clone(&answering.total));
    let mut datagrams = Datagrams::new();
    while !is_over.load(Relaxed) {
        allowance.follow(**answering.limit.load());
        let result = datagrams.answer(socket, |query, client, out| {
            answering.answer(query, client, Transport::Udp, Some(&mut allowance), out)
        });
        match result {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => tracing::debug!(%error, %address, "failed to read a query"),
        }
    }
}

fn help(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need CAP_NET_BIND_SERVICE: use another, or grant it"
        }
        io::ErrorKind::AddrInUse => "; another program listens there: stop it, or use another address",
        io::ErrorKind::AddrNotAvailable => {
            "; it is no address of this host: add it, or remove it from `listen`"
        }
        _ => "",
    }
}

/// Opens a socket on an address that several sockets share (SO_REUSEPORT). The kernel spreads
/// clients over them.
fn datagrams(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_port(true)?;
    receive_buffer::widen(&socket)?;
    socket.bind(&address.into())?;
    let socket: UdpSocket = socket.into();
    socket.set_read_timeout(Some(LOOK))?;
    Ok(socket)
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}
