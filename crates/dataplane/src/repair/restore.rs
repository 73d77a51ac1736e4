//! Restores a saved connection into the kernel.

use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::socket::{MsgFlags, send};
use socket2::{Domain, Protocol, Socket, Type};

use super::options::{self, Queue};
use super::{RepairError, Saved};
use crate::link::{option, set_option};

/// Restores a saved connection into a socket of this host, which must have the service address. The
/// kernel at first sends only bytes that were never sent. The socket is blocking. TCP options are
/// restored, and socket options are not, except for SO_REUSEADDR, which is always set.
///
/// # Errors
/// Fails without CAP_NET_ADMIN, if the host lacks the address or a route to the client, or if it
/// already has this connection. Unless the sending of unsent bytes failed midway, the client has
/// noticed nothing, and the connection can be restored on another host.
pub fn restore(saved: &Saved) -> Result<TcpStream, RepairError> {
    let socket = Socket::new(Domain::for_address(saved.client), Type::STREAM, Some(Protocol::TCP))
        .map_err(RepairError::system("a socket"))?;
    // From here on every error closes the socket in repair mode, which is silent.
    options::enter(socket.as_fd())?;
    connect(&socket, saved)?;
    options::set_terms(socket.as_fd(), &saved.terms)?;
    let (sent, unsent) = saved.unacked.split_at(saved.unacked.len().saturating_sub(saved.unsent));
    grow_buffers(socket.as_fd(), libc::SO_RCVBUF, libc::SO_RCVBUFFORCE, saved.unread.len())?;
    grow_buffers(socket.as_fd(), libc::SO_SNDBUF, libc::SO_SNDBUFFORCE, saved.unacked.len())?;
    refill(socket.as_fd(), Queue::Receive, &saved.unread)?;
    refill(socket.as_fd(), Queue::Send, sent)?;
    options::set_window(socket.as_fd(), &saved.window)?;
    go_on(&socket, unsent).inspect_err(|_| {
        let _ = options::enter(socket.as_fd());
    })?;
    Ok(socket.into())
}

/// Connects the socket with both queues empty and their sequence numbers set. In repair mode this
/// sends nothing.
fn connect(socket: &Socket, saved: &Saved) -> Result<(), RepairError> {
    let fd = socket.as_fd();
    let first = |next: u32, queued: &[u8]| next.wrapping_sub(queued.len() as u32);
    // IP_FREEBIND, because the address may be added just now. No SO_REUSEADDR
    // yet: it would replace SK_FORCE_REUSE, which TCP_REPAIR sets and which shares the port.
    let freebind = if saved.service.is_ipv4() { Socket::set_freebind_v4 } else { Socket::set_freebind_v6 };
    freebind(socket, true).map_err(RepairError::system("IP_FREEBIND"))?;
    options::set_mss(fd, saved.terms.mss)?;
    socket.bind(&saved.service.into()).map_err(RepairError::system("taking the service's address"))?;
    options::select(fd, Queue::Receive)?;
    options::set_sequence(fd, first(saved.receive_next, &saved.unread))?;
    options::select(fd, Queue::Send)?;
    options::set_sequence(fd, first(saved.send_next, &saved.unacked))?;
    socket.connect(&saved.client.into()).map_err(RepairError::system("connecting to the client"))
}

/// Leaves repair mode and sends the unsent bytes.
fn go_on(socket: &Socket, unsent: &[u8]) -> Result<(), RepairError> {
    options::leave_repair_mode(socket.as_fd())?;
    // Without the option no process could listen on the port again during the connection.
    socket.set_reuse_address(true).map_err(RepairError::system("SO_REUSEADDR"))?;
    write(socket.as_fd(), unsent)
}

fn refill(socket: BorrowedFd<'_>, queue: Queue, bytes: &[u8]) -> Result<(), RepairError> {
    options::select(socket, queue)?;
    write(socket, bytes)
}

/// Writes to the selected queue, or to the client. Each send(2) may take only a part of the bytes.
fn write(socket: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), RepairError> {
    while !bytes.is_empty() {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let written = send(socket.as_raw_fd(), bytes, flags)
            .map_err(|error| RepairError::system("refilling a queue")(error.into()))?;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Grows a buffer to hold `len` bytes regardless of the host's limits, because it held them on the
/// old host. Afterwards the kernel tunes the size again.
fn grow_buffers(
    socket: BorrowedFd<'_>,
    size: libc::c_int,
    force: libc::c_int,
    len: usize,
) -> Result<(), RepairError> {
    let failed = RepairError::system("room for a queue");
    // The kernel counts its own memory, about twice the bytes, and doubles the requested size.
    let has = option(socket, libc::SOL_SOCKET, size).map_err(&failed)?;
    let wants = libc::c_int::try_from(len).unwrap_or(libc::c_int::MAX);
    if wants <= has / 2 {
        return Ok(());
    }
    set_option(socket, libc::SOL_SOCKET, force, wants).map_err(&failed)?;
    // Kernels before 5.14 lack the option and keep the fixed size.
    let _ = set_option(socket, libc::SOL_SOCKET, libc::SO_BUF_LOCK, 0);
    Ok(())
}
