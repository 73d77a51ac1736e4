//! Datagrams in fragments, in different orders (RFC 791, section 3.2; RFC 8200, section 4.5).

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail};
use etherparse::{
    EtherType, Ethernet2Header, IpFragOffset, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6FragmentHeader,
    Ipv6Header, UdpHeader,
};
use evener_core::net::wire::Mac;

/// Time to live and hop limit.
const TTL: u8 = 64;

/// Order of sent fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// First fragment first, as from most hosts.
    Forwards,
    /// Last fragment first, as from some old hosts.
    Backwards,
    /// Each fragment twice, as over broken links.
    Twice,
}

impl Order {
    pub const ALL: [Order; 3] = [Order::Forwards, Order::Backwards, Order::Twice];
}

#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// MAC address and endpoint of the sender.
    pub from: (Mac, SocketAddr),
    /// MAC address of the next hop, and endpoint of the receiver.
    pub to: (Mac, SocketAddr),
    pub payload: &'a [u8],
    /// Identification of the fragments.
    pub id: u16,
}

impl Datagram<'_> {
    /// Returns the fragments as frames in this order, each with at most `most` bytes.
    pub fn frames(&self, most: usize, order: Order) -> Result<Vec<Vec<u8>>> {
        let whole = self.transport()?;
        // all fragments but the last have a multiple of eight bytes
        let parts: Vec<&[u8]> = whole.chunks(most / 8 * 8).collect();
        let mut frames = Vec::new();
        let mut offset = 0;
        for (number, part) in parts.iter().enumerate() {
            frames.push(self.frame(part, offset, number + 1 < parts.len())?);
            offset += (part.len() / 8) as u16;
        }
        Ok(match order {
            // an unfragmented packet is not duplicated
            _ if frames.len() == 1 => frames,
            Order::Forwards => frames,
            Order::Backwards => frames.into_iter().rev().collect(),
            Order::Twice => frames.into_iter().flat_map(|frame| [frame.clone(), frame]).collect(),
        })
    }

    fn transport(&self) -> Result<Vec<u8>> {
        let ((_, from), (_, to)) = (self.from, self.to);
        let header = match (from.ip(), to.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let ip =
                    Ipv4Header { source: src.octets(), destination: dst.octets(), ..Ipv4Header::default() };
                UdpHeader::with_ipv4_checksum(from.port(), to.port(), &ip, self.payload)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ip =
                    Ipv6Header { source: src.octets(), destination: dst.octets(), ..Ipv6Header::default() };
                UdpHeader::with_ipv6_checksum(from.port(), to.port(), &ip, self.payload)
            }
            _ => bail!("{from} and {to} are not of one family"),
        };
        Ok([&header.context("No datagram is so long")?.to_bytes()[..], self.payload].concat())
    }

    fn frame(&self, part: &[u8], offset: u16, more: bool) -> Result<Vec<u8>> {
        let ((src_mac, from), (dst_mac, to)) = (self.from, self.to);
        let fragment_offset = IpFragOffset::try_new(offset).context("No datagram is so long")?;
        let mut packet = Vec::new();
        let ether_type = match (from.ip(), to.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let len = u16::try_from(part.len())?;
                let mut ip = Ipv4Header::new(len, TTL, IpNumber::UDP, src.octets(), dst.octets())?;
                (ip.identification, ip.dont_fragment) = (self.id, false);
                (ip.more_fragments, ip.fragment_offset) = (more, fragment_offset);
                ip.header_checksum = ip.calc_header_checksum();
                ip.write(&mut packet)?;
                EtherType::IPV4
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let fragment =
                    Ipv6FragmentHeader::new(IpNumber::UDP, fragment_offset, more, u32::from(self.id));
                let ip = Ipv6Header {
                    traffic_class: 0,
                    flow_label: Ipv6FlowLabel::ZERO,
                    payload_length: u16::try_from(part.len() + Ipv6FragmentHeader::LEN)?,
                    next_header: IpNumber::IPV6_FRAGMENTATION_HEADER,
                    hop_limit: TTL,
                    source: src.octets(),
                    destination: dst.octets(),
                };
                packet.extend(ip.to_bytes());
                packet.extend(fragment.to_bytes());
                EtherType::IPV6
            }
            _ => bail!("{from} and {to} are not of one family"),
        };
        let ethernet = Ethernet2Header { source: src_mac.0, destination: dst_mac.0, ether_type };
        Ok([&ethernet.to_bytes()[..], &packet, part].concat())
    }
}
