//! Timestamps of answers: what an engine's clock says is not known before.

use evener_core::wire::ETHERNET_LEN;

/// Stands in a frame for what the clock says, with the checksum that goes with it.
pub(super) const NOW: u32 = u32::from_be_bytes(*b"now?");
/// The option's kind and length (RFC 7323, section 3.2).
const TIMESTAMP: [u8; 2] = [8, 10];

/// The frame that was expected, with the clock that was seen; as it is if it tells no clock.
pub(super) fn told(expected: &[u8], seen: &[u8]) -> Vec<u8> {
    tell(expected, seen).unwrap_or_else(|| expected.to_vec())
}

fn tell(expected: &[u8], seen: &[u8]) -> Option<Vec<u8>> {
    let mark = [&TIMESTAMP[..], &NOW.to_be_bytes()].concat();
    let at = expected.windows(mark.len()).position(|bytes| bytes == mark)? + TIMESTAMP.len();
    let clock: [u8; 4] = seen.get(at..at + 4)?.try_into().ok()?;
    let mut frame = expected.to_vec();
    frame.get_mut(at..at + 4)?.copy_from_slice(&clock);
    let place = frame.get_mut(checksum_of(expected)?..)?.first_chunk_mut::<2>()?;
    *place = changed(*place, NOW.to_be_bytes(), clock);
    Some(frame)
}

/// Where the TCP checksum is, behind an IP header without options.
fn checksum_of(frame: &[u8]) -> Option<usize> {
    let mut l3 = ETHERNET_LEN;
    while let [0x81, 0x00] | [0x88, 0xa8] = frame.get(l3 - 2..l3)? {
        l3 += 4;
    }
    let ip_len = if frame.get(l3)? >> 4 == 6 { 40 } else { 20 };
    Some(l3 + ip_len + 16)
}

/// A checksum after four bytes that it covers have changed (RFC 1624, equation 3).
fn changed(checksum: [u8; 2], from: [u8; 4], to: [u8; 4]) -> [u8; 2] {
    let words = |[a, b, c, d]: [u8; 4]| [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
    let mut sum = u32::from(!u16::from_be_bytes(checksum));
    sum += words(from).map(|word| u32::from(!word)).iter().sum::<u32>();
    sum += words(to).map(u32::from).iter().sum::<u32>();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}
