//! An independent decoder agrees with every packet that decisions make: lengths, addresses and
//! checksums.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::world::{DIRECTOR, ROUTER, SERVER, World, ways};
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use evener_core::net::Encapsulation;
use evener_core::net::packet::Checksum;
use evener_core::path::decide::{Reason, Verdict};
use evener_core::path::mark::{GUE_MARKED, MARK_LEN};
use evener_core::path::tables::Forwarding;
use proptest::prelude::*;

/// A frame to the director with right checksums.
fn frame(from: SocketAddr, to: SocketAddr, udp: bool, flags: u8, payload: &[u8]) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(ROUTER.0, DIRECTOR.0);
    let ip = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => link.ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => link.ipv6(from.octets(), to.octets(), 64),
        _ => unreachable!("of one family"),
    };
    let mut frame = Vec::new();
    if udp {
        ip.udp(from.port(), to.port()).write(&mut frame, payload).unwrap();
        return frame;
    }
    let mut tcp = ip.tcp(from.port(), to.port(), 7, 65_000);
    if flags & 2 != 0 {
        tcp = tcp.syn();
    }
    if flags & 16 != 0 {
        tcp = tcp.ack(9);
    }
    tcp.write(&mut frame, payload).unwrap();
    frame
}

/// The two ends of an IP packet whose every length and checksum is right, and its payload.
fn ends(ip: &[u8]) -> (SocketAddr, SocketAddr, Vec<u8>) {
    let sliced = SlicedPacket::from_ip(ip).unwrap();
    let (src, dst): (IpAddr, IpAddr) = match sliced.net.as_ref().unwrap() {
        NetSlice::Ipv4(net) => {
            let header = net.header();
            assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
            assert_eq!(usize::from(header.total_len()), ip.len());
            (header.source_addr().into(), header.destination_addr().into())
        }
        NetSlice::Ipv6(net) => {
            assert_eq!(usize::from(net.header().payload_length()) + 40, ip.len());
            (net.header().source_addr().into(), net.header().destination_addr().into())
        }
        NetSlice::Arp(_) => unreachable!("IP was asked for"),
    };
    let (ports, sum, right, payload) = match sliced.transport.unwrap() {
        TransportSlice::Tcp(tcp) => {
            let header = tcp.to_header();
            let right = match (src, dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => {
                    header.calc_checksum_ipv4_raw(src.octets(), dst.octets(), tcp.payload())
                }
                (IpAddr::V6(src), IpAddr::V6(dst)) => {
                    header.calc_checksum_ipv6_raw(src.octets(), dst.octets(), tcp.payload())
                }
                _ => unreachable!(),
            };
            ((header.source_port, header.destination_port), header.checksum, right, tcp.payload().to_vec())
        }
        TransportSlice::Udp(udp) => {
            let header = udp.to_header();
            let right = match (src, dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => {
                    header.calc_checksum_ipv4_raw(src.octets(), dst.octets(), udp.payload())
                }
                (IpAddr::V6(src), IpAddr::V6(dst)) => {
                    header.calc_checksum_ipv6_raw(src.octets(), dst.octets(), udp.payload())
                }
                _ => unreachable!(),
            };
            ((header.source_port, header.destination_port), header.checksum, right, udp.payload().to_vec())
        }
        other => panic!("{other:?} is neither TCP nor UDP"),
    };
    assert_eq!(sum, right.unwrap(), "the transport checksum");
    (SocketAddr::new(src, ports.0), SocketAddr::new(dst, ports.1), payload)
}

/// The inner packet of one that a tunnel made.
fn unwrapped(ip: &[u8], encapsulation: Encapsulation) -> Vec<u8> {
    let v6 = ip[0] >> 4 == 6;
    if !v6 {
        let (header, _) = etherparse::Ipv4Header::from_slice(ip).unwrap();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        assert_eq!(usize::from(header.total_len), ip.len());
    }
    let at = if v6 { 40 } else { 20 };
    match encapsulation {
        Encapsulation::Ipip => ip[at..].to_vec(),
        Encapsulation::Gue => {
            assert_eq!(ip[at + 2..at + 4], 6080u16.to_be_bytes());
            assert_eq!(usize::from(u16::from_be_bytes([ip[at + 4], ip[at + 5]])), ip.len() - at);
            assert!(ip[at] >= 0xc0, "a port of the dynamic range");
            let marked = ip[at + 11] & GUE_MARKED as u8 != 0;
            ip[at + 12 + if marked { MARK_LEN } else { 0 }..].to_vec()
        }
    }
}

