//! Summary of any packet for status output and traces, whatever its verdict.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use zerocopy::FromBytes;

use super::behind_tags;
use crate::net::Protocol;
use crate::net::wire::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, IPV4_FRAGMENT_OFFSET, Ipv4, Ipv6, Tcp, Udp,
};

/// Endpoints, protocol, flags and length of an IP packet. The packet may be malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEndpoints {
    /// Source. The port is 0 if the packet has no ports, as a later fragment, or has IPv6 extension
    /// headers, behind which ports aren't read.
    pub src: SocketAddr,
    /// Destination. The port is 0 in the same cases as the source port.
    pub dst: SocketAddr,
    /// Protocol number in the IP header.
    pub protocol: u8,
    /// TCP control bits. 0 for other packets.
    pub tcp_flags: u8,
    /// Length of the IP packet in bytes by its header, at most 65535.
    pub len: u16,
}

impl PacketEndpoints {
    /// Reads a frame. `None` if it is not IP or ends within the IP header.
    pub fn of(frame: &[u8]) -> Option<PacketEndpoints> {
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
        Some(PacketEndpoints {
            src: SocketAddr::new(src, ports[0]),
            dst: SocketAddr::new(dst, ports[1]),
            protocol,
            tcp_flags,
            len,
        })
    }
}

/// Returns the ports and TCP flags; `None` if the frame ends within the transport header.
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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const LINK: &[u8] = &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    const TCP: &[u8] = &[0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12, 0, 1, 0, 0, 0, 0];
    const UDP: &[u8] = &[0x9c, 0x40, 0, 53, 0, 8, 0, 0];

    fn v4(version_ihl: u8, fragment: [u8; 2], protocol: u8, behind: &[&[u8]]) -> Vec<u8> {
        let ip = [version_ihl, 0, 0, 99, 0, 1, fragment[0], fragment[1], 64, protocol, 0, 0];
        let ends = [203, 0, 113, 7, 192, 0, 2, 100];
        [LINK, &[8, 0], &ip, &ends, &behind.concat()].concat()
    }

    fn v6(next: u8, payload_len: [u8; 2], behind: &[u8]) -> Vec<u8> {
        let ends = [[1; 16], [2; 16]].concat();
        let ip = [0x60, 0, 0, 0, payload_len[0], payload_len[1], next, 64];
        [LINK, &[0x86, 0xdd], &ip, &ends, behind].concat()
    }

    fn seen(frame: &[u8]) -> Option<(u16, u16, u8, u8, u16)> {
        let PacketEndpoints { src, dst, protocol, tcp_flags, len } = PacketEndpoints::of(frame)?;
        Some((src.port(), dst.port(), protocol, tcp_flags, len))
    }

    #[test]
    fn ports_and_flags_of_whole_headers() {
        let frame = v4(0x45, [0x40, 0], 6, &[TCP]);
        assert_eq!(seen(&frame), Some((40_000, 80, 6, 0x12, 99)));
        let ends = PacketEndpoints::of(&frame).map(|glance| (glance.src.ip(), glance.dst.ip()));
        assert_eq!(ends, Some(([203, 0, 113, 7].into(), [192, 0, 2, 100].into())));
        assert_eq!(
            seen(&v4(0x46, [0, 0], 6, &[&[0; 4], TCP])),
            Some((40_000, 80, 6, 0x12, 99)),
            "behind options"
        );
        assert_eq!(
            seen(&v4(0x45, [0x20, 0], 17, &[UDP])),
            Some((40_000, 53, 17, 0, 99)),
            "in a first fragment"
        );
        assert_eq!(seen(&v6(6, [0, 20], TCP)), Some((40_000, 80, 6, 0x12, 60)));
        assert_eq!(seen(&v6(17, [0xff, 0xff], UDP)), Some((40_000, 53, 17, 0, u16::MAX)));
        let mut tagged = frame;
        tagged.splice(12..12, [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]);
        assert_eq!(seen(&tagged), Some((40_000, 80, 6, 0x12, 99)));
    }

    #[test]
    fn addresses_alone_where_no_ports_are_to_be_seen() {
        assert_eq!(seen(&v4(0x45, [0, 1], 6, &[TCP])), Some((0, 0, 6, 0, 99)), "a later fragment");
        assert_eq!(
            seen(&v4(0x45, [0, 0], 6, &[&TCP[..19]])),
            Some((0, 0, 6, 0, 99)),
            "a header that is cut off"
        );
        assert_eq!(
            seen(&v4(0x44, [0, 0], 6, &[TCP])),
            Some((0, 0, 6, 0, 99)),
            "an IP header that is too short"
        );
        assert_eq!(seen(&v4(0x4f, [0, 0], 6, &[TCP])), Some((0, 0, 6, 0, 99)), "and one behind the end");
        assert_eq!(seen(&v4(0x45, [0, 0], 1, &[TCP])), Some((0, 0, 1, 0, 99)), "ICMP");
        assert_eq!(seen(&v6(44, [0, 28], &[&[6; 8], TCP].concat())), Some((0, 0, 44, 0, 68)));
    }

    #[test]
    fn non_ip_frame_has_no_endpoints() {
        let frame = v4(0x45, [0, 0], 6, &[TCP]);
        assert!((0..34).all(|len| seen(&frame[..len]).is_none()));
        assert!(seen(&frame[..34]).is_some());
        assert_eq!(seen(&v4(0x65, [0, 0], 6, &[TCP])), None, "another version than the frame's type says");
        assert_eq!(seen(&[LINK, &[8, 6], &[0; 28]].concat()), None, "ARP");
        let mut tagged = frame;
        tagged.splice(12..12, [0x81, 0, 0, 5].repeat(3));
        assert_eq!(seen(&tagged), None, "more tags than are looked behind");
    }
}
