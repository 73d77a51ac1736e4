//! TCP in user space, one connection long: what reaches a server by its MAC and the service address.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use evener_core::farm::HealthKind;
use evener_core::health::{Failure, Judgement};
use evener_core::wire::ETHERTYPE_IPV4;
use evener_dataplane::link::{reserve_port, tcp_filter};
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::{HardwareAddress, IpCidr};
use tokio::time::timeout as within;

use super::Target;
use super::device::{Device, WINDOW};
use super::dialogue::Dialogue;
use super::link::Link;

/// Opens a connection, asks what is to be asked, and resets it.
pub(super) async fn probe(target: &Target, kind: &HealthKind, timeout: Duration) -> Result<(), Failure> {
    let port = reserve_port(target.source).map_err(|error| {
        Failure::Other(format!("no port of {} is left for the probe: {error}", target.source))
    })?;
    let own = SocketAddrV4::new(target.source, port.port());
    let link = Link::open(target.ifindex, ETHERTYPE_IPV4, &tcp_filter(*target.destination.ip(), own))?;
    let mut dialogue = Dialogue::new(kind, target.destination);
    let result = match Connection::open(&link, target, own, dialogue.request().len()) {
        Ok(mut connection) => connection.hold(&mut dialogue, timeout).await,
        Err(failure) => Err(failure),
    };
    link.close();
    result
}

/// A connection, with an IP stack of its own.
struct Connection<'a> {
    link: &'a Link,
    device: Device<'a>,
    stack: Interface,
    sockets: SocketSet<'a>,
    socket: SocketHandle,
    started: Instant,
    /// The server took it.
    opened: bool,
}

impl<'a> Connection<'a> {
    fn open(link: &'a Link, target: &Target, own: SocketAddrV4, request_len: usize) -> Result<Self, Failure> {
        let mut device = Device::new(link, target);
        let mut config = Config::new(HardwareAddress::Ip);
        // Sequence numbers that nobody can guess (RFC 6528); std's hash keys are random.
        config.random_seed = RandomState::new().hash_one(own);
        let mut stack = Interface::new(config, &mut device, smoltcp::time::Instant::ZERO);
        // Neither can fail: there is room for more than one of each.
        stack.update_ip_addrs(|addresses| {
            let _ = addresses.push(IpCidr::new((*own.ip()).into(), 32));
        });
        let _ = stack.routes_mut().add_default_ipv4_route(*own.ip());

        let buffer = |len: usize| SocketBuffer::new(vec![0; len]);
        let mut socket = Socket::new(buffer(WINDOW), buffer(request_len));
        socket.set_ack_delay(None);
        socket
            .connect(stack.context(), target.destination, own)
            .map_err(|error| Failure::Other(format!("{} can't be probed: {error}", target.destination)))?;
        let mut sockets = SocketSet::new(vec![SocketStorage::EMPTY]);
        let socket = sockets.add(socket);
        Ok(Connection { link, device, stack, sockets, socket, started: Instant::now(), opened: false })
    }

    /// Goes through the dialogue, for `timeout` at most.
    async fn hold(&mut self, dialogue: &mut Dialogue<'_>, timeout: Duration) -> Result<(), Failure> {
        let result = self.talk(dialogue, timeout).await;
        // A reset leaves nothing behind on either side, whatever state the connection is in.
        self.sockets.get_mut::<Socket<'_>>(self.socket).abort();
        self.send();
        result
    }

    async fn talk(&mut self, dialogue: &mut Dialogue<'_>, timeout: Duration) -> Result<(), Failure> {
        loop {
            self.receive();
            if let Some(result) = self.step(dialogue) {
                return result;
            }
            self.send();
            self.device.failure()?;
            let now = self.now();
            let left = timeout.checked_sub(self.started.elapsed());
            let left = left.ok_or_else(|| dialogue.late(self.opened, timeout))?;
            // Until a frame comes, or something has to be sent again.
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

    /// Does what can be done now; the result, once there is one.
    fn step(&mut self, dialogue: &mut Dialogue<'_>) -> Option<Result<(), Failure>> {
        let socket = self.sockets.get_mut::<Socket<'_>>(self.socket);
        if !self.opened {
            match socket.state() {
                State::SynSent | State::SynReceived => return None,
                State::Closed => return Some(Err(Failure::Refused)),
                _ => self.opened = true,
            }
            if dialogue.request().is_empty() {
                return Some(Ok(()));
            }
            // There is room for all of it.
            let _ = socket.send_slice(dialogue.request());
        }
        while socket.can_recv() {
            let judged = socket.recv(|bytes| (bytes.len(), dialogue.heard(bytes)));
            match judged.unwrap_or(Judgement::More) {
                Judgement::More => {}
                Judgement::Ok => return Some(Ok(())),
                Judgement::Failed(failure) => return Some(Err(failure)),
            }
        }
        match socket.state() {
            State::Closed => Some(Err(Failure::Reset)),
            _ if !socket.may_recv() => Some(dialogue.ended()),
            _ => None,
        }
    }

    fn now(&self) -> smoltcp::time::Instant {
        let micros = i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX);
        smoltcp::time::Instant::from_micros(micros)
    }
}
