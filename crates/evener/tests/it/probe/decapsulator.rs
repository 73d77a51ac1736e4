//! The server's end of a tunnel, with two packet sockets: the inner packets reach the server's
//! stack through a veth pair on the server.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use evener_core::net::checksum;
use evener_core::net::wire::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, GUE_PORT, Mac};
use evener_dataplane::link::{EtherType, LinkSocket};
use evener_lab::network::host::Host;
use nix::net::if_::if_nametoindex;

/// MAC of the interface that receives the inner packets.
const INSIDE: Mac = Mac([2, 0, 0, 0, 0, 0xde]);
const ETHERNET_LEN: usize = 14;

/// Decapsulates packets from `eth0` until the test process ends.
pub(crate) fn start(host: &Host) -> Result<()> {
    host.ip(&[
        format!("link add inside address {INSIDE} type veth peer name outside"),
        "link set inside up".to_owned(),
        "link set outside up".to_owned(),
    ])?;
    let sockets = host.enter(|| -> Result<(LinkSocket, LinkSocket)> {
        let received = LinkSocket::open(if_nametoindex("eth0")?, EtherType::All)?;
        Ok((received, LinkSocket::open(if_nametoindex("outside")?, EtherType::All)?))
    });
    let (received, out) = sockets??;
    thread::spawn(move || {
        let mut buffer = [0; 2000];
        loop {
            match received.recv(&mut buffer) {
                Ok((len, _)) => {
                    if let Some(frame) = inner(&buffer[..len]) {
                        let _ = out.send(&frame);
                    }
                }
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
    });
    Ok(())
}

/// Returns the inner packet of a tunnel packet, as a frame for the veth pair.
fn inner(frame: &[u8]) -> Option<Vec<u8>> {
    let packet = frame.get(ETHERNET_LEN..)?;
    let (protocol, header_len) = match packet.first()? >> 4 {
        4 => (*packet.get(9)?, 20),
        6 => (*packet.get(6)?, 40),
        _ => return None,
    };
    let rest = packet.get(header_len..)?;
    let (inner, version) = match protocol {
        17 if rest.get(2..4)? == GUE_PORT.to_be_bytes() => (rest.get(12..)?, *rest.get(9)?),
        4 | 41 => (rest, protocol),
        _ => return None,
    };
    let ethertype = if version == 41 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
    Some([&INSIDE.0[..], &[2, 0, 0, 0, 0, 1], &ethertype.to_be_bytes(), inner].concat())
}

/// Returns a frame with an IP-in-IP packet of this length, whose payload is zeros.
pub(crate) fn ip_in_ip(own: Mac, to_mac: Mac, from: IpAddr, to: IpAddr, len: u16) -> Vec<u8> {
    let (ethertype, header) = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let [a, b] = len.to_be_bytes();
            let start = [0x45, 0, a, b, 0, 0, 0x40, 0, 64, 4, 0, 0];
            let mut header = [&start[..], &from.octets(), &to.octets()].concat();
            let [a, b] = checksum::finish(checksum::add(0, &header)).to_be_bytes();
            header[10..12].copy_from_slice(&[a, b]);
            (ETHERTYPE_IPV4, header)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let [a, b] = (len - 40).to_be_bytes();
            (ETHERTYPE_IPV6, [&[0x60, 0, 0, 0, a, b, 41, 64][..], &from.octets(), &to.octets()].concat())
        }
        _ => panic!("one family"),
    };
    let payload = vec![0; usize::from(len) - header.len()];
    [&to_mac.0[..], &own.0, &ethertype.to_be_bytes(), &header, &payload].concat()
}
