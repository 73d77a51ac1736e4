//! The network card that smoltcp sees: IP packets in and out, the Ethernet header put on and taken
//! off here. So smoltcp need not resolve the server's address, which every server of the service
//! has.

use std::collections::VecDeque;

use evener_core::net::wire::{ETHERNET_LEN, Ethernet};
use evener_core::pool::health::Failure;
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::U16;

use super::Adjacency;
use super::link::{ProbeSocket, ethertype};
use super::outer::ProbeTunnel;
use super::syn_cookie::{PacketAction, SynCookie};

/// The most that a server may send unacknowledged, in bytes.
pub(super) const WINDOW: usize = 8 * 1024;
/// As told to servers, in bytes: passes everywhere, overlay networks included.
const MTU: usize = 1280;
/// A whole window, with the longest headers (RFC 791, section 3.1; RFC 9293, section 3.1; IPv6's is
/// shorter without extensions): kernels merge segments before they hand them out.
const FRAME_MAX: usize = ETHERNET_LEN + 60 + 60 + WINDOW;

/// The card.
pub(super) struct Device<'a> {
    /// Where packets come.
    link: &'a ProbeSocket,
    out: Egress<'a>,
    buffer: Box<[u8]>,
}

/// Where packets leave.
pub(super) struct Egress<'a> {
    link: &'a ProbeSocket,
    hop: Adjacency,
    /// The outer header of packets.
    outer: Option<ProbeTunnel>,
    /// The handshake that is answered before anything leaves.
    syn_cookie: Option<SynCookie>,
    /// The answers.
    answers: VecDeque<Vec<u8>>,
    /// Why the link can't be used any more.
    failure: Option<Failure>,
}

/// A packet that came.
pub(super) struct ReceiveToken<'d>(&'d [u8]);

impl<'a> Device<'a> {
    /// Hears on one link; sends on the other, to this station and no other.
    pub(super) fn new(
        received: &'a ProbeSocket,
        sent: &'a ProbeSocket,
        hop: Adjacency,
        outer: Option<ProbeTunnel>,
        syn_cookie: Option<SynCookie>,
    ) -> Self {
        let out = Egress { link: sent, hop, outer, syn_cookie, answers: VecDeque::new(), failure: None };
        Device { link: received, out, buffer: vec![0; FRAME_MAX].into() }
    }

    /// Whether something is there to be received that no link brings.
    pub(super) fn has_answers(&self) -> bool {
        !self.out.answers.is_empty()
    }

    /// Why the link can't be used any more, if so.
    pub(super) fn failure(&mut self) -> Result<(), Failure> {
        self.out.failure.take().map_or(Ok(()), Err)
    }
}

impl<'a> phy::Device for Device<'a> {
    type RxToken<'d>
        = ReceiveToken<'d>
    where
        Self: 'd;
    type TxToken<'d>
        = &'d mut Egress<'a>
    where
        Self: 'd;

    fn receive(&mut self, _now: Instant) -> Option<(ReceiveToken<'_>, &mut Egress<'a>)> {
        if let Some(answer) = self.out.answers.pop_front() {
            let place = self.buffer.get_mut(..answer.len())?;
            place.copy_from_slice(&answer);
            return Some((ReceiveToken(place), &mut self.out));
        }
        match self.link.receive(&mut self.buffer) {
            Ok(frame) => Some((ReceiveToken(frame?.get(ETHERNET_LEN..).unwrap_or_default()), &mut self.out)),
            Err(failure) => {
                self.out.failure = Some(failure);
                None
            }
        }
    }

    fn transmit(&mut self, _now: Instant) -> Option<&mut Egress<'a>> {
        Some(&mut self.out)
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        // Servers behind checksum offload leave checksums to a card that there may not be.
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
    }
}

impl phy::RxToken for ReceiveToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

impl phy::TxToken for &mut Egress<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut packet = vec![0; len];
        let filled = fill(&mut packet);
        match self.syn_cookie.as_mut().map(|syn_cookie| syn_cookie.handle_sent(&packet)) {
            None | Some(PacketAction::Send) => self.send(&packet),
            Some(PacketAction::Answer(answer)) => self.answers.push_back(answer),
            Some(PacketAction::Swallow) => {}
        }
        filled
    }
}

impl Egress<'_> {
    /// Sends an IP packet to the server.
    fn send(&mut self, packet: &[u8]) {
        let headers = self.outer.map(|outer| outer.headers(packet)).unwrap_or_default();
        let outermost = headers.first().or(packet.first()).copied().unwrap_or_default();
        let ethernet = Ethernet {
            dst: self.hop.mac,
            src: self.hop.own_mac,
            ethertype: U16::new(ethertype(outermost >> 4 == 6)),
        };
        let frame = [ethernet.as_bytes(), &headers, packet].concat();
        if let Err(failure) = self.link.send(&frame) {
            self.failure = Some(failure);
        }
    }
}
