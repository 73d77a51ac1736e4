//! Receive buffers for queries that wait while a thread answers earlier ones.

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

/// Wanted receive buffer of each socket, in bytes. A buffer of this size holds some thousands of
/// queries. The kernel's default of 208 KiB holds about a hundred, since the kernel counts each
/// query with its overhead.
pub(crate) const WANTED: usize = 2 << 20;

/// Enlarges a socket's receive buffer. With CAP_NET_ADMIN the limit `net.core.rmem_max` does not
/// apply.
///
/// # Errors
/// If the system refuses.
pub(crate) fn widen(socket: &Socket) -> io::Result<()> {
    match setsockopt(&socket.as_fd(), sockopt::RcvBufForce, &WANTED) {
        Ok(()) => Ok(()),
        Err(_) => socket.set_recv_buffer_size(WANTED),
    }
}

/// Returns the size of the receive buffer that a socket of this process gets, in bytes.
///
/// # Errors
/// If no socket can be opened.
pub(crate) fn receive_buffer() -> io::Result<usize> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    widen(&socket)?;
    // The kernel doubles the requested size, for its overhead (socket(7)).
    Ok(socket.recv_buffer_size()? / 2)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn socket_gets_largest_allowed_receive_buffer() {
        let text = fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap_or_default();
        let most = text.trim().parse().unwrap_or(usize::MAX);
        let size = receive_buffer().unwrap();
        assert!(size == WANTED || size == most.min(WANTED), "{size} of {most}");
        assert!(!nix::unistd::geteuid().is_root() || size == WANTED, "{size}");
    }
}
