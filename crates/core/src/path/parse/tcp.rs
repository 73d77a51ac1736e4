//! What a TCP header says beyond ports and control bits; only handshakes and connections that move need it.

use zerocopy::FromBytes;

use super::{Layers, TCP_LEN};
use crate::net::wire::Tcp;

/// Kinds of options (RFC 9293, section 3.2; RFC 7323; RFC 2018).
pub(crate) mod option {
    pub(crate) const END: u8 = 0;
    pub(crate) const NOTHING: u8 = 1;
    pub(crate) const MSS: u8 = 2;
    pub(crate) const WINDOW_SCALE: u8 = 3;
    pub(crate) const SACK_PERMITTED: u8 = 4;
    pub(crate) const TIMESTAMP: u8 = 8;
}

/// A TCP header's numbers and options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpHeader {
    /// Of the first byte, or of SYN.
    pub sequence: u32,
    /// The next byte expected.
    pub acknowledgment: u32,
    /// Control bits.
    pub flags: u8,
    /// How much the sender takes, not scaled.
    pub window: u16,
    /// What options it has.
    pub options: TcpOptions,
}

/// The options that matter to a handshake, or to a connection that moves. One that is malformed ends the reading, as it does everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// The largest segment that the sender takes, in bytes.
    pub mss: Option<u16>,
    /// The sender's window scale.
    pub window_scale: Option<u8>,
    /// Whether the sender knows selective acknowledgments.
    pub sack: bool,
    /// The sender's clock.
    pub timestamp: Option<u32>,
    /// The other side's clock, as the sender has heard it last; beside its own.
    pub timestamp_echo: Option<u32>,
}

impl TcpHeader {
    /// Reads the header of a TCP packet that is well-formed.
    pub fn read(frame: &[u8], at: &Layers) -> Option<TcpHeader> {
        let transport = frame.get(at.l4..at.l3 + at.len)?;
        let (tcp, _) = Tcp::ref_from_prefix(transport).ok()?;
        let options = transport.get(TCP_LEN..header_len(tcp))?;
        Some(TcpHeader {
            sequence: tcp.seq.get(),
            acknowledgment: tcp.ack.get(),
            flags: tcp.flags,
            window: tcp.window.get(),
            options: TcpOptions::read(options),
        })
    }

    /// What stands behind the header of a TCP packet.
    pub fn payload<'a>(frame: &'a [u8], at: &Layers) -> &'a [u8] {
        let transport = frame.get(at.l4..at.l3 + at.len).unwrap_or_default();
        let header_len = Tcp::ref_from_prefix(transport).map_or(transport.len(), |(tcp, _)| header_len(tcp));
        transport.get(header_len..).unwrap_or_default()
    }
}

fn header_len(tcp: &Tcp) -> usize {
    usize::from(tcp.data_offset >> 4) * 4
}

impl TcpOptions {
    /// The window scale of a sender that knows selective acknowledgments, too: it is given both or neither.
    pub(crate) fn scale_with_sack(&self) -> Option<u8> {
        self.window_scale.filter(|_| self.sack)
    }

    pub(crate) fn read(mut rest: &[u8]) -> TcpOptions {
        let mut found = TcpOptions::default();
        while let Some((&kind, behind)) = rest.split_first() {
            if kind == option::END {
                break;
            }
            if kind == option::NOTHING {
                rest = behind;
                continue;
            }
            let len = behind.first().map_or(0, |len| usize::from(*len));
            let (Some(body), true) = (rest.get(2..len), len >= 2) else { break };
            match (kind, body) {
                (option::MSS, &[high, low]) => found.mss = Some(u16::from_be_bytes([high, low])),
                (option::WINDOW_SCALE, &[scale]) => found.window_scale = Some(scale),
                (option::SACK_PERMITTED, []) => found.sack = true,
                (option::TIMESTAMP, &[a, b, c, d, e, f, g, h]) => {
                    found.timestamp = Some(u32::from_be_bytes([a, b, c, d]));
                    found.timestamp_echo = Some(u32::from_be_bytes([e, f, g, h]));
                }
                _ => {}
            }
            rest = rest.get(len..).unwrap_or_default();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> TcpOptions {
        TcpOptions::read(bytes)
    }

    #[test]
    fn options_in_any_order() {
        let linux = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 1, 0, 0, 0, 2, 0, 1, 3, 3, 7];
        let expected = TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack: true,
            timestamp: Some(256),
            timestamp_echo: Some(512),
        };
        assert_eq!(read(&linux), expected);
        let other = [3, 3, 7, 1, 8, 10, 0, 0, 1, 0, 0, 0, 2, 0, 4, 2, 2, 4, 5, 180, 0, 9];
        assert_eq!(read(&other), expected);
    }

    #[test]
    fn a_malformed_option_ends_the_reading() {
        let mss = |rest: &[u8]| read(&[&[2, 4, 5, 180], rest].concat());
        let only = TcpOptions { mss: Some(1460), ..TcpOptions::default() };
        for rest in [&[4u8, 0, 4, 2][..], &[4, 1, 4, 2], &[8, 10, 0, 0], &[3], &[0, 4, 2], &[99, 40, 4, 2]] {
            assert_eq!(mss(rest), only, "{rest:?}");
        }
        assert_eq!(mss(&[99, 3, 0, 4, 2]), TcpOptions { sack: true, ..only }, "an unknown one is skipped");
        assert_eq!(read(&[2, 3, 5, 3, 4, 7, 7]), TcpOptions::default(), "of another length than it has");
    }
}
