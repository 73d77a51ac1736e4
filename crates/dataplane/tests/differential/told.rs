//! Trace events: the C program's events must equal the events made here from the core's decision.

use std::net::SocketAddr;

use evener_core::path::decide::{Decision, Opens, Reason};
use evener_core::path::parse::{PacketEndpoints, Parsed, TcpHeader, parse};
use evener_core::path::ports::{FIRST_PORT, PORTS};
use evener_dataplane::events::{ConnectionEvent, HEAD_MAX, PacketEvent, TraceEvent, TraceFilter};

use crate::world::{OWN, client};

/// Returns a filter that matches few clients, so that packets of other clients take the path
/// without a trace.
pub fn watch() -> TraceFilter {
    let clients = [(false, 0), (false, 1), (true, 0), (true, 12)].map(|(v6, number)| client(v6, number));
    TraceFilter { connections: true, clients: clients.into() }
}

/// Removes the times, which differ between clocks.
pub fn without_clock(mut event: TraceEvent) -> TraceEvent {
    match &mut event {
        TraceEvent::Connection(connection) => {
            assert!(connection.at_ns >= u64::from(connection.latency_ns) && connection.latency_ns > 0);
            (connection.at_ns, connection.latency_ns) = (0, 0);
        }
        TraceEvent::Packet(packet) => {
            assert!(packet.at_ns > 0);
            packet.at_ns = 0;
        }
    }
    event
}

/// Returns the expected events of a frame with this decision.
pub fn expected(frame: &[u8], decision: &Decision, after: &[u8]) -> Vec<TraceEvent> {
    connection(frame, decision).into_iter().chain(packet(frame, decision, after)).collect()
}

fn connection(frame: &[u8], decision: &Decision) -> Option<TraceEvent> {
    let Opens::Request { route } = decision.selected.opens else { return None };
    let Parsed::Segment(segment) = parse(frame, Some(OWN)) else { panic!("{frame:02x?} begins nothing") };
    let wants = TcpHeader::payload(frame, &segment.at);
    Some(TraceEvent::Connection(ConnectionEvent {
        at_ns: 0,
        latency_ns: 0,
        client: SocketAddr::new(segment.at.src, segment.src_port),
        service: SocketAddr::new(segment.at.dst, segment.dst_port),
        server: decision.selected.server,
        reason: decision.reason,
        also_counted: decision.selected.also_counted,
        route,
        head: wants[..wants.len().min(HEAD_MAX)].to_vec(),
    }))
}

fn packet(frame: &[u8], decision: &Decision, after: &[u8]) -> Option<TraceEvent> {
    let is_watched = |end: SocketAddr| watch().clients.contains(&end.ip());
    let PacketEndpoints { src, mut dst, protocol, tcp_flags, len } = PacketEndpoints::of(frame)?;
    let mut is_traced = is_watched(src) || is_watched(dst);
    if !is_traced
        && (FIRST_PORT..FIRST_PORT + PORTS as u16).contains(&dst.port())
        && matches!(decision.reason, Reason::Answered | Reason::HostStack)
    {
        dst = PacketEndpoints::of(after)?.dst;
        is_traced = is_watched(dst);
    }
    is_traced.then_some(TraceEvent::Packet(PacketEvent {
        at_ns: 0,
        src,
        dst,
        protocol,
        tcp_flags,
        len,
        verdict: decision.verdict.into(),
        reason: decision.reason,
        also_counted: decision.selected.also_counted,
        server: decision.server(),
    }))
}
