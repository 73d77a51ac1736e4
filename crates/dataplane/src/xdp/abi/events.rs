//! Trace events and their filter, in the format of the kernel's maps.

use std::net::{IpAddr, SocketAddr};

use evener_core::path::content::NO_ROUTE;
use evener_core::path::decide::Reason;

use super::{c, from_bytes, h, ip, ip_of, words};
use crate::events::{
    CLIENTS_MAX, ConnectionEvent, HEAD_MAX, PacketEvent, TraceEvent, TraceFilter, TracedVerdict,
};

pub(in crate::xdp) const WATCH_WORDS: usize = size_of::<c::watch>() / 8;
/// Index of the word with the count of lost events.
pub(in crate::xdp) const LOST_WORD: usize = 1;
const EVENT_LEN: usize = size_of::<c::event>();

pub(in crate::xdp) const WATCH_CONNECTIONS: u64 = h::WATCH_CONNECTIONS;
pub(in crate::xdp) const WATCH_CLIENTS: u64 = h::WATCH_CLIENTS;

const EVENT_CONNECTION: u8 = h::EVENT_CONNECTION as u8;
const EVENT_PACKET: u8 = h::EVENT_PACKET as u8;
const TRACED_FORWARD: u8 = h::TRACED_FORWARD as u8;
const TRACED_PASS: u8 = h::TRACED_PASS as u8;
const TRACED_DROP: u8 = h::TRACED_DROP as u8;
const TRACED_HOLD: u8 = h::TRACED_HOLD as u8;

// The build fails if C and Rust differ.
const _: () = {
    assert!(WATCH_WORDS * 8 == size_of::<c::watch>() && WATCH_WORDS == 2 + 2 * CLIENTS_MAX);
    assert!(std::mem::offset_of!(c::watch, lost) == LOST_WORD * 8);
    assert!(std::mem::offset_of!(c::event, head) + HEAD_MAX == EVENT_LEN);
    assert!(h::CLIENTS_MAX == CLIENTS_MAX as u64 && h::HEAD_MAX == HEAD_MAX as u64);
};

/// Returns the filter as words; the count of lost events is left 0.
pub(in crate::xdp) fn watch(watch: &TraceFilter) -> [u64; WATCH_WORDS] {
    let what = |is: bool, what: u64| if is { what } else { 0 };
    let mapped = |address: &IpAddr| match address {
        IpAddr::V4(address) => ip(address.to_ipv6_mapped().into()),
        IpAddr::V6(_) => ip(*address),
    };
    // Unused entries repeat a client: an all-zero entry could match a packet.
    let mut clients = watch.clients.iter().map(mapped).cycle();
    words(&c::watch {
        what: what(watch.connections, WATCH_CONNECTIONS) | what(!watch.clients.is_empty(), WATCH_CLIENTS),
        lost: 0,
        client: [0; CLIENTS_MAX].map(|_| clients.next().unwrap_or_default()),
    })
}

/// Decodes a record of the ring buffer `events`; `None` for a kind that this version does not know.
pub(in crate::xdp) fn event_of(record: &[u8]) -> Option<TraceEvent> {
    // A record ends with the used part of the head.
    let mut whole = [0; EVENT_LEN];
    whole.get_mut(..record.len())?.copy_from_slice(record);
    let event: c::event = from_bytes(&whole)?;
    let end = |address, port| SocketAddr::new(ip_of(address, event.v6 != 0), u16::from_be(port));
    let (src, dst) = (end(event.src, event.src_port), end(event.dst, event.dst_port));
    let reason = *Reason::ALL.get(usize::from(event.reason))?;
    let also_counted = match event.also_counted {
        0 => None,
        also_counted => Some(*Reason::ALL.get(usize::from(also_counted))?),
    };
    match event.kind {
        EVENT_CONNECTION => Some(TraceEvent::Connection(ConnectionEvent {
            at_ns: event.at_ns,
            latency_ns: event.latency_ns,
            client: src,
            service: dst,
            server: event.server,
            reason,
            also_counted,
            route: (event.route != NO_ROUTE).then_some(event.route),
            head: event.head.get(..usize::from(event.head_len))?.to_vec(),
        })),
        EVENT_PACKET => Some(TraceEvent::Packet(PacketEvent {
            at_ns: event.at_ns,
            src,
            dst,
            protocol: event.protocol,
            tcp_flags: event.flags,
            len: event.len,
            verdict: match event.verdict {
                TRACED_FORWARD => TracedVerdict::Forward,
                TRACED_PASS => TracedVerdict::Pass,
                TRACED_HOLD => TracedVerdict::Hold,
                TRACED_DROP => TracedVerdict::Drop,
                _ => return None,
            },
            reason,
            also_counted,
            server: event.server,
        })),
        _ => None,
    }
}
