//! Parses a frame into the fields that a decision needs, or the reason why there is nothing to
//! decide.
//!
//! The order of the checks matters, so the C code has the same order. A packet that can't be for a
//! service address goes to the host's own stack, however malformed. A malformed packet for a
//! service address is dropped and counted.

mod glance;
mod icmp;
mod ip;
mod tcp;

pub use crate::net::ip::Fragment;
pub use glance::PacketEndpoints;
pub use tcp::TcpHeader;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::FromBytes;

use crate::net::Protocol;
use crate::net::tcp::TCP_LEN;
use crate::net::wire::{
    ARP_LEN, ARP_REQUEST, Arp, ETHERNET_LEN, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ,
    ETHERTYPE_VLAN, Ethernet, Mac, Tcp, Udp,
};
use crate::path::reason::Reason;
use crate::path::tables::{Tables, VipKey};

pub(crate) const UDP_LEN: usize = 8;
const TAG_LEN: usize = 4;
/// Maximum number of VLAN tags that are parsed: a customer's and a provider's (IEEE 802.1ad).
const TAGS_MAX: usize = 2;

/// Position of an IP packet in its frame, and the fields that every packet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the transport header.
    pub l4: usize,
    /// Length of the IP packet in bytes, including its header.
    pub len: usize,
    pub src: IpAddr,
    pub dst: IpAddr,
    /// IANA number of the transport protocol.
    pub protocol: u8,
    /// Position in the whole packet, if the packet is a fragment.
    pub fragment: Option<Fragment>,
}

/// A packet with ports, which is whole or a first fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Position in the frame.
    pub at: Layers,
    pub protocol: Protocol,
    pub src_port: u16,
    pub dst_port: u16,
    /// TCP control bits; 0 for UDP.
    pub flags: u8,
    /// TCP's sequence number; 0 for UDP.
    pub sequence: u32,
    /// TCP's acknowledgment number; 0 for UDP.
    pub acknowledgment: u32,
}

impl Segment {
    /// Returns the key of the VIP to which this packet is addressed, if there is one.
    pub fn vip_key(&self) -> VipKey {
        VipKey { address: self.at.dst, port: self.dst_port, protocol: self.protocol }
    }
}

/// ICMP error and the packet that it quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Position of the error in the frame.
    pub at: Layers,
    /// Position of the quoted packet in the frame.
    pub quoted: Layers,
    /// Transport protocol of the quoted packet.
    pub protocol: Protocol,
    /// Source port of the quoted packet.
    pub src_port: u16,
    /// Destination port of the quoted packet.
    pub dst_port: u16,
}

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Well-formed TCP or UDP packet. It may be for a service or not.
    Segment(Segment),
    /// Fragment other than the first, without ports.
    LaterFragment(Layers),
    /// ICMP error about a TCP or UDP packet.
    IcmpError(IcmpError),
    /// Echo request of ICMP or ICMPv6.
    Echo(Layers),
    /// ARP request for `target`.
    ArpRequest {
        /// Offset of the ARP body.
        l3: usize,
        /// Address whose MAC the sender requests.
        target: Ipv4Addr,
        /// Address of the sender. 0.0.0.0 in a probe (RFC 5227).
        sender: Ipv4Addr,
    },
    /// Neighbour solicitation for `target`.
    Solicitation {
        /// Offset of the IP header.
        l3: usize,
        /// Address whose MAC the sender requests.
        target: Ipv6Addr,
        /// Address of the sender. `::` in a probe (RFC 4862, section 5.4.2).
        sender: Ipv6Addr,
    },
    /// The frame needs no decision, so the host's own stack receives it.
    Pass(Reason),
    /// Malformed packet to this address. It is dropped if the address is a service's. Otherwise the
    /// host's own stack receives it.
    Odd(Reason, IpAddr),
}

/// Parses a frame received on an interface with the MAC `own`.
pub fn parse(frame: &[u8], own: Option<Mac>) -> Parsed {
    let Ok((ethernet, _)) = Ethernet::ref_from_prefix(frame) else {
        return Parsed::Pass(Reason::Runt);
    };
    let Some((l3, ethertype)) = behind_tags(frame, ethernet.ethertype.get()) else {
        return Parsed::Pass(Reason::Runt);
    };
    match ethertype {
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => {}
        ETHERTYPE_ARP => return parse_arp(frame, l3, ethernet, own),
        ETHERTYPE_VLAN | ETHERTYPE_QINQ => return Parsed::Pass(Reason::Vlan),
        _ => return Parsed::Pass(Reason::NotIp),
    }
    // A frame for another station (flooded or broadcast) is not for the director. If the director
    // forwarded such frames, a packet might be forwarded twice.
    if own == Some(ethernet.dst) {
        return if ethertype == ETHERTYPE_IPV4 {
            ip::parse_v4(frame, l3, ethernet.src)
        } else {
            ip::parse_v6(frame, l3, ethernet.src)
        };
    }
    // Solicitations go to the solicited-node multicast group (RFC 4291, section 2.7.1).
    if own.is_some() && ethertype == ETHERTYPE_IPV6 && ethernet.dst.0.starts_with(&[0x33, 0x33, 0xff]) {
        return match ip::parse_v6(frame, l3, ethernet.src) {
            solicitation @ Parsed::Solicitation { .. } => solicitation,
            _ => Parsed::Pass(Reason::OtherHost),
        };
    }
    Parsed::Pass(Reason::OtherHost)
}

