//! Trace events, for subscribers: each connection that is handed off, and each packet of up to four
//! clients.
//!
//! An event that isn't read in time is lost and counted. Packets never wait for a reader.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use evener_core::path::decide::{Reason, Verdict};

use crate::EngineError;

/// Maximum number of clients that a trace filter can name.
pub const CLIENTS_MAX: usize = 4;
/// Maximum number of bytes of a client's request in an event.
pub const HEAD_MAX: usize = 256;

/// Filter of trace events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// True to report each connection of a handoff service once its client has sent the request.
    pub connections: bool,
    /// Clients whose packets are reported, in both directions; at most [`CLIENTS_MAX`].
    pub clients: BTreeSet<IpAddr>,
}

impl TraceFilter {
    /// True if the filter selects no events.
    pub fn is_idle(&self) -> bool {
        !self.connections && self.clients.is_empty()
    }

    pub(crate) fn check(&self) -> Result<(), EngineError> {
        match self.clients.len() {
            0..=CLIENTS_MAX => Ok(()),
            many => Err(EngineError::Capacity(format!(
                "the packets of at most {CLIENTS_MAX} clients can be traced at a time, and {many} were requested"
            ))),
        }
    }
}

pub(crate) fn read_already() -> EngineError {
    EngineError::Host("the events of the data plane have a reader already".into())
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    Connection(ConnectionEvent),
    Packet(PacketEvent),
}

/// Choice of a server for a connection whose client has sent its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionEvent {
    /// Time of the choice in nanoseconds, by CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Time in nanoseconds to read the request, to choose a server and to forward the segment.
    pub latency_ns: u32,
    pub client: SocketAddr,
    /// Service address that the client connected to.
    pub service: SocketAddr,
    /// Slot that owns the connection now: the slot of a server or of a punt; `NO_SERVER` if the
    /// connection has no owner.
    pub server: u16,
    /// Reason of the verdict on the segment.
    pub reason: Reason,
    /// Second counted reason. [`Reason::Punted`]: user space has yet to choose the server.
    /// [`Reason::TableFull`]: the connection is refused.
    pub also_counted: Option<Reason>,
    /// Index of the matching route in the service's list; `None` if no route matched or user space
    /// has yet to choose.
    pub route: Option<u16>,
    /// First bytes that the client sent, at most [`HEAD_MAX`].
    pub head: Vec<u8>,
}

/// Packet from or to a traced client, as received. With `source_nat`, replies are reported with the
/// client as destination; fragments of replies and ICMP errors are not reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketEvent {
    /// Time of the verdict in nanoseconds, by CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Source. The port is 0 if the packet has no port or hides its port: in a later fragment, or
    /// behind IPv6 extension headers.
    pub src: SocketAddr,
    /// Destination. The port is 0 in the same cases as the source port.
    pub dst: SocketAddr,
    /// Protocol number of the IP header.
    pub protocol: u8,
    /// TCP flags; 0 for other protocols.
    pub tcp_flags: u8,
    /// Length of the IP packet in bytes.
    pub len: u16,
    pub verdict: TracedVerdict,
    pub reason: Reason,
    /// Second reason that was counted for the packet.
    pub also_counted: Option<Reason>,
    /// Slot of the server that the packet is forwarded to and counted for; `NO_SERVER` for other
    /// packets.
    pub server: u16,
}

/// Verdict, without the details that only engines need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracedVerdict {
    Forward,
    /// Passed to the host's own stack.
    Pass,
    Drop,
    /// Held until the first fragment arrives or until the connection has moved. The later verdict
    /// is counted, but not reported.
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

/// Reader of trace events, for a thread of its own.
pub trait EventSource: Send {
    /// Returns the events since the last call, oldest first. Blocks for at most `patience`, and
    /// returns an empty list on timeout.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    fn read(&mut self, patience: Duration) -> io::Result<Vec<TraceEvent>>;

    /// Number of events lost since the engine first started, because the reader was too slow.
    fn lost(&self) -> u64;
}
