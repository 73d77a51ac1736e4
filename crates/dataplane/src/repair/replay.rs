//! Builds the client's segments again from a saved connection. The new server's kernel creates the
//! socket when it receives the first of them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use evener_core::net::checksum;
use evener_core::net::wire::{IPV4_DONT_FRAGMENT, Ipv4, TCP_ACK, TCP_RST, Tcp, protocol};
use zerocopy::IntoBytes;

use super::Saved;

/// Deliver the data to the process now (RFC 9293, section 3.1).
const TCP_PSH: u8 = 0x08;
/// Kind and length of the timestamp option, behind two no-operation options (RFC 7323, appendix A).
const TIMESTAMP: [u8; 4] = [1, 1, 8, 10];
/// Length of a TCP header without options, in bytes.
const TCP_LEN: usize = 20;
/// Time to live and hop limit: the initial value of most clients.
const HOPS: u8 = 64;
/// Maximum length of an IPv4 packet.
const PACKET_MAX: usize = 65_535;

/// Returns the client's segments as IP packets, from the first byte of `unread` on. Each has at
/// most `mss` bytes of data and options, and at least one byte of data. Returns no packets if
/// `unread` is empty.
///
/// The packets have the client's addresses, ports, sequence numbers and data. The client's clock is
/// unknown here, so the timestamp is zero: Linux takes a zero TS.Recent as unset, so PAWS rejects
/// no later value (RFC 7323, section 5.3). The echoed timestamp is the service's clock at the time
/// of saving, so that the server's clock can continue from it.
pub fn replay(saved: &Saved, mss: u16) -> Vec<Vec<u8>> {
    let options = options(saved);
    let payload_max = usize::from(mss).min(PACKET_MAX - size_of::<Ipv4>() - TCP_LEN);
    let payload_max = payload_max.saturating_sub(options.len()).max(1);
    let mut sequence = saved.receive_next.wrapping_sub(saved.unread.len() as u32);
    let mut chunks = saved.unread.chunks(payload_max).peekable();
    let mut packets = Vec::with_capacity(chunks.len());
    while let Some(payload) = chunks.next() {
        let push = if chunks.peek().is_none() { TCP_PSH } else { 0 };
        let header = header(saved, sequence, TCP_ACK | push, options.len());
        packets.push(packet(saved.client, saved.service, [header.as_bytes(), &options, payload].concat()));
        sequence = sequence.wrapping_add(payload.len() as u32);
    }
    packets
}

/// Returns a packet that resets a connection on behalf of the client. `sequence` is the next
/// sequence number that the service expects (RFC 9293, section 3.5.3).
pub fn reset(client: SocketAddr, service: SocketAddr, sequence: u32) -> Vec<u8> {
    let header = Tcp {
        src_port: client.port().into(),
        dst_port: service.port().into(),
        seq: sequence.into(),
        ack: 0.into(),
        data_offset: (TCP_LEN * 4) as u8,
        flags: TCP_RST,
        window: 0.into(),
        checksum: 0.into(),
        urgent: 0.into(),
    };
    packet(client, service, header.as_bytes().to_vec())
}

fn options(saved: &Saved) -> Vec<u8> {
    let time = |now: u32| [TIMESTAMP, [0; 4], now.to_be_bytes()].concat();
    saved.terms.timestamp.map(time).unwrap_or_default()
}

/// Returns a TCP header of the client with a zero checksum. The upper four bits of `data_offset`
/// are the header's length in 32-bit words, so the field is four times the number of bytes.
fn header(saved: &Saved, sequence: u32, flags: u8, options_len: usize) -> Tcp {
    let scale = saved.terms.window_scales.map_or(0, |(send, _)| send);
    let window = saved.window.send.checked_shr(scale.into()).unwrap_or_default();
    Tcp {
        src_port: saved.client.port().into(),
        dst_port: saved.service.port().into(),
        seq: sequence.into(),
        ack: saved.send_next.wrapping_sub(saved.unacked.len() as u32).into(),
        data_offset: ((TCP_LEN + options_len) * 4) as u8,
        flags,
        window: u16::try_from(window).unwrap_or(u16::MAX).into(),
        checksum: 0.into(),
        urgent: 0.into(),
    }
}

/// Returns the segment in an IP packet from the client, with its checksums.
fn packet(client: SocketAddr, service: SocketAddr, mut segment: Vec<u8>) -> Vec<u8> {
    let (src, dst) = (client.ip(), service.ip());
    let sum = checksum::pseudo_header(src, dst, protocol::TCP, segment.len());
    let sum = checksum::finish(checksum::add(sum, &segment));
    if let Some(place) = segment.get_mut(16..18) {
        place.copy_from_slice(&sum.to_be_bytes());
    }
    let header = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => ipv4(src, dst, segment.len()).as_bytes().to_vec(),
        _ => [&ipv6(segment.len())[..], &octets(src), &octets(dst)].concat(),
    };
    [header, segment].concat()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn ipv4(src: Ipv4Addr, dst: Ipv4Addr, payload_len: usize) -> Ipv4 {
    let mut header = Ipv4 {
        version_ihl: 0x45,
        tos: 0,
        total_len: ((size_of::<Ipv4>() + payload_len) as u16).into(),
        id: 0.into(),
        fragment: IPV4_DONT_FRAGMENT.into(),
        ttl: HOPS,
        protocol: protocol::TCP,
        checksum: 0.into(),
        src: src.to_bits().into(),
        dst: dst.to_bits().into(),
    };
    header.checksum = checksum::finish(checksum::add(0, header.as_bytes())).into();
    header
}

