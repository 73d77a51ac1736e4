//! TCP segments that the director itself sends. They are written over the client's segment, and are
//! not longer than that segment.

use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::{U16, U32};

use super::{Octets, TTL, fields, put, send_back};
use crate::net::checksum;
use crate::net::packet::{Checksum, Packet};
use crate::net::tcp::{TCP_LEN, option};
use crate::net::wire::{IPV4_DONT_FRAGMENT, TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN, Tcp, protocol};
use crate::path::cookie::{Cookie, RCV_WSCALE, SynOptions};
use crate::path::parse::{Layers, TcpHeader};

/// Window offered with a cookie, in bytes. The window of a SYN-ACK is never scaled (RFC 7323,
/// section 2.2).
const WINDOW: u16 = 65_535;
/// Maximum length of the options of an answer, in bytes. Linux sends as many at most.
const OPTIONS_MAX: usize = 20;

/// Fields of the answer to a SYN.
#[derive(Clone, Copy, Debug)]
pub struct SynAck {
    /// Initial sequence number and timestamp.
    pub cookie: Cookie,
    /// Maximum segment size to offer, in bytes.
    pub mss: u16,
}

/// Turns a whole SYN without IP options into its SYN-ACK. The SYN-ACK offers a subset of the SYN's
/// options, so it is not longer than the SYN.
pub fn write_syn_ack(packet: &mut Packet<'_>, at: &Layers, syn: &TcpHeader, syn_ack: &SynAck) {
    let mut options = AnswerOptions::default();
    let offered = syn.options;
    let scaling = offered.scale_with_sack().is_some();
    if offered.mss.is_some() {
        let [high, low] = syn_ack.mss.to_be_bytes();
        options.push(&[option::MSS, 4, high, low]);
    }
    let nothing = [option::NOTHING, option::NOTHING];
    let sack = if scaling { [option::SACK_PERMITTED, 2] } else { nothing };
    if let Some(theirs) = offered.timestamp {
        options.push(&sack);
        options.push(&[option::TIMESTAMP, 10]);
        options.push(&syn_ack.cookie.clock.to_be_bytes());
        options.push(&theirs.to_be_bytes());
    } else if scaling {
        options.push(&nothing);
        options.push(&sack);
    }
    if scaling {
        options.push(&[option::NOTHING, option::WINDOW_SCALE, 3, RCV_WSCALE]);
    }
    let fields = TcpFields {
        sequence: syn_ack.cookie.number,
        acknowledgment: syn.sequence.wrapping_add(1),
        flags: TCP_SYN | TCP_ACK,
        window: WINDOW,
    };
    answer(packet, at, &fields, options.bytes());
}

/// Turns a keep-alive probe without IP options into its acknowledgment. `terms` are the options of
/// the handshake. The acknowledgment has the probe's options, so it is not longer than the probe.
pub fn acknowledge(packet: &mut Packet<'_>, at: &Layers, probe: &TcpHeader, terms: SynOptions) {
    let mut options = AnswerOptions::default();
    if let Some((theirs, ours)) = probe.options.timestamp.zip(probe.options.timestamp_echo) {
        options.push(&[option::NOTHING, option::NOTHING, option::TIMESTAMP, 10]);
        options.push(&ours.to_be_bytes());
        options.push(&theirs.to_be_bytes());
    }
    let scale = terms.window_scale.map_or(0, |_| RCV_WSCALE);
    let fields = TcpFields {
        sequence: probe.acknowledgment,
        acknowledgment: probe.sequence.wrapping_add(1),
        flags: TCP_ACK,
        window: WINDOW >> scale,
    };
    answer(packet, at, &fields, options.bytes());
}

/// Turns a packet into the reset that answers it (RFC 9293, section 3.5.2).
pub fn reset(packet: &mut Packet<'_>, at: &Layers, to: &TcpHeader) {
    let fields = if to.flags & TCP_ACK != 0 {
        TcpFields { sequence: to.acknowledgment, acknowledgment: 0, flags: TCP_RST, window: 0 }
    } else {
        // A FIN counts as one byte. A SYN would, too, but is never answered with a reset.
        let payload_len =
            TcpHeader::payload(packet.frame(), at).len() as u32 + u32::from(to.flags & TCP_FIN != 0);
        let acknowledgment = to.sequence.wrapping_add(payload_len);
        TcpFields { sequence: 0, acknowledgment, flags: TCP_RST | TCP_ACK, window: 0 }
    };
    answer(packet, at, &fields, &[]);
}

#[derive(Default)]
struct AnswerOptions {
    bytes: [u8; OPTIONS_MAX],
    len: usize,
}

impl AnswerOptions {
    fn push(&mut self, more: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.len..self.len + more.len()) {
            place.copy_from_slice(more);
            self.len += more.len();
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

struct TcpFields {
    sequence: u32,
    acknowledgment: u32,
    flags: u8,
    window: u16,
}

/// Overwrites a packet with an answer to its sender.
fn answer(packet: &mut Packet<'_>, at: &Layers, tcp: &TcpFields, options: &[u8]) {
    let v6 = at.dst.is_ipv6();
    let tcp_len = TCP_LEN + options.len();
    let len = at.l4 - at.l3 + tcp_len;
    debug_assert!(len <= at.len, "an answer is no longer than what it answers");
    if !packet.truncate(at.l3 + len) {
        return;
    }
    send_back(packet);
    packet.segment_len = None;
    let partial = packet.checksum == Checksum::Partial;
    let frame = packet.frame_mut();
    let places = fields(v6);
    put(frame, at.l3 + places.src, Octets::of(at.dst).bytes());
    put(frame, at.l3 + places.dst, Octets::of(at.src).bytes());
    if v6 {
        put(frame, at.l3, &(6u32 << 28).to_be_bytes());
        put(frame, at.l3 + 4, &(tcp_len as u16).to_be_bytes());
        if let Some(hops) = frame.get_mut(at.l3 + places.ttl) {
            *hops = TTL;
        }
    } else {
        let [high, low] = (len as u16).to_be_bytes();
        let [flags, offset] = IPV4_DONT_FRAGMENT.to_be_bytes();
        put(frame, at.l3, &[0x45, 0, high, low, 0, 0, flags, offset, TTL, protocol::TCP, 0, 0]);
        let sum = checksum::finish(checksum::add(0, frame.get(at.l3..at.l4).unwrap_or_default()));
        put(frame, at.l3 + 10, &sum.to_be_bytes());
    }
    let Some(transport) = frame.get_mut(at.l4..at.l4 + tcp_len) else { return };
    let (src_port, dst_port) = ([transport[2], transport[3]], [transport[0], transport[1]]);
    let header = Tcp {
        src_port: U16::from_bytes(src_port),
        dst_port: U16::from_bytes(dst_port),
        seq: U32::new(tcp.sequence),
        ack: U32::new(tcp.acknowledgment),
        data_offset: (tcp_len as u8 / 4) << 4,
        flags: tcp.flags,
        window: U16::new(tcp.window),
        checksum: U16::new(0),
        urgent: U16::new(0),
    };
    transport[..TCP_LEN].copy_from_slice(header.as_bytes());
    transport[TCP_LEN..].copy_from_slice(options);
    let pseudo = checksum::pseudo_header(at.src, at.dst, protocol::TCP, tcp_len);
    // If the hardware would have completed the checksum of the client's segment, it completes this
    // checksum.
    let sum =
        if partial { !checksum::finish(pseudo) } else { checksum::finish(checksum::add(pseudo, transport)) };
    transport[16..18].copy_from_slice(&sum.to_be_bytes());
}
