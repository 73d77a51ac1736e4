//! Bytes that the connections of services have to send, across all sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use evener_core::server::{Pending, ResponseProgress as Known};
use evener_dataplane::pending::TrackedRequest;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::{
    DiagMessage, DiagRequest, DiagSocketId, INET_DIAG_INFO, NLM_F_REQUEST, SOCK_DIAG_BY_FAMILY, attribute,
    open, question,
};
use crate::runtime::slots_by_source::{ClientSource, source};

const NLM_F_DUMP: u16 = 0x300;
const NLMSG_DONE: u16 = 3;
const NLA_F_NESTED: u16 = 0x8000;
/// From linux/inet_diag.h and linux/sock_diag.h. A request names a BPF map by its descriptor. The
/// map's value for a socket is returned as an attribute.
const INET_DIAG_REQ_SK_BPF_STORAGES: u16 = 2;
const SK_DIAG_BPF_STORAGE_REQ_MAP_FD: u16 = 1;
const INET_DIAG_SK_BPF_STORAGES: u16 = 20;
const SK_DIAG_BPF_STORAGE: u16 = 1;
const SK_DIAG_BPF_STORAGE_MAP_VALUE: u16 = 3;
/// Offsets in `struct tcp_info` of linux/tcp.h.
const APP_LIMITED: usize = 7;
const UNACKNOWLEDGED: usize = 24;
const BYTES_ACKNOWLEDGED: usize = 120;
const NOT_SENT: usize = 144;
const DATA_SEGMENTS: usize = 156;
const DELIVERY_RATE: usize = 160;
/// Number of data segments that a connection must have sent before its delivery rate is meaningful.
const FIRST_SEGMENTS: u32 = 64;
/// Maximum size of a datagram in the kernel's dump.
const DUMP_BYTES: usize = 32 * 1024;
/// States of net/tcp_states.h: of open connections, and of connections that may still have bytes to
/// send.
const OPEN_STATES: [u8; 2] = [1, 8];
const SENDING_STATES: [u8; 5] = [1, 4, 8, 9, 11];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sending {
    /// Number of open connections.
    pub(crate) connections: u64,
    /// Number of bytes in the kernel that clients haven't acknowledged, including connections that
    /// are closing.
    pub(crate) bytes: u64,
    /// Part of `bytes` that has been sent.
    pub(crate) in_flight: u64,
    /// Current delivery rates in bytes per second, by client, of connections that are limited by
    /// the path. The fastest connection of a client counts, so that a client with many slow
    /// connections is one client.
    pub(crate) rates: BTreeMap<ClientSource, u64>,
    /// Connections with bytes to send, or with a pending request.
    pub(crate) open: Vec<OpenConnection>,
}

/// A connection with bytes to send, or with a pending request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenConnection {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    /// Number of bytes in the kernel that the client hasn't acknowledged.
    pub(crate) queued: u64,
    /// Number of bytes of the connection that the client has acknowledged.
    pub(crate) acknowledged: u64,
    /// Delivery rate in bytes per second, if known.
    pub(crate) rate: Option<u64>,
    /// Last request, if the kernel tracks it.
    pub(crate) request: Option<TrackedRequest>,
}

/// Request for a dump, with the BPF map whose values are wanted.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct StorageQuestion {
    question: DiagRequest,
    length: u16,
    kind: u16,
    map_length: u16,
    map_kind: u16,
    map: i32,
}

/// Sums up the connections to these ports of this host. `requests` is the map of tracked requests.
///
/// # Errors
/// If the kernel can't be queried.
pub(crate) fn sending(ports: &BTreeSet<u16>, requests: Option<BorrowedFd<'_>>) -> io::Result<Sending> {
    let mut sending = Sending::default();
    let mut bytes = vec![0; DUMP_BYTES];
    for family in [nix::libc::AF_INET, nix::libc::AF_INET6] {
        let mut socket = open()?;
        socket.write_all(&dump_question(family, requests))?;
        while {
            let len = socket.read(&mut bytes)?;
            add(bytes.get(..len).unwrap_or_default(), ports, &mut sending)?
        } {}
    }
    Ok(sending)
}

fn dump_question(family: i32, requests: Option<BorrowedFd<'_>>) -> Vec<u8> {
    let mut question = question(family, DiagSocketId::new_zeroed());
    question.flags = NLM_F_REQUEST | NLM_F_DUMP;
    question.states = SENDING_STATES.iter().fold(0, |states, state| states | 1 << state);
    let Some(map) = requests else { return question.as_bytes().to_vec() };
    question.length = size_of::<StorageQuestion>() as u32;
    let storage = StorageQuestion {
        question,
        length: 12,
        kind: INET_DIAG_REQ_SK_BPF_STORAGES | NLA_F_NESTED,
        map_length: 8,
        map_kind: SK_DIAG_BPF_STORAGE_REQ_MAP_FD,
        map: map.as_raw_fd(),
    };
    storage.as_bytes().to_vec()
}

