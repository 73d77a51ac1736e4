//! Routers' reports that packets to a server are too long (RFC 1191, RFC 8201).
//!
//! Tunnel packets have the director's address as source, so routers' reports arrive at the
//! director. Only the director can act on them, since the kernel doesn't know its tunnels.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use evener_core::net::checksum;
use evener_core::net::wire::{GUE_PORT, Icmp, Ipv4, Ipv6, Udp, icmp, icmpv6, protocol};
use evener_dataplane::link::TooBigSocket;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use zerocopy::FromBytes;

/// Minimum MTU over IPv4: every host accepts 576 bytes (RFC 791, section 3.2).
const LEAST_V4: u32 = 576;
/// Minimum MTU over IPv6 (RFC 8200, section 5).
const LEAST_V6: u32 = 1280;
/// Length of a message that is read. The needed headers are at the beginning (RFC 792 quotes 8
/// bytes after the IP header).
const MESSAGE_MAX: usize = 256;
/// Capacity of the queue of messages. Further messages are dropped. Routers repeat them for the
/// next packet that is too long.
const QUEUE: usize = 64;

/// Report that a router can't forward longer tunnel packets of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// Quoted outer source. The caller must check that a tunnel leads from it to `to`.
    pub from: IpAddr,
    /// Quoted outer destination, the server.
    pub to: IpAddr,
    /// Length of the longest packet that passes, in bytes: at least 576 over IPv4, 1280 over IPv6.
    pub mtu: u16,
}

/// Listens for routers' reports in the calling thread's network namespace, until the receiver is
/// dropped.
///
/// Needs a Tokio runtime.
///
/// # Errors
/// Without CAP_NET_RAW. A host without IPv6 listens for IPv4 reports only.
pub fn listen() -> io::Result<mpsc::Receiver<PathMtu>> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let v4 = AsyncFd::new(TooBigSocket::open_v4()?)?;
    tokio::spawn(read(v4, sender.clone(), fragmentation_needed));
    match TooBigSocket::open_v6().and_then(AsyncFd::new) {
        Ok(v6) => drop(tokio::spawn(read(v6, sender, packet_too_big))),
        Err(error) => tracing::debug!(%error, "failed to listen for path MTUs of IPv6"),
    }
    Ok(receiver)
}

async fn read(
    socket: AsyncFd<TooBigSocket>,
    sender: mpsc::Sender<PathMtu>,
    parse: fn(&[u8]) -> Option<PathMtu>,
) {
    let mut buffer = [0; MESSAGE_MAX];
    loop {
        let ready = tokio::select! {
            () = sender.closed() => return,
            ready = socket.readable() => ready,
        };
        let Ok(mut ready) = ready else { return };
        match ready.try_io(|socket| socket.get_ref().recv(&mut buffer)) {
            Ok(Ok(len)) => {
                if let Some(path_mtu) = buffer.get(..len).and_then(parse) {
                    let _ = sender.try_send(path_mtu);
                }
            }
            Ok(Err(error)) if error.kind() != io::ErrorKind::Interrupted => {
                tracing::warn!(%error, "failed to receive path MTUs; no more are received");
                return;
            }
            _ => {}
        }
    }
}

/// Parses a "fragmentation needed" message about a tunnel packet, from its IPv4 header on. Returns
/// `None` for other messages.
pub fn fragmentation_needed(packet: &[u8]) -> Option<PathMtu> {
    let (header, message) = ipv4(packet)?;
    let (icmp, quoted) = Icmp::ref_from_prefix(message).ok()?;
    let is_that = header.protocol == protocol::ICMP
        && (icmp.kind, icmp.code) == (icmp::UNREACHABLE, icmp::FRAGMENTATION_NEEDED);
    // Raw sockets get packets before the kernel has checked them. The checksum of a truncated
    // packet can't be verified.
    let whole = usize::from(header.total_len.get()) == packet.len();
    if !is_that || (whole && checksum::finish(checksum::add(0, message)) != 0) {
        return None;
    }
    let (outer, inner) = ipv4(quoted)?;
    // The lower half of the field (RFC 1191, section 4). Older routers leave it zero and report no
    // MTU.
    let mtu = icmp.rest.get() & 0xffff;
    let believable = mtu >= LEAST_V4 && mtu < u32::from(outer.total_len.get());
    (believable && is_tunnel(outer.protocol, inner)).then_some(PathMtu {
        from: Ipv4Addr::from_bits(outer.src.get()).into(),
        to: Ipv4Addr::from_bits(outer.dst.get()).into(),
        mtu: u16::try_from(mtu).ok()?,
    })
}

