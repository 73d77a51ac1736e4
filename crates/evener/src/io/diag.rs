//! Whether this host has a socket for a connection: asked of the kernel by sock_diag(7).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use evener_core::node::lccp::SocketId;
use socket2::{Domain, Protocol, Socket, Type};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout};

use crate::runtime::shares::{Source, source};

/// linux/netlink.h and linux/sock_diag.h.
const NETLINK_SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_DONE: u16 = 3;
const NLMSG_ERROR: u16 = 2;
/// linux/inet_diag.h: the attribute with TCP's own numbers, asked for by its bit.
const INET_DIAG_INFO: u16 = 2;
/// Where `struct tcp_info` of linux/tcp.h has `tcpi_bytes_received`.
const BYTES_RECEIVED: usize = 128;
/// Where it has the bit `tcpi_delivery_rate_app_limited`, `tcpi_unacked`, `tcpi_data_segs_out` and `tcpi_delivery_rate`.
const APP_LIMITED: usize = 7;
const UNACKNOWLEDGED: usize = 24;
const DATA_SEGMENTS: usize = 156;
const DELIVERY_RATE: usize = 160;
/// So many segments with data are sent before a connection knows how fast it may.
const FIRST_SEGMENTS: u32 = 64;
/// Whichever socket is there.
const NO_COOKIE: [u32; 2] = [u32::MAX; 2];
/// The kernel answers at once, or not at all.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longer than the answer.
const ANSWER_BYTES: usize = 4_096;
/// What the kernel puts into one datagram of a dump, at most.
const DUMP_BYTES: usize = 32 * 1024;
/// States of net/tcp_states.h: open ones, and those that may still have bytes on their way.
const OPEN_STATES: [u8; 2] = [1, 8];
const SENDING_STATES: [u8; 5] = [1, 4, 8, 9, 11];
/// States of net/tcp_states.h.
const LISTEN: u8 = 10;
const TCP_STATES_OPEN: [u8; 6] = [1, 4, 5, 8, 9, 11];

/// `struct inet_diag_sockid`.
#[derive(Clone, Copy, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiagSocketId {
    own_port: [u8; 2],
    other_port: [u8; 2],
    own: [u8; 16],
    other: [u8; 16],
    interface: u32,
    cookie: [u32; 2],
}

/// `struct nlmsghdr`, and `struct inet_diag_req_v2` behind it.
#[derive(IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Question {
    length: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
    family: u8,
    protocol: u8,
    extensions: u8,
    pad: u8,
    states: u32,
    ends: DiagSocketId,
}

/// `struct nlmsghdr`, and `struct inet_diag_msg` behind it.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Answer {
    length: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
    family: u8,
    state: u8,
    timer: u8,
    retransmissions: u8,
    ends: DiagSocketId,
    numbers: [u32; 5],
}

impl Answer {
    /// The address of the other end.
    fn client(&self) -> IpAddr {
        let octets = self.ends.other;
        match (i32::from(self.family), octets.first_chunk::<4>()) {
            (nix::libc::AF_INET, Some(octets)) => IpAddr::from(*octets),
            _ => IpAddr::from(octets),
        }
    }
}

/// `struct rtattr`.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Attribute {
    length: u16,
    kind: u16,
}

/// What there is between two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing that could take a client's bytes.
    Nothing,
    /// A connection that has taken so many of the client's bytes.
    Connection { received: u64 },
    /// Somebody who would take one.
    Listener,
}

/// Looks for the socket of a connection of this host.
///
/// # Errors
/// When the kernel can't be asked.
pub(crate) fn find(socket: SocketId) -> io::Result<Found> {
    ask(socket.server(), socket.client())
}

/// What connections of services have to send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sending {
    /// How many are open.
    pub(crate) connections: u64,
    /// Bytes in the kernel that their clients haven't acknowledged, of those too that are about to close.
    pub(crate) bytes: u64,
    /// How fast those clients are sent to now, in bytes a second, for whom there is more than the path takes. Of each client the fastest
    /// connection: whoever opens many and reads slowly is one client.
    pub(crate) rates: BTreeMap<Source, u64>,
}

