//! The bytes that connections of services have to send, of all sockets at once.

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

/// linux/netlink.h.
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_DONE: u16 = 3;
const NLA_F_NESTED: u16 = 0x8000;
/// linux/inet_diag.h and linux/sock_diag.h: a BPF map is asked for by its descriptor, and what
/// stands there for a socket comes as an attribute.
const INET_DIAG_REQ_SK_BPF_STORAGES: u16 = 2;
const SK_DIAG_BPF_STORAGE_REQ_MAP_FD: u16 = 1;
const INET_DIAG_SK_BPF_STORAGES: u16 = 20;
const SK_DIAG_BPF_STORAGE: u16 = 1;
const SK_DIAG_BPF_STORAGE_MAP_VALUE: u16 = 3;
/// Where `struct tcp_info` of linux/tcp.h has these.
const APP_LIMITED: usize = 7;
const UNACKNOWLEDGED: usize = 24;
const BYTES_ACKNOWLEDGED: usize = 120;
const NOT_SENT: usize = 144;
const DATA_SEGMENTS: usize = 156;
const DELIVERY_RATE: usize = 160;
/// So many segments with data are sent before a connection knows how fast it may.
const FIRST_SEGMENTS: u32 = 64;
/// The most that the kernel puts into one datagram of a dump.
const DUMP_BYTES: usize = 32 * 1024;
/// States of net/tcp_states.h: open ones, and those that may still have bytes on their way.
const OPEN_STATES: [u8; 2] = [1, 8];
const SENDING_STATES: [u8; 5] = [1, 4, 8, 9, 11];

/// The bytes that connections of services have to send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sending {
    /// How many are open.
    pub(crate) connections: u64,
    /// Bytes in the kernel that their clients haven't acknowledged, of those too that are about to
    /// close.
    pub(crate) bytes: u64,
    /// Of these, what is on its way.
    pub(crate) in_flight: u64,
    /// How fast those clients are sent to now, in bytes a second, for whom there is more than the
    /// path takes. Of each client the fastest connection: whoever opens many and reads slowly is
    /// one client.
    pub(crate) rates: BTreeMap<ClientSource, u64>,
    /// Connections that have something to send, or a request that waits.
    pub(crate) open: Vec<OpenConnection>,
}

/// A connection that has something to send, or a request that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenConnection {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    /// Bytes in the kernel that the client hasn't acknowledged.
    pub(crate) queued: u64,
    /// Bytes of the connection that it has.
    pub(crate) acknowledged: u64,
    /// How fast the path takes them, in bytes a second, where that is known.
    pub(crate) rate: Option<u64>,
    /// Its last request, where the kernel follows it.
    pub(crate) request: Option<TrackedRequest>,
}

/// A question for a dump, with the map whose values are wanted as well.
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

/// Adds up the connections to these ports of this host; with what `requests`, the map of followed
/// requests, has of each.
///
/// # Errors
/// When the kernel can't be asked.
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

/// Adds what one datagram tells, and says whether more will come.
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
            // Of expires, rqueue, wqueue, uid and inode the third.
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
    /// The bytes that the client lacks, and whether that is exact: else it is the least that it can
    /// be, by the answer that is known, or by what the kernel holds.
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

    /// The bytes that the client has of the answer, as far as it was seen to begin.
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

    /// That by the time since the request came, in bytes a second; `now_ns` is of the monotonic
    /// clock.
    pub(crate) fn rate_since(&self, now_ns: u64) -> Option<f64> {
        let since_ns = self.request.as_ref().map(|request| request.since_ns).filter(|since| *since > 0)?;
        let seconds = now_ns.saturating_sub(since_ns) as f64 / 1e9;
        self.taken().filter(|_| seconds > 0.0).map(|taken| taken as f64 / seconds)
    }

    /// Whether a request waits for an answer, or for the rest of one.
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
            // A socket of IPv6 may have an IPv4 client.
            _ => IpAddr::from(*octets).to_canonical(),
        };
        SocketAddr::new(address, u16::from_be_bytes(port))
    }
}

/// The value that stands with a socket in the map that was asked for.
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

/// How fast a connection's bytes arrive, in bytes a second, where it is the path that says so: it
/// has some on the way, it is past its first ones, and its server program had more to give.
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
        // more than the client's buffer takes, since it doesn't read
        while servers[0].write(&[0; 65_536]).is_ok() {}
        let sending_now = sending(&ports, None).unwrap();
        assert!(sending_now.connections == 3 && sending_now.bytes > 10_000, "{sending_now:?}");
        assert_eq!(sending(&BTreeSet::new(), None).unwrap(), Sending::default());
    }

    /// `struct tcp_info` of a connection whose bytes arrive at this rate.
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

    /// An answer about a connection from port 80 to a client, whose bytes arrive at this rate.
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
