//! Network device for smoltcp: adds and removes the Ethernet headers of IP packets. So smoltcp does
//! not resolve the service's address, which every server of the service has.

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

/// TCP receive window: the maximum number of unacknowledged bytes from a server.
pub(super) const WINDOW: usize = 8 * 1024;
/// MTU advertised to servers in bytes. Packets of this size fit everywhere, including overlay
/// networks.
const MTU: usize = 1280;
/// Buffer size for a whole window with the longest headers, since kernels merge segments before
/// they deliver them (RFC 791, section 3.1; RFC 9293, section 3.1; IPv6 headers are shorter without
/// extensions).
const FRAME_MAX: usize = ETHERNET_LEN + 60 + 60 + WINDOW;

pub(super) struct Device<'a> {
    /// Link that packets arrive on.
    link: &'a ProbeSocket,
    out: Egress<'a>,
    buffer: Box<[u8]>,
}

/// Output side of the device.
pub(super) struct Egress<'a> {
    link: &'a ProbeSocket,
    hop: Adjacency,
    /// Outer header of packets that go through a tunnel.
    outer: Option<ProbeTunnel>,
    /// Local handshake, which answers the first packets before any packet is sent to the server.
    syn_cookie: Option<SynCookie>,
    /// Packets of the local handshake that are to be received.
    answers: VecDeque<Vec<u8>>,
    /// Reason why the link can't be used any more.
    failure: Option<Failure>,
}

pub(super) struct ReceiveToken<'d>(&'d [u8]);

impl<'a> Device<'a> {
    /// Receives on one link, and sends on the other link, only to this MAC address.
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

    /// True if the local handshake has produced packets to receive.
    pub(super) fn has_answers(&self) -> bool {
        !self.out.answers.is_empty()
    }

    /// Fails if the link can't be used any more.
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
        // Servers with checksum offload leave checksums to a network card, which may be virtual. So
        // received checksums are not verified.
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