/// Returns the offset of the layer-three header after at most two VLAN tags, and its ethertype.
/// `None` if the frame ends before this header.
fn behind_tags(frame: &[u8], mut ethertype: u16) -> Option<(usize, u16)> {
    let mut l3 = ETHERNET_LEN;
    for _ in 0..TAGS_MAX {
        if ethertype != ETHERTYPE_VLAN && ethertype != ETHERTYPE_QINQ {
            break;
        }
        let inner = frame.get(l3 + 2..l3 + TAG_LEN)?;
        ethertype = u16::from_be_bytes([inner[0], inner[1]]);
        l3 += TAG_LEN;
    }
    Some((l3, ethertype))
}

fn parse_arp(frame: &[u8], l3: usize, ethernet: &Ethernet, own: Option<Mac>) -> Parsed {
    if own.is_none() || (own != Some(ethernet.dst) && ethernet.dst != Mac::BROADCAST) {
        return Parsed::Pass(Reason::OtherHost);
    }
    let Some(arp) = frame.get(l3..l3 + ARP_LEN).and_then(|b| Arp::ref_from_bytes(b).ok()) else {
        return Parsed::Pass(Reason::Runt);
    };
    if !arp.is_ipv4_over_ethernet() || arp.operation.get() != ARP_REQUEST || !arp.sender_mac.is_unicast() {
        return Parsed::Pass(Reason::NotIp);
    }
    Parsed::ArpRequest {
        l3,
        target: Ipv4Addr::from_bits(arp.target_ip.get()),
        sender: Ipv4Addr::from_bits(arp.sender_ip.get()),
    }
}

/// Parses the transport header of a packet with valid IP headers.
fn parse_transport(frame: &[u8], at: Layers, protocol: Protocol) -> Parsed {
    let odd = |reason| Parsed::Odd(reason, at.dst);
    if let Some(fragment) = at.fragment.filter(|fragment| fragment.offset != 0) {
        // A later fragment that begins so early would overwrite the ports or the TCP flags of the
        // first one (RFC 1858, section 4).
        let least = match protocol {
            Protocol::Tcp => TCP_LEN,
            Protocol::Udp => UDP_LEN,
        };
        if usize::from(fragment.offset) * 8 < least {
            return odd(Reason::FragmentOverlap);
        }
        return Parsed::LaterFragment(at);
    }
    let Some(transport) = frame.get(at.l4..at.l3 + at.len) else {
        return odd(Reason::BadLength);
    };
    let cut = if at.fragment.is_some() { Reason::TinyFragment } else { Reason::Truncated };
    let segment = match protocol {
        Protocol::Tcp => parse_tcp(transport, at, cut),
        Protocol::Udp => parse_udp(transport, at, cut),
    };
    segment.map_or_else(odd, Parsed::Segment)
}

fn parse_tcp(transport: &[u8], at: Layers, cut: Reason) -> Result<Segment, Reason> {
    let Ok((tcp, _)) = Tcp::ref_from_prefix(transport) else {
        return Err(cut);
    };
    let header_len = tcp.header_len();
    if header_len < TCP_LEN {
        return Err(Reason::BadLength);
    }
    if header_len > transport.len() {
        return Err(if at.fragment.is_some() { Reason::TinyFragment } else { Reason::BadLength });
    }
    Ok(Segment {
        at,
        protocol: Protocol::Tcp,
        src_port: tcp.src_port.get(),
        dst_port: tcp.dst_port.get(),
        flags: tcp.flags,
        sequence: tcp.seq.get(),
        acknowledgment: tcp.ack.get(),
    })
}

fn parse_udp(transport: &[u8], at: Layers, cut: Reason) -> Result<Segment, Reason> {
    let Ok((udp, _)) = Udp::ref_from_prefix(transport) else {
        return Err(cut);
    };
    let len = usize::from(udp.len.get());
    // In a first fragment the length field is that of the whole packet.
    if len < UDP_LEN || (len > transport.len() && at.fragment.is_none()) {
        return Err(Reason::BadLength);
    }
    Ok(Segment {
        at,
        protocol: Protocol::Udp,
        src_port: udp.src_port.get(),
        dst_port: udp.dst_port.get(),
        flags: 0,
        sequence: 0,
        acknowledgment: 0,
    })
}

/// Returns the reason that is counted for an [`Parsed::Odd`] frame. It is `reason` if `dst` is a
/// service address, so that the frame is dropped. Otherwise it is [`Reason::NotService`].
pub fn odd_reason(tables: &Tables, reason: Reason, dst: IpAddr) -> Reason {
    if tables.has_address(dst) { reason } else { Reason::NotService }
}