fn address(v6: bool, host: u16) -> IpAddr {
    match v6 {
        false => Ipv4Addr::new(203, 0, (host >> 8) as u8 | 1, host as u8 | 1).into(),
        true => Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, host | 1).into(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn there_and_back_again(
        v6: bool, udp: bool, host: u16, port in 1u16.., payload in prop::collection::vec(any::<u8>(), 0..1300),
    ) {
        let vip = match v6 {
            false => SocketAddr::from(([192, 0, 2, 100], 80)),
            true => SocketAddr::new("2001:db8::100".parse().unwrap(), 80),
        };
        let client = SocketAddr::new(address(v6, host), port);
        for way in ways(v6) {
            let world = World::new(vip, way);
            let (decision, out) = world.decide(&frame(client, vip, udp, 2, &payload), Checksum::Whole, 7);
            prop_assert_eq!(decision.reason, Reason::Forwarded);
            prop_assert_eq!(&out[..6], &SERVER.0[..]);
            let (to, source_nat) = match way {
                Forwarding::Link => {
                    prop_assert_eq!(ends(&out[14..]), (client, vip, payload.clone()));
                    continue;
                }
                Forwarding::Tunnel { encapsulation, .. } => {
                    let inner = unwrapped(&out[14..], encapsulation);
                    prop_assert_eq!(ends(&inner), (client, vip, payload.clone()));
                    continue;
                }
                Forwarding::Nat { to, source_nat, .. } => (to, source_nat),
            };
            let (from, seen, inside) = ends(&out[14..]);
            prop_assert_eq!((seen, &inside), (to, &payload));
            prop_assert_eq!(from != client, source_nat);
            // The server answers whom it saw, and the client must see the service answer.
            let (decision, back) = world.decide(&frame(to, from, udp, 18, &payload), Checksum::Whole, 8);
            prop_assert_eq!(decision.reason, Reason::Answered);
            prop_assert_eq!(&back[..6], &ROUTER.0[..]);
            prop_assert_eq!(ends(&back[14..]), (vip, client, payload.clone()));
        }
    }
}

#[test]
fn a_sum_that_hardware_is_to_finish_comes_out_right() {
    for v6 in [false, true] {
        let vip = SocketAddr::new(address(v6, 0x0900), 80);
        let client = SocketAddr::new(address(v6, 0x0700), 40_000);
        for way in ways(v6) {
            let Forwarding::Nat { to, .. } = way else { continue };
            let mut frame = frame(client, vip, false, 2, b"hello");
            let l4 = if v6 { 54 } else { 34 };
            // The checksum that a stack leaves there: the folded sum of the pseudo-header.
            let len = (frame.len() - l4) as u32;
            let pseudo = pseudo_sum(&frame, v6, len);
            frame[l4 + 16..l4 + 18].copy_from_slice(&pseudo.to_be_bytes());
            let (decision, mut out) = World::new(vip, way).decide(&frame, Checksum::Partial, 7);
            assert_eq!(decision.reason, Reason::Forwarded);
            assert_eq!(out[l4 + 16..l4 + 18], pseudo_sum(&out, v6, len).to_be_bytes());
            let sum = evener_core::net::checksum::finish(evener_core::net::checksum::add(0, &out[l4..]));
            out[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(ends(&out[14..]).1, to);
        }
    }
}

fn pseudo_sum(frame: &[u8], v6: bool, len: u32) -> u16 {
    use evener_core::net::checksum::{add, finish};
    let addresses = if v6 { &frame[22..54] } else { &frame[26..34] };
    !finish(add(add(add(0, addresses), &len.to_be_bytes()), &[0, 6]))
}

#[test]
fn too_long_packet_is_answered_too_big() {
    for v6 in [false, true] {
        let vip = SocketAddr::new(address(v6, 0x0900), 80);
        let client = SocketAddr::new(address(v6, 0x0700), 40_000);
        for way in ways(v6) {
            let Forwarding::Tunnel { .. } = way else { continue };
            let world = World::new(vip, way);
            let whole = frame(client, vip, false, 16, &[7; 1400 + 60]);
            let (decision, out) = world.decide(&whole, Checksum::Whole, 7);
            assert_eq!(
                (decision.reason, decision.verdict),
                (Reason::TooBig, Verdict::Forward { ifindex: 1 })
            );
            let sliced = SlicedPacket::from_ethernet(&out).unwrap();
            assert_eq!(out[..12], [ROUTER.0, DIRECTOR.0].concat());
            match (sliced.net.unwrap(), sliced.transport.unwrap()) {
                (NetSlice::Ipv4(net), TransportSlice::Icmpv4(icmp)) => {
                    assert_eq!(
                        net.header().header_checksum(),
                        net.header().to_header().calc_header_checksum()
                    );
                    assert_eq!(IpAddr::from(net.header().source_addr()), vip.ip());
                    assert!(icmp.header().icmp_type.calc_checksum(icmp.payload()) == icmp.header().checksum);
                    assert_eq!(&icmp.payload()[..20], &whole[14..34]);
                }
                (NetSlice::Ipv6(net), TransportSlice::Icmpv6(icmp)) => {
                    let (src, dst) = (net.header().source(), net.header().destination());
                    assert_eq!(IpAddr::from(src), vip.ip());
                    assert!(icmp.is_checksum_valid(src, dst));
                    assert_eq!(&icmp.payload()[..40], &whole[14..54]);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