/// Adds up the connections to these ports of this host.
///
/// # Errors
/// When the kernel can't be asked.
pub(crate) fn sending(ports: &BTreeSet<u16>) -> io::Result<Sending> {
    let mut sending = Sending::default();
    let mut bytes = vec![0; DUMP_BYTES];
    for family in [nix::libc::AF_INET, nix::libc::AF_INET6] {
        let mut socket = open()?;
        let mut question = question(family, DiagSocketId::new_zeroed());
        question.flags = NLM_F_REQUEST | NLM_F_DUMP;
        question.states = SENDING_STATES.iter().fold(0, |states, state| states | 1 << state);
        socket.write_all(question.as_bytes())?;
        while {
            let len = socket.read(&mut bytes)?;
            add(bytes.get(..len).unwrap_or_default(), ports, &mut sending)?
        } {}
    }
    Ok(sending)
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
                let (answer, rest) = Answer::read_from_prefix(message).map_err(|_| odd())?;
                if ports.contains(&u16::from_be_bytes(answer.ends.own_port)) {
                    sending.connections += u64::from(OPEN_STATES.contains(&answer.state));
                    // Of expires, rqueue, wqueue, uid and inode the third.
                    sending.bytes += u64::from(answer.numbers[2]);
                    if let Some(rate) = info(rest).and_then(delivery_rate) {
                        let fastest = sending.rates.entry(source(answer.client())).or_default();
                        *fastest = rate.max(*fastest);
                    }
                }
            }
            _ => return Err(odd()),
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

/// How fast a connection's bytes arrive, in bytes a second, where it is the path that says so: it has some on the way, it is past its first ones,
/// and its server program had more to give.
fn delivery_rate(info: &[u8]) -> Option<u64> {
    let number = |at: usize| Some(u32::from_ne_bytes(*info.get(at..)?.first_chunk()?));
    let is_sending = number(UNACKNOWLEDGED)? > 0 && number(DATA_SEGMENTS)? >= FIRST_SEGMENTS;
    let is_limited = info.get(APP_LIMITED)? & 1 != 0;
    let rate = u64::from_ne_bytes(*info.get(DELIVERY_RATE..)?.first_chunk()?);
    (is_sending && !is_limited && rate > 0).then_some(rate)
}

/// TCP's own numbers, among the attributes of an answer.
fn info(mut rest: &[u8]) -> Option<&[u8]> {
    loop {
        let (attribute, _) = Attribute::read_from_prefix(rest).ok()?;
        let len = usize::from(attribute.length);
        if attribute.kind == INET_DIAG_INFO {
            return rest.get(size_of::<Attribute>()..len);
        }
        // Attributes begin at multiples of four (netlink(7)); one that says it has no length ends it.
        rest = rest.get(len.max(size_of::<Attribute>()).next_multiple_of(4)..)?;
    }
}

/// Makes sure that this kernel can be asked at all: `tcp_diag` may be a module that is not there, and then nothing would
/// ever be found.
///
/// # Errors
/// When a socket that is there is not found.
pub(crate) fn check() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    match ask(listener.local_addr()?, (Ipv4Addr::LOCALHOST, 1).into())? {
        Found::Listener => Ok(()),
        _ => Err(io::Error::other("the kernel doesn't tell of sockets (CONFIG_INET_TCP_DIAG)")),
    }
}

fn ask(own: SocketAddr, other: SocketAddr) -> io::Result<Found> {
    let mut socket = open()?;
    let ends = DiagSocketId {
        own_port: own.port().to_be_bytes(),
        other_port: other.port().to_be_bytes(),
        own: octets(own.ip()),
        other: octets(other.ip()),
        interface: 0,
        cookie: NO_COOKIE,
    };
    let family = if own.is_ipv4() { nix::libc::AF_INET } else { nix::libc::AF_INET6 };
    socket.write_all(question(family, ends).as_bytes())?;
    let mut bytes = [0; ANSWER_BYTES];
    let len = socket.read(&mut bytes)?;
    read(bytes.get(..len).unwrap_or_default())
}

fn open() -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::from(nix::libc::AF_NETLINK),
        Type::DGRAM,
        Some(Protocol::from(NETLINK_SOCK_DIAG)),
    )?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Asks for TCP's own numbers of the one socket between these ends.
fn question(family: i32, ends: DiagSocketId) -> Question {
    Question {
        length: size_of::<Question>() as u32,
        kind: SOCK_DIAG_BY_FAMILY,
        flags: NLM_F_REQUEST,
        sequence: 1,
        port: 0,
        family: family as u8,
        protocol: nix::libc::IPPROTO_TCP as u8,
        extensions: 1 << (INET_DIAG_INFO - 1),
        pad: 0,
        states: u32::MAX,
        ends,
    }
}

