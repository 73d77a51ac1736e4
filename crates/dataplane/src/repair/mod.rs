//! Open TCP connections out of one socket and into another, without the client knowing.
//!
//! [`save()`] reads a connection from the kernel, and [`restore()`] creates it again, on this host
//! or another one: its options, the state of both directions, and the unacknowledged bytes.
//! [`replay()`] is for a server whose own program accepts the connection: it sends the client's
//! segments again, and the server's kernel creates the socket from them. All three use TCP_REPAIR.
//! The paper's handoff requires such a migration without changes to clients, and this variant can
//! read the request before a server is selected.
//!
//! From the time that `save` begins until the connection is whole again elsewhere, the client's
//! segments must not reach a host that has the service address and no socket for them: it would
//! answer with a reset. While `save` reads, it sees to that itself; afterwards whoever has the
//! segments holds or drops them, and the client sends them again.
//!
//! These are not kept: congestion control and round-trip times, which begin anew; explicit
//! congestion notification; and what the process itself set on the socket.

mod options;
mod replay;
mod restore;
mod save;

use std::io;
use std::net::{SocketAddr, TcpStream};

pub use options::unacked_len;
pub use replay::{replay, reset};
pub use restore::restore;
pub use save::save;

/// A connection without its socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The other end.
    pub client: SocketAddr,
    /// Ours. Of the same family.
    pub service: SocketAddr,
    /// Sequence number of the next byte from the client.
    pub receive_next: u32,
    /// Sequence number of the next byte that will be written to the client: the one behind
    /// `unacked`.
    pub send_next: u32,
    /// The bytes that were written and the client has not acknowledged, up to `send_next`.
    pub unacked: Vec<u8>,
    /// How many bytes at the end of `unacked` were never sent.
    pub unsent: usize,
    /// The bytes that the client sent and the restoring process is to read, up to `receive_next`.
    pub unread: Vec<u8>,
    /// The agreed options of the handshake.
    pub terms: AgreedOptions,
    /// How much either side lets the other send.
    pub window: Window,
}

/// The options that the ends of a connection agreed on when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgreedOptions {
    /// The largest segment that the client takes, in bytes.
    pub mss: u16,
    /// Window scales (RFC 7323, section 2) of what the client announces and of what we do.
    pub window_scales: Option<(u8, u8)>,
    /// Selective acknowledgments (RFC 2018).
    pub sack: bool,
    /// Our timestamp clock (RFC 7323, section 3) when the connection was saved, if timestamps were
    /// agreed on.
    pub timestamp: Option<u32>,
}

/// The windows, as `struct tcp_repair_window` in linux/tcp.h has them; in bytes, scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Sequence number of the segment that `send` is from (RFC 9293, section 3.3.1: SND.WL1).
    pub send_update: u32,
    /// The window that the client takes.
    pub send: u32,
    /// The most that it ever took.
    pub send_max: u32,
    /// The window that we announced.
    pub receive: u32,
    /// The number that was expected next when we announced it.
    pub receive_update: u32,
}

/// Why a connection can't be saved or restored.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// A missing capability.
    #[error("moving a connection needs CAP_NET_ADMIN; run as root or grant it")]
    Privilege,
    /// A listener.
    #[error("a listening socket is no connection that could be moved")]
    Listening,
    /// One of the ends has said that it sends no more.
    #[error("a connection that one end has closed can't be moved")]
    HalfClosed,
    /// Not open yet, or no longer.
    #[error("the connection is not open")]
    NotConnected,
    /// The client sent urgent data (RFC 6093), which stands apart in the queue.
    #[error("a connection with urgent data unread can't be moved")]
    Urgent,
    /// It would not hold still.
    #[error("the connection changed while it was read")]
    Unsettled,
    /// The system refused an operation.
    #[error("{what}: {source}")]
    System {
        /// The step that was tried.
        what: &'static str,
        /// Its answer.
        source: io::Error,
    },
}

impl RepairError {
    fn system(what: &'static str) -> impl Fn(io::Error) -> RepairError {
        move |source| RepairError::System { what, source }
    }
}

/// A connection that was not saved, and goes on as it was.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotSaved {
    /// The connection.
    pub socket: TcpStream,
    /// Why it is still here.
    #[source]
    pub error: RepairError,
}
