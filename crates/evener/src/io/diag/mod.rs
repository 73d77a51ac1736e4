//! TCP sockets of this host, through sock_diag(7): finds the socket of a connection, and sums up
//! the bytes that all sockets have to send.

mod sending;

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use evener_core::node::lccp::SocketId;
use socket2::{Domain, Protocol, Socket, Type};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) use sending::{OpenConnection, Sending, sending};

/// From linux/netlink.h and linux/sock_diag.h.
const NETLINK_SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
/// From linux/inet_diag.h: attribute with `struct tcp_info`, requested by its bit.
const INET_DIAG_INFO: u16 = 2;
/// Offset of `tcpi_bytes_received` in `struct tcp_info` of linux/tcp.h.
const BYTES_RECEIVED: usize = 128;
const NLA_TYPE_MASK: u16 = 0x3fff;
const NO_COOKIE: [u32; 2] = [u32::MAX; 2];
/// Timeout. The kernel answers at once, or not at all.
const PATIENCE: Duration = Duration::from_secs(1);
/// Buffer size, longer than the kernel's answer.
const ANSWER_BYTES: usize = 4_096;
const LISTEN: u8 = 10;
const TCP_STATES_OPEN: [u8; 6] = [1, 4, 5, 8, 9, 11];

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

/// `struct nlmsghdr`, followed by `struct inet_diag_req_v2`.
#[derive(IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiagRequest {
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

/// `struct nlmsghdr`, followed by `struct inet_diag_msg`.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiagMessage {
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

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Attribute {
    length: u16,
    kind: u16,
}

/// Socket for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundSocket {
    /// No socket that accepts a client's bytes.
    Nothing,
    /// A connection. `received` is the number of bytes received from the client.
    Connection { received: u64 },
    /// A listening socket, which would accept the connection.
    Listener,
}

/// Finds the socket of a connection of this host.
///
/// # Errors
/// If the kernel can't be queried.
pub(crate) fn find(socket: SocketId) -> io::Result<FoundSocket> {
    query(socket.server(), socket.client())
}

/// Returns the first attribute of this kind in `rest`.
fn attribute(mut rest: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let (attribute, _) = Attribute::read_from_prefix(rest).ok()?;
        let len = usize::from(attribute.length);
        // The highest bits are flags, for example for nested attributes (linux/netlink.h).
        if attribute.kind & NLA_TYPE_MASK == kind {
            return rest.get(size_of::<Attribute>()..len);
        }
        // Attributes are aligned to four bytes (netlink(7)). An attribute shorter than its header
        // must not stop the loop from advancing.
        rest = rest.get(len.max(size_of::<Attribute>()).next_multiple_of(4)..)?;
    }
}

/// Checks that this kernel can be queried. `tcp_diag` may be a missing module, and then no socket
/// would ever be found.
///
/// # Errors
/// If an existing socket is not found.
pub(crate) fn check() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    match query(listener.local_addr()?, (Ipv4Addr::LOCALHOST, 1).into())? {
        FoundSocket::Listener => Ok(()),
        _ => Err(io::Error::other("failed to list the kernel's sockets (CONFIG_INET_TCP_DIAG)")),
    }
}

fn query(own: SocketAddr, other: SocketAddr) -> io::Result<FoundSocket> {
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

/// Returns a request for the `tcp_info` of the socket between these ends.
fn question(family: i32, ends: DiagSocketId) -> DiagRequest {
    DiagRequest {
        length: size_of::<DiagRequest>() as u32,
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

/// Parses the kernel's answer.
fn read(bytes: &[u8]) -> io::Result<FoundSocket> {
    let kind = bytes.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    if kind == Some(NLMSG_ERROR) {
        let code = bytes.get(16..).and_then(|rest| rest.first_chunk::<4>()).copied().map(i32::from_ne_bytes);
        return match code {
            Some(code) if code == -nix::libc::ENOENT => Ok(FoundSocket::Nothing),
            code => Err(io::Error::from_raw_os_error(-code.unwrap_or(-nix::libc::EIO))),
        };
    }
    let odd = || io::Error::from(io::ErrorKind::InvalidData);
    let (answer, rest) = DiagMessage::read_from_prefix(bytes).map_err(|_| odd())?;
    if kind != Some(SOCK_DIAG_BY_FAMILY) {
        return Err(odd());
    }
    if answer.state == LISTEN {
        return Ok(FoundSocket::Listener);
    }
    match attribute(rest, INET_DIAG_INFO).filter(|_| TCP_STATES_OPEN.contains(&answer.state)) {
        Some(info) => {
            let received = info.get(BYTES_RECEIVED..).and_then(|rest| rest.first_chunk::<8>());
            let received = received.copied().map(u64::from_ne_bytes).ok_or_else(odd)?;
            Ok(FoundSocket::Connection { received })
        }
        None => Ok(FoundSocket::Nothing),
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
    fn diag_finds_connection_with_received_bytes() {
        check().unwrap();
        for own in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let listener = TcpListener::bind((own, 0)).unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            let socket = SocketId::new(client.local_addr().unwrap(), client.peer_addr().unwrap()).unwrap();
            assert_eq!(find(socket).unwrap(), FoundSocket::Connection { received: 0 });
            client.write_all(b"GET /").unwrap();
            server.read_exact(&mut [0; 5]).unwrap();
            assert_eq!(find(socket).unwrap(), FoundSocket::Connection { received: 5 });
            drop(listener);
            let none = SocketId::new((own, 1).into(), socket.server()).unwrap();
            assert_eq!(find(none).unwrap(), FoundSocket::Nothing);
        }
    }

    #[test]
    fn odd_answers_are_errors() {
        for len in [0, 5, 16, 20, 50] {
            assert!(read(&vec![0; len]).is_err());
        }
        let error = |code: i32| [&[0; 4][..], &2u16.to_ne_bytes(), &[0; 10], &code.to_ne_bytes()].concat();
        assert_eq!(read(&error(-nix::libc::ENOENT)).unwrap(), FoundSocket::Nothing);
        assert_eq!(read(&error(-nix::libc::EPERM)).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
