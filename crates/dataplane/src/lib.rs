//! Carries out the decisions of `evener-core`.
//!
//! Two engines with one behaviour: [`xdp`] runs the decisions in the kernel, [`packet`] in user
//! space on AF_PACKET rings. Sessions are in a table in shared memory, with one layout for both
//! engines. So the engines share the code that lists and sweeps sessions. All unsafe code of the
//! project is in this crate.

pub mod claim;
pub mod events;
mod fragment_queue;
pub mod heap;
pub mod idle;
pub mod installed;
mod kernel_routes;
pub mod link;
mod load;
mod numbers;
pub mod packet;
pub mod pending;
pub mod refusals;
mod rehandoff;
pub mod repair;
pub mod requirements;
pub mod server;
mod shared;
mod test_run;
pub mod xdp;

pub use load::Refusal;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use evener_core::path::decide::{Memory, Reason};
use evener_core::path::select::Score;
use evener_core::path::tables::Tables;

use events::{EventSource, TraceFilter};
use installed::{MissingPart, Part};

/// Applies tables and carries out the decisions on packets. An engine belongs to one thread at a
/// time; other threads use its [`DataPlane`].
pub trait Engine: Send {
    /// Name of the engine in configuration, views and metrics.
    fn kind(&self) -> &'static str;

    /// One line for users: how and where the engine is attached.
    fn describe(&self) -> String;

    /// State that an earlier daemon left and this engine has adopted, until [`Engine::apply`]:
    /// VIPs, servers and interfaces, and the rings of the XDP engine.
    fn running(&self) -> Option<&Tables>;

    fn tables(&self) -> &Arc<Tables>;

    /// Replaces the tables in force. Traffic continues during the change; each packet sees each VIP
    /// either before or after the change.
    ///
    /// # Errors
    /// Fails if the kernel refuses the change. The old tables and all sessions stay;
    /// [`Engine::tables`] returns the old tables.
    fn apply(&mut self, tables: &Arc<Tables>) -> Result<(), EngineError>;

    /// Parts of this engine in the kernel.
    fn installed(&self) -> Vec<Part>;

    /// Checks that the kernel still holds each part of [`Engine::installed`], and restores missing
    /// parts. Returns the parts that were missing. A call costs a few system calls if no part is
    /// missing, so callers may call often.
    fn restore(&mut self) -> Vec<MissingPart>;

    /// Sessions, ring cursors and hash keys of the data plane.
    fn memory(&self) -> Memory<'_>;

    /// Current time of the clock that the sessions of [`Engine::memory`] use, in ticks of 2^20 ns.
    fn now(&self) -> u32;

    /// Counters since the engine first started; restarts of the daemon don't reset them.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    fn counters(&self) -> Result<Counters, EngineError>;

    /// Access to memory and counters for other threads, also while this thread applies tables.
    fn data_plane(&self) -> Arc<dyn DataPlane>;

    /// Adds a removed server's counters to [`Counters::gone`] and resets the slot's counters to
    /// zero for the next server.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    fn reset_server(&mut self, slot: u16) -> Result<(), EngineError>;

    /// Interfaces on which the host's stack forwards replies with an unresolved next hop
    /// ([`Reason::HostStack`]). The stack must accept packets from the host's own service addresses
    /// there.
    fn sends_by_stack(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Number of buckets of the session tables for IPv4 and IPv6, used or not. Tables adopted from
    /// an earlier daemon keep their size.
    fn buckets(&self) -> [usize; 2];

    /// Replaces the active trace filter. Before the first call, a data plane that outlived its
    /// daemon still uses the filter of that daemon; the buffered events can be read.
    ///
    /// # Errors
    /// Fails if the filter names too many clients.
    fn watch(&mut self, watch: &TraceFilter) -> Result<(), EngineError>;

    /// Returns the reader of trace events.
    ///
    /// # Errors
    /// Fails if the engine already has a reader, or if the kernel refuses.
    fn events(&mut self) -> Result<Box<dyn EventSource>, EngineError>;

    /// Sets the receiver of later requests that another server has to answer
    /// ([`RehandoffMode::Rehandoff`](evener_core::path::tables::RehandoffMode::Rehandoff)), and of
    /// the segments of connections that are being moved.
    ///
    /// Frames are as received. A partial checksum of a sender on this machine is completed. A frame
    /// may consist of several segments that the kernel merged. The client retransmits a segment
    /// that is too long for the buffer. A frame that the receiver drops is lost.
    fn moves(&mut self, mover: RehandoffSink);

    /// Stops the engine. With `keep`, the data plane goes on forwarding if the engine can work
    /// without its daemon.
    ///
    /// # Errors
    /// Fails if a part could not be removed; the engine has removed the other parts.
    fn leave(self: Box<Self>, keep: bool) -> Result<(), EngineError>;
}

/// Sessions and counters of the data plane, for any thread at any time. Calls never wait for an
/// engine that is applying tables.
pub trait DataPlane: Send + Sync {
    /// See [`Engine::memory`].
    fn memory(&self) -> Memory<'_>;

