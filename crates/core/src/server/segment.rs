//! TCP segments in plain IP packets. These have no IPv4 options or IPv6 extension headers, and are
//! not fragmented. Current TCP stacks send only such segments. TCP options are allowed.
//! `bpf/server/segment.h` is the copy in C.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use zerocopy::FromBytes;

use crate::net::ip::{IPV4_LEN, IPV6_LEN};
use crate::net::tcp::TCP_LEN;
use crate::net::wire::{
    ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, IPV4_FRAGMENT_OFFSET, IPV4_MORE_FRAGMENTS, Ipv4,
    Ipv6, Mac, Tcp, protocol,
};

pub(super) struct TcpSegment<'a> {
    /// Source MAC address of the frame.
    pub from: Mac,
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub tcp: &'a Tcp,
    /// Offset of the TCP header in the frame, in bytes.
    pub l4: usize,
    /// Offset of the end of the TCP header, options included.
    pub l4_end: usize,
    /// Offset of the end of the IP packet, by the length in its header.
    pub end: usize,
}

impl<'a> TcpSegment<'a> {
    /// Parses a frame. `None` if the frame has no TCP segment in a plain IP packet. The frame must
    /// contain the fixed fields of the TCP header. TCP options and data may be missing.
    pub(super) fn read(frame: &'a [u8]) -> Option<TcpSegment<'a>> {
        let (ethernet, packet) = Ethernet::ref_from_prefix(frame).ok()?;
        let (src, dst, l4, end): (IpAddr, IpAddr, usize, usize) = match ethernet.ethertype.get() {
            ETHERTYPE_IPV4 => {
                let (ip, _) = Ipv4::ref_from_prefix(packet).ok()?;
                let is_fragment = ip.fragment.get() & (IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET) != 0;
                if ip.version_ihl != 0x45 || ip.protocol != protocol::TCP || is_fragment {
                    return None;
                }
                let [src, dst] = [ip.src, ip.dst].map(|address| Ipv4Addr::from_bits(address.get()).into());
                (src, dst, IPV4_LEN, ip.total_len.get().into())
            }
            ETHERTYPE_IPV6 => {
                let (ip, _) = Ipv6::ref_from_prefix(packet).ok()?;
                if ip.version_class_flow.get() >> 28 != 6 || ip.next_header != protocol::TCP {
                    return None;
                }
                let [src, dst] = [ip.src, ip.dst].map(|address| Ipv6Addr::from(address).into());
                (src, dst, IPV6_LEN, IPV6_LEN + usize::from(ip.payload_len.get()))
            }
            _ => return None,
        };
        let (tcp, _) = Tcp::ref_from_prefix(packet.get(l4..)?).ok()?;
        let header_len = tcp.header_len();
        (header_len >= TCP_LEN).then_some(TcpSegment {
            from: ethernet.src,
            src: SocketAddr::new(src, tcp.src_port.get()),
            dst: SocketAddr::new(dst, tcp.dst_port.get()),
            tcp,
            l4: ETHERNET_LEN + l4,
            l4_end: ETHERNET_LEN + l4 + header_len,
            end: ETHERNET_LEN + end,
        })
    }
}
