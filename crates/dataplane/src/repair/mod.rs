//! Moves open TCP connections from one socket to another, transparently for the client.
//!
//! [`save()`] reads a connection from the kernel, and [`restore()`] creates it again, on this host
//! or another one: its options, the state of both directions, and the unacknowledged bytes.
//! [`replay()`] is for a server whose own program accepts the connection: it sends the client's
//! segments again, and the server's kernel creates the socket from them. `save` and `restore` use
//! TCP_REPAIR. The paper's handoff requires such a migration without changes to clients, and this
//! variant can read the request before a server is selected.
//!
//! While a connection moves, the client's segments must not reach a host that has the service
//! address and no socket for them: the host would answer with a reset. `save` drops the segments
//! while it reads. Afterwards the host that receives the segments must hold or drop them until the
//! connection is restored. The client retransmits dropped segments.
//!
//! Congestion control and round-trip times start anew. Explicit congestion notification and the
//! process's own socket options are lost.

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address of the service; same family as `client`.
    pub service: SocketAddr,
    /// Sequence number of the next byte from the client.
    pub receive_next: u32,
    /// Sequence number of the next byte to the client, behind `unacked`.
    pub send_next: u32,
    /// Bytes written that the client has not acknowledged, up to `send_next`.
    pub unacked: Vec<u8>,
    /// Number of bytes at the end of `unacked` that were never sent.
    pub unsent: usize,
    /// Bytes from the client that the restoring process has to read, up to `receive_next`.
    pub unread: Vec<u8>,
    /// Options agreed on in the handshake.
    pub terms: AgreedOptions,
    /// Windows of both directions.
    pub window: Window,
}

/// TCP options that client and service agreed on in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgreedOptions {
    /// Maximum segment size that the client accepts, in bytes.
    pub mss: u16,
    /// Window scales (RFC 7323, section 2) of client and service; `None` without window scaling.
    pub window_scales: Option<(u8, u8)>,
    /// True with selective acknowledgments (RFC 2018).
    pub sack: bool,
    /// Timestamp clock of the service (RFC 7323, section 3) at the time of saving; `None` without
    /// timestamps.
    pub timestamp: Option<u32>,
}

/// Windows in bytes, with window scaling applied, as in `struct tcp_repair_window` of linux/tcp.h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Sequence number of the segment that set `send` (RFC 9293, section 3.3.1: SND.WL1).
    pub send_update: u32,
    /// Window announced by the client.
    pub send: u32,
    /// Largest window that the client has announced.
    pub send_max: u32,
    /// Window announced by this host.
    pub receive: u32,
    /// Next expected sequence number when this host announced the window.
    pub receive_update: u32,
}

/// Cause why a connection can't be saved or restored.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    #[error("moving a connection needs CAP_NET_ADMIN; run as root or grant it")]
    Privilege,
    #[error("a listening socket can't be moved")]
    Listening,
    /// An end has closed its direction.
    #[error("a connection that one end has closed can't be moved")]
    HalfClosed,
    /// The connection is not yet open or already closed.
    #[error("the connection is not open")]
    NotConnected,
    /// The client sent urgent data (RFC 6093), which stands apart in the queue.
    #[error("a connection with unread urgent data can't be moved")]
    Urgent,
    /// The connection changed during each attempt to read it.
    #[error("the connection changed while it was read")]
    Unsettled,
    /// A system call failed.
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
}

impl RepairError {
    fn system(what: &'static str) -> impl Fn(io::Error) -> RepairError {
        move |source| RepairError::System { what, source }
    }
}

/// Connection that could not be saved and continues unchanged.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotSaved {
    pub socket: TcpStream,
    #[source]
    pub error: RepairError,
}