/// Reads what the kernel answered.
fn read(bytes: &[u8]) -> io::Result<Found> {
    let kind = bytes.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    if kind == Some(NLMSG_ERROR) {
        let code = bytes.get(16..).and_then(|rest| rest.first_chunk::<4>()).copied().map(i32::from_ne_bytes);
        return match code {
            Some(code) if code == -nix::libc::ENOENT => Ok(Found::Nothing),
            code => Err(io::Error::from_raw_os_error(-code.unwrap_or(-nix::libc::EIO))),
        };
    }
    let odd = || io::Error::from(io::ErrorKind::InvalidData);
    let (answer, rest) = Answer::read_from_prefix(bytes).map_err(|_| odd())?;
    if kind != Some(SOCK_DIAG_BY_FAMILY) {
        return Err(odd());
    }
    if answer.state == LISTEN {
        return Ok(Found::Listener);
    }
    match info(rest).filter(|_| TCP_STATES_OPEN.contains(&answer.state)) {
        Some(info) => {
            let received = info.get(BYTES_RECEIVED..).and_then(|rest| rest.first_chunk::<8>());
            let received = received.copied().map(u64::from_ne_bytes).ok_or_else(odd)?;
            Ok(Found::Connection { received })
        }
        None => Ok(Found::Nothing),
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{Ipv6Addr, TcpStream};

    use super::*;

    #[test]
    fn connections_are_found_with_what_they_have_taken() {
        check().unwrap();
        for own in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let listener = TcpListener::bind((own, 0)).unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            let socket = SocketId::new(client.local_addr().unwrap(), client.peer_addr().unwrap()).unwrap();
            assert_eq!(find(socket).unwrap(), Found::Connection { received: 0 });
            client.write_all(b"GET /").unwrap();
            server.read_exact(&mut [0; 5]).unwrap();
            assert_eq!(find(socket).unwrap(), Found::Connection { received: 5 });
            drop(listener);
            let none = SocketId::new((own, 1).into(), socket.server()).unwrap();
            assert_eq!(find(none).unwrap(), Found::Nothing);
        }
    }

    #[test]
    fn what_clients_have_yet_to_acknowledge_is_added_up() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let clients: Vec<_> =
            (0..3).map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap()).collect();
        let mut servers: Vec<_> = clients.iter().map(|_| listener.accept().unwrap().0).collect();
        let ports = BTreeSet::from([port]);
        assert_eq!(sending(&ports).unwrap(), Sending { connections: 3, ..Sending::default() });
        servers[0].set_nonblocking(true).unwrap();
        // more than the client's buffer takes, since it doesn't read
        while servers[0].write(&[0; 65_536]).is_ok() {}
        let sending_now = sending(&ports).unwrap();
        assert!(sending_now.connections == 3 && sending_now.bytes > 10_000, "{sending_now:?}");
        assert_eq!(sending(&BTreeSet::new()).unwrap(), Sending::default());
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
    fn a_rate_is_what_the_path_says_and_not_the_program() {
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
        assert_eq!(info(&others), Some(&numbers[..]));
        for len in 0..others.len() {
            assert_eq!(info(&others[..len]), None, "cut off at {len}");
        }
    }

    /// An answer about a connection from port 80 to a client, whose bytes arrive at this rate.
    fn told(client: Ipv4Addr, rate: u64) -> Vec<u8> {
        let numbers = numbers(rate);
        let length = size_of::<Answer>() + size_of::<Attribute>() + numbers.len();
        let mut bytes = vec![0; size_of::<Answer>()];
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
    fn who_opens_many_connections_is_one_client() {
        let (slow, other) = (Ipv4Addr::new(192, 0, 2, 66), Ipv4Addr::new(192, 0, 2, 1));
        let bytes = [told(slow, 10), told(slow, 30), told(other, 900), told(slow, 20)].concat();
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
        for len in [0, 5, 16, 20, 50] {
            assert!(read(&vec![0; len]).is_err());
            assert!(len == 0 || add(&vec![0; len], &BTreeSet::new(), &mut Sending::default()).is_err());
        }
        let error = |code: i32| [&[0; 4][..], &2u16.to_ne_bytes(), &[0; 10], &code.to_ne_bytes()].concat();
        assert_eq!(read(&error(-nix::libc::ENOENT)).unwrap(), Found::Nothing);
        assert_eq!(read(&error(-nix::libc::EPERM)).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
