//! The Light-weight Cluster Control Protocol: how the nodes of a cluster ask which server is to
//! have a connection, and give an open one to each other (section 3.2 of the paper on the LCCP web
//! cluster).
//!
//! It stands directly on IP and has no reliability of its own: a client's TCP sends again what was
//! lost, and then all is asked anew. So every message means the same however often it comes, and
//! none needs memory at its sender. The header is the paper's; around it stands what the paper
//! lacks: a tag, by which no stranger can take a connection away, and numbers, by which nobody can
//! do so with what was said before (`docs/how-it-works/lccp.md`).
//!
//! [`wire`] is the format, [`LccpSession`] what is shared with one other node, [`TransferImage`]
//! and [`Assembly`] cut what a socket has not delivered yet into messages and put it together
//! again. [`IncomingHandoffs`] is what a node takes, [`Releases`] what it lets go.

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
