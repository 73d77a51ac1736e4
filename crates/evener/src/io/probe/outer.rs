//! Outer headers of a probe through a tunnel.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use evener_core::net::Encapsulation;
use evener_core::net::checksum;
use evener_core::net::wire::{GUE_PORT, IPV4_DONT_FRAGMENT, Ipv4, Ipv6, Udp, protocol};
use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::{U16, U32};

/// Default time to live of RFC 1700, and the usual hop limit.
const HOP_LIMIT: u8 = 64;
/// Length of a GUE header without options (draft-ietf-intarea-gue, section 3).
const GUE_LEN: usize = 4;

/// Tunnel of a probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeTunnel {
    encapsulation: Encapsulation,
    from: IpAddr,
    to: IpAddr,
    /// GUE source port. Each probe has its own, so probes use all of several equal paths.
    source_port: u16,
}

impl ProbeTunnel {
    /// Creates a tunnel for one flow between two addresses of one family.
    pub(super) fn new(encapsulation: Encapsulation, from: IpAddr, to: IpAddr) -> ProbeTunnel {
        // From the dynamic ports (RFC 6335, section 6). The hash keys of std are random.
        let source_port = 0xc000 | RandomState::new().hash_one(to) as u16;
        ProbeTunnel { encapsulation, from, to, source_port }
    }

    /// Returns the outer headers of a packet. Empty if the addresses' families differ.
    pub(super) fn headers(&self, packet: &[u8]) -> Vec<u8> {
        let inner = match packet.first().map(|first| first >> 4) {
            Some(6) => protocol::IPV6,
            _ => protocol::IPV4,
        };
        match self.encapsulation {
            Encapsulation::Ipip => self.ip(inner, packet.len()),
            Encapsulation::Gue => {
                let len = size_of::<Udp>() + GUE_LEN + packet.len();
                let udp = Udp {
                    src_port: U16::new(self.source_port),
                    dst_port: U16::new(GUE_PORT),
                    len: U16::new(clamped(len)),
                    // No checksum: the inner packet has its own (RFC 6935).
                    checksum: U16::new(0),
                };
                // Version 0, no options. The second byte is the inner protocol.
                [&self.ip(protocol::UDP, len)[..], udp.as_bytes(), &[0, inner, 0, 0]].concat()
            }
        }
    }

    fn ip(&self, protocol: u8, payload_len: usize) -> Vec<u8> {
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut header = Ipv4 {
                    version_ihl: 0x45,
                    tos: 0,
                    total_len: U16::new(clamped(size_of::<Ipv4>() + payload_len)),
                    id: U16::new(0),
                    fragment: U16::new(IPV4_DONT_FRAGMENT),
                    ttl: HOP_LIMIT,
                    protocol,
                    checksum: U16::new(0),
                    src: U32::new(from.to_bits()),
                    dst: U32::new(to.to_bits()),
                };
                header.checksum.set(checksum::finish(checksum::add(0, header.as_bytes())));
                header.as_bytes().to_vec()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let header = Ipv6 {
                    version_class_flow: U32::new(6 << 28),
                    payload_len: U16::new(clamped(payload_len)),
                    next_header: protocol,
                    hop_limit: HOP_LIMIT,
                    src: from.octets(),
                    dst: to.octets(),
                };
                header.as_bytes().to_vec()
            }
            _ => Vec::new(),
        }
    }
}

/// Probes' packets are far below the maximum of a length field.
fn clamped(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn headers(encapsulation: Encapsulation, from: &str, to: &str, packet: &[u8]) -> Vec<u8> {
        ProbeTunnel::new(encapsulation, from.parse().unwrap(), to.parse().unwrap()).headers(packet)
    }

    #[test]
    fn ip_in_ip_names_the_inner_version() {
        let four = headers(Encapsulation::Ipip, "192.0.2.2", "192.0.2.11", &[0x45; 20]);
        assert_eq!(four[..10], [0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 4]);
        assert_eq!(four[12..], [192, 0, 2, 2, 192, 0, 2, 11]);
        assert_eq!(checksum::finish(checksum::add(0, &four)), 0);
        assert_eq!(headers(Encapsulation::Ipip, "192.0.2.2", "192.0.2.11", &[0x60; 40])[9], 41);
        let six = headers(Encapsulation::Ipip, "2001:db8::2", "2001:db8::11", &[0x45; 20]);
        assert_eq!((six.len(), &six[..8]), (40, &[0x60, 0, 0, 0, 0, 20, 4, 64][..]));
    }

    #[test]
    fn gue_is_udp_and_four_bytes() {
        let four = headers(Encapsulation::Gue, "192.0.2.2", "192.0.2.11", &[0x60; 40]);
        assert_eq!((four.len(), four[9]), (32, 17));
        assert!(four[20] >= 0xc0, "a dynamic port");
        assert_eq!(four[22..], [0x17, 0xc0, 0, 52, 0, 0, 0, 41, 0, 0]);
    }

    #[test]
    fn families_do_not_mix() {
        assert_eq!(headers(Encapsulation::Ipip, "192.0.2.2", "2001:db8::11", &[0x45; 20]), Vec::<u8>::new());
    }
}
