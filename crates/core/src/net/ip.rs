//! IP headers before the transport: invalid source addresses, fragments, extension headers.
//! Directors and servers use the same rules. `bpf/net/ip.h` is this module's copy in C.

use core::net::IpAddr;

use zerocopy::FromBytes;

use crate::net::wire::{FragmentHeader, protocol};

/// Length of an IPv4 header without options, in bytes.
pub const IPV4_LEN: usize = 20;
/// Length of the fixed IPv6 header, in bytes.
pub const IPV6_LEN: usize = 40;
/// Maximum number of extension headers before the transport. Each kind should occur only once (RFC
/// 8200, section 4.1).
const EXTENSIONS_MAX: usize = 6;
/// Minimum length of an extension header, in bytes.
const EXTENSION_LEN: usize = 8;
/// Maximum length of a packet, in bytes (RFC 791, section 3.1).
const PACKET_MAX: usize = 65_535;

/// True if no client can have this source address (RFC 1812, section 5.3.7; RFC 4291, sections
/// 2.5.2, 2.5.3, 2.5.5 and 2.7): an address of "this network", a loopback, IPv4-mapped, multicast
/// or reserved address, or the service's own address.
pub fn is_martian(src: IpAddr, dst: IpAddr) -> bool {
    let is_unusable = match src {
        IpAddr::V4(src) => matches!(src.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(src) => src.is_multicast() || src.to_bits() >> 48 == 0,
    };
    is_unusable || src == dst
}

/// Reason why the headers before the transport are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The packet is for another host: its routing header has segments left.
    Foreign,
    /// The packet ends within an extension header.
    Truncated,
    /// There are too many extension headers, or headers in wrong order or of forbidden kind.
    Extensions,
    /// The length or the offset of the fragment is impossible.
    Length,
}

/// A fragment of a packet (RFC 791, section 3.2; RFC 8200, section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Identification among packets of the same source, destination and protocol.
    pub id: u32,
    /// Offset of the fragment, in units of eight bytes.
    pub offset: u16,
    /// True if more fragments follow.
    pub more: bool,
    /// End of the fragment, in units of eight bytes, rounded up.
    pub end: u16,
}

impl Fragment {
    /// Returns the fragment of `len` bytes at `offset`; `None` for a whole packet (RFC 6946).
    ///
    /// # Errors
    /// [`Fault::Length`] if length or offset are impossible.
    pub fn read(id: u32, offset: u16, more: bool, len: usize) -> Result<Option<Fragment>, Fault> {
        if offset == 0 && !more {
            return Ok(None);
        }
        let end = usize::from(offset) * 8 + len;
        if len == 0 || end > PACKET_MAX || (more && !len.is_multiple_of(8)) {
            return Err(Fault::Length);
        }
        Ok(Some(Fragment { id, offset, more, end: end.div_ceil(8) as u16 }))
    }
}

/// The transport after the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperLayer {
    /// IANA protocol number of the transport.
    pub protocol: u8,
    /// Offset of the transport from the end of the fixed header. It may exceed the packet.
    pub offset: usize,
    /// Position in the whole packet, if the packet is a fragment.
    pub fragment: Option<Fragment>,
}

/// Walks the extension headers of a packet whose `payload` follows the fixed header.
///
/// # Errors
/// The headers are invalid.
pub fn walk(payload: &[u8], first: u8) -> Result<UpperLayer, Fault> {
    let mut next = first;
    let mut offset = 0;
    let mut seen = None;
    for number in 0..=EXTENSIONS_MAX {
        match next {
            protocol::HOP_BY_HOP if number != 0 => return Err(Fault::Extensions),
            protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::DESTINATION_OPTIONS
            | protocol::FRAGMENT
            | protocol::AUTHENTICATION => {}
            protocol => return Ok(UpperLayer { protocol, offset, fragment: seen }),
        }
        if number == EXTENSIONS_MAX {
            break;
        }
        let header = payload.get(offset..).and_then(|rest| rest.first_chunk::<EXTENSION_LEN>());
        let Some(header @ &[following, len, kind, left, ..]) = header else {
            return Err(Fault::Truncated);
        };
        match next {
            protocol::FRAGMENT => {
                if seen.is_some() {
                    return Err(Fault::Extensions);
                }
                offset += EXTENSION_LEN;
                let header = FragmentHeader::read_from_bytes(header).map_err(|_| Fault::Truncated)?;
                let word = header.offset_more.get();
                seen = Fragment::read(header.id.get(), word >> 3, word & 1 != 0, payload.len() - offset)?;
                if seen.is_some_and(|fragment| fragment.offset != 0) {
                    return Ok(UpperLayer { protocol: following, offset, fragment: seen });
                }
            }
            // Type 0 is forbidden, since it allows loops (RFC 5095). A routing header with segments
            // left means that the packet's destination is not the final one.
            protocol::ROUTING if kind == 0 => return Err(Fault::Extensions),
            protocol::ROUTING if left != 0 => return Err(Fault::Foreign),
            // The length is in units of four bytes. In IPv6 the header's length must be a multiple
            // of eight (RFC 4302, section 2.2).
            protocol::AUTHENTICATION if len < 2 || len % 2 != 0 => return Err(Fault::Extensions),
            protocol::AUTHENTICATION => offset += (usize::from(len) + 2) * 4,
            _ => offset += (usize::from(len) + 1) * 8,
        }
        next = following;
    }
    Err(Fault::Extensions)
}
