//! Length and options of a TCP header. Directors and servers use the same rules. `bpf/net/tcp.h` is
//! this module's copy in C.

use crate::net::wire::Tcp;

/// Length of a TCP header without options, in bytes.
pub const TCP_LEN: usize = 20;

impl Tcp {
    /// Length of the header in bytes; a value below [`TCP_LEN`] is invalid.
    pub fn header_len(&self) -> usize {
        usize::from(self.data_offset >> 4) * 4
    }
}

/// Kinds of options (RFC 9293, section 3.2; RFC 7323; RFC 2018).
pub mod option {
    /// End of the options; only padding follows.
    pub const END: u8 = 0;
    /// Padding of one byte.
    pub const NOTHING: u8 = 1;
    /// Maximum segment size of the sender.
    pub const MSS: u8 = 2;
    pub const WINDOW_SCALE: u8 = 3;
    /// The sender supports selective acknowledgments.
    pub const SACK_PERMITTED: u8 = 4;
    /// Timestamp of the sender, and the echoed timestamp of its peer.
    pub const TIMESTAMP: u8 = 8;
}

/// Returns the options of a header with offset, kind and value. A malformed option ends the list,
/// as in all stacks.
pub fn options(bytes: &[u8]) -> impl Iterator<Item = (usize, u8, &[u8])> {
    let mut at = 0;
    core::iter::from_fn(move || {
        loop {
            let begin = at;
            let (&kind, behind) = bytes.get(begin..)?.split_first()?;
            match kind {
                option::END => return None,
                option::NOTHING => at += 1,
                _ => {
                    let len = usize::from(*behind.first()?);
                    let body = bytes.get(begin + 2..begin + len)?;
                    at += len;
                    return Some((begin, kind, body));
                }
            }
        }
    })
}

/// Options that matter for a handshake, or for a connection that moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Maximum segment size of the sender, in bytes.
    pub mss: Option<u16>,
    /// Window scale of the sender.
    pub window_scale: Option<u8>,
    /// True if the sender supports selective acknowledgments.
    pub sack: bool,
    /// Timestamp of the sender.
    pub timestamp: Option<u32>,
    /// Echoed timestamp of the peer.
    pub timestamp_echo: Option<u32>,
}

impl TcpOptions {
    /// Window scale of a sender that also supports selective acknowledgments. Directors negotiate
    /// both options or neither.
    pub(crate) fn scale_with_sack(&self) -> Option<u8> {
        self.window_scale.filter(|_| self.sack)
    }

    /// Parses the options after the fixed header.
    pub fn read(bytes: &[u8]) -> TcpOptions {
        let mut found = TcpOptions::default();
        for (_, kind, body) in options(bytes) {
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
