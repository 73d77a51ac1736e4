//! Cuts merged frames (GRO, TSO) into the packets that they consist of.
//!
//! The kernel would cut them on output, but not inside a tunnel that it does not know, nor for a
//! raw socket.

use std::ops::Range;

use evener_core::net::checksum;
use evener_core::net::wire::protocol;

const TCP_FIN_PSH: u8 = 0x09;
const TCP_CWR: u8 = 0x80;
const UDP_LEN: usize = 8;

/// Frame with the payload of several packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gathered<'f> {
    /// Frame, from the link header on.
    pub(super) frame: &'f [u8],
    /// Offset of the tunnel's IP header; `None` without a tunnel.
    pub(super) outer: Option<usize>,
    /// Offset of the packet's IP header.
    pub(super) l3: usize,
    /// Offset of the packet's transport header.
    pub(super) l4: usize,
    /// True for UDP, false for TCP.
    pub(super) udp: bool,
    /// Payload bytes per packet.
    pub(super) segment_len: usize,
}

/// Packets cut from one frame, one behind the other.
#[derive(Debug, Default)]
pub(super) struct Segments {
    bytes: Vec<u8>,
    ends: Vec<Range<usize>>,
}

impl Segments {
    /// Cuts a frame. Each segment consists of `before` zero bytes, the link header and the packet.
    /// A frame with invalid headers yields no segments.
    pub(super) fn cut(&mut self, gathered: &Gathered<'_>, before: usize) {
        self.bytes.clear();
        self.ends.clear();
        let Some((headers, payload)) = parts(gathered) else { return };
        let count = payload.len().div_ceil(gathered.segment_len.max(1));
        for (number, chunk) in payload.chunks(gathered.segment_len.max(1)).enumerate() {
            let start = self.bytes.len();
            self.bytes.resize(start + before, 0);
            self.bytes.extend_from_slice(headers);
            self.bytes.extend_from_slice(chunk);
            let segment = &mut self.bytes[start + before..];
            let place =
                SegmentPosition { number, offset: number * gathered.segment_len, last: number + 1 == count };
            finish_segment(segment, gathered, place);
            self.ends.push(start..self.bytes.len());
        }
    }

    pub(super) fn each(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let mut rest = self.bytes.as_mut_slice();
        self.ends.iter().map_while(move |range| {
            let (segment, behind) = std::mem::take(&mut rest).split_at_mut_checked(range.len())?;
            rest = behind;
            Some(segment)
        })
    }
}

/// Splits a frame into headers and payload. Returns `None` if the headers are invalid.
fn parts<'f>(gathered: &Gathered<'f>) -> Option<(&'f [u8], &'f [u8])> {
    let Gathered { frame, l3, l4, udp, .. } = *gathered;
    let len = match frame.get(l3)? >> 4 {
        4 => half(frame, l3 + 2)?,
        _ => 40 + half(frame, l3 + 4)?,
    };
    let header_len = if udp { UDP_LEN } else { usize::from(frame.get(l4 + 12)? >> 4) * 4 };
    let payload = frame.get(l4 + header_len..l3 + len)?;
    Some((frame.get(..l4 + header_len)?, payload))
}

/// Position of a segment in its frame.
#[derive(Clone, Copy)]
struct SegmentPosition {
    number: usize,
    /// Payload bytes of the frame before this segment.
    offset: usize,
    last: bool,
}

fn finish_segment(segment: &mut [u8], gathered: &Gathered<'_>, place: SegmentPosition) {
    let Gathered { outer, l3, l4, udp, .. } = *gathered;
    if let Some(outer) = outer {
        finish_ip(segment, outer, place.number);
        let (at, next) = match segment.get(outer).map(|byte| byte >> 4) {
            Some(4) => (outer + 20, segment.get(outer + 9)),
            _ => (outer + 40, segment.get(outer + 6)),
        };
        if next == Some(&protocol::UDP) {
            put(segment, at + 4, (segment.len() - at) as u16);
        }
    }
    finish_ip(segment, l3, place.number);
    if udp {
        put(segment, l4 + 4, (segment.len() - l4) as u16);
    } else {
        finish_tcp(segment, l4, place);
    }
    put_transport_checksum(segment, l3, l4, udp);
}

