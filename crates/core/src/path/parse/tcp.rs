//! The fields of a TCP header beyond ports and control bits; only handshakes and connections that
//! move need them.

use zerocopy::FromBytes;

use super::Layers;
use crate::net::tcp::{TCP_LEN, TcpOptions};
use crate::net::wire::Tcp;

/// A TCP header's numbers and options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpHeader {
    /// Of the first byte, or of SYN.
    pub sequence: u32,
    /// The next byte expected.
    pub acknowledgment: u32,
    pub flags: u8,
    /// Receive window, not scaled.
    pub window: u16,
    pub options: TcpOptions,
}

impl TcpHeader {
    /// Reads the header of a TCP packet that is well-formed.
    pub fn read(frame: &[u8], at: &Layers) -> Option<TcpHeader> {
        let transport = frame.get(at.l4..at.l3 + at.len)?;
        let (tcp, _) = Tcp::ref_from_prefix(transport).ok()?;
        let options = transport.get(TCP_LEN..tcp.header_len())?;
        Some(TcpHeader {
            sequence: tcp.seq.get(),
            acknowledgment: tcp.ack.get(),
            flags: tcp.flags,
            window: tcp.window.get(),
            options: TcpOptions::read(options),
        })
    }

    /// The payload of a TCP packet.
    pub fn payload<'a>(frame: &'a [u8], at: &Layers) -> &'a [u8] {
        let transport = frame.get(at.l4..at.l3 + at.len).unwrap_or_default();
        let header_len = Tcp::ref_from_prefix(transport).map_or(transport.len(), |(tcp, _)| tcp.header_len());
        transport.get(header_len..).unwrap_or_default()
    }
}
