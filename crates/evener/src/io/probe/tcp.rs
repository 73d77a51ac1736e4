//! User-space TCP for one connection, which reaches a server by its MAC or through a tunnel, at the
//! service address.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use evener_core::path::cookie::Keys;
use evener_core::pool::HealthKind;
use evener_core::pool::health::Failure;
use evener_core::pool::reply::ReplyVerdict;
use evener_dataplane::link::{Instruction, nothing, reserve_port, tcp_filter, tcp_filter_v6};
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::{HardwareAddress, IpCidr};
use tokio::time::{sleep, timeout as within};

use super::device::{Device, WINDOW};
use super::dialogue::ProbeDialogue;
use super::link::{ProbeSocket, ethertype, failure};
use super::outer::ProbeTunnel;
use super::syn_cookie::SynCookie;
use super::{ProbePath, Target};

/// Time for which a port stays reserved after its probe, longer than most packets stay in the
/// network.
const STRAGGLERS: Duration = Duration::from_millis(500);

/// Opens a connection, runs the dialogue, and resets the connection.
pub(super) async fn probe(
    target: &Target,
    keys: Option<&Keys>,
    kind: &HealthKind,
    timeout: Duration,
) -> Result<(), Failure> {
    let (hop, source, outer) = match target.way {
        ProbePath::Link { hop, source, .. } => (hop, source, None),
        ProbePath::Tunnel { hop, source, encapsulation, from, to } => {
            (hop, source, Some(ProbeTunnel::new(encapsulation, from, to)))
        }
        ProbePath::Local { .. } | ProbePath::Direct { .. } => return Err(Failure::NoWay),
    };
    let mut dialogue = ProbeDialogue::new(kind, target.destination, keys.is_some())?;
    let port = reserve_port(source)
        .map_err(|error| failure(&error, format!("no port of {source} is left for the probe: {error}")))?;
    let own = SocketAddr::new(source, port.port());
    let (ethertype, answers) = (ethertype(own.is_ipv6()), answers(target.destination, own)?);
    let received = ProbeSocket::open(if outer.is_some() { 0 } else { hop.ifindex }, ethertype, &answers)?;
    // Replies may arrive on another interface than the interface through which tunnel packets
    // leave.
    let apart = outer.map(|_| ProbeSocket::open(hop.ifindex, ethertype, &nothing())).transpose()?;
    let syn_cookie = keys.copied().map(SynCookie::new);
    let device = Device::new(&received, apart.as_ref().unwrap_or(&received), hop, outer, syn_cookie);
    let result =
        match ProbeConnection::open(&received, device, target.destination, own, dialogue.outgoing_max()) {
            Ok(mut connection) => connection.run_dialogue(&mut dialogue, timeout).await,
            Err(failure) => Err(failure),
        };
    apart.into_iter().chain([received]).for_each(ProbeSocket::close);
    // The server may send segments before the reset arrives. These segments must find the port
    // unused, so the port stays reserved.
    tokio::spawn(async move {
        sleep(STRAGGLERS).await;
        drop(port);
    });
    result
}

/// Returns a filter for segments from the service address to the probe.
fn answers(from: SocketAddr, to: SocketAddr) -> Result<Vec<Instruction>, Failure> {
    match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => Ok(tcp_filter(*from.ip(), to)),
        (SocketAddr::V6(from), SocketAddr::V6(to)) => Ok(tcp_filter_v6(*from.ip(), to)),
        _ => Err(Failure::Other(format!("{from} can't be probed from {to}"))),
    }
}

/// A connection with a separate IP stack.
struct ProbeConnection<'a> {
    link: &'a ProbeSocket,
    device: Device<'a>,
    stack: Interface,
    sockets: SocketSet<'a>,
    socket: SocketHandle,
    started: Instant,
    /// True if the connection is established.
    opened: bool,
    /// Bytes to send as soon as there is room.
    waiting: Vec<u8>,
}

