//! Handshake of a probe of a handoff server. This host completes the handshake without the server,
//! as the data plane does for clients. The server then gets a first segment with data, as from a
//! client, and makes a socket from it. So one answer proves that handoffs to the server work.

use evener_core::net::packet::Packet;
use evener_core::net::wire::{ETHERNET_LEN, Ethernet, Mac, TCP_SYN};
use evener_core::path::cookie::{FourTuple, Keys, SynOptions};
use evener_core::path::parse::{Parsed, Segment, TcpHeader, parse};
use evener_core::path::rewrite::{self, SynAck};
use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::U16;

use super::link::ethertype;

/// Placeholder MAC address, which is on no link.
const HERE: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// Handles packets between a probe's own TCP and the link.
pub(super) struct SynCookie {
    keys: Keys,
    handed_over: bool,
}

/// Action for a packet that the probe sends.
pub(super) enum PacketAction {
    /// Send the packet to the server.
    Send,
    /// Answer with this packet, without the server.
    Answer(Vec<u8>),
    Swallow,
}

impl SynCookie {
    pub(super) fn new(keys: Keys) -> SynCookie {
        SynCookie { keys, handed_over: false }
    }

    /// Handles an IP packet that the probe sends.
    pub(super) fn handle_sent(&mut self, packet: &[u8]) -> PacketAction {
        if self.handed_over {
            return PacketAction::Send;
        }
        let v6 = packet.first().is_some_and(|first| first >> 4 == 6);
        let ethernet = Ethernet { dst: HERE, src: HERE, ethertype: U16::new(ethertype(v6)) };
        let mut frame = [ethernet.as_bytes(), packet].concat();
        let Parsed::Segment(segment) = parse(&frame, Some(HERE)) else { return PacketAction::Swallow };
        let Some(header) = TcpHeader::read(&frame, &segment.at) else { return PacketAction::Swallow };
        if segment.flags & TCP_SYN != 0 {
            return self.answer_syn(&mut frame, &segment, &header);
        }
        self.handed_over = !TcpHeader::payload(&frame, &segment.at).is_empty();
        if self.handed_over { PacketAction::Send } else { PacketAction::Swallow }
    }

    fn answer_syn(&self, frame: &mut [u8], segment: &Segment, header: &TcpHeader) -> PacketAction {
        let at = &segment.at;
        let terms = SynOptions::offered(at.dst.is_ipv6(), &header.options);
        let made = self.keys.make(&FourTuple::of(segment), header.sequence, terms);
        let Some(cookie) = made else { return PacketAction::Swallow };
        let mut packet = Packet::new(frame, 0, 0);
        // A probe's segments are short, so any MSS will do.
        let mss = header.options.mss.unwrap_or_default();
        rewrite::write_syn_ack(&mut packet, at, header, &SynAck { cookie, mss });
        PacketAction::Answer(packet.frame().get(ETHERNET_LEN..).unwrap_or_default().to_vec())
    }
}
