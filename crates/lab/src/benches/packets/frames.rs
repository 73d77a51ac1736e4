//! Frames to measure, and checks of the resulting frames.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Result, ensure};
use evener_core::net::wire::Mac;

use super::subject::Subject;

/// MAC of the interface on which test runs receive frames.
pub(super) const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// MAC of the sender of frames, as in `wrapper.h`.
const SENDER: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// MAC of the router that Katran sends all packets to.
pub(super) const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 9]);
/// Placeholder for the client that the wrapper fills in.
pub(super) const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
/// Source address of the director's tunnels.
pub(super) const TUNNELS_FROM: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// Maximum number of servers, numbered from 1.
pub(super) const SERVERS: u8 = 8;
/// Port of servers with their own address.
pub(super) const SERVER_PORT: u16 = 8080;

const ETHERNET: usize = 14;
const IP: usize = 20;
/// Length of a frame: Ethernet, IPv4, TCP, and ten bytes.
const FRAME: usize = 64;

pub(super) const fn mac_of(server: u8) -> Mac {
    Mac([2, 0, 0, 0, 1, server])
}

pub(super) const fn address_of(server: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100, 10 + server)
}

/// Returns a frame of 64 bytes with a TCP segment.
pub(super) fn segment(from: SocketAddrV4, to: SocketAddrV4, flags: u8) -> Vec<u8> {
    let mut frame = vec![0u8; FRAME];
    frame[0..6].copy_from_slice(&OWN.0);
    frame[6..12].copy_from_slice(&SENDER.0);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&50u16.to_be_bytes());
    frame[22] = 64;
    frame[23] = 6;
    frame[26..30].copy_from_slice(&from.ip().octets());
    frame[30..34].copy_from_slice(&to.ip().octets());
    frame[34..36].copy_from_slice(&from.port().to_be_bytes());
    frame[36..38].copy_from_slice(&to.port().to_be_bytes());
    // Acknowledgment number 1: the server's sequence numbers start at 0.
    frame[45] = 1;
    frame[46] = 0x50;
    frame[47] = flags;
    frame
}

/// Returns a server's reply.
pub(super) fn answer(endpoint: SocketAddrV4, flags: u8) -> Vec<u8> {
    segment(endpoint, CLIENT, flags)
}

/// Checks the frame that a subject has forwarded.
pub(super) fn check(subject: Subject, sent: &[u8], left: &[u8]) -> Result<()> {
    match subject {
        Subject::Wrapper => ensure!(left == sent, "The wrapper alone changed a frame"),
        Subject::L2 | Subject::Rewriter => {
            links(left, None)?;
            ensure!(left.get(12..) == sent.get(12..), "More than MAC addresses was changed");
        }
        Subject::NatIn | Subject::NatOut => translated(subject, sent, left)?,
        Subject::Tunnel => {
            links(left, None)?;
            wrapped(sent, left, 63)?;
            ensure!(left.get(26..30) == Some(&TUNNELS_FROM.octets()[..]), "Tunnels begin elsewhere");
        }
        Subject::Yardstick => {
            links(left, Some(SENDER))?;
            wrapped(sent, left, 64)?;
        }
        Subject::Katran => {
            links(left, Some(ROUTER))?;
            wrapped(sent, left, 64)?;
            ensure!(left.get(26..28) == Some(&[172, 16][..]), "Tunnels begin elsewhere");
        }
    }
    Ok(())
}

/// Checks that a frame goes from the interface's MAC to a server's MAC, or to `to`.
fn links(left: &[u8], to: Option<Mac>) -> Result<()> {
    let right = match to {
        Some(to) => left.get(..6) == Some(&to.0[..]),
        None => (1..=SERVERS).any(|server| left.get(..6) == Some(&mac_of(server).0[..])),
    };
    ensure!(right, "The frame goes to {:02x?}", left.get(..6));
    ensure!(left.get(6..12) == Some(&OWN.0[..]), "The frame comes from {:02x?}", left.get(6..12));
    Ok(())
}

