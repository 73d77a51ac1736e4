//! Carries out what `evener-core` decides.
//!
//! Two engines with one behaviour: [`xdp`] runs the decisions in the kernel, [`packet`] in
//! application space on AF_PACKET rings. Both keep their sessions in the same table in shared
//! memory, so listing and sweeping are the same code too. This crate holds all of the project's
//! unsafe code.

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

/// Carries decisions out, and changes the tables that they go by. It belongs to one thread at a
/// time; others use its [`DataPlane`] meanwhile.
pub trait Engine: Send {
    /// The engine's name in configuration, views and metrics.
    fn kind(&self) -> &'static str;

    /// One line for people: how it is attached, and where.
    fn describe(&self) -> String;

    /// The state that an earlier daemon left and this engine carries on with, until something else
    /// is applied: its VIPs, servers and interfaces, and the kernel engine's rings.
    fn running(&self) -> Option<&Tables>;

    /// The tables in force, by which packets are decided.
    fn tables(&self) -> &Arc<Tables>;

    /// Puts other tables in force. Traffic flows meanwhile; each packet sees each VIP either before
    /// or after its change.
    ///
    /// # Errors
    /// When the kernel refuses. The tables in force stay so, with all sessions; [`Engine::tables`]
    /// has them.
    fn apply(&mut self, tables: &Arc<Tables>) -> Result<(), EngineError>;

    /// This engine's parts in the kernel.
    fn installed(&self) -> Vec<Part>;

    /// Looks whether the kernel holds each part of [`Engine::installed`] still, and puts back what
    /// it doesn't: that is named. To be called often: where nothing is missing, it costs a few
    /// system calls.
    fn restore(&mut self) -> Vec<MissingPart>;

    /// The sessions, ring cursors and hash key that packets meet.
    fn memory(&self) -> Memory<'_>;

    /// The time by the clock that [`Engine::memory`]'s sessions go by, in ticks of 2^20 ns.
    fn now(&self) -> u32;

    /// The counts since the engine first started; they survive restarts of the daemon.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn counters(&self) -> Result<Counters, EngineError>;

    /// The same memory and counts for other threads, while this one changes what packets go by.
    fn data_plane(&self) -> Arc<dyn DataPlane>;

    /// Adds a removed server's counters to [`Counters::gone`], so that the slot's next owner starts
    /// from nothing.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn reset_server(&mut self, slot: u16) -> Result<(), EngineError>;

    /// Interfaces on which the host's stack forwards replies with an unresolved next hop
    /// ([`Reason::HostStack`]). The stack must accept packets from the host's own service addresses
    /// there.
    fn sends_by_stack(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Buckets of the session tables in force, in use or not, for IPv4 and for IPv6. An earlier
    /// daemon's tables stay.
    fn buckets(&self) -> [usize; 2];

    /// From now on tells this, and nothing else. Until then a data plane that outlived its daemon
    /// goes on with what that one had asked for; what found room since is there to be read.
    ///
    /// # Errors
    /// More clients than can be watched.
    fn watch(&mut self, watch: &TraceFilter) -> Result<(), EngineError>;

    /// Where to read what is told. There is one reader: who asks again gets an error.
    ///
    /// # Errors
    /// When there is a reader already, or the kernel refuses.
    fn events(&mut self) -> Result<Box<dyn EventSource>, EngineError>;

    /// Sets the receiver of later requests that another server has to answer
    /// ([`RehandoffMode::Rehandoff`](evener_core::path::tables::RehandoffMode::Rehandoff)), and of
    /// the segments of connections that are being moved.
    ///
    /// Frames are as received. A partial checksum of a sender on this machine is completed. A frame
    /// may consist of several segments that the kernel merged. The client retransmits a segment
    /// that is too long for the buffer. A frame that the receiver drops is lost.
    fn moves(&mut self, mover: RehandoffSink);

    /// Ends the engine: with `keep`, traffic flows on where the engine can do that without its
    /// daemon.
    ///
    /// # Errors
    /// When something could not be taken back; the rest was.
    fn leave(self: Box<Self>, keep: bool) -> Result<(), EngineError>;
}

/// The sessions and counters of packets, for all threads at all times. Nothing here waits for an
/// engine that is about to change its tables.
pub trait DataPlane: Send + Sync {
    /// As [`Engine::memory`].
    fn memory(&self) -> Memory<'_>;