/// Adds the sockets of one datagram. Returns true if more datagrams follow.
fn add(mut bytes: &[u8], ports: &BTreeSet<u16>, sending: &mut Sending) -> io::Result<bool> {
    let odd = || io::Error::from(io::ErrorKind::InvalidData);
    while !bytes.is_empty() {
        let length = bytes.first_chunk::<4>().copied().map(u32::from_ne_bytes).ok_or_else(odd)? as usize;
        let message = bytes.get(..length).filter(|message| message.len() >= 16).ok_or_else(odd)?;
        match u16::from_ne_bytes([message[4], message[5]]) {
            NLMSG_DONE => return Ok(false),
            SOCK_DIAG_BY_FAMILY => {
                let (answer, rest) = DiagMessage::read_from_prefix(message).map_err(|_| odd())?;
                if ports.contains(&u16::from_be_bytes(answer.ends.own_port)) {
                    sending.add(&answer, rest);
                }
            }
            _ => return Err(odd()),
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

impl Sending {
    /// Adds a connection, with its attributes.
    fn add(&mut self, answer: &DiagMessage, attributes: &[u8]) {
        let info = attribute(attributes, INET_DIAG_INFO).unwrap_or_default();
        let connection = OpenConnection {
            client: answer.other(),
            server: answer.own(),
            // The third of expires, rqueue, wqueue, uid and inode.
            queued: u64::from(answer.numbers[2]),
            acknowledged: long(info, BYTES_ACKNOWLEDGED).unwrap_or_default(),
            rate: delivery_rate(info),
            request: stored(attributes).and_then(TrackedRequest::read),
        };
        self.connections += u64::from(OPEN_STATES.contains(&answer.state));
        self.bytes += connection.queued;
        self.in_flight += connection.queued.saturating_sub(word(info, NOT_SENT).unwrap_or_default().into());
        if let Some(rate) = connection.rate {
            let fastest = self.rates.entry(source(connection.client.ip())).or_default();
            *fastest = rate.max(*fastest);
        }
        if connection.queued > 0 || connection.is_pending() {
            self.open.push(connection);
        }
    }
}

impl OpenConnection {
    /// Returns the number of bytes that the client lacks, and whether the number is exact.
    /// Otherwise it is a minimum, from the known part of the response or from the kernel's queue.
    pub(crate) fn left(&self) -> (u64, bool) {
        let Some(pending) = self.request.as_ref().map(|request| &request.pending) else {
            return (self.queued, false);
        };
        match pending.left(self.acknowledged) {
            Some(left) if pending.has_another() => (left.max(self.queued), false),
            Some(left) => (left, true),
            None => (self.queued, false),
        }
    }

    /// Returns the number of the response's bytes that the client has acknowledged, if the
    /// response's beginning is known.
    pub(crate) fn taken(&self) -> Option<u64> {
        let request = self.request.as_ref()?;
        match request.pending.answer {
            Known::Waiting => Some(0),
            Known::Known => {
                let Pending { begin, end, .. } = request.pending;
                Some(self.acknowledged.min(end).saturating_sub(begin))
            }
            Known::Unknown => {
                (request.since_ns > 0).then(|| self.acknowledged.saturating_sub(request.pending.begin))
            }
        }
    }

    /// Returns the average rate since the request, in bytes per second. `now_ns` is the monotonic
    /// time.
    pub(crate) fn rate_since(&self, now_ns: u64) -> Option<f64> {
        let since_ns = self.request.as_ref().map(|request| request.since_ns).filter(|since| *since > 0)?;
        let seconds = now_ns.saturating_sub(since_ns) as f64 / 1e9;
        self.taken().filter(|_| seconds > 0.0).map(|taken| taken as f64 / seconds)
    }

    /// True if a request waits for its response, or for the rest of it.
    fn is_pending(&self) -> bool {
        self.request.as_ref().is_some_and(|request| match request.pending.answer {
            Known::Waiting => true,
            Known::Known => {
                request.pending.left(self.acknowledged) != Some(0) || request.pending.has_another()
            }
            Known::Unknown => false,
        })
    }
}

impl DiagMessage {
    fn own(&self) -> SocketAddr {
        self.address(&self.ends.own, self.ends.own_port)
    }

    fn other(&self) -> SocketAddr {
        self.address(&self.ends.other, self.ends.other_port)
    }

    fn address(&self, octets: &[u8; 16], port: [u8; 2]) -> SocketAddr {
        let address = match (i32::from(self.family), octets.first_chunk::<4>()) {
            (nix::libc::AF_INET, Some(octets)) => IpAddr::from(*octets),
            // An IPv6 socket may have an IPv4 client.
            _ => IpAddr::from(*octets).to_canonical(),
        };
        SocketAddr::new(address, u16::from_be_bytes(port))
    }
}

/// Returns the socket's value in the requested map.
fn stored(attributes: &[u8]) -> Option<&[u8]> {
    let storages = attribute(attributes, INET_DIAG_SK_BPF_STORAGES)?;
    attribute(attribute(storages, SK_DIAG_BPF_STORAGE)?, SK_DIAG_BPF_STORAGE_MAP_VALUE)
}

fn word(info: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*info.get(at..)?.first_chunk()?))
}

fn long(info: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*info.get(at..)?.first_chunk()?))
}

