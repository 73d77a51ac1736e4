//! What happens between nodes, in words for the log, and what is counted.

use core::fmt;
use core::net::IpAddr;

use super::wire::ReadError;

/// Something that the operator may want to know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Another node is known.
    Met {
        /// Its address.
        peer: IpAddr,
    },
    /// A node that was known has started anew: it has forgotten what was said before.
    Restarted {
        /// Its address.
        peer: IpAddr,
    },
    /// A message was refused; told once for each node and reason until the node is known anew.
    Refused {
        /// Its source.
        peer: IpAddr,
        /// Why.
        refusal: Refusal,
    },
}

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// Not the shape of a message.
    Malformed,
    /// Written with the key of another time.
    Key,
    /// Its tag is wrong.
    Forged,
    /// Of another version of the protocol.
    Version,
    /// It was received before, or so many others since that this can't be told; or it brings back a former life.
    Replayed,
    /// Written to a former life of this node, or to none.
    Former,
    /// Its sender has not shown yet that it lives now.
    Unknown,
    /// For a component that this node doesn't have.
    Receptor,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Refusal; 8] = [
        Refusal::Malformed,
        Refusal::Key,
        Refusal::Forged,
        Refusal::Version,
        Refusal::Replayed,
        Refusal::Former,
        Refusal::Unknown,
        Refusal::Receptor,
    ];

    /// Its name in views and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::Malformed => "malformed",
            Refusal::Key => "key",
            Refusal::Forged => "forged",
            Refusal::Version => "version",
            Refusal::Replayed => "replayed",
            Refusal::Former => "former",
            Refusal::Unknown => "unknown",
            Refusal::Receptor => "receptor",
        }
    }
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Refusal {
        match error {
            ReadError::Malformed => Refusal::Malformed,
            ReadError::Key => Refusal::Key,
            ReadError::Forged => Refusal::Forged,
            ReadError::Version(_) => Refusal::Version,
        }
    }
}

/// What has been counted since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Messages sent.
    pub sent: u64,
    /// Messages that were believed.
    pub accepted: u64,
    /// Authentic greetings of lives that are not known yet.
    pub hellos: u64,
    refused: [u64; Refusal::ALL.len()],
}

impl Counters {
    /// How many messages were refused for this reason.
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refused.get(refusal as usize).copied().unwrap_or_default()
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        if let Some(count) = self.refused.get_mut(refusal as usize) {
            *count = count.saturating_add(1);
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Met { peer } => write!(f, "node {peer} is known"),
            Notice::Restarted { peer } => {
                write!(f, "node {peer} has started anew; what it had been asked is asked again")
            }
            Notice::Refused { peer, refusal } => write!(f, "a control message from {peer}: {refusal}"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Malformed => "not a well-formed one, ignored; something else may use the protocol number",
            Refusal::Key => "its key is of another time, ignored; compare the hosts' clocks",
            Refusal::Forged => {
                "its tag is wrong, ignored; all hosts need the same `[farm] secret_file`, and no address translation between \
                 them"
            }
            Refusal::Version => "it runs another version, ignored until the versions agree",
            Refusal::Replayed => "it came twice or late, and was ignored",
            Refusal::Former => "it was meant for this node before its last start, and was ignored",
            Refusal::Unknown => "its sender was not known yet and was asked who it is; it will send it again",
            Refusal::Receptor => "this node has no such component, ignored; compare the hosts' files",
        })
    }
}
