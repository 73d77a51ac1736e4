//! Headers in wire format: unaligned, big-endian views over bytes.
//!
//! Views only define the layout; [`crate::path::parse`] checks the values.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr};
use core::str::FromStr;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// EtherType of IPv4 (RFC 894).
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP (RFC 826).
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of IPv6 (RFC 2464, section 3).
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherType of a VLAN tag (IEEE 802.1Q).
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of a service VLAN tag (IEEE 802.1ad).
pub const ETHERTYPE_QINQ: u16 = 0x88a8;

/// "Don't fragment" in [`Ipv4::fragment`] (RFC 791, section 3.1).
pub const IPV4_DONT_FRAGMENT: u16 = 0x4000;
/// "More fragments" in [`Ipv4::fragment`].
pub const IPV4_MORE_FRAGMENTS: u16 = 0x2000;
/// Fragment offset in [`Ipv4::fragment`], in units of eight bytes.
pub const IPV4_FRAGMENT_OFFSET: u16 = 0x1fff;

/// IANA protocol numbers of transports and extension headers.
pub mod protocol {
    /// IPv6 hop-by-hop options (RFC 8200, section 4.3).
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    /// IPv4 packet inside an IP packet (RFC 2003).
    pub const IPV4: u8 = 4;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    /// IPv6 packet inside an IP packet (RFC 2473).
    pub const IPV6: u8 = 41;
    /// IPv6 routing header (RFC 8200, section 4.4).
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header (RFC 8200, section 4.5).
    pub const FRAGMENT: u8 = 44;
    /// Authentication header (RFC 4302).
    pub const AUTHENTICATION: u8 = 51;
    pub const ICMPV6: u8 = 58;
    /// IPv6 destination options (RFC 8200, section 4.6).
    pub const DESTINATION_OPTIONS: u8 = 60;
}

/// UDP port of Generic UDP Encapsulation, assigned by IANA.
pub const GUE_PORT: u16 = 6080;

/// ICMP types (RFC 792).
pub mod icmp {
    /// Answer to an echo request.
    pub const ECHO_REPLY: u8 = 0;
    pub const UNREACHABLE: u8 = 3;
    /// Code of [`UNREACHABLE`]: the packet is too long, and must not be fragmented (RFC 1191,
    /// section 4).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    pub const ECHO: u8 = 8;
    pub const TIME_EXCEEDED: u8 = 11;
    pub const PARAMETER_PROBLEM: u8 = 12;
}

/// ICMPv6 types (RFC 4443; RFC 4861, section 4).
pub mod icmpv6 {
    /// Destination unreachable, the first type of the errors.
    pub const UNREACHABLE: u8 = 1;
    pub const TOO_BIG: u8 = 2;
    /// Parameter problem, the last type of the errors used here.
    pub const PARAMETER_PROBLEM: u8 = 4;
    pub const ECHO: u8 = 128;
    /// Answer to an echo request.
    pub const ECHO_REPLY: u8 = 129;
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Announcement of a target's MAC address.
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
}

/// TCP control bits (RFC 9293, section 3.1).
pub const TCP_FIN: u8 = 0x01;
pub const TCP_SYN: u8 = 0x02;
pub const TCP_RST: u8 = 0x04;
/// Acknowledgment field is significant.
pub const TCP_ACK: u8 = 0x10;
/// Urgent pointer field is significant.
pub const TCP_URG: u8 = 0x20;

/// ARP operation: request for the MAC address of an IP address (RFC 826).
pub const ARP_REQUEST: u16 = 1;
/// ARP operation: reply with a MAC address.
pub const ARP_REPLY: u16 = 2;

/// Length of an Ethernet header without tags, in bytes.
pub const ETHERNET_LEN: usize = 14;
/// Length of an ARP body for IPv4 over Ethernet, in bytes.
pub const ARP_LEN: usize = 28;

/// A 48-bit MAC address.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// True if the group bit is set (IEEE 802, section 8.2): multicast or broadcast.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True for a valid address of one station: neither a group address nor all zeros.
    pub fn is_unicast(self) -> bool {
        !self.is_multicast() && self.0 != [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not a MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a MAC address: write six pairs of hex digits, as in 02:00:5e:10:00:01")]
pub struct MacError;

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let mut mac = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut mac {
            let part = parts.next().filter(|p| p.len() == 2).ok_or(MacError)?;
            // `from_str_radix` would accept a sign.
            if !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(MacError);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| MacError)?;
        }
        if parts.next().is_some() { Err(MacError) } else { Ok(Mac(mac)) }
    }
}

/// An Ethernet II header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ethernet {
    pub dst: Mac,
    pub src: Mac,
    /// Protocol of the payload.
    pub ethertype: U16,
}

/// An IPv4 header without options (RFC 791, section 3.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv4 {
    /// Version in the high four bits, header length in 32-bit words in the low four.
    pub version_ihl: u8,
    pub tos: u8,
    /// Length of header and payload, in bytes.
    pub total_len: U16,
    pub id: U16,
    /// Flags and fragment offset; see [`IPV4_FRAGMENT_OFFSET`].
    pub fragment: U16,
    pub ttl: u8,
    pub protocol: u8,
    pub checksum: U16,
    pub src: U32,
    pub dst: U32,
}