/// Sets length, identification and header checksum of an IP header.
fn finish_ip(segment: &mut [u8], at: usize, number: usize) {
    let len = segment.len() - at;
    if segment.get(at).is_none_or(|byte| byte >> 4 != 4) {
        put(segment, at + 4, (len - 40) as u16);
        return;
    }
    put(segment, at + 2, len as u16);
    // Fragments of two packets must not share an identification (RFC 6864, section 4.1).
    let id = half(segment, at + 4).unwrap_or_default() as u16;
    put(segment, at + 4, id.wrapping_add(number as u16));
    put(segment, at + 10, 0);
    let sum = segment.get(at..at + 20).map_or(0, |header| checksum::add(0, header));
    put(segment, at + 10, checksum::finish(sum));
}

/// Sets the sequence number, and clears flags that belong to the first or the last segment only.
fn finish_tcp(segment: &mut [u8], l4: usize, place: SegmentPosition) {
    if let Some(place_of) = segment.get_mut(l4 + 4..l4 + 8).and_then(|bytes| bytes.first_chunk_mut::<4>()) {
        let sequence = u32::from_be_bytes(*place_of).wrapping_add(place.offset as u32);
        *place_of = sequence.to_be_bytes();
    }
    if let Some(flags) = segment.get_mut(l4 + 13) {
        if !place.last {
            *flags &= !TCP_FIN_PSH;
        }
        // Only the first segment has CWR (RFC 3168, section 6.1.2).
        if place.number != 0 {
            *flags &= !TCP_CWR;
        }
    }
}

fn put_transport_checksum(segment: &mut [u8], l3: usize, l4: usize, udp: bool) {
    let at = l4 + if udp { 6 } else { 16 };
    put(segment, at, 0);
    let addresses = if segment.get(l3).is_some_and(|byte| byte >> 4 == 4) { 12..20 } else { 8..40 };
    let (Some(addresses), Some(transport)) =
        (segment.get(l3 + addresses.start..l3 + addresses.end), segment.get(l4..))
    else {
        return;
    };
    let next = if udp { protocol::UDP } else { protocol::TCP };
    let pseudo = checksum::add(checksum::add(0, addresses), &(transport.len() as u32).to_be_bytes());
    let sum = folded(pseudo + u32::from(next), transport);
    put(segment, at, if udp && sum == 0 { 0xffff } else { sum });
}

/// Completes a partial checksum in software. It covers the bytes from `start` on. The field at
/// `start + offset` holds the sum of the pseudo-header.
pub(super) fn finish_checksum(frame: &mut [u8], start: usize, offset: usize) {
    let Some(covered) = frame.get(start..) else { return };
    let sum = folded(0, covered);
    // UDP sends a zero checksum as 0xffff (RFC 768); for TCP both values are equal.
    put(frame, start + offset, if sum == 0 { 0xffff } else { sum });
}

