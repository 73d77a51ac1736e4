//! ICMP and ICMPv6 messages of a host's own stack.

use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use etherparse::checksum::Sum16BitWords;
use evener_core::net::wire::{icmp, icmpv6};
use socket2::{Domain, Protocol, Socket, Type};

use crate::network::family::Family;
use crate::network::host::Host;

/// Timeout of an echo.
const LIMIT: Duration = Duration::from_secs(2);
/// Lengths of an ICMP header and of the IP headers, in bytes.
const HEADER_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;

/// Received ICMP error, with the endpoints of the quoted packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    pub kind: u8,
    pub code: u8,
    /// Sender of the quoted packet.
    pub from: SocketAddr,
    /// Receiver of the quoted packet.
    pub to: SocketAddr,
}

/// Receiver of all ICMP messages to a host since it was opened.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    family: Family,
}

impl Listener {
    pub fn open(host: &Host, family: Family) -> Result<Listener> {
        let (domain, protocol) = match family {
            Family::V4 => (Domain::IPV4, Protocol::ICMPV4),
            Family::V6 => (Domain::IPV6, Protocol::ICMPV6),
        };
        let socket = host
            .enter(|| Socket::new(domain, Type::RAW, Some(protocol)))?
            .context("Opening a raw socket failed")?;
        socket.set_nonblocking(true)?;
        Ok(Listener { socket, family })
    }

    /// Returns the errors received since the last call.
    pub fn errors(&self) -> Result<Vec<Error>> {
        let messages = self.messages()?;
        Ok(messages.iter().filter_map(|message| error_in(self.family, message)).collect())
    }

    /// Returns the messages from the ICMP header on.
    fn messages(&self) -> Result<Vec<Vec<u8>>> {
        let mut messages = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match (&self.socket).read(&mut buffer) {
                Ok(len) => {
                    // raw IPv4 sockets include the IP header, IPv6 ones don't (raw(7), RFC 3542)
                    let skipped = if self.family == Family::V4 { IPV4_LEN } else { 0 };
                    messages.extend(buffer.get(skipped..len).map(<[u8]>::to_vec));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(messages),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Decodes an error about a TCP or UDP packet without IP options.
fn error_in(family: Family, message: &[u8]) -> Option<Error> {
    let &[kind, code, ..] = message else { return None };
    let quoted = message.get(HEADER_LEN..)?;
    let four = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(*quoted.get(at..)?.first_chunk::<4>()?)));
    let six = |at: usize| Some(IpAddr::V6(Ipv6Addr::from(*quoted.get(at..)?.first_chunk::<16>()?)));
    let is_error = match family {
        Family::V4 => [icmp::UNREACHABLE, icmp::TIME_EXCEEDED, icmp::PARAMETER_PROBLEM].contains(&kind),
        Family::V6 => (icmpv6::UNREACHABLE..=icmpv6::PARAMETER_PROBLEM).contains(&kind),
    };
    let (src, dst, l4) = match family {
        Family::V4 => (four(12)?, four(16)?, IPV4_LEN),
        Family::V6 => (six(8)?, six(24)?, IPV6_LEN),
    };
    let port = |at: usize| Some(u16::from_be_bytes(*quoted.get(at..)?.first_chunk::<2>()?));
    let (from, to) = (SocketAddr::new(src, port(l4)?), SocketAddr::new(dst, port(l4 + 2)?));
    is_error.then_some(Error { kind, code, from, to })
}

/// Sends an echo request of `len` bytes and checks the whole reply.
pub fn echo(host: &Host, address: IpAddr, len: usize) -> Result<()> {
    let family = Family::of(address);
    let listener = Listener::open(host, family)?;
    let (echo, answer) = match family {
        Family::V4 => (icmp::ECHO, icmp::ECHO_REPLY),
        Family::V6 => (icmpv6::ECHO, icmpv6::ECHO_REPLY),
    };
    let mut message = vec![echo, 0, 0, 0, 0x45, 0x76, 0, 1];
    message.extend((0..len).map(|at| at as u8));
    // the kernel fills in the checksum of ICMPv6 (RFC 3542, section 3.1)
    let sum = Sum16BitWords::new().add_slice(&message).ones_complement().to_ne_bytes();
    if family == Family::V4
        && let Some(place) = message.get_mut(2..4)
    {
        place.copy_from_slice(&sum);
    }
    listener.socket.send_to(&message, &SocketAddr::new(address, 0).into())?;
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        for reply in listener.messages()? {
            if reply.first() == Some(&answer) && reply.get(4..) == message.get(4..) {
                return Ok(());
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bail!("{address} does not echo {len} bytes")
}