/// Parses a "packet too big" message about a tunnel packet, from its ICMPv6 header on. The kernel
/// has checked the checksum. Returns `None` for other messages.
pub fn packet_too_big(message: &[u8]) -> Option<PathMtu> {
    let (icmp, quoted) = Icmp::ref_from_prefix(message).ok()?;
    let (outer, inner) = Ipv6::ref_from_prefix(quoted).ok()?;
    let mtu = icmp.rest.get();
    let sent = u32::from(outer.payload_len.get()) + size_of::<Ipv6>() as u32;
    let is_that = (icmp.kind, icmp.code) == (icmpv6::TOO_BIG, 0)
        && outer.version_class_flow.get() >> 28 == 6
        && is_tunnel(outer.next_header, inner);
    (is_that && mtu >= LEAST_V6 && mtu < sent).then_some(PathMtu {
        from: Ipv6Addr::from(outer.src).into(),
        to: Ipv6Addr::from(outer.dst).into(),
        mtu: u16::try_from(mtu).ok()?,
    })
}

/// Returns an IPv4 header without options, and the bytes after it.
fn ipv4(packet: &[u8]) -> Option<(&Ipv4, &[u8])> {
    let (header, _) = Ipv4::ref_from_prefix(packet).ok()?;
    let header_len = usize::from(header.version_ihl & 0x0f) * 4;
    let is_ipv4 = header.version_ihl >> 4 == 4 && header_len >= size_of::<Ipv4>();
    // The payload of a later fragment doesn't begin with a header.
    let is_first = header.fragment.get() & evener_core::net::wire::IPV4_FRAGMENT_OFFSET == 0;
    Some((header, packet.get(header_len..).filter(|_| is_ipv4 && is_first)?))
}

