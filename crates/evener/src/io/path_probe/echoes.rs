//! ICMP echoes (RFC 792, RFC 4443): bprobe's pairs and cprobe's trains (Carter and Crovella,
//! BU-CS-96-006 and -007), within 64 KB and two seconds each way.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use evener_core::dns::MeasuredPath;
use evener_core::net::checksum;
use evener_core::net::wire::{icmp, icmpv6};
use evener_core::node::path_probe::{
    ProbeArrival, bottleneck_bps, echoes_available_bps, settled_bottleneck_bps,
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, timeout_at};

use super::{LIMIT, PACKET_LEN, QUIET, receive_with_time};
use crate::runtime::secret::random;
use nix::sys::socket::{setsockopt, sockopt};

/// Number of echoes in the first long train, in which neighbours form pairs. TRAINS is the number
/// of the shorter trains that follow, and TRAIN is the number of echoes in each.
const PAIRS: u16 = 14;
const TRAINS: u16 = 3;
const TRAIN: u16 = 10;
/// Length of an ICMP echo's header: type, code, checksum, identifier, sequence number.
const HEADER_LEN: usize = 8;

/// Measures by echoes, which most hosts answer. The path in both directions is measured.
///
/// # Errors
/// A text on why the measurement failed.
pub(crate) async fn by_echoes(server: IpAddr) -> Result<MeasuredPath, String> {
    let failed = |error: io::Error| format!("{server} can't be sent ICMP echoes (CAP_NET_RAW): {error}");
    let mut echoes = Echoes::open(server).map_err(failed)?;
    let pairs = echoes.train(PAIRS).await.map_err(failed)?;
    if pairs.is_empty() {
        return Err(format!("{server} answers no ICMP echoes"));
    }
    if bottleneck_bps(&pairs).is_none() {
        return Err(format!("of {PAIRS} ICMP echoes from {server} {} came", pairs.len()));
    }
    let mut trains = Vec::new();
    for _ in 0..TRAINS {
        trains.push(echoes.train(TRAIN).await.map_err(failed)?);
    }
    let bottleneck_bps = settled_bottleneck_bps(&pairs, &trains).ok_or_else(|| {
        format!(
            "a token bucket on the path from {server} lets echoes pass at once, whatever the path carries"
        )
    })?;
    Ok(MeasuredPath { bottleneck_bps, available_bps: echoes_available_bps(&trains) })
}

struct Echoes {
    socket: AsyncFd<Socket>,
    server: IpAddr,
    identifier: u16,
    /// Number of the next echo.
    next: u16,
    end: Instant,
}

impl Echoes {
    fn open(server: IpAddr) -> io::Result<Echoes> {
        let (domain, protocol) = match server {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
        socket.set_nonblocking(true)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        // Restricts the socket to this server's ICMP messages.
        socket.connect(&SocketAddr::new(server, 0).into())?;
        let mut identifier = [0; 2];
        random(&mut identifier)?;
        let (identifier, end) = (u16::from_be_bytes(identifier), Instant::now() + LIMIT);
        Ok(Echoes { socket: AsyncFd::new(socket)?, server, identifier, next: 0, end })
    }

    /// Sends `echoes` echoes at once, and returns the replies in order.
    async fn train(&mut self, echoes: u16) -> io::Result<Vec<ProbeArrival>> {
        let first = self.next;
        self.next += echoes;
        for number in first..self.next {
            match self.socket.get_ref().send(&self.echo(number)) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        let mut train: Vec<ProbeArrival> = Vec::new();
        while train.len() < usize::from(echoes) {
            let quiet = if train.is_empty() { LIMIT / 2 } else { QUIET };
            let Some((bytes, arrived_ns)) = self.receive(quiet).await? else { break };
            let Some(index) = self.number(&bytes).and_then(|number| number.checked_sub(first)) else {
                continue;
            };
            let is_new = index < echoes && !train.iter().any(|one| u16::from(one.index) == index);
            if let Some(index) = u8::try_from(index).ok().filter(|_| is_new) {
                train.push(ProbeArrival { index, sent_ns: 0, arrived_ns });
            }
        }
        train.sort_by_key(|one| one.index);
        Ok(train)
    }

    async fn receive(&self, quiet: Duration) -> io::Result<Option<(Vec<u8>, u64)>> {
        let until = self.end.min(Instant::now() + quiet);
        loop {
            let Ok(ready) = timeout_at(until, self.socket.readable()).await else { return Ok(None) };
            let mut buffer = vec![0; PACKET_LEN + 100];
            match ready?.try_io(|socket| receive_with_time(socket.get_ref(), &mut buffer)) {
                Ok(received) => {
                    let (len, at_ns) = received?;
                    buffer.truncate(len);
                    return Ok(Some((buffer, at_ns)));
                }
                Err(_would_block) => {}
            }
        }
    }

    fn echo(&self, number: u16) -> Vec<u8> {
        let kind = if self.server.is_ipv4() { icmp::ECHO } else { icmpv6::ECHO };
        let mut bytes = vec![kind, 0, 0, 0];
        bytes.extend(self.identifier.to_be_bytes());
        bytes.extend(number.to_be_bytes());
        bytes.resize(PACKET_LEN + HEADER_LEN, 0);
        // For ICMPv6 the kernel computes the checksum, which covers the addresses (RFC 3542,
        // section 3.1).
        if self.server.is_ipv4() {
            let sum = checksum::finish(checksum::add(0, &bytes));
            bytes[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }

    /// Returns the number of an echo reply of this probe. IPv4 packets include their header.
    fn number(&self, packet: &[u8]) -> Option<u16> {
        let (message, kind) = match self.server {
            IpAddr::V4(_) => (packet.get(usize::from(packet.first()? & 15) * 4..)?, icmp::ECHO_REPLY),
            IpAddr::V6(_) => (packet, icmpv6::ECHO_REPLY),
        };
        let [found, _, _, _, one, two, number @ ..] = message else { return None };
        let is_ours = (*found, u16::from_be_bytes([*one, *two])) == (kind, self.identifier);
        number.first_chunk().filter(|_| is_ours).map(|number| u16::from_be_bytes(*number))
    }
}
