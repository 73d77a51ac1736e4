//! Client and answering director in one type: the agreed options, and segments built from them.

use std::net::{IpAddr, SocketAddr};

use evener_core::net::checksum;
use evener_core::net::wire::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, Ipv4, Ipv6, Mac, TCP_ACK, TCP_FIN, Tcp, protocol,
};
use evener_core::path::cookie::{Cookie, FourTuple, Keys, SynOptions};
use zerocopy::{FromBytes, IntoBytes};

const TCP_LEN: usize = 20;

/// One connection of a client.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub ends: FourTuple,
    pub isn: u32,
    /// Sequence number of the director's SYN-ACK: the SYN cookie.
    pub cookie: u32,
    /// Timestamp value of the director's SYN-ACK.
    pub clock: u32,
    /// Timestamp value of the client, and the difference between the timestamp that the client
    /// echoes and `clock`.
    pub timestamps: Option<(u32, u32)>,
}

/// The client's options that a SYN cookie encodes.
#[derive(Clone, Copy, Debug)]
pub struct Offered {
    pub mss: u16,
    pub scale: Option<u8>,
}

impl Call {
    pub fn new(keys: &Keys, ends: FourTuple, isn: u32, offered: Offered) -> Call {
        let terms = SynOptions::new(ends.client.is_ipv6(), Some(offered.mss), offered.scale);
        let Cookie { number: cookie, clock } = keys.make(&ends, isn, terms).unwrap();
        Call { ends, isn, cookie, clock, timestamps: None }
    }

    pub fn at(self, client: u32, later: u32) -> Call {
        Call { timestamps: Some((client, later)), ..self }
    }

    /// Returns the TCP header and payload of the first data segment.
    pub fn first(&self, data: &[u8]) -> Vec<u8> {
        self.segment((1, 1), TCP_ACK, data)
    }

    /// Returns the client's FIN, after `sent` bytes from the client and `received` bytes from the
    /// server.
    pub fn last(&self, sent: u32, received: u32) -> Vec<u8> {
        self.segment((1 + sent, 1 + received), TCP_ACK | TCP_FIN, &[])
    }

    /// Returns a segment. `seq` and `ack` count from the initial sequence numbers of client and
    /// server.
    pub fn segment(&self, (seq, ack): (u32, u32), flags: u8, data: &[u8]) -> Vec<u8> {
        let options = self.options();
        let mut tcp = Tcp {
            src_port: self.ends.client.port().into(),
            dst_port: self.ends.service.port().into(),
            seq: self.isn.wrapping_add(seq).into(),
            ack: self.cookie.wrapping_add(ack).into(),
            data_offset: ((TCP_LEN + options.len()) as u8 / 4) << 4,
            flags,
            window: 30_000.into(),
            checksum: 0.into(),
            urgent: 0.into(),
        };
        let len = (TCP_LEN + options.len() + data.len()) as u16;
        let addresses = [octets(self.ends.client.ip()), octets(self.ends.service.ip())].concat();
        let pseudo = [&addresses, &[0, protocol::TCP][..], &len.to_be_bytes()].concat();
        let sum = checksum::add(checksum::add(0, &pseudo), &[tcp.as_bytes(), &options].concat());
        tcp.checksum = checksum::finish(checksum::add(sum, data)).into();
        [tcp.as_bytes(), &options, data].concat()
    }

    fn options(&self) -> Vec<u8> {
        let Some((client, later)) = self.timestamps else { return vec![] };
        let director = self.clock.wrapping_add(later);
        [&[1, 1, 8, 10][..], &client.to_be_bytes(), &director.to_be_bytes()].concat()
    }

    /// Returns an Ethernet frame with a segment of this connection, as the director sends it.
    pub fn frame(&self, from: Mac, to: Mac, segment: &[u8]) -> Vec<u8> {
        let (ethertype, header) = match (self.ends.client.ip(), self.ends.service.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut ip = Ipv4 {
                    version_ihl: 0x45,
                    tos: 0,
                    total_len: ((20 + segment.len()) as u16).into(),
                    id: 1.into(),
                    fragment: 0x4000.into(),
                    ttl: 60,
                    protocol: protocol::TCP,
                    checksum: 0.into(),
                    src: src.to_bits().into(),
                    dst: dst.to_bits().into(),
                };
                ip.checksum = checksum::finish(checksum::add(0, ip.as_bytes())).into();
                (ETHERTYPE_IPV4, ip.as_bytes().to_vec())
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ip = Ipv6 {
                    version_class_flow: (6u32 << 28).into(),
                    payload_len: (segment.len() as u16).into(),
                    next_header: protocol::TCP,
                    hop_limit: 60,
                    src: src.octets(),
                    dst: dst.octets(),
                };
                (ETHERTYPE_IPV6, ip.as_bytes().to_vec())
            }
            _ => panic!("ends are of one family"),
        };
        let ethernet = Ethernet { dst: to, src: from, ethertype: ethertype.into() };
        [ethernet.as_bytes(), &header, segment].concat()
    }

    /// Decodes a frame. `None` if the frame is not a segment from the server on this connection.
    pub fn received(&self, frame: &[u8]) -> Option<Received> {
        let (_, packet) = Ethernet::ref_from_prefix(frame).ok()?;
        let (src, dst, carried, inside) = match packet.first()? >> 4 {
            4 => {
                let (ip, rest) = Ipv4::ref_from_prefix(packet).ok()?;
                let len = usize::from(ip.total_len.get()) - 20;
                let ends = [ip.src, ip.dst].map(|address| IpAddr::V4(address.get().into()));
                (ends[0], ends[1], ip.protocol, rest.get(..len)?)
            }
            6 => {
                let (ip, rest) = Ipv6::ref_from_prefix(packet).ok()?;
                let len = usize::from(ip.payload_len.get());
                (IpAddr::V6(ip.src.into()), IpAddr::V6(ip.dst.into()), ip.next_header, rest.get(..len)?)
            }
            _ => return None,
        };
        if carried != protocol::TCP {
            return None;
        }
        let (tcp, rest) = Tcp::ref_from_prefix(inside).ok()?;
        let from = SocketAddr::new(src, tcp.src_port.get());
        let to = SocketAddr::new(dst, tcp.dst_port.get());
        let options_len = usize::from(tcp.data_offset >> 4) * 4 - TCP_LEN;
        (from == self.ends.service && to == self.ends.client).then(|| Received {
            flags: tcp.flags,
            seq: tcp.seq.get().wrapping_sub(self.cookie),
            ack: tcp.ack.get().wrapping_sub(self.isn),
            timestamps: timestamps(&rest[..options_len]),
            data: rest[options_len..].to_vec(),
        })
    }
}

/// A segment from the server. Sequence numbers count from the initial sequence numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    /// Timestamp value of the server, and the client's timestamp that the server echoes.
    pub timestamps: Option<(u32, u32)>,
    pub data: Vec<u8>,
}

fn timestamps(options: &[u8]) -> Option<(u32, u32)> {
    // In established connections, Linux puts two bytes of padding and then the timestamps first.
    let words = options.strip_prefix(&[1, 1, 8, 10])?;
    let word = |at: usize| u32::from_be_bytes(words[at..at + 4].try_into().unwrap());
    Some((word(0), word(4)))
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
