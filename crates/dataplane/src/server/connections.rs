//! What is known of connections of this host's services, and those that are to come.

use std::io;
use std::net::SocketAddr;

use crate::repair::{Saved, Window};

/// Looks at connections and announces them. Clones see the same ones; it may outlive the [`Server`](super::Server).
#[derive(Clone)]
pub struct Connections {}

/// What there is between a client and a service of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// No connection that is open both ways.
    Gone,
    /// One whose last request may be without its whole answer.
    Busy,
    /// One of which it can't be known: what was said on it was more than plain requests and their answers.
    Unclear,
    /// One that rests: every request has its whole answer, and the next one is awaited.
    Idle(Idle),
}

/// Where a connection rests, and what was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// Sequence number of the next byte from the client.
    pub receive_next: u32,
    /// Sequence number of the next byte to the client. The client may not have acknowledged all before it.
    pub send_next: u32,
    /// The largest segment that the client takes, in bytes.
    pub mss: u16,
    /// Window scales of what the client announces and of what we do.
    pub window_scales: Option<(u8, u8)>,
    /// Selective acknowledgments.
    pub sack: bool,
    /// Whether both sides send timestamps.
    pub timestamps: bool,
    /// How much either side lets the other send.
    pub window: Window,
}

impl Connections {
    /// Looks at a connection.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn look(&self, _client: SocketAddr, _service: SocketAddr) -> io::Result<Look> {
        Ok(Look::Gone)
    }

    /// Whether nothing was sent to the client since it was found at rest so; of a connection that is gone.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn is_silent_since(
        &self,
        _client: SocketAddr,
        _service: SocketAddr,
        _idle: &Idle,
    ) -> io::Result<bool> {
        Ok(true)
    }

    /// From now on, and for a while, has a segment of this connection's next unread bytes become a socket here, as a good
    /// cookie would: its first is at `receive_next - unread.len()`, its acknowledgment `send_next - unacked.len()`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn expect(&self, _saved: &Saved) -> io::Result<()> {
        Ok(())
    }
}
