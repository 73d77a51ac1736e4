use std::net::IpAddr;

use evener_core::net::checksum;

use crate::farms::{self, Kind};

const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const TCP_LEN: usize = 20;

/// Segment from a client to a service address.
#[derive(Clone, Copy)]
pub(crate) struct Segment<'a> {
    pub(crate) flags: u8,
    pub(crate) sequence: u32,
    pub(crate) acknowledgment: u32,
    pub(crate) data: &'a [u8],
}

impl Segment<'_> {
    /// Returns the frame that a node receives.
    pub(crate) fn frame(&self, kind: Kind, node: usize, client: usize, port: u16, vip: IpAddr) -> Vec<u8> {
        let (IpAddr::V4(from), IpAddr::V4(to)) = (farms::client(client), vip) else { return Vec::new() };
        let mac = [2, 0, 0, 0, 9, client as u8];
        let ethernet = [&farms::node(kind, node).1.0[..], &mac, &[0x08, 0x00]].concat();
        let [high, low] = ((IPV4_LEN + TCP_LEN + self.data.len()) as u16).to_be_bytes();
        let head = [0x45, 0, high, low, 0, 0, 0x40, 0, 64, 6, 0, 0];
        let mut ip = [&head, &from.octets()[..], &to.octets()].concat();
        let sum = checksum::finish(checksum::add(0, &ip)).to_be_bytes();
        ip[10..12].copy_from_slice(&sum);
        let mut tcp = [&[0; TCP_LEN][..], self.data].concat();
        tcp[..2].copy_from_slice(&port.to_be_bytes());
        tcp[2..4].copy_from_slice(&80_u16.to_be_bytes());
        tcp[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.acknowledgment.to_be_bytes());
        (tcp[12], tcp[13], tcp[14]) = (5 << 4, self.flags, 0xff);
        let pseudo = checksum::pseudo_header(from.into(), to.into(), 6, tcp.len());
        let sum = checksum::finish(checksum::add(pseudo, &tcp));
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        [ethernet, ip, tcp].concat()
    }

    /// Returns the sequence number of the segment in a frame.
    pub(crate) fn sequence_of(frame: &[u8]) -> Option<u32> {
        let at = ETHERNET_LEN + IPV4_LEN + 4;
        Some(u32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?))
    }
}