/// True if the bytes after an outer header are a tunnel of the director: IP in IP, or GUE.
fn is_tunnel(protocol: u8, inner: &[u8]) -> bool {
    match protocol {
        protocol::IPV4 | protocol::IPV6 => true,
        protocol::UDP => Udp::ref_from_prefix(inner).is_ok_and(|(udp, _)| udp.dst_port.get() == GUE_PORT),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ipv4_header(protocol: u8, payload_len: u16, from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
        let [a, b] = (20 + payload_len).to_be_bytes();
        let mut header = vec![0x45, 0, a, b, 0, 0, 0x40, 0, 64, protocol, 0, 0];
        header.extend_from_slice(&from);
        header.extend_from_slice(&to);
        header
    }

    /// Builds a router's message about a packet of 1500 bytes from 192.0.2.2 to 198.51.100.11.
    fn needed(mtu: u16, protocol: u8, behind: &[u8]) -> Vec<u8> {
        let quoted =
            [ipv4_header(protocol, 1480, [192, 0, 2, 2], [198, 51, 100, 11]), behind.to_vec()].concat();
        let [a, b] = mtu.to_be_bytes();
        let mut message = [vec![3, 4, 0, 0, 0, 0, a, b], quoted].concat();
        let [a, b] = checksum::finish(checksum::add(0, &message)).to_be_bytes();
        (message[2], message[3]) = (a, b);
        let header = ipv4_header(1, message.len() as u16, [198, 51, 100, 1], [192, 0, 2, 2]);
        [header, message].concat()
    }

    fn too_big(mtu: u32, next_header: u8, behind: &[u8]) -> Vec<u8> {
        let mut message = vec![2, 0, 0, 0];
        message.extend_from_slice(&mtu.to_be_bytes());
        message.extend_from_slice(&[0x60, 0, 0, 0, 5, 180, next_header, 64]);
        let ends: [Ipv6Addr; 2] = ["2001:db8::2".parse().unwrap(), "2001:db8:9::11".parse().unwrap()];
        ends.iter().for_each(|end| message.extend_from_slice(&end.octets()));
        message.extend_from_slice(behind);
        message
    }

    /// GUE header from port 50000.
    const GUE: [u8; 8] = [0xc3, 0x50, 0x17, 0xc0, 0, 0, 0, 0];
    const DNS: [u8; 8] = [0xc3, 0x50, 0, 53, 0, 0, 0, 0];

    #[test]
    fn fragmentation_needed_gives_server_and_mtu() {
        let (from, to) = ("192.0.2.2".parse().unwrap(), "198.51.100.11".parse().unwrap());
        let path_mtu = Some(PathMtu { from, to, mtu: 1400 });
        assert_eq!(fragmentation_needed(&needed(1400, 4, &[0; 8])), path_mtu);
        assert_eq!(fragmentation_needed(&needed(1400, 41, &[0; 8])), path_mtu);
        assert_eq!(fragmentation_needed(&needed(1400, 17, &GUE)), path_mtu);
        assert_eq!(fragmentation_needed(&needed(1400, 17, &DNS)), None, "not a tunnel");
        assert_eq!(fragmentation_needed(&needed(1400, 17, &GUE[..4])), None, "no port");
        assert_eq!(fragmentation_needed(&needed(1400, 6, &[0; 8])), None, "not a tunnel");
    }

    #[test]
    fn packet_too_big_gives_server_and_mtu() {
        let (from, to) = ("2001:db8::2".parse().unwrap(), "2001:db8:9::11".parse().unwrap());
        let path_mtu = Some(PathMtu { from, to, mtu: 1280 });
        assert_eq!(packet_too_big(&too_big(1280, 41, &[0; 8])), path_mtu);
        assert_eq!(packet_too_big(&too_big(1280, 17, &GUE)), path_mtu);
        assert_eq!(packet_too_big(&too_big(1280, 17, &DNS)), None);
        assert_eq!(packet_too_big(&too_big(1280, 58, &[0; 8])), None);
    }

    #[test]
    fn mtus_out_of_bounds_are_not_believed() {
        for mtu in [0, 68, 575, 1500, 9000] {
            assert_eq!(fragmentation_needed(&needed(mtu, 4, &[0; 8])), None, "{mtu}");
        }
        for mtu in [0, 576, 1279, 1500, 70_000, u32::MAX] {
            assert_eq!(packet_too_big(&too_big(mtu, 41, &[0; 8])), None, "{mtu}");
        }
    }

    #[test]
    fn malformed_messages_are_not_believed() {
        let good = needed(1400, 4, &[0; 8]);
        let broken = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            fragmentation_needed(&bytes)
        };
        assert_eq!(broken(20, 11), None, "another type");
        assert_eq!(broken(27, 0), None, "the checksum is wrong");
        assert_eq!(broken(0, 0x65), None, "another version");
        assert_eq!(broken(0, 0x41), None, "a header too short");
        for len in 0..20 + 8 + 20 {
            assert_eq!(fragmentation_needed(&good[..len]), None, "{len} bytes");
        }
        let good = too_big(1280, 41, &[]);
        for len in 0..good.len() {
            assert_eq!(packet_too_big(&good[..len]), None, "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for path_mtu in [fragmentation_needed(&bytes), packet_too_big(&bytes)].into_iter().flatten() {
                prop_assert!(path_mtu.mtu >= 576);
            }
        }

        #[test]
        fn any_change_is_read(at in 0usize..64, value: u8) {
            for mut good in [needed(1400, 4, &[0; 16]), too_big(1300, 17, &GUE)] {
                if let Some(byte) = good.get_mut(at) {
                    *byte = value;
                }
                for path_mtu in [fragmentation_needed(&good), packet_too_big(&good)].into_iter().flatten() {
                    prop_assert!((576..1500).contains(&path_mtu.mtu) || at == 30 || at == 31);
                }
            }
        }
    }
}