/// Checks that the packet is encapsulated in a packet to a server (RFC 2003), and unchanged except
/// for its TTL.
fn wrapped(sent: &[u8], left: &[u8], inner_ttl: u8) -> Result<()> {
    ensure!(left.len() == sent.len() + IP, "{} bytes left, of {}", left.len(), sent.len());
    let (outer, inner) = (&left[ETHERNET..ETHERNET + IP], &left[ETHERNET + IP..]);
    ensure!(left[12..14] == [8, 0] && outer[0] == 0x45 && outer[9] == 4, "There is no IPIP around it");
    let total = usize::from(u16::from_be_bytes([outer[2], outer[3]]));
    ensure!(total == left.len() - ETHERNET, "The outer length is {total}");
    ensure!(outer[8] == 64 && sum(outer) == 0xffff, "The outer header is {outer:02x?}");
    ensure!(
        (1..=SERVERS).any(|server| outer[16..] == address_of(server).octets()),
        "It goes to {:?}",
        &outer[16..]
    );
    let mut wanted = sent[ETHERNET..].to_vec();
    wanted[8] = inner_ttl;
    let same = [0..10, 12..wanted.len()].into_iter().all(|part| inner[part.clone()] == wanted[part]);
    ensure!(
        same && sum(&inner[..IP]) == sum(&sent[ETHERNET..ETHERNET + IP]),
        "The packet inside was changed"
    );
    Ok(())
}

/// Checks translated addresses and ports, the TTL, and checksums, whose error must not change.
fn translated(subject: Subject, sent: &[u8], left: &[u8]) -> Result<()> {
    ensure!(left.len() == sent.len(), "{} bytes left, of {}", left.len(), sent.len());
    let (kept, changed, server) = match subject {
        Subject::NatIn => ([26..30, 34..36], [30..34, 36..38], Some((address_of(1), SERVER_PORT))),
        _ => ([30..34, 36..38], [26..30, 34..36], None),
    };
    ensure!(
        kept.into_iter().all(|part| left[part.clone()] == sent[part]),
        "Of the client something was changed"
    );
    let [address, port] = changed.map(|part| left[part].to_vec());
    if let Some((to, to_port)) = server {
        ensure!(address == to.octets() && port == to_port.to_be_bytes(), "It goes to {address:?}, {port:?}");
        links(left, None)?;
    }
    ensure!(left[22] == 63, "The time to live is {}", left[22]);
    let segment = |frame: &[u8]| sum(&frame[26..]);
    ensure!(sum(&left[14..34]) == sum(&sent[14..34]), "The header's checksum is wrong");
    ensure!(
        segment(left) == segment(sent) && left[38..50] == sent[38..50],
        "The segment was changed, or its checksum"
    );
    Ok(())
}

/// Sum of the Internet checksum (RFC 1071) over an even number of bytes. The two representations of
/// zero count as equal.
fn sum(bytes: &[u8]) -> u32 {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    if folded == 0 { 0xffff } else { folded }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent() -> Vec<u8> {
        let client = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 1000);
        segment(client, SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 100), 80), 0x10)
    }

    /// Returns the frame that Katran should make of `sent`.
    fn in_a_tunnel(sent: &[u8]) -> Vec<u8> {
        let mut outer = vec![0x45, 0, 0, 70, 0, 0, 0, 0, 64, 4, 0, 0, 172, 16, 0, 1];
        outer.extend(address_of(3).octets());
        let checksum = !(sum(&outer) as u16);
        outer[10..12].copy_from_slice(&checksum.to_be_bytes());
        [&ROUTER.0[..], &OWN.0, &[8, 0], &outer, &sent[ETHERNET..]].concat()
    }

    #[test]
    fn frames_are_right_with_every_byte_alone() -> Result<()> {
        let sent = sent();
        let by_link = [&mac_of(2).0[..], &OWN.0, &sent[12..]].concat();
        for (subject, left) in [(Subject::L2, by_link), (Subject::Katran, in_a_tunnel(&sent))] {
            check(subject, &sent, &left)?;
            for at in 0..left.len() {
                let mut wrong = left.clone();
                wrong[at] ^= 0x40;
                assert!(check(subject, &sent, &wrong).is_err(), "{subject:?}: byte {at}");
            }
            assert!(check(subject, &sent, &left[..left.len() - 1]).is_err());
        }
        Ok(())
    }
}
