//! From bytes to the little that a decision needs, or the reason why there is nothing to decide.
//!
//! Order matters and the C keeps the same one: what can't be for a service address is left to the
//! host's own stack, whatever its faults; what is for one and is malformed is dropped and counted.

use core::net::Ipv4Addr;

use zerocopy::FromBytes;

use crate::farm::Protocol;
use crate::reason::Reason;
use crate::tables::{Tables, VipKey};
use crate::wire::{
    ARP_LEN, ARP_REQUEST, Arp, ETHERNET_LEN, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_QINQ, ETHERTYPE_VLAN,
    Ethernet, IPV4_FRAGMENT_MASK, Ipv4, Mac, Tcp, Udp,
};

const IPV4_LEN: usize = 20;
const TCP_LEN: usize = 20;
const UDP_LEN: usize = 8;

/// A packet for a service, as far as the decision needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which service address, port and protocol.
    pub vip: VipKey,
    /// The client's address.
    pub client: Ipv4Addr,
    /// The client's port.
    pub client_port: u16,
    /// TCP control bits; 0 for UDP.
    pub flags: u8,
}

/// What a frame turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A well-formed TCP or UDP packet. Whether it is for a service shows when its VIP is looked up.
    Segment(Segment),
    /// Someone asks by ARP who has this address.
    ArpRequest {
        /// The address asked for.
        target: Ipv4Addr,
        /// The MAC of who asks.
        sender_mac: Mac,
        /// The address of who asks; 0.0.0.0 in a probe (RFC 5227).
        sender: Ipv4Addr,
    },
    /// Nothing to decide: the host's own stack may have it.
    Pass(Reason),
    /// Malformed, and if it is for a service address it must not go on. The host's stack has it otherwise.
    Odd(Reason, Ipv4Addr),
}

/// Reads a frame that came in on an interface whose own address is `own`.
pub fn parse(frame: &[u8], own: Option<Mac>) -> Parsed {
    let Ok((ethernet, body)) = Ethernet::ref_from_prefix(frame) else {
        return Parsed::Pass(Reason::Runt);
    };
    match ethernet.ethertype.get() {
        ETHERTYPE_IPV4 => {}
        ETHERTYPE_ARP => return parse_arp(ethernet, body, own),
        ETHERTYPE_VLAN | ETHERTYPE_QINQ => return Parsed::Pass(Reason::Vlan),
        _ => return Parsed::Pass(Reason::NotIp),
    }
    // A frame for another station (a flooding switch, a broadcast) was not sent to the director.
    // Taking it would rewrite what was already rewritten.
    if own != Some(ethernet.dst) {
        return Parsed::Pass(Reason::OtherHost);
    }
    parse_ipv4(ethernet, body)
}

fn parse_arp(ethernet: &Ethernet, body: &[u8], own: Option<Mac>) -> Parsed {
    if own.is_none() || (own != Some(ethernet.dst) && ethernet.dst != Mac::BROADCAST) {
        return Parsed::Pass(Reason::OtherHost);
    }
    let Some(arp) = body.get(..ARP_LEN).and_then(|b| Arp::ref_from_bytes(b).ok()) else {
        return Parsed::Pass(Reason::Runt);
    };
    if !arp.is_ipv4_over_ethernet() || arp.operation.get() != ARP_REQUEST || !arp.sender_mac.is_unicast() {
        return Parsed::Pass(Reason::NotIp);
    }
    Parsed::ArpRequest {
        target: Ipv4Addr::from_bits(arp.target_ip.get()),
        sender_mac: arp.sender_mac,
        sender: Ipv4Addr::from_bits(arp.sender_ip.get()),
    }
}

fn parse_ipv4(ethernet: &Ethernet, body: &[u8]) -> Parsed {
    let Ok((ip, _)) = Ipv4::ref_from_prefix(body) else {
        return Parsed::Pass(Reason::Runt);
    };
    if ip.version_ihl >> 4 != 4 {
        return Parsed::Pass(Reason::BadVersion);
    }
    let protocol = match ip.protocol {
        6 => Protocol::Tcp,
        17 => Protocol::Udp,
        _ => return Parsed::Pass(Reason::NotService),
    };
    let dst = Ipv4Addr::from_bits(ip.dst.get());
    let src = Ipv4Addr::from_bits(ip.src.get());
    let odd = |reason| Parsed::Odd(reason, dst);

    if ip.version_ihl & 0x0f != 5 {
        return odd(if ip.version_ihl & 0x0f < 5 { Reason::BadLength } else { Reason::IpOptions });
    }
    // Second fragments carry no port; first ones would part from theirs.
    if ip.fragment.get() & IPV4_FRAGMENT_MASK != 0 {
        return odd(Reason::Fragment);
    }
    // Shorter than the frame is Ethernet padding; longer is a lie.
    let total_len = usize::from(ip.total_len.get());
    if total_len < IPV4_LEN || total_len > body.len() {
        return odd(Reason::BadLength);
    }
    if ethernet.src.is_multicast() {
        return odd(Reason::MulticastSource);
    }
    if is_martian(src) || src == dst {
        return odd(Reason::MartianSource);
    }
    let Some(transport) = body.get(IPV4_LEN..total_len) else {
        return odd(Reason::BadLength);
    };
    let (client_port, port, flags) = match protocol {
        Protocol::Tcp => match parse_tcp(transport) {
            Ok(found) => found,
            Err(reason) => return odd(reason),
        },
        Protocol::Udp => match parse_udp(transport) {
            Ok((from, to)) => (from, to, 0),
            Err(reason) => return odd(reason),
        },
    };
    Parsed::Segment(Segment { vip: VipKey { address: dst, port, protocol }, client: src, client_port, flags })
}

fn parse_tcp(transport: &[u8]) -> Result<(u16, u16, u8), Reason> {
    let Ok((tcp, _)) = Tcp::ref_from_prefix(transport) else {
        return Err(Reason::Truncated);
    };
    let header_len = usize::from(tcp.data_offset >> 4) * 4;
    if header_len < TCP_LEN || header_len > transport.len() {
        return Err(Reason::BadLength);
    }
    Ok((tcp.src_port.get(), tcp.dst_port.get(), tcp.flags))
}

fn parse_udp(transport: &[u8]) -> Result<(u16, u16), Reason> {
    let Ok((udp, _)) = Udp::ref_from_prefix(transport) else {
        return Err(Reason::Truncated);
    };
    let len = usize::from(udp.len.get());
    if len < UDP_LEN || len > transport.len() {
        return Err(Reason::BadLength);
    }
    Ok((udp.src_port.get(), udp.dst_port.get()))
}

/// Sources that no client has (RFC 1812, section 5.3.7): this network, loopback, multicast and above.
fn is_martian(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    first == 0 || first == 127 || first >= 224
}

/// What becomes of an [`Parsed::Odd`] frame: dropped if it is for a service address, else none of ours.
pub fn odd_reason(tables: &Tables, reason: Reason, dst: Ipv4Addr) -> Reason {
    if tables.has_address(dst) { reason } else { Reason::NotService }
}

const _: () = assert!(size_of::<Ethernet>() == ETHERNET_LEN);
