//! ARP replies and neighbour advertisements, read from frames.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::FromBytes;

use super::binding::LinkAddress;
use crate::net::neighbour::Advertisement;
use crate::net::wire::{ARP_LEN, ARP_REPLY, Arp, ETHERNET_LEN, ETHERTYPE_ARP, ETHERTYPE_IPV6, Ethernet};

/// An ARP reply or neighbour advertisement: a MAC address claims an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourReply {
    /// MAC address that claims the IP address, and the interface on which the frame arrived.
    pub place: LinkAddress,
    pub address: IpAddr,
}

impl NeighbourReply {
    /// Reads an untagged Ethernet frame; `None` if it is neither an ARP reply nor a neighbour
    /// advertisement. The error for a malformed frame contains the frame's Ethernet source.
    pub fn read(ifindex: u32, frame: &[u8]) -> Result<Option<NeighbourReply>, NeighbourReply> {
        let Some((header, body)) = frame.split_at_checked(ETHERNET_LEN) else {
            return Ok(None);
        };
        let Ok(header) = Ethernet::ref_from_bytes(header) else {
            return Ok(None);
        };
        let from = LinkAddress { mac: header.src, ifindex };
        match header.ethertype.get() {
            ETHERTYPE_ARP => NeighbourReply::read_arp(from, body),
            ETHERTYPE_IPV6 => NeighbourReply::read_advertisement(from, frame),
            _ => Ok(None),
        }
    }

    /// Reads an ARP frame. The place is the ARP sender, to which frames must be sent. The Ethernet
    /// source may differ, with bonded interfaces and virtual routers.
    fn read_arp(from: LinkAddress, body: &[u8]) -> Result<Option<NeighbourReply>, NeighbourReply> {
        let malformed = NeighbourReply { place: from, address: Ipv4Addr::UNSPECIFIED.into() };
        let arp = body.get(..ARP_LEN).and_then(|body| Arp::ref_from_bytes(body).ok()).ok_or(malformed)?;
        if !arp.is_ipv4_over_ethernet() {
            return Err(malformed);
        }
        let place = LinkAddress { mac: arp.sender_mac, ..from };
        let answer = NeighbourReply { place, address: Ipv4Addr::from_bits(arp.sender_ip.get()).into() };
        Ok((arp.operation.get() == ARP_REPLY).then_some(answer))
    }

    /// Reads a neighbour advertisement. The answer to a unicast solicitation may omit the MAC
    /// address. Then the place is the Ethernet source.
    fn read_advertisement(from: LinkAddress, frame: &[u8]) -> Result<Option<NeighbourReply>, NeighbourReply> {
        let malformed = NeighbourReply { place: from, address: Ipv6Addr::UNSPECIFIED.into() };
        let found = Advertisement::read(frame).map_err(|_| malformed)?;
        Ok(found.map(|found| NeighbourReply {
            place: LinkAddress { mac: found.mac.unwrap_or(from.mac), ..from },
            address: found.target.into(),
        }))
    }
}