/// Returns the checksum of bytes added to a sum. Unlike core's version it adds four bytes at a
/// time, because whole packets are summed here.
fn folded(sum: u32, bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<4>();
    let words: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let folded = (words & 0xffff) + (words >> 16 & 0xffff) + (words >> 32);
    let folded = (folded & 0xffff) + (folded >> 16);
    checksum::finish(checksum::add((sum & 0xffff) + (sum >> 16) + folded as u32, rest))
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..)?.first_chunk::<2>().map(|half| usize::from(u16::from_be_bytes(*half)))
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Link header, an outer IPv4 header with UDP and GUE, an inner packet of `payload` bytes.
    fn frame(v6: bool, udp: bool, payload: usize) -> (Vec<u8>, usize, usize) {
        let l3 = 14 + 20 + 12;
        let transport_len = if udp { 8 } else { 32 };
        let mut frame = vec![0; l3];
        frame[14] = 0x45;
        frame[18..20].copy_from_slice(&[0xff, 0xff]);
        frame[23] = protocol::UDP;
        let next = if udp { protocol::UDP } else { protocol::TCP };
        let len = (transport_len + payload) as u16;
        if v6 {
            frame.extend([0x60, 0, 0, 0]);
            frame.extend(len.to_be_bytes());
            frame.extend([next, 64]);
            frame.extend([7; 32]);
        } else {
            frame.extend([0x45, 0]);
            frame.extend((20 + len).to_be_bytes());
            frame.extend([0, 9, 0x40, 0, 64, next, 0, 0]);
            frame.extend([7; 8]);
        }
        let l4 = frame.len();
        frame.resize(l4 + transport_len, 0);
        if !udp {
            frame[l4 + 4..l4 + 8].copy_from_slice(&u32::MAX.to_be_bytes());
            frame[l4 + 12] = 0x80;
            frame[l4 + 13] = 0x10 | TCP_FIN_PSH | TCP_CWR;
        }
        frame.extend((0..payload).map(|n| n as u8));
        (frame, l3, l4)
    }

    /// True if the transport checksum is right: the one's complement sum with the pseudo-header is
    /// all ones.
    fn is_whole(segment: &[u8], l3: usize, l4: usize, udp: bool) -> bool {
        let addresses = if segment[l3] >> 4 == 4 { 12..20 } else { 8..40 };
        let pseudo = checksum::add(0, &segment[l3 + addresses.start..l3 + addresses.end]);
        let len = (segment.len() - l4) as u32 + if udp { 17 } else { 6 };
        checksum::finish(checksum::add(checksum::add(pseudo, &len.to_be_bytes()), &segment[l4..])) == 0
    }

    #[test]
    fn segments_are_the_packets_that_the_frame_stands_for() {
        for (v6, udp) in [(false, false), (false, true), (true, false), (true, true)] {
            let (frame, l3, l4) = frame(v6, udp, 2500);
            let gathered = Gathered { frame: &frame, outer: Some(14), l3, l4, udp, segment_len: 1000 };
            let mut segments = Segments::default();
            segments.cut(&gathered, 10);
            let header_len = if udp { 8 } else { 32 };
            let mut payload = Vec::new();
            for (number, segment) in segments.each().enumerate() {
                assert_eq!(segment[..10], [0; 10]);
                let segment = &segment[10..];
                payload.extend_from_slice(&segment[l4 + header_len..]);
                assert_eq!(half(segment, 16).unwrap(), segment.len() - 14, "outer length");
                assert_eq!(half(segment, 38).unwrap(), segment.len() - 34, "outer UDP length");
                assert_eq!(checksum::finish(checksum::add(0, &segment[14..34])), 0, "outer checksum");
                assert_eq!(half(segment, 18).unwrap() as u16, 0xffff_u16.wrapping_add(number as u16));
                if v6 {
                    assert_eq!(half(segment, l3 + 4).unwrap(), segment.len() - l4);
                } else {
                    assert_eq!(half(segment, l3 + 2).unwrap(), segment.len() - l3);
                    assert_eq!(checksum::finish(checksum::add(0, &segment[l3..l3 + 20])), 0);
                }
                assert!(is_whole(segment, l3, l4, udp), "transport checksum");
                if !udp {
                    let sequence = u32::MAX.wrapping_add(number as u32 * 1000);
                    assert_eq!(segment[l4 + 4..l4 + 8], sequence.to_be_bytes());
                    let flags = [0x10 | TCP_CWR, 0x10, 0x10 | TCP_FIN_PSH][number];
                    assert_eq!(segment[l4 + 13], flags);
                }
            }
            assert_eq!(payload, frame[l4 + header_len..]);
            assert_eq!(payload.len(), 2500);
        }
    }

    #[test]
    fn malformed_headers_give_no_segments() {
        let (frame, l3, l4) = frame(false, false, 100);
        let mut segments = Segments::default();
        for len in 0..frame.len() {
            let gathered =
                Gathered { frame: &frame[..len], outer: Some(14), l3, l4, udp: false, segment_len: 40 };
            segments.cut(&gathered, 0);
            assert_eq!(segments.each().count(), 0, "{len}");
        }
        segments.cut(&Gathered { frame: &frame, outer: None, l3, l4: 60_000, udp: true, segment_len: 0 }, 0);
        assert_eq!(segments.each().count(), 0);
    }

    #[test]
    fn a_checksum_left_to_the_hardware_is_finished() {
        for odd in [0, 1] {
            let (mut frame, l3, l4) = frame(false, true, 101 + odd);
            let len = (frame.len() - l4) as u32 + 17;
            let pseudo = !checksum::finish(checksum::add(checksum::add(0, &[7; 8]), &len.to_be_bytes()));
            put(&mut frame, l4 + 6, pseudo);
            finish_checksum(&mut frame, l4, 6);
            assert!(is_whole(&frame, l3, l4, true));
        }
    }
}
