//! Events of the data plane's decisions, for subscribers: each connection that is handed over, and
//! each packet of a few clients.
//!
//! An event that isn't read in time is lost and counted; packets never wait for a reader.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use evener_core::path::decide::{Reason, Verdict};

use crate::EngineError;

/// Clients that may be watched at once.
pub const CLIENTS_MAX: usize = 4;
/// The most that is told of what a client said first, in bytes.
pub const HEAD_MAX: usize = 256;

/// The filter of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// Each connection of a service with method handoff whose client has said what it wants.
    pub connections: bool,
    /// Each packet from or to these, [`CLIENTS_MAX`] at most.
    pub clients: BTreeSet<IpAddr>,
}

impl TraceFilter {
    /// Whether nothing is to be told.
    pub fn is_idle(&self) -> bool {
        !self.connections && self.clients.is_empty()
    }

    pub(crate) fn check(&self) -> Result<(), EngineError> {
        match self.clients.len() {
            0..=CLIENTS_MAX => Ok(()),
            many => Err(EngineError::Capacity(format!(
                "the packets of {CLIENTS_MAX} clients can be told at once, and {many} are asked for"
            ))),
        }
    }
}

pub(crate) fn read_already() -> EngineError {
    EngineError::Host("what the data plane tells is being read already".into())
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A connection was decided.
    Connection(ConnectionEvent),
    /// A packet was.
    Packet(PacketEvent),
}

/// A connection whose client said what it wants, and whom it was given to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionEvent {
    /// When that was, by CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// How long it took to read what the client wants, to choose, and to send the segment on.
    pub latency_ns: u32,
    /// The client.
    pub client: SocketAddr,
    /// The service address that it came to.
    pub service: SocketAddr,
    /// The slot, of a server or for what is punted, that now has the connection; `NO_SERVER` where
    /// nobody does.
    pub server: u16,
    /// The reason of the segment's verdict.
    pub reason: Reason,
    /// [`Reason::Punted`]: the server is yet to be chosen, in application space.
    /// [`Reason::TableFull`]: refused.
    pub also_counted: Option<Reason>,
    /// The number of the route that chose, in the service's list; `None` where none did, or where
    /// it is yet to be chosen.
    pub route: Option<u16>,
    /// The client's first [`HEAD_MAX`] bytes.
    pub head: Vec<u8>,
}

/// A packet from or to a client that is watched, as it came. Where `source_nat` hides the client,
/// answers are told as sent to him; fragments of them and ICMP errors are not told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketEvent {
    /// When it was decided, by CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Where it was from; port 0 where it has none, or where it isn't to be seen: in a later
    /// fragment, behind IPv6 extension headers.
    pub src: SocketAddr,
    /// Where it was sent to; ports alike.
    pub dst: SocketAddr,
    /// The protocol that the IP header names.
    pub protocol: u8,
    /// TCP's flags; 0 of other protocols.
    pub tcp_flags: u8,
    /// Length of the IP packet.
    pub len: u16,
    /// The verdict.
    pub verdict: TracedVerdict,
    /// Why.
    pub reason: Reason,
    /// A reason that was counted beside it.
    pub also_counted: Option<Reason>,
    /// The slot of the server that it is for and counted to; `NO_SERVER` for all others.
    pub server: u16,
}

/// A verdict, without what only engines need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracedVerdict {
    /// It was sent on, or answered.
    Forward,
    /// The host's own stack has it.
    Pass,
    /// It goes nowhere.
    Drop,
    /// It waits for its packet's first fragment, or its connection moves. Its later verdict is
    /// counted, but not reported.
    Hold,
}

impl From<Verdict> for TracedVerdict {
    fn from(verdict: Verdict) -> TracedVerdict {
        match verdict {
            Verdict::Forward { .. } => TracedVerdict::Forward,
            Verdict::Pass | Verdict::HostStack { .. } => TracedVerdict::Pass,
            Verdict::Drop => TracedVerdict::Drop,
            Verdict::Hold => TracedVerdict::Hold,
        }
    }
}

/// Where events are read, on a thread of its own.
pub trait EventSource: Send {
    /// The events since the last time, oldest first. Waits for one so long at most; none are given
    /// then.
    ///
    /// # Errors
    /// When the system refuses.
    fn read(&mut self, patience: Duration) -> io::Result<Vec<TraceEvent>>;

    /// How many were lost since the engine first started, because nobody had read them in time.
    fn lost(&self) -> u64;
}
