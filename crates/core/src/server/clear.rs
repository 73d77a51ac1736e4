//! Replacement of an old connection by a new one with the same addresses and ports.
//!
//! The new connection's first segment is changed into a reset of the old connection
//! ([`Outcome::Clears`](super::Outcome::Clears)), and a copy of the segment is received after the
//! reset. Until the copy is received, the stack has no connection. Further segments would reach the
//! listener, which resets them (RFC 9293, section 3.10.7.2), so they are queued behind the copy.
//!
//! Queueing ends for good once the new connection has its socket. If the server closes first, the
//! stack keeps the new connection in TIME-WAIT (FIN-WAIT-2 of Linux, tcp_time_wait), where it looks
//! the same as the old connection. `bpf/server/clear.h` is this module's copy in C.

use super::Socket;

/// Maximum time until the copy is received, in nanoseconds.
pub const CLEARING_NS: u64 = 50_000_000;

/// A connection that replaces an old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClearedConnection {
    /// Time at which queueing ends at the latest, by the monotonic clock, in nanoseconds.
    pub until_ns: u64,
    /// True if the copy was received, so that the listener creates a connection from it.
    pub is_in: bool,
}

impl ClearedConnection {
    /// True if another segment of the connection has to wait. `socket` is the host's socket for the
    /// segment. Once this has returned false, no further segment waits.
    pub fn holds(&mut self, now_ns: u64, socket: &Socket) -> bool {
        let has_connection = !matches!(socket, Socket::None | Socket::Listener | Socket::TimeWait(_));
        if self.is_in && has_connection {
            self.until_ns = 0;
        }
        now_ns < self.until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::super::accept::OldConnection;
    use super::*;

    #[test]
    fn segments_wait_until_the_connection_has_its_own_socket() {
        let old = OldConnection { next: 1, timestamp: 0 };
        let connection = Socket::Connection { first: 1, written: 1, old };
        let cleared = ClearedConnection { until_ns: 10, is_in: false };
        let copied = ClearedConnection { is_in: true, ..cleared };
        for socket in [Socket::None, Socket::Listener, Socket::TimeWait(old), Socket::Opening, connection] {
            let (mut early, mut late) = (cleared, cleared);
            assert!(early.holds(9, &socket), "the socket is the old connection's: {socket:?}");
            assert!(!late.holds(10, &socket), "nothing waits for ever: {socket:?}");
            let is_new = matches!(socket, Socket::Opening | Socket::Connection { .. });
            let mut copied = copied;
            assert_eq!(copied.holds(9, &socket), !is_new, "{socket:?}");
            // The server has closed the connection, and the client's last segment arrives.
            assert_eq!(copied.holds(9, &Socket::TimeWait(old)), !is_new, "{socket:?}");
        }
    }
}
