//! Fields of a TCP header beyond ports and control bits. Only handshakes and connections that move
//! need them.

use zerocopy::FromBytes;

use super::Layers;
use crate::net::tcp::{TCP_LEN, TcpOptions};
use crate::net::wire::Tcp;

/// Sequence numbers, flags, window and options of a TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpHeader {
    /// Sequence number of the segment's first byte, or of its SYN.
    pub sequence: u32,
    /// Next sequence number that the sender expects.
    pub acknowledgment: u32,
    pub flags: u8,
    /// Receive window as in the header, not scaled.
    pub window: u16,
    pub options: TcpOptions,
}

impl TcpHeader {
    /// Reads the header of a well-formed TCP packet.
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

    /// Returns the payload of a TCP packet.
    pub fn payload<'a>(frame: &'a [u8], at: &Layers) -> &'a [u8] {
        let transport = frame.get(at.l4..at.l3 + at.len).unwrap_or_default();
        let header_len = Tcp::ref_from_prefix(transport).map_or(transport.len(), |(tcp, _)| tcp.header_len());
        transport.get(header_len..).unwrap_or_default()
    }
}