    /// See [`Engine::now`].
    fn now(&self) -> u32;

    /// See [`Engine::counters`]. While [`Engine::reset_server`] runs, a server's counters may be
    /// counted twice or not at all.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    fn counters(&self) -> Result<Counters, EngineError>;

    /// Counts a connection for a server that user space has chosen by the client's request.
    fn count_choice(&self, slot: u16);

    /// Sets scores of servers for [`Pick::Two`](evener_core::path::tables::Pick::Two). The call
    /// only stores to memory, so callers may call at any rate.
    fn score(&self, scores: &[(u16, Score)]) {
        self.memory().counts.score(scores);
    }

    /// Sets limits of active sessions of servers. The call only stores to memory.
    fn limit(&self, limits: &[(u16, u32)]) {
        self.memory().counts.limit(limits);
    }

    /// Waits until the data plane has processed every packet that arrived before the call. Later
    /// packets see all earlier changes.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    fn synchronize(&self) -> Result<(), EngineError> {
        Ok(())
    }
}

/// A client's segment whose connection is to be moved, or is being moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RehandoffSegment<'f> {
    pub reason: Reason,
    /// Interface that the segment arrived on.
    pub ifindex: u32,
    /// Slot of the server that owns the connection.
    pub server: u16,
    pub frame: &'f [u8],
    /// True if the checksum has been verified. No other TCP stack will check the segment.
    pub is_whole: bool,
}

/// Receiver of frames of connections that are moved. The engine's threads call the receiver, so a
/// call must not block.
pub type RehandoffSink = Arc<dyn Fn(RehandoffSegment<'_>) + Send + Sync>;

/// Counters since the engine first started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets by reason; every reason has an entry.
    pub reasons: BTreeMap<Reason, u64>,
    /// Counters by server slot; a server without packets may be missing.
    pub servers: BTreeMap<u16, ServerCounters>,
    /// Sum of the counters of all removed servers.
    pub gone: ServerCounters,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Number of frames forwarded to the server.
    pub packets: u64,
    /// Number of bytes of these frames, with Ethernet headers.
    pub bytes: u64,
    /// Number of new sessions for which the server was selected.
    pub connections: u64,
}

impl std::ops::Add for ServerCounters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        ServerCounters {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
            connections: self.connections + other.connections,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A capability is missing.
    #[error("{what} needs {capability}; run as root or grant it")]
    Privilege { what: String, capability: &'static str },
    /// The kernel lacks a feature.
    #[error("this kernel can't run the {engine} engine: {missing}")]
    Kernel { engine: &'static str, missing: String },
    #[error("{0}")]
    Refused(Refusal),
    /// The interface does not exist or is unusable.
    #[error("interface {interface}: {why}")]
    Interface { interface: String, why: String },
    /// The host's configuration would let its own stack interfere with the engine.
    #[error("{0}")]
    Host(String),
    /// The tables have too little room for a request.
    #[error("{0}")]
    Capacity(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    System { what: String, source: io::Error },
}

impl EngineError {
    /// Wraps an error of the system. EPERM and EACCES become [`EngineError::Privilege`].
    pub fn system(what: impl Into<String>, capability: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => EngineError::Privilege { what: what.into(), capability },
            _ => EngineError::System { what: what.into(), source },
        }
    }
}

/// Current time of the coarse monotonic clock in ticks of 2^20 ns.
pub fn now_ticks() -> u32 {
    (now_ns() >> 20) as u32
}

/// Current time of the coarse monotonic clock in nanoseconds.
pub fn now_ns() -> u64 {
    use nix::time::{ClockId, clock_gettime};
    // The clock exists on every Linux. A zero would only make sessions look fresh.
    clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE)
        .map(|time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
        .unwrap_or_default()
}
