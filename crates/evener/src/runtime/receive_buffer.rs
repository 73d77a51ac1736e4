//! Room in which queries wait while a thread answers those before them.

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

/// In bytes, for each socket: some thousands of queries may come at once then. The kernel's own 208
/// KiB hold about a hundred, since each is counted with what it lies in.
pub(crate) const WANTED: usize = 2 << 20;

/// Widens a socket's room as far as this process may: with CAP_NET_ADMIN whatever
/// `net.core.rmem_max` says, else up to that.
///
/// # Errors
/// When the system refuses both.
pub(crate) fn widen(socket: &Socket) -> io::Result<()> {
    match setsockopt(&socket.as_fd(), sockopt::RcvBufForce, &WANTED) {
        Ok(()) => Ok(()),
        Err(_) => socket.set_recv_buffer_size(WANTED),
    }
}

/// The room that a socket of this process gets, in bytes.
///
/// # Errors
/// When it gets no socket.
pub(crate) fn receive_buffer() -> io::Result<usize> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    widen(&socket)?;
    // The kernel doubles what it is given, for what it keeps beside the data (socket(7)).
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
