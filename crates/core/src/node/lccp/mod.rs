//! The Light-weight Cluster Control Protocol: nodes of a cluster request the server for a
//! connection, and hand open connections over to each other (section 3.2 of the paper on the LCCP
//! web cluster).
//!
//! The protocol runs directly on IP without retransmission of its own: a client's TCP retransmits,
//! and the request is repeated. All messages are idempotent, and none needs state at its sender.
//! The header is the paper's. A tag is added against forged messages, and numbers against replayed
//! ones (`docs/how-it-works/lccp.md`).
//!
//! [`wire`] is the format, and [`LccpSession`] the state shared with one other node.
//! [`TransferImage`] splits a socket's undelivered data into messages, and [`Assembly`] joins them.
//! [`IncomingHandoffs`] are the connections that a node receives, [`Releases`] those that it
//! releases.

mod body;
mod event;
mod handoff;
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
pub use handoff::{QUEUE_MAX, Scales, TcpState, TcpWindow};
pub use incoming::{HandoffAction, IncomingHandoffs};
pub use key::{EPOCH_S, HourlyKeys};
pub use releases::{ReleaseAction, Releases, ResumePoint};
pub use session::{LccpSession, LocalNode, MessageEffect, SILENCE_MS};
pub use socket::SocketId;
pub use transfer::{Assembly, CHUNK_LEN, Piece, ReceivedConnection, TransferImage};

/// The IP protocol number: for experiments, so not in anybody's way by default (RFC 3692, section
/// 2.1).
pub const PROTOCOL: u8 = 253;
