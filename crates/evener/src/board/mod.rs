//! The state that the control loop publishes for all readers: none asks the loop for it, and none
//! waits for it.
//!
//! Counts are the data plane's and are read when a reader looks. Those of a server that goes are
//! added to its service's sums, and then cleared. The sums are published together with the farm
//! that lacks the server, before its counts are cleared: [`SnapshotStore::moment`] needs no lock.

pub(crate) mod installed;
mod local;
pub mod request;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use evener_core::director::Snapshot;
use evener_core::node::directors::{DirectorDifference, DirectorReport, KnownDirector};
use evener_dataplane::{Counters, DataPlane, ServerCounters};

use installed::Installed;

use crate::events::Bus;
use crate::names::QueryCounts;
use crate::record::Recorder;
use crate::redirect::{Frontends, ShownGroup};
use crate::state::FarmState;

pub(crate) use local::LocalServerState;

/// A daemon's state besides its farm.
#[derive(Clone, Debug)]
pub(crate) struct DaemonInfo {
    /// When it started, in milliseconds of the monotonic clock.
    pub(crate) started_ms: u64,
    /// The configuration file.
    pub(crate) config: String,
    /// Whether it carries on with what another left running.
    pub(crate) adopted: bool,
    /// Why `auto` didn't choose the kernel engine.
    pub(crate) engine_note: Option<String>,
    /// The file that is in force.
    pub(crate) loaded: LoadedFile,
}

/// A file in force.
#[derive(Clone, Debug)]
pub(crate) struct LoadedFile {
    /// When it was read.
    pub(crate) at: SystemTime,
    /// The part of it that takes a restart.
    pub(crate) restart_needed_for: Option<String>,
    /// Why it is not followed in all else.
    pub(crate) trouble: Option<String>,
}

/// All that there is to see.
#[derive(Clone)]
pub(crate) struct PublishedState {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) about: Arc<DaemonInfo>,
    /// The counts of servers that are gone, by service.
    pub(crate) gone: Arc<BTreeMap<String, ServerCounters>>,
    /// The engine's kind, and how it is attached.
    pub(crate) engine: &'static str,
    pub(crate) engine_detail: String,
    pub(crate) readings: Arc<dyn DataPlane>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) bus: Bus,
    /// This host as a server, and its reader for the data plane.
    pub(crate) local: Option<LocalServerState>,
    /// The parts set up in the kernel.
    pub(crate) installed: Arc<Installed>,
    /// The file, and the run-time changes over it.
    pub(crate) state: Arc<FarmState>,
    /// The redirectors of groups, whose clients are sent on by HTTP.
    pub(crate) fronts: Arc<Frontends>,
    /// Counters of queries for names.
    pub(crate) queries: Arc<QueryCounts>,
    /// The directors of the farm.
    pub(crate) directors: Arc<DirectorsState>,
}

/// The directors of the farm, as far as this one knows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirectorsState {
    /// When it was looked at, in milliseconds.
    pub(crate) at_ms: u64,
    /// This one, with its address in the file.
    pub(crate) own: Option<(IpAddr, DirectorReport)>,
    /// The others, and in what they differ.
    pub(crate) others: Vec<(KnownDirector, Vec<DirectorDifference>)>,
    /// Why directors say nothing to each other, where that is so.
    pub(crate) obstacle: Option<String>,
}

impl PublishedState {
    /// The groups.
    pub(crate) fn groups(&self) -> Vec<ShownGroup> {
        self.fronts.show(&self.snapshot)
    }
}

/// The same with the counts that belong to it.
pub(crate) struct CountedSnapshot {
    pub(crate) published: Arc<PublishedState>,
    pub(crate) counters: Counters,
    pub(crate) now_ms: u64,
}

/// Where it is published.
pub(crate) struct SnapshotStore(ArcSwap<PublishedState>);

impl SnapshotStore {
    pub(crate) fn new(published: PublishedState) -> SnapshotStore {
        SnapshotStore(ArcSwap::from_pointee(published))
    }

    pub(crate) fn publish(&self, published: PublishedState) {
        self.0.store(Arc::new(published));
    }

    /// The last published state.
    pub(crate) fn latest(&self) -> Arc<PublishedState> {
        self.0.load_full()
    }

    /// The same with its counts. May take some milliseconds, which are the caller's.
    pub(crate) fn moment(&self) -> CountedSnapshot {
        loop {
            let published = self.latest();
            let counters = published.readings.counters().unwrap_or_else(|error| {
                tracing::warn!(%error, "the counters can't be read");
                Counters::default()
            });
            // With the same sums none of the published servers' counts was cleared meanwhile.
            if Arc::ptr_eq(&published.gone, &self.latest().gone) {
                return CountedSnapshot {
                    published,
                    counters,
                    now_ms: evener_dataplane::now_ns() / 1_000_000,
                };
            }
        }
    }
}
