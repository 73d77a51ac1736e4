//! Fast path for most packets: whole, untagged IPv4 packets that leave their session in steady
//! state unchanged, and packets for no service.
//!
//! The fast path is the slow path without the steps that such packets don't need, so it never
//! decides otherwise. Doubtful packets take the slow path from its beginning. The fast path changes
//! and counts nothing until the decision is certain. For packets of sessions it skips the check for
//! martian source addresses, since no packet with a martian source ever opens a session. In C, a
//! reply can take the fast path, too, if its session stays unchanged and its route was looked up a
//! moment ago. In Rust that would gain nothing.

use core::net::Ipv4Addr;

use super::choose::{Selected, client_side};
use super::flow::Flow;
use super::follow::{PacketSide, next_value};
use super::{Decide, Decision, Reason};
use crate::net::Protocol;
use crate::net::ip::is_martian;
use crate::net::tcp::TCP_LEN;
use crate::net::wire::{ETHERNET_LEN, ETHERTYPE_IPV4, TCP_FIN, TCP_RST, TCP_SYN, TCP_URG};
use crate::path::arrival::Arrival;
use crate::path::cookie::SYN_SEEN;
use crate::path::parse::{Layers, Segment, UDP_LEN};
use crate::path::sessions::{State, Value};
use crate::path::tables::RehandoffMode;

/// Bytes of an IPv4 header without options.
const IPV4_LEN: usize = 20;
/// Minimum length of a frame on the fast path: the headers of a TCP packet. UDP frames are seldom
/// shorter.
const HEADERS_LEN: usize = ETHERNET_LEN + IPV4_LEN + TCP_LEN;
/// Mask of the flag "more fragments" and the fragment offset.
const FRAGMENT: u16 = 0x3fff;
/// Control bits of segments that may change their session's state.
const SELDOM: u8 = TCP_SYN | TCP_FIN | TCP_RST | TCP_URG;

impl Decide<'_, '_> {
    /// Decides a packet that can take the fast path. `None` for all others.
    pub(super) fn fast_path(&mut self) -> Option<Decision> {
        let tables = self.tables;
        let (segment, has_data) = self.read_whole()?;
        let Some(vip) = tables.vips.get(&segment.vip_key()) else {
            // The slow path drops a packet with a martian source if its destination is a service's
            // address.
            return match is_martian(segment.at.src, segment.at.dst) {
                true => None,
                false if tables.endpoints.is_empty() => Some(Decision::pass(Reason::NotService)),
                false => Some(self.decide_reply(&segment)),
            };
        };
        let flow = self.client_flow(&segment, vip);
        if segment.flags & SELDOM != 0 || flow.arrival != Arrival::Direct {
            return None;
        }
        let value = self.memory.sessions.find(flow.key, flow.hash, flow.now)?.value;
        let server = tables.servers.get(&value.server())?;
        // A UDP packet whose server is down may select another server.
        if self.selects_new_server(&flow, value) {
            return None;
        }
        let value = unwritten(&flow, client_side(Some(server)), value)?;
        if let Some(handoff) = vip.handoff {
            // A later request may belong to another server, so the slow path reads it.
            let is_read = handoff.later != RehandoffMode::Stay && has_data;
            if is_read || value.mark() & SYN_SEEN != 0 || server.is_down() {
                return None;
            }
        }
        let selected = Selected { session: Some(value), ..Selected::of(value.server()) };
        Some(self.send_to_server(&flow, selected))
    }

    /// Reads a well-formed packet. The second value is true if the packet is a TCP segment with
    /// payload.
    fn read_whole(&self) -> Option<(Segment, bool)> {
        let frame = self.packet.frame();
        let head: &[u8; HEADERS_LEN] = frame.first_chunk()?;
        let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let own = self.tables.interfaces.get(&self.packet.ingress)?;
        if head[..6] != own.0 || head[6] & 1 != 0 || half(12) != ETHERTYPE_IPV4 || head[14] != 0x45 {
            return None;
        }
        let len = usize::from(half(16));
        if ETHERNET_LEN + len > frame.len() || half(20) & FRAGMENT != 0 {
            return None;
        }
        let protocol = [Protocol::Tcp, Protocol::Udp].into_iter().find(|one| one.number() == head[23])?;
        let (is_tcp, body_len) = (protocol == Protocol::Tcp, len.checked_sub(IPV4_LEN)?);
        let (least, header_len, all) = match is_tcp {
            true => (TCP_LEN, usize::from(head[46] >> 4) * 4, body_len),
            // The length field of UDP includes the payload.
            false => (UDP_LEN, usize::from(half(38)), body_len),
        };
        if header_len < least || header_len > all {
            return None;
        }
        let at = Layers {
            l3: ETHERNET_LEN,
            l4: ETHERNET_LEN + IPV4_LEN,
            len,
            src: Ipv4Addr::from_bits(word(26)).into(),
            dst: Ipv4Addr::from_bits(word(30)).into(),
            protocol: head[23],
            fragment: None,
        };
        let [flags, sequence, acknowledgment] =
            if is_tcp { [head[47].into(), word(38), word(42)] } else { [0; 3] };
        let (src_port, dst_port) = (half(34), half(36));
        let segment =
            Segment { at, protocol, src_port, dst_port, flags: flags as u8, sequence, acknowledgment };
        Some((segment, is_tcp && header_len < body_len))
    }
}

/// Returns the session's value after this packet. `None` unless the session is in steady state and
/// the value needn't be stored.
fn unwritten(flow: &Flow<'_>, side: PacketSide, old: Value) -> Option<Value> {
    let new = next_value(flow, side, old).unwrap_or(old);
    let stays = old.state() == State::at_work(flow.segment.protocol) && !flow.is_stale(old, new);
    stays.then_some(new)
}
