//! Neighbour discovery (RFC 4861), IPv6's counterpart of ARP: solicitations, announcements, and
//! parsing of advertisements.

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use crate::net::checksum;
use crate::net::wire::icmpv6::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION};
use crate::net::wire::{ETHERNET_LEN, ETHERTYPE_IPV6, Ethernet, Icmp, Ipv6, Mac, Neighbour, protocol};

/// Hop limit of every message. Routers decrement it, so a message with this limit comes from the
/// same link (RFC 4861, section 3.1).
pub const HOP_LIMIT: u8 = 255;

/// Solicited flag, set if the advertisement answers a solicitation (RFC 4861, section 4.4).
const SOLICITED: u32 = 1 << 30;
/// Override flag, set if the advertisement replaces a MAC address that the receiver knows.
const OVERRIDE: u32 = 1 << 29;
/// Option with the sender's MAC address (RFC 4861, section 4.6.1).
const SOURCE_LINK_ADDRESS: u8 = 1;
/// Option with the target's MAC address.
const TARGET_LINK_ADDRESS: u8 = 2;
/// Multicast address of all nodes on the link (RFC 4291, section 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Returns the solicited-node multicast address (RFC 4291, section 2.7.1).
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low)
}

/// Returns the MAC address of a multicast group (RFC 2464, section 7).
pub const fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

/// Returns a solicitation for `target`. If `sender` is `::`, the solicitation is a duplicate
/// address probe (RFC 4862, section 5.4.2).
pub fn solicitation(own: Mac, sender: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let option = (!sender.is_unspecified()).then_some((SOURCE_LINK_ADDRESS, own));
    frame(own, (sender, solicited_node(target)), (NEIGHBOUR_SOLICITATION, 0, target), option)
}

/// Returns an unsolicited advertisement that `target` is at `own` (RFC 4861, section 7.2.6).
pub fn announcement(own: Mac, target: Ipv6Addr) -> Vec<u8> {
    let option = Some((TARGET_LINK_ADDRESS, own));
    frame(own, (target, ALL_NODES), (NEIGHBOUR_ADVERTISEMENT, OVERRIDE, target), option)
}

fn frame(
    own: Mac,
    (src, dst): (Ipv6Addr, Ipv6Addr),
    (kind, flags, target): (u8, u32, Ipv6Addr),
    option: Option<(u8, Mac)>,
) -> Vec<u8> {
    let icmp = Icmp { kind, code: 0, checksum: U16::ZERO, rest: U32::new(flags) };
    let mut body = Neighbour { icmp, target: target.octets() }.as_bytes().to_vec();
    if let Some((kind, Mac(mac))) = option {
        // Lengths are in units of eight bytes (RFC 4861, section 4.6).
        body.extend([kind, 1]);
        body.extend(mac);
    }
    let header = Ipv6 {
        version_class_flow: U32::new(6 << 28),
        payload_len: U16::new(body.len() as u16),
        next_header: protocol::ICMPV6,
        hop_limit: HOP_LIMIT,
        src: src.octets(),
        dst: dst.octets(),
    };
    let checksum = icmp_checksum(&header, &body);
    if let Some(place) = body.get_mut(2..4) {
        place.copy_from_slice(&checksum.to_be_bytes());
    }
    let ethernet = Ethernet { dst: group_mac(dst), src: own, ethertype: U16::new(ETHERTYPE_IPV6) };
    [ethernet.as_bytes(), header.as_bytes(), &body].concat()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    pub target: Ipv6Addr,
    /// MAC address of the target. Answers to unicast solicitations may omit it (RFC 4861, section
    /// 7.2.4).
    pub mac: Option<Mac>,
}

/// An advertisement that must be ignored (RFC 4861, section 7.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl Advertisement {
    /// Reads an untagged Ethernet frame; `None` if it isn't a neighbour advertisement.
    ///
    /// # Errors
    /// The advertisement is invalid and must be ignored.
    pub fn read(frame: &[u8]) -> Result<Option<Advertisement>, Malformed> {
        let header = frame.get(ETHERNET_LEN..).and_then(|packet| Ipv6::ref_from_prefix(packet).ok());
        let Some((header, body)) = header else {
            return Ok(None);
        };
        let ipv6 = header.version_class_flow.get() >> 28 == 6;
        let icmp = ipv6 && header.next_header == protocol::ICMPV6;
        if !icmp || body.first() != Some(&NEIGHBOUR_ADVERTISEMENT) {
            return Ok(None);
        }
        let body = body.get(..header.payload_len.get().into()).ok_or(Malformed)?;
        let (message, options) = Neighbour::ref_from_prefix(body).map_err(|_| Malformed)?;
        let target = Ipv6Addr::from(message.target);
        let to_group = Ipv6Addr::from(header.dst).is_multicast();
        let valid = header.hop_limit == HOP_LIMIT
            && message.icmp.code == 0
            && icmp_checksum(header, body) == 0
            && !target.is_multicast()
            && !(to_group && message.icmp.rest.get() & SOLICITED != 0);
        if !valid {
            return Err(Malformed);
        }
        Ok(Some(Advertisement { target, mac: target_mac(options)? }))
    }
}