impl<'a> ProbeConnection<'a> {
    fn open(
        link: &'a ProbeSocket,
        mut device: Device<'a>,
        to: SocketAddr,
        own: SocketAddr,
        request_len: usize,
    ) -> Result<Self, Failure> {
        let mut config = Config::new(HardwareAddress::Ip);
        // Unpredictable sequence numbers (RFC 6528). The hash keys of std are random.
        config.random_seed = RandomState::new().hash_one(own);
        let mut stack = Interface::new(config, &mut device, smoltcp::time::Instant::ZERO);
        // Neither call can fail: there is room for more than one entry.
        let (address, prefix_len) = (own.ip().into(), if own.is_ipv6() { 128 } else { 32 });
        stack.update_ip_addrs(|addresses| {
            let _ = addresses.push(IpCidr::new(address, prefix_len));
        });
        match own.ip() {
            IpAddr::V4(own) => drop(stack.routes_mut().add_default_ipv4_route(own)),
            IpAddr::V6(own) => drop(stack.routes_mut().add_default_ipv6_route(own)),
        }

        let buffer = |len: usize| SocketBuffer::new(vec![0; len]);
        let mut socket = Socket::new(buffer(WINDOW), buffer(request_len));
        socket.set_ack_delay(None);
        socket
            .connect(stack.context(), to, own)
            .map_err(|error| Failure::Other(format!("{to} can't be probed: {error}")))?;
        let mut sockets = SocketSet::new(vec![SocketStorage::EMPTY]);
        let socket = sockets.add(socket);
        Ok(ProbeConnection {
            link,
            device,
            stack,
            sockets,
            socket,
            started: Instant::now(),
            opened: false,
            waiting: Vec::new(),
        })
    }

    /// Runs the dialogue, for `timeout` at most.
    async fn run_dialogue(
        &mut self,
        dialogue: &mut ProbeDialogue<'_>,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let result = self.talk(dialogue, timeout).await;
        // A reset removes the connection on this host and on the server, in any state.
        self.sockets.get_mut::<Socket<'_>>(self.socket).abort();
        self.send();
        result
    }

    async fn talk(&mut self, dialogue: &mut ProbeDialogue<'_>, timeout: Duration) -> Result<(), Failure> {
        loop {
            self.receive();
            if let Some(result) = self.step(dialogue) {
                return result;
            }
            self.send();
            self.device.failure()?;
            if self.device.has_answers() {
                continue;
            }
            let now = self.now();
            let left = timeout.checked_sub(self.started.elapsed());
            let left = left.ok_or_else(|| dialogue.late(self.opened, timeout))?;
            // Waits until a frame arrives, or a retransmission is due.
            let resend = self.stack.poll_delay(now, &self.sockets).map(Duration::from);
            if let Ok(waited) = within(left.min(resend.unwrap_or(left)), self.link.wait()).await {
                waited?;
            }
        }
    }

    fn receive(&mut self) {
        let now = self.now();
        let mut receive = || self.stack.poll_ingress_single(now, &mut self.device, &mut self.sockets);
        while receive() != PollIngressSingleResult::None {}
    }

    fn send(&mut self) {
        let now = self.now();
        self.stack.poll_egress(now, &mut self.device, &mut self.sockets);
    }

    /// Continues the dialogue. Returns the result once it is known.
    fn step(&mut self, dialogue: &mut ProbeDialogue<'_>) -> Option<Result<(), Failure>> {
        let socket = self.sockets.get_mut::<Socket<'_>>(self.socket);
        if !self.opened {
            match socket.state() {
                State::SynSent | State::SynReceived => return None,
                State::Closed => return Some(Err(Failure::Refused)),
                _ => self.opened = true,
            }
            if dialogue.wants_nothing() {
                return Some(Ok(()));
            }
        }
        while socket.can_recv() {
            let judged = socket.recv(|bytes| (bytes.len(), dialogue.receive(bytes)));
            match judged.unwrap_or(ReplyVerdict::More) {
                ReplyVerdict::More => {}
                ReplyVerdict::Ok => return Some(Ok(())),
                ReplyVerdict::Failed(failure) => return Some(Err(failure)),
            }
        }
        self.waiting.append(&mut dialogue.outgoing());
        let sent = socket.send_slice(&self.waiting).unwrap_or_default();
        self.waiting.drain(..sent);
        match socket.state() {
            State::Closed => Some(Err(dialogue.reset())),
            // The bytes have arrived, so the server has made a socket.
            _ if dialogue.wants_no_reply() && self.waiting.is_empty() && socket.send_queue() == 0 => {
                Some(Ok(()))
            }
            _ if !socket.may_recv() => Some(dialogue.ended()),
            _ => None,
        }
    }

    fn now(&self) -> smoltcp::time::Instant {
        let micros = i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX);
        smoltcp::time::Instant::from_micros(micros)
    }
}
