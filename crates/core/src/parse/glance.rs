//! What people want to know of any packet, whatever becomes of it.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use zerocopy::FromBytes;

use super::behind_tags;
use crate::farm::Protocol;
use crate::wire::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, IPV4_FRAGMENT_OFFSET, Ipv4, Ipv6, Tcp, Udp};

/// The two ends of an IP packet and the little more that tells one from another. It need not be well-formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// Where it is from; port 0 where it has none, or where it isn't to be seen: in a later fragment, behind IPv6
    /// extension headers.
    pub src: SocketAddr,
    /// Where it is sent to; ports alike.
    pub dst: SocketAddr,
    /// What the IP header names.
    pub protocol: u8,
    /// TCP control bits; 0 where there are none.
    pub tcp_flags: u8,
    /// Bytes of the IP packet, as it says itself; 65535 is the most.
    pub len: u16,
}

impl Glance {
    /// `None` where a frame isn't of IP, or ends within the IP header.
    pub fn of(frame: &[u8]) -> Option<Glance> {
        let (ethernet, _) = Ethernet::ref_from_prefix(frame).ok()?;
        let (l3, ethertype) = behind_tags(frame, ethernet.ethertype.get())?;
        let packet = frame.get(l3..)?;
        let version = packet.first()? >> 4;
        let (src, dst, protocol, len, behind) = match (ethertype, version) {
            (ETHERTYPE_IPV4, 4) => {
                let (ip, _) = Ipv4::ref_from_prefix(packet).ok()?;
                let header_len = usize::from(ip.version_ihl & 15) * 4;
                let is_later = ip.fragment.get() & IPV4_FRAGMENT_OFFSET != 0;
                let behind =
                    packet.get(header_len..).filter(|_| header_len >= size_of::<Ipv4>() && !is_later);
                let [src, dst] = [ip.src, ip.dst].map(|address| Ipv4Addr::from(address.get()).into());
                (src, dst, ip.protocol, u32::from(ip.total_len.get()), behind)
            }
            (ETHERTYPE_IPV6, 6) => {
                let (ip, behind) = Ipv6::ref_from_prefix(packet).ok()?;
                let [src, dst] = [ip.src, ip.dst].map(|address| Ipv6Addr::from(address).into());
                let len = size_of::<Ipv6>() as u32 + u32::from(ip.payload_len.get());
                (src, dst, ip.next_header, len, Some(behind))
            }
            _ => return None,
        };
        let (ports, tcp_flags) = transport(protocol, behind.unwrap_or_default()).unwrap_or_default();
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        Some(Glance {
            src: SocketAddr::new(src, ports[0]),
            dst: SocketAddr::new(dst, ports[1]),
            protocol,
            tcp_flags,
            len,
        })
    }
}

/// Ports, and TCP's flags, where the frame has the whole header.
fn transport(protocol: u8, bytes: &[u8]) -> Option<([u16; 2], u8)> {
    if protocol == Protocol::Tcp.number() {
        let (tcp, _) = Tcp::ref_from_prefix(bytes).ok()?;
        Some(([tcp.src_port.get(), tcp.dst_port.get()], tcp.flags))
    } else if protocol == Protocol::Udp.number() {
        let (udp, _) = Udp::ref_from_prefix(bytes).ok()?;
        Some(([udp.src_port.get(), udp.dst_port.get()], 0))
    } else {
        None
    }
}
