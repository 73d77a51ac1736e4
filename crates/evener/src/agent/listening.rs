//! Sockets at the address where an agent answers.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

use crate::config::AgentListen;

/// A socket there, of a kind, that doesn't block.
///
/// # Errors
/// When the address can't be had.
pub(super) fn bind(listen: AgentListen, kind: Type) -> io::Result<Socket> {
    match listen {
        AgentListen::At(address) => bound(open(address, kind)?, address),
        // A socket of IPv6 takes both, whatever the host's default; where there is no IPv6, IPv4 is
        // all.
        AgentListen::Everywhere { port } => {
            let (all, all_ipv4) =
                ((Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into());
            match open(all, kind) {
                Ok(socket) => {
                    socket.set_only_v6(false)?;
                    bound(socket, all)
                }
                Err(error) if error.raw_os_error() == Some(nix::libc::EAFNOSUPPORT) => {
                    bound(open(all_ipv4, kind)?, all_ipv4)
                }
                Err(error) => Err(error),
            }
        }
    }
}

fn open(address: SocketAddr, kind: Type) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    // Connections that have ended hold the port of a listener for a while.
    socket.set_reuse_address(kind == Type::STREAM)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn bound(socket: Socket, address: SocketAddr) -> io::Result<Socket> {
    socket.bind(&address.into())?;
    Ok(socket)
}