/// Returns the header before the addresses (RFC 8200, section 3).
fn ipv6(payload_len: usize) -> [u8; 8] {
    let [high, low] = (payload_len as u16).to_be_bytes();
    [0x60, 0, 0, 0, high, low, protocol::TCP, HOPS]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use evener_core::net::wire::Ipv6;
    use zerocopy::FromBytes;

    use super::*;
    use crate::repair::{AgreedOptions, Window};

    fn saved(v6: bool, timestamp: Option<u32>, unread: usize) -> Saved {
        let [client, service] = match v6 {
            false => [SocketAddr::from(([203, 0, 113, 7], 40_000)), SocketAddr::from(([192, 0, 2, 100], 80))],
            true => [([0x2001, 0xdb8, 0, 0, 0, 0, 0, 7], 40_000), ([0x2001, 0xdb8, 1, 0, 0, 0, 0, 1], 80)]
                .map(SocketAddr::from),
        };
        Saved {
            client,
            service,
            // The bytes span the wraparound of sequence numbers.
            receive_next: 1000,
            send_next: 77,
            unacked: vec![],
            unsent: 0,
            unread: (0..unread).map(|n| (n % 251) as u8).collect(),
            terms: AgreedOptions { mss: 1440, window_scales: Some((7, 8)), sack: true, timestamp },
            window: Window { send: 64_128, ..Window::default() },
        }
    }

    /// Returns the TCP header, the bytes that follow, and true if lengths and checksums are right.
    fn read(packet: &[u8]) -> (Tcp, &[u8], bool) {
        let (addresses, segment, whole) = match packet[0] >> 4 {
            4 => {
                let (ip, segment) = Ipv4::ref_from_prefix(packet).expect("a header");
                let sum = checksum::finish(checksum::add(0, ip.as_bytes()));
                (&packet[12..20], segment, sum == 0 && usize::from(ip.total_len.get()) == packet.len())
            }
            _ => {
                let (ip, segment) = Ipv6::ref_from_prefix(packet).expect("a header");
                let fits = usize::from(ip.payload_len.get()) == segment.len();
                (
                    &packet[8..40],
                    segment,
                    fits && ip.next_header == 6 && ip.version_class_flow.get() == 6 << 28,
                )
            }
        };
        let pseudo = [addresses, &(segment.len() as u32 + 6).to_be_bytes()].concat();
        let sum = checksum::finish(checksum::add(checksum::add(0, &pseudo), segment));
        let (tcp, rest) = Tcp::read_from_prefix(segment).expect("a header");
        (tcp, rest, whole && sum == 0)
    }

    #[test]
    fn the_segments_are_the_clients_again() {
        for (v6, timestamp) in [(false, None), (false, Some(0x0102_0304)), (true, None), (true, Some(5))] {
            let saved = saved(v6, timestamp, 3001);
            let packets = replay(&saved, 1440);
            assert_eq!(packets.len(), 3);
            let mut bytes = Vec::new();
            for (number, packet) in packets.iter().enumerate() {
                let (tcp, rest, whole) = read(packet);
                assert!(whole, "lengths and checksums");
                assert_eq!((tcp.src_port.get(), tcp.dst_port.get()), (40_000, 80));
                assert_eq!(tcp.seq.get(), 1000u32.wrapping_sub(3001).wrapping_add(bytes.len() as u32));
                assert_eq!((tcp.ack.get(), tcp.window.get()), (77, 64_128 >> 7));
                assert_eq!(tcp.flags, if number == 2 { TCP_ACK | TCP_PSH } else { TCP_ACK });
                let (options, payload) = rest.split_at(usize::from(tcp.data_offset >> 4) * 4 - TCP_LEN);
                match timestamp {
                    None => assert_eq!(options, []),
                    Some(now) => {
                        assert_eq!(options[..4], [1, 1, 8, 10]);
                        assert_eq!(options[4..], [[0; 4], now.to_be_bytes()].concat());
                    }
                }
                assert!(options.len() + payload.len() <= 1440);
                bytes.extend_from_slice(payload);
            }
            assert_eq!(bytes, saved.unread);
        }
    }

    #[test]
    fn empty_data_gives_no_packet_and_any_mss_works() {
        assert!(replay(&saved(false, None, 0), 1440).is_empty());
        assert_eq!(replay(&saved(false, Some(1), 3), 0).len(), 3, "a byte each");
        for v6 in [false, true] {
            let packets = replay(&saved(v6, None, 100_000), u16::MAX);
            assert_eq!(packets.len(), 2);
            assert!(packets.iter().all(|packet| read(packet).2));
        }
    }

    #[test]
    fn reset_has_expected_sequence() {
        for v6 in [false, true] {
            let Saved { client, service, .. } = saved(v6, None, 0);
            let packet = reset(client, service, 1000);
            let (tcp, rest, whole) = read(&packet);
            assert!(whole && rest.is_empty());
            assert_eq!((tcp.src_port.get(), tcp.dst_port.get()), (40_000, 80));
            assert_eq!((tcp.seq.get(), tcp.flags), (1000, TCP_RST));
        }
    }

    #[test]
    fn unacknowledged_data_is_not_acknowledged_by_replay() {
        let saved = Saved { unacked: vec![0; 78], ..saved(false, None, 1) };
        assert_eq!(read(&replay(&saved, 1440)[0]).0.ack.get(), u32::MAX);
    }
}
