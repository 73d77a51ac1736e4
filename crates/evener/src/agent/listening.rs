//! Sockets at an agent's address.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

use crate::config::AgentListen;

/// Opens a non-blocking socket of this kind at an agent's address.
///
/// # Errors
/// If the address is not available.
pub(super) fn bind(listen: AgentListen, kind: Type) -> io::Result<Socket> {
    match listen {
        AgentListen::At(address) => bound(open(address, kind)?, address),
        // An IPv6 socket accepts both IP versions, independent of the host's default. On a host
        // without IPv6, only IPv4 is served.
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
    // Ended connections occupy a listener's port for a while, and would prevent a new listener.
    socket.set_reuse_address(kind == Type::STREAM)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn bound(socket: Socket, address: SocketAddr) -> io::Result<Socket> {
    socket.bind(&address.into())?;
    Ok(socket)
}
