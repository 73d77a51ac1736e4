//! A way that is being cleared: the first segment of a connection has become a reset of the old one
//! between the same ends ([`Outcome::Clears`](super::Outcome::Clears)), and a copy of it comes in
//! again behind that. Between the two the stack knows nothing of the connection: what else is said
//! on it would meet the listener, which resets it (RFC 9293, section 3.10.7.2). So that goes
//! through the same queue, behind the copy. Once the connection has its socket, that is over: the
//! stack keeps in TIME-WAIT what it remembers of a connection that its server has closed first
//! (FIN-WAIT-2 of Linux, tcp_time_wait), by which it couldn't be told from the old one.
//! `bpf/server/clear.h` is its copy in C.

use super::Socket;

/// How long a copy may take to come in, in nanoseconds.
pub const CLEARING_NS: u64 = 50_000_000;

/// A connection whose way was cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClearedConnection {
    /// Nothing waits any longer then, by the monotonic clock, in nanoseconds.
    pub until_ns: u64,
    /// Whether the copy has come in, and the listener makes a connection of it.
    pub is_in: bool,
}

impl ClearedConnection {
    /// Whether another segment of the connection waits, where the host has this socket for its
    /// ends. Where it doesn't, none does any more.
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
            // The server has closed it, and the client's end comes.
            assert_eq!(copied.holds(9, &Socket::TimeWait(old)), !is_new, "{socket:?}");
        }
    }
}
