//! The Light-weight Cluster Control Protocol. Nodes of a cluster request the server for a
//! connection, and hand off open connections to each other (section 3.2 of the paper on the LCCP
//! web cluster).
//!
//! The protocol runs directly on IP and has no retransmission of its own. Requests are repeated,
//! for instance when the client retransmits. All messages are idempotent, and no message needs
//! state at its sender. The header is the paper's. A tag protects against forged messages, and
//! numbers protect against replayed messages (`docs/how-it-works/lccp.md`).
//!
//! [`wire`] is the format of messages, and [`LccpSession`] the state about one other node.
//! [`TransferImage`] splits a socket's queued data into messages, and [`Assembly`] joins them.
//! [`IncomingHandoffs`] contains connections that a node receives, [`Releases`] those that it
//! releases.

mod body;
mod event;
mod handoff_information;
mod incoming;
mod key;
mod releases;
mod session;
mod socket;
#[cfg(test)]
mod tests;
mod transfer;
pub mod wire;

pub use body::{CONTENT_MAX, ClientRequest, Components, ErrorCode, MessageBody, Receptor};
pub use event::{LccpEvent, REFUSALS};
pub use handoff_information::{QUEUE_MAX, Scales, TcpState, TcpWindow};
pub use incoming::{HandoffAction, IncomingHandoffs};
pub use key::{EPOCH_S, HourlyKeys};
pub use releases::{ReleaseAction, Releases, ResumePoint};
pub use session::{LccpSession, LocalNode, MessageEffect, SILENCE_MS};
pub use socket::SocketId;
pub use transfer::{Assembly, CHUNK_LEN, Piece, ReceivedConnection, TransferImage};

/// IP protocol number of the protocol. It is reserved for experiments (RFC 3692, section 2.1), so
/// no other protocol uses it by default.
pub const PROTOCOL: u8 = 253;