/// Returns the delivery rate in bytes per second, if the path limits it: the connection has
/// unacknowledged data, is past its first segments, and its application had more to send.
fn delivery_rate(info: &[u8]) -> Option<u64> {
    let is_sending = word(info, UNACKNOWLEDGED)? > 0 && word(info, DATA_SEGMENTS)? >= FIRST_SEGMENTS;
    let is_limited = info.get(APP_LIMITED)? & 1 != 0;
    let rate = long(info, DELIVERY_RATE)?;
    (is_sending && !is_limited && rate > 0).then_some(rate)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::super::Attribute;
    use super::*;

    #[test]
    fn unacknowledged_bytes_of_clients_are_summed() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let clients: Vec<_> =
            (0..3).map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap()).collect();
        let mut servers: Vec<_> = clients.iter().map(|_| listener.accept().unwrap().0).collect();
        let ports = BTreeSet::from([port]);
        assert_eq!(sending(&ports, None).unwrap(), Sending { connections: 3, ..Sending::default() });
        servers[0].set_nonblocking(true).unwrap();
        // more than the client's buffer holds, since the client doesn't read
        while servers[0].write(&[0; 65_536]).is_ok() {}
        let sending_now = sending(&ports, None).unwrap();
        assert!(sending_now.connections == 3 && sending_now.bytes > 10_000, "{sending_now:?}");
        assert_eq!(sending(&BTreeSet::new(), None).unwrap(), Sending::default());
    }

    /// Builds the `struct tcp_info` of a connection with this delivery rate.
    fn numbers(rate: u64) -> Vec<u8> {
        let mut numbers = vec![0; 168];
        numbers[UNACKNOWLEDGED..][..4].copy_from_slice(&10u32.to_ne_bytes());
        numbers[DATA_SEGMENTS..][..4].copy_from_slice(&FIRST_SEGMENTS.to_ne_bytes());
        numbers[DELIVERY_RATE..][..8].copy_from_slice(&rate.to_ne_bytes());
        numbers
    }

    #[test]
    fn delivery_rate_is_unknown_when_app_limited() {
        let numbers = numbers(500_000);
        assert_eq!(delivery_rate(&vec![0; numbers.len()]), None);
        assert_eq!(delivery_rate(&numbers), Some(500_000));
        assert_eq!(delivery_rate(&numbers[..160]), None, "a kernel before 4.9");
        for (at, byte) in [(APP_LIMITED, 1), (UNACKNOWLEDGED, 0), (DATA_SEGMENTS, 63)] {
            let mut other = numbers.clone();
            other[at] = byte;
            assert_eq!(delivery_rate(&other), None, "{at}");
        }
        let attribute = |kind: u16, value: &[u8]| {
            [&(4 + value.len() as u16).to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat()
        };
        let others = [attribute(1, &[0; 8]), attribute(INET_DIAG_INFO, &numbers)].concat();
        assert_eq!(super::attribute(&others, INET_DIAG_INFO), Some(&numbers[..]));
        for len in 0..others.len() {
            assert_eq!(super::attribute(&others[..len], INET_DIAG_INFO), None, "cut off at {len}");
        }
    }

    /// Builds the kernel's record of a connection from port 80 to a client, with this delivery
    /// rate.
    fn record_of(client: Ipv4Addr, rate: u64) -> Vec<u8> {
        let numbers = numbers(rate);
        let length = size_of::<DiagMessage>() + size_of::<Attribute>() + numbers.len();
        let mut bytes = vec![0; size_of::<DiagMessage>()];
        bytes[..4].copy_from_slice(&(length as u32).to_ne_bytes());
        bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        (bytes[16], bytes[17]) = (nix::libc::AF_INET as u8, 1);
        bytes[20..22].copy_from_slice(&80u16.to_be_bytes());
        bytes[40..44].copy_from_slice(&client.octets());
        bytes.extend((4 + numbers.len() as u16).to_ne_bytes());
        bytes.extend(INET_DIAG_INFO.to_ne_bytes());
        bytes.extend(numbers);
        bytes
    }

    #[test]
    fn many_connections_of_one_client_count_once() {
        let (slow, other) = (Ipv4Addr::new(192, 0, 2, 66), Ipv4Addr::new(192, 0, 2, 1));
        let bytes =
            [record_of(slow, 10), record_of(slow, 30), record_of(other, 900), record_of(slow, 20)].concat();
        let mut sending = Sending::default();
        assert!(add(&bytes, &BTreeSet::from([80]), &mut sending).unwrap());
        assert_eq!((sending.connections, sending.bytes), (4, 0));
        assert_eq!(sending.rates, BTreeMap::from([(source(slow.into()), 30), (source(other.into()), 900)]));
        let mut elsewhere = Sending::default();
        add(&bytes, &BTreeSet::from([81]), &mut elsewhere).unwrap();
        assert_eq!(elsewhere, Sending::default());
    }

    #[test]
    fn odd_answers_are_errors() {
        for len in [5, 16, 20, 50] {
            assert!(add(&vec![0; len], &BTreeSet::new(), &mut Sending::default()).is_err());
        }
    }
}
