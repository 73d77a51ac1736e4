//! Handling of segments that a server sends. Servers answer clients directly, so directors don't
//! see these segments. `outgoing` in `bpf/server/server.bpf.c` is the copy in C.
//!
//! Clients' segments must fit into the tunnel, so the MSS in a SYN or SYN-ACK is lowered (RFC 9293,
//! section 3.7.1). If exchanges are tracked, responses update the [`Exchange`].
//!
//! Some resets are held. If connections are handed off, a segment may overtake the first segment of
//! its connection, or arrive after the connection has moved to another host. Then the stack doesn't
//! know the connection, and answers the segment with a reset without acknowledgment (RFC 9293,
//! section 3.10.7.1). Such a reset is sent only if the segment arrives again.

use core::net::SocketAddr;

use super::exchange::{Exchange, Payload};
use super::segment::TcpSegment;
use super::{Offer, Reason, Tables};
use crate::net::Protocol;
use crate::net::checksum::ChecksumDelta;
use crate::net::tcp::{TCP_LEN, option, options};
use crate::net::wire::{TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN, TCP_URG};
use crate::path::cookie::FourTuple;
use crate::path::tables::VipKey;

/// A segment from one of this host's services.
#[derive(Clone, Copy, Debug)]
pub struct Leaving<'a> {
    pub ends: FourTuple,
    pub payload: Payload<'a>,
    flags: u8,
    offer: Offer,
    /// Start and end of the TCP options in the frame, in bytes.
    options: (usize, usize),
}

impl<'a> Leaving<'a> {
    /// Reads a frame. `None` if the frame has no TCP segment of this host's services.
    pub fn read(tables: &Tables, frame: &'a [u8]) -> Option<Leaving<'a>> {
        let segment = TcpSegment::read(frame)?;
        let (address, port) = (segment.src.ip(), segment.src.port());
        let offer = *tables.services.get(&VipKey { address, port, protocol: Protocol::Tcp })?;
        Some(Leaving {
            ends: FourTuple { client: segment.dst, service: SocketAddr::new(address, port) },
            payload: Payload {
                sequence: segment.tcp.seq.get(),
                acknowledgment: segment.tcp.ack.get(),
                urgent: segment.tcp.flags & TCP_URG != 0,
                // The IP header of a packet of more than 65,535 bytes doesn't have its length (BIG
                // TCP).
                data: frame.get(segment.l4_end..).unwrap_or_default(),
            },
            flags: segment.tcp.flags,
            offer,
            options: (segment.l4 + TCP_LEN, segment.l4_end),
        })
    }

    /// True if a reset has to be held until the segment that caused it arrives again.
    /// `was_seen_before` returns true if the segment that caused the reset had arrived before. It
    /// is called only for resets of the host's own stack (`is_own`), not for resets that a director
    /// sent or forwarded.
    pub fn is_held(&self, is_own: bool, was_seen_before: impl FnOnce() -> bool) -> bool {
        let is_reset = self.flags & (TCP_RST | TCP_ACK) == TCP_RST;
        is_reset && self.offer.listener.is_some() && is_own && !was_seen_before()
    }

    /// Returns the state of the exchange after this segment.
    pub fn follow(&self, known: Option<Exchange>) -> Option<Exchange> {
        let has_payload = !self.payload.data.is_empty() || self.flags & (TCP_FIN | TCP_RST) != 0;
        known.map(|mut exchange| {
            if self.offer.turns && self.flags & TCP_SYN == 0 && has_payload {
                exchange.answer(&self.payload, self.flags & (TCP_FIN | TCP_RST) != 0);
            }
            exchange
        })
    }

    /// Lowers the MSS option in the frame to the service's maximum. Returns the reason if the
    /// option was lowered.
    pub fn clamp(&self, frame: &mut [u8]) -> Option<Reason> {
        let most = self.offer.mss.filter(|_| self.flags & TCP_SYN != 0)?;
        let (begin, end) = self.options;
        let offered = options(frame.get(begin..end)?).filter_map(|(at, kind, body)| match (kind, body) {
            (option::MSS, &[high, low]) => Some((begin + at, u16::from_be_bytes([high, low]))),
            _ => None,
        });
        // If the option is repeated, the last one is valid.
        let (at, size) = offered.last()?;
        (size > most && self.lower(frame, at, most)).then_some(Reason::Clamped)
    }

    /// Writes the size into the option at `at`, and updates the checksum. The words of the checksum
    /// are counted from the start of the TCP header, so the option may begin in the middle of a
    /// word.
    fn lower(&self, frame: &mut [u8], at: usize, most: u16) -> bool {
        let l4 = self.options.0 - TCP_LEN;
        let as_summed = |size: u16| if (at - l4) % 2 == 1 { size.swap_bytes() } else { size }.to_be_bytes();
        let half = |place: usize| frame.get(place..place + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
        let (Some(sum), Some(was)) = (half(l4 + 16), half(at + 2)) else { return false };
        let sum = ChecksumDelta::of(&as_summed(was), &as_summed(most)).applied(sum);
        frame[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
        frame[at + 2..at + 4].copy_from_slice(&most.to_be_bytes());
        true
    }
}