    /// As [`Engine::now`].
    fn now(&self) -> u32;

    /// As [`Engine::counters`]. While [`Engine::reset_server`] runs, a server's counts may stand in
    /// two places, or in none.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn counters(&self) -> Result<Counters, EngineError>;

    /// Counts a connection for a server that the data plane didn't choose: whoever read what the
    /// client wants did.
    fn count_choice(&self, slot: u16);

    /// Gives servers other scores by which [`Pick::Two`](evener_core::path::tables::Pick::Two)
    /// chooses: stores to memory, at any rate.
    fn score(&self, scores: &[(u16, Score)]) {
        self.memory().counts.score(scores);
    }

    /// Gives servers other limits of active sessions, likewise.
    fn limit(&self, limits: &[(u16, u32)]) {
        self.memory().counts.limit(limits);
    }

    /// Returns when every packet that was met before has been dealt with, where one may go by what
    /// has changed since.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn synchronize(&self) -> Result<(), EngineError> {
        Ok(())
    }
}

/// A client's segment whose connection is to move, or does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RehandoffSegment<'f> {
    /// [`Reason::Rehandoff`], or [`Reason::RehandoffBuffered`].
    pub reason: Reason,
    /// The interface that it came in by.
    pub ifindex: u32,
    /// The slot of the server that has the connection.
    pub server: u16,
    /// All of it.
    pub frame: &'f [u8],
    /// Whether its checksum is right. No other TCP is there to doubt it.
    pub is_whole: bool,
}

/// The taker of frames that are to be moved. It is called by the engine's own threads and must not
/// wait.
pub type RehandoffSink = Arc<dyn Fn(RehandoffSegment<'_>) + Send + Sync>;

/// Totals since the engine first started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets by reason; every reason is there.
    pub reasons: BTreeMap<Reason, u64>,
    /// By server slot; servers that never had a packet may be missing.
    pub servers: BTreeMap<u16, ServerCounters>,
    /// Of all servers that are gone, together.
    pub gone: ServerCounters,
}

/// The counts of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Frames sent to it.
    pub packets: u64,
    /// Their bytes, Ethernet header included.
    pub bytes: u64,
    /// How often it was chosen for a new session.
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

/// Why an engine could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A missing capability.
    #[error("{what} needs {capability}; run as root or grant it")]
    Privilege {
        /// The step that was tried.
        what: String,
        /// The capability's name.
        capability: &'static str,
    },
    /// The kernel lacks something.
    #[error("this kernel can't run the {engine} engine: {missing}")]
    Kernel {
        /// The engine asked for.
        engine: &'static str,
        /// The missing part.
        missing: String,
    },
    /// The kernel's verifier refuses a program.
    #[error("{0}")]
    Refused(Refusal),
    /// There is no such interface, or it can't be used.
    #[error("interface {interface}: {why}")]
    Interface {
        /// Its name or number.
        interface: String,
        /// The error in it.
        why: String,
    },
    /// The host is set up so that its own stack would interfere.
    #[error("{0}")]
    Host(String),
    /// More of something than the tables hold.
    #[error("{0}")]
    Capacity(String),
    /// The system refused an operation.
    #[error("{what}: {source}")]
    System {
        /// The step that was tried.
        what: String,
        /// Its answer.
        source: io::Error,
    },
}

impl EngineError {
    /// Wraps an answer of the system; refused permission becomes [`EngineError::Privilege`].
    pub fn system(what: impl Into<String>, capability: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => EngineError::Privilege { what: what.into(), capability },
            _ => EngineError::System { what: what.into(), source },
        }
    }
}

/// The monotonic clock in ticks of 2^20 ns.
pub fn now_ticks() -> u32 {
    (now_ns() >> 20) as u32
}

/// Nanoseconds of the coarse monotonic clock.
pub fn now_ns() -> u64 {
    use nix::time::{ClockId, clock_gettime};
    // The clock exists on every Linux; a zero would only make sessions look fresh.
    clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE)
        .map(|time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
        .unwrap_or_default()
}