/// An IPv6 header (RFC 8200, section 3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv6 {
    /// Version in the high four bits, then traffic class and flow label.
    pub version_class_flow: U32,
    /// Number of bytes after this header.
    pub payload_len: U16,
    /// Protocol of the next header.
    pub next_header: u8,
    pub hop_limit: u8,
    pub src: [u8; 16],
    pub dst: [u8; 16],
}

/// An IPv6 fragment header (RFC 8200, section 4.5).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FragmentHeader {
    /// Protocol of the fragmented part.
    pub next_header: u8,
    /// Must be zero on transmission.
    pub reserved: u8,
    /// Offset in units of eight bytes in the high 13 bits; "more fragments" in the lowest.
    pub offset_more: U16,
    pub id: U32,
}

/// The first fields of ICMP and ICMPv6 messages (RFC 792; RFC 4443, section 2.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Icmp {
    /// Type of the message.
    pub kind: u8,
    /// Code within the type.
    pub code: u8,
    /// Checksum, in ICMPv6 with a pseudo-header.
    pub checksum: U16,
    /// Field that depends on the type.
    pub rest: U32,
}

/// A neighbour solicitation or advertisement without options (RFC 4861, sections 4.3 and 4.4).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Neighbour {
    /// ICMPv6 header; `rest` contains an advertisement's flags.
    pub icmp: Icmp,
    /// Target address of the solicitation or advertisement.
    pub target: [u8; 16],
}

/// A TCP header without options (RFC 9293, section 3.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Tcp {
    pub src_port: U16,
    pub dst_port: U16,
    pub seq: U32,
    pub ack: U32,
    /// Data offset in 32-bit words in the high four bits.
    pub data_offset: u8,
    pub flags: u8,
    pub window: U16,
    pub checksum: U16,
    pub urgent: U16,
}

/// A UDP header (RFC 768).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Udp {
    pub src_port: U16,
    pub dst_port: U16,
    /// Length of header and payload, in bytes.
    pub len: U16,
    pub checksum: U16,
}

/// An ARP body for IPv4 over Ethernet (RFC 826).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Arp {
    /// 1 for Ethernet.
    pub hardware_type: U16,
    /// 0x0800 for IPv4.
    pub protocol_type: U16,
    /// Length of a MAC address: 6 bytes.
    pub hardware_len: u8,
    /// Length of an IPv4 address: 4 bytes.
    pub protocol_len: u8,
    /// Either [`ARP_REQUEST`] or [`ARP_REPLY`].
    pub operation: U16,
    pub sender_mac: Mac,
    pub sender_ip: U32,
    /// MAC address of the target; zero in a request.
    pub target_mac: Mac,
    pub target_ip: U32,
}

impl Arp {
    /// True if lengths and types are those of IPv4 over Ethernet.
    pub fn is_ipv4_over_ethernet(&self) -> bool {
        self.hardware_type.get() == 1
            && self.protocol_type.get() == ETHERTYPE_IPV4
            && self.hardware_len == 6
            && self.protocol_len == 4
    }
}

/// Returns a broadcast ARP request for `target`. With `sender` equal to `target` it is an
/// announcement; with 0.0.0.0 a probe (RFC 5227, sections 1.1 and 3).
pub fn arp_request(own: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> [u8; ETHERNET_LEN + ARP_LEN] {
    let ethernet = Ethernet { dst: Mac::BROADCAST, src: own, ethertype: U16::new(ETHERTYPE_ARP) };
    let arp = Arp {
        hardware_type: U16::new(1),
        protocol_type: U16::new(ETHERTYPE_IPV4),
        hardware_len: 6,
        protocol_len: 4,
        operation: U16::new(ARP_REQUEST),
        sender_mac: own,
        sender_ip: U32::new(sender.to_bits()),
        target_mac: Mac::default(),
        target_ip: U32::new(target.to_bits()),
    };
    let mut frame = [0; ETHERNET_LEN + ARP_LEN];
    let (head, body) = frame.split_at_mut(ETHERNET_LEN);
    head.copy_from_slice(ethernet.as_bytes());
    body.copy_from_slice(arp.as_bytes());
    frame
}

/// Bytes of an IP address in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Octets {
    Four([u8; 4]),
    Six([u8; 16]),
}

impl Octets {
    pub(crate) fn of(address: IpAddr) -> Octets {
        match address {
            IpAddr::V4(address) => Octets::Four(address.octets()),
            IpAddr::V6(address) => Octets::Six(address.octets()),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Octets::Four(bytes) => bytes,
            Octets::Six(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn mac_text_goes_both_ways() {
        let mac: Mac = "02:00:5E:10:00:0a".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:5e:10:00:0a");
        assert_eq!("02-00-5e-10-00-0a".parse(), Ok(mac));
        for bad in ["", "02:00:5e:10:00", "02:00:5e:10:00:0a:01", "2:0:5e:10:0:a", "+2:00:5e:10:00:0a"] {
            assert_eq!(bad.parse::<Mac>(), Err(MacError), "{bad}");
        }
    }

    #[test]
    fn headers_have_their_wire_lengths() {
        assert_eq!(size_of::<Ethernet>(), ETHERNET_LEN);
        assert_eq!(size_of::<Ipv4>(), 20);
        assert_eq!(size_of::<Ipv6>(), 40);
        assert_eq!(size_of::<Neighbour>(), 24);
        assert_eq!(size_of::<Tcp>(), 20);
        assert_eq!(size_of::<Udp>(), 8);
        assert_eq!(size_of::<Arp>(), ARP_LEN);
    }
}
