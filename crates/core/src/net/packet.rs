//! A packet in its buffer, with headroom for a longer header.

use crate::net::wire::{ETHERNET_LEN, Mac};

/// Headroom before a frame, in bytes. It fits the longest outer header (IPv6, UDP and GUE) and the
/// headers of an ICMP error about the packet.
pub const HEADROOM: usize = 64;

/// State of a packet's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checksum {
    /// The checksum is complete, correct or not.
    #[default]
    Whole,
    /// The field is only the sum of the pseudo-header. The sender is on this machine and left the
    /// rest to hardware.
    Partial,
}

/// A received frame with its metadata.
#[derive(Debug)]
pub struct Packet<'a> {
    buffer: &'a mut [u8],
    start: usize,
    end: usize,
    /// Index of the interface that received the frame.
    pub ingress: u32,
    /// State of the transport checksum.
    pub checksum: Checksum,
    /// Payload per packet in bytes, if the frame is a GSO packet that the kernel will segment.
    pub segment_len: Option<u16>,
}

impl<'a> Packet<'a> {
    /// Returns the packet whose frame begins after `headroom` bytes of `buffer`.
    pub fn new(buffer: &'a mut [u8], headroom: usize, ingress: u32) -> Self {
        let end = buffer.len();
        Packet {
            start: headroom.min(end),
            end,
            buffer,
            ingress,
            checksum: Checksum::Whole,
            segment_len: None,
        }
    }

    /// The frame, from the Ethernet header on.
    pub fn frame(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The frame, so that the caller can change it.
    pub fn frame_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }

    /// Offset of the frame in its buffer.
    pub fn start(&self) -> usize {
        self.start
    }

    /// True if [`Packet::relink`] with these lengths has enough headroom.
    pub fn has_headroom(&self, l3: usize, outer_len: usize, link_len: usize) -> bool {
        self.start + l3 >= outer_len + link_len
    }

    /// Makes room for `outer_len` bytes before the layer-three header at offset `l3`, and a link
    /// header of `link_len` bytes before that. The link header gets the first bytes of the old one
    /// (addresses, and VLAN tags if there are any), and `ethertype` at its end. Returns false and
    /// changes nothing if there is no room.
    #[must_use]
    pub fn relink(&mut self, l3: usize, outer_len: usize, link_len: usize, ethertype: u16) -> bool {
        if !self.has_headroom(l3, outer_len, link_len) || link_len < ETHERNET_LEN || l3 < ETHERNET_LEN {
            return false;
        }
        let start = self.start + l3 - outer_len - link_len;
        self.buffer.copy_within(self.start..self.start + l3.min(link_len), start);
        self.start = start;
        let at = start + link_len;
        self.buffer[at - 2..at].copy_from_slice(&ethertype.to_be_bytes());
        true
    }

    /// Shortens the frame to `len` bytes. Returns false if the frame is shorter than that.
    #[must_use]
    pub fn truncate(&mut self, len: usize) -> bool {
        let end = self.start + len;
        if end <= self.end {
            self.end = end;
        }
        end == self.end
    }

    /// Replaces the source MAC address.
    pub fn mark_source(&mut self, src: Mac) {
        if let Some(place) = self.frame_mut().get_mut(6..12) {
            place.copy_from_slice(&src.0);
        }
    }

    /// Replaces the MAC addresses.
    pub fn readdress(&mut self, src: Mac, dst: Mac) {
        let frame = self.frame_mut();
        if let Some(macs) = frame.get_mut(..12) {
            macs[..6].copy_from_slice(&dst.0);
            macs[6..].copy_from_slice(&src.0);
        }
    }
}
