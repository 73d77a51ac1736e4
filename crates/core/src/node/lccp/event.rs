//! Events that concern other nodes, with text for the log.

use core::fmt;
use core::net::IpAddr;

use super::wire::{ReadError, VERSION};
use crate::node::association::Refusal;

/// Event for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LccpEvent {
    /// Another node became known by its first accepted message.
    Met { peer: IpAddr },
    /// A known node has restarted, and lost its state.
    Restarted { peer: IpAddr },
    /// A node is silent.
    Silent { peer: IpAddr },
    /// A silent node sends messages again. It has not restarted.
    Answers { peer: IpAddr },
    /// A message was refused. The event is published once per node and reason, until the node's
    /// next accepted message.
    Refused { peer: IpAddr, refusal: Refusal },
}

impl LccpEvent {
    /// Node that the event concerns.
    pub fn peer(&self) -> IpAddr {
        match self {
            LccpEvent::Met { peer }
            | LccpEvent::Restarted { peer }
            | LccpEvent::Silent { peer }
            | LccpEvent::Answers { peer }
            | LccpEvent::Refused { peer, .. } => *peer,
        }
    }
}

/// Names of the reasons for which a message may be refused.
pub const REFUSALS: [&str; 11] = [
    Refusal::Malformed.name(),
    Refusal::Key { ahead_h: 0 }.name(),
    Refusal::Forged.name(),
    Refusal::Version { theirs: 0, ours: 0 }.name(),
    Refusal::Namesake.name(),
    Refusal::Replayed.name(),
    Refusal::Ended.name(),
    Refusal::Stale.name(),
    Refusal::Former.name(),
    Refusal::Unknown.name(),
    Refusal::Receptor.name(),
];

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Refusal {
        match error {
            ReadError::Malformed => Refusal::Malformed,
            ReadError::Key { ahead_h } => Refusal::Key { ahead_h },
            ReadError::Forged => Refusal::Forged,
            ReadError::Version(theirs) => Refusal::Version { theirs, ours: VERSION },
        }
    }
}

impl fmt::Display for LccpEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LccpEvent::Met { peer } => write!(f, "node {peer} is known"),
            LccpEvent::Restarted { peer } => {
                write!(f, "node {peer} has restarted; open requests to it are sent again")
            }
            LccpEvent::Silent { peer } => {
                write!(f, "node {peer} is silent; it gets no more requests until it answers")
            }
            LccpEvent::Answers { peer } => write!(f, "node {peer} answers again"),
            LccpEvent::Refused { peer, refusal } => write!(f, "a control message from {peer}: {refusal}"),
        }
    }
}
