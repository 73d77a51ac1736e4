//! Trace events of the packet engine's threads, in a bounded channel. Events beyond its capacity
//! are lost.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use arc_swap::ArcSwap;
use evener_core::net::packet::Packet;
use evener_core::path::decide::{Decision, Opens, Reason};
use evener_core::path::parse::{PacketEndpoints, Parsed, TcpHeader, parse};
use evener_core::path::ports::{FIRST_PORT, PORTS};
use evener_core::path::tables::Tables;

use crate::events::{ConnectionEvent, EventSource, HEAD_MAX, PacketEvent, TraceEvent, TraceFilter};

/// Capacity of the channel.
pub(super) const WAITING_MAX: usize = 4096;

/// Active trace filter and sender of events.
#[derive(Debug)]
pub(super) struct EventSender {
    pub(super) watch: ArcSwap<TraceFilter>,
    sender: SyncSender<TraceEvent>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
pub(super) struct EventReceiver {
    receiver: Receiver<TraceEvent>,
    lost: Arc<AtomicU64>,
}

pub(super) fn channel() -> (EventSender, EventReceiver) {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let lost = Arc::new(AtomicU64::new(0));
    (
        EventSender { watch: ArcSwap::default(), sender, lost: Arc::clone(&lost) },
        EventReceiver { receiver, lost },
    )
}

impl EventSource for EventReceiver {
    fn read(&mut self, patience: Duration) -> io::Result<Vec<TraceEvent>> {
        match self.receiver.recv_timeout(patience) {
            Ok(first) => Ok([first].into_iter().chain(self.receiver.try_iter().take(WAITING_MAX)).collect()),
            Err(RecvTimeoutError::Timeout) => Ok(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

/// Facts about a packet for its event, read before the decision changes the packet.
pub(super) struct TraceContext {
    began_ns: u64,
    packet: Option<WatchedPacket>,
    opening: Option<Opening>,
}

/// Packet from or to a traced client.
enum WatchedPacket {
    Its(PacketEndpoints),
    /// Reply to a port of the director (`source_nat`). The decision will show whether its client is
    /// traced.
    Perhaps(PacketEndpoints),
}

/// Segment that may complete the request of a connection to a handoff service.
struct Opening {
    client: SocketAddr,
    service: SocketAddr,
    head: Vec<u8>,
}

impl TraceContext {
    /// Returns `None` if the filter selects no event for the packet.
    pub(super) fn of(watch: &TraceFilter, tables: &Tables, packet: &Packet<'_>) -> Option<TraceContext> {
        let opening = watch.connections.then(|| opening(tables, packet)).flatten();
        let noted = || WatchedPacket::of(watch, tables, PacketEndpoints::of(packet.frame())?);
        let packet = (!watch.clients.is_empty()).then(noted).flatten();
        (opening.is_some() || packet.is_some()).then(|| TraceContext { began_ns: now_ns(), packet, opening })
    }
}

impl WatchedPacket {
    fn of(watch: &TraceFilter, tables: &Tables, glance: PacketEndpoints) -> Option<WatchedPacket> {
        let is_watched = |end: SocketAddr| watch.clients.contains(&end.ip());
        let port = usize::from(glance.dst.port()).checked_sub(FIRST_PORT.into());
        if is_watched(glance.src) || is_watched(glance.dst) {
            return Some(WatchedPacket::Its(glance));
        }
        (!tables.endpoints.is_empty() && port.is_some_and(|port| port < PORTS))
            .then_some(WatchedPacket::Perhaps(glance))
    }

    /// Returns the endpoints for the event, or `None` without one. `frame` is the packet after the
    /// decision.
    fn decided(self, watch: &TraceFilter, decision: &Decision, frame: &[u8]) -> Option<PacketEndpoints> {
        match self {
            WatchedPacket::Its(glance) => Some(glance),
            WatchedPacket::Perhaps(_) if !matches!(decision.reason, Reason::Answered | Reason::HostStack) => {
                None
            }
            WatchedPacket::Perhaps(glance) => {
                let PacketEndpoints { dst, .. } = PacketEndpoints::of(frame)?;
                watch.clients.contains(&dst.ip()).then_some(PacketEndpoints { dst, ..glance })
            }
        }
    }
}

fn opening(tables: &Tables, packet: &Packet<'_>) -> Option<Opening> {
    let own = tables.interfaces.get(&packet.ingress).copied();
    let Parsed::Segment(segment) = parse(packet.frame(), own) else { return None };
    tables.vips.get(&segment.vip_key())?.handoff?;
    let wants = TcpHeader::payload(packet.frame(), &segment.at);
    Some(Opening {
        client: SocketAddr::new(segment.at.src, segment.src_port),
        service: SocketAddr::new(segment.at.dst, segment.dst_port),
        head: wants.get(..HEAD_MAX).unwrap_or(wants).to_vec(),
    })
    .filter(|opening| !opening.head.is_empty())
}

impl EventSender {
    /// Sends the events of a decided packet. `frame` is the packet after the decision.
    pub(super) fn trace(&self, watch: &TraceFilter, before: TraceContext, decision: &Decision, frame: &[u8]) {
        let TraceContext { began_ns, packet, opening } = before;
        let at_ns = now_ns();
        if let (Opens::Request { route }, Some(opening)) = (decision.selected.opens, opening) {
            let Opening { client, service, head } = opening;
            self.send(TraceEvent::Connection(ConnectionEvent {
                at_ns,
                latency_ns: u32::try_from(at_ns.saturating_sub(began_ns)).unwrap_or(u32::MAX),
                client,
                service,
                server: decision.selected.server,
                reason: decision.reason,
                also_counted: decision.selected.also_counted,
                route,
                head,
            }));
        }
        let packet = packet.and_then(|noted| noted.decided(watch, decision, frame));
        if let Some(PacketEndpoints { src, dst, protocol, tcp_flags, len }) = packet {
            self.send(TraceEvent::Packet(PacketEvent {
                at_ns,
                src,
                dst,
                protocol,
                tcp_flags,
                len,
                verdict: decision.verdict.into(),
                reason: decision.reason,
                also_counted: decision.selected.also_counted,
                server: decision.server(),
            }));
        }
    }

    fn send(&self, event: TraceEvent) {
        if self.sender.try_send(event).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
    }
}

/// Current time of CLOCK_MONOTONIC in nanoseconds, finer than [`crate::now_ns`].
fn now_ns() -> u64 {
    use nix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map(|time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
        .unwrap_or_default()
}