/// Returns the target's MAC address, if the options have it.
fn target_mac(mut options: &[u8]) -> Result<Option<Mac>, Malformed> {
    let mut found = None;
    while let [kind, units, ..] = *options {
        let (option, rest) = options.split_at_checked(usize::from(units) * 8).ok_or(Malformed)?;
        match (kind, option) {
            (_, []) => return Err(Malformed),
            (TARGET_LINK_ADDRESS, &[_, _, a, b, c, d, e, f]) => found = Some(Mac([a, b, c, d, e, f])),
            (TARGET_LINK_ADDRESS, _) => return Err(Malformed),
            _ => {}
        }
        options = rest;
    }
    if options.is_empty() { Ok(found) } else { Err(Malformed) }
}

/// Returns the checksum of pseudo-header and message (RFC 8200, section 8.1); 0 if the message has
/// a correct checksum.
fn icmp_checksum(header: &Ipv6, body: &[u8]) -> u16 {
    let len = (body.len() as u32).to_be_bytes();
    let pseudo = [&header.src[..], &header.dst, &len, &[0, 0, 0, protocol::ICMPV6]];
    checksum::finish(checksum::add(pseudo.into_iter().fold(0, checksum::add), body))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const TARGET: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0x12ab, 0xcdef);
    const HEAD: usize = ETHERNET_LEN + size_of::<Ipv6>();

    /// Returns the frame with one byte changed. With `summed` the checksum is correct again.
    fn changed(frame: &[u8], at: usize, byte: u8, summed: bool) -> Vec<u8> {
        let mut frame = frame.to_vec();
        frame[at] = byte;
        if summed {
            frame[HEAD + 2..HEAD + 4].fill(0);
            let header = Ipv6::read_from_bytes(&frame[ETHERNET_LEN..HEAD]).unwrap();
            let checksum = icmp_checksum(&header, &frame[HEAD..]);
            frame[HEAD + 2..HEAD + 4].copy_from_slice(&checksum.to_be_bytes());
        }
        frame
    }

    #[test]
    fn groups_are_named_after_the_last_three_bytes() {
        let group = solicited_node(TARGET);
        assert_eq!(group, "ff02::1:ffab:cdef".parse::<Ipv6Addr>().unwrap());
        assert_eq!(group_mac(group), Mac([0x33, 0x33, 0xff, 0xab, 0xcd, 0xef]));
    }

    #[test]
    fn solicitation_matches_rfc_4861() {
        let sender = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        let frame = solicitation(OWN, sender, TARGET);
        assert_eq!(frame.len(), 86);
        assert_eq!(frame[..14], [0x33, 0x33, 0xff, 0xab, 0xcd, 0xef, 2, 0, 0, 0, 0, 1, 0x86, 0xdd]);
        assert_eq!(frame[14..22], [0x60, 0, 0, 0, 0, 32, 58, 255]);
        assert_eq!((frame[HEAD], frame[HEAD + 1]), (135, 0));
        assert_eq!(frame[HEAD + 24..], [1, 1, 2, 0, 0, 0, 0, 1]);
        let header = Ipv6::read_from_bytes(&frame[ETHERNET_LEN..HEAD]).unwrap();
        assert_eq!(icmp_checksum(&header, &frame[HEAD..]), 0);
        assert_eq!(Advertisement::read(&frame), Ok(None));
        // Without a source address, the solicitation has no option with the own MAC address (RFC
        // 4861, section 4.3).
        assert_eq!(solicitation(OWN, Ipv6Addr::UNSPECIFIED, TARGET).len(), 78);
    }

    #[test]
    fn an_announcement_is_read_back() {
        let frame = announcement(OWN, TARGET);
        let read = Advertisement { target: TARGET, mac: Some(OWN) };
        assert_eq!(Advertisement::read(&frame), Ok(Some(read)));
        let padded = [&frame[..], &[0; 4]].concat();
        assert_eq!(Advertisement::read(&padded), Ok(Some(read)));
        for len in 0..HEAD + 1 {
            assert_eq!(Advertisement::read(&frame[..len]), Ok(None));
        }
    }

    #[test]
    fn advertisement_to_be_ignored_is_malformed() {
        let frame = announcement(OWN, TARGET);
        let malformed = [
            frame[..HEAD + 12].to_vec(),
            changed(&frame, ETHERNET_LEN + 7, 254, false),
            changed(&frame, HEAD + 1, 1, true),
            changed(&frame, HEAD + 2, frame[HEAD + 2] ^ 1, false),
            // Solicited flag, but the destination is a group.
            changed(&frame, HEAD + 4, 0x60, true),
            changed(&frame, HEAD + 8, 0xff, true),
            // Options: no length, longer than the message, cut short.
            changed(&frame, HEAD + 25, 0, true),
            changed(&frame, HEAD + 25, 2, true),
            changed(&frame, ETHERNET_LEN + 5, 31, false),
        ];
        for frame in malformed {
            assert_eq!(Advertisement::read(&frame), Err(Malformed), "{frame:02x?}");
        }
        // An unknown option.
        let unknown = changed(&frame, HEAD + 24, 14, true);
        assert_eq!(Advertisement::read(&unknown), Ok(Some(Advertisement { target: TARGET, mac: None })));
    }
}
