//! A packet in its buffer, with room before it for a longer header.

use crate::net::wire::{ETHERNET_LEN, Mac};

/// Headroom before a frame, in bytes: the larger of the longest outer header (IPv6, UDP and GUE)
/// and the headers of an ICMP error about the packet.
pub const HEADROOM: usize = 64;

/// The state of a packet's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checksum {
    /// Complete checksum, correct or not.
    #[default]
    Whole,
    /// The sum of the pseudo-header only: the hardware was to finish it and didn't (a host on this
    /// machine).
    Partial,
}

/// A received frame with its metadata.
#[derive(Debug)]
pub struct Packet<'a> {
    buffer: &'a mut [u8],
    start: usize,
    end: usize,
    /// The interface it came in by.
    pub ingress: u32,
    /// The state of its transport checksum.
    pub checksum: Checksum,
    /// Payload per packet in bytes, if the frame is a GSO packet that the kernel will segment.
    pub segment_len: Option<u16>,
}

impl<'a> Packet<'a> {
    /// A frame that stands in `buffer` behind `headroom` bytes of room.
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

    /// The frame as it stands.
    pub fn frame(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The frame, to be changed.
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

    /// Makes room for `outer_len` bytes before the layer-three header at `l3`, and puts a link
    /// header of `link_len` bytes before that: the old one's first bytes (addresses, and tags where
    /// there are any) with `ethertype` at its end. Returns false, and changes nothing, where there
    /// is no room.
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

    /// Cuts the frame's end off, or adds zeros there where the buffer has room; whether it now has
    /// that length.
    #[must_use]
    pub fn truncate(&mut self, len: usize) -> bool {
        let end = self.start + len;
        if end <= self.end {
            self.end = end;
        }
        end == self.end
    }

    /// Another source MAC address.
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
