//! State that the control loop publishes for all readers, which never query or wait for the loop.
//!
//! The data plane's counters are read when a reader asks. The counters of a removed server are
//! added to its service's totals, and then cleared. The totals are published together with the farm
//! without the server, before its counters are cleared. So [`SnapshotStore::moment`] needs no lock.

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

/// State of a daemon besides its farm.
#[derive(Clone, Debug)]
pub(crate) struct DaemonInfo {
    /// Time of the start, in milliseconds of the monotonic clock.
    pub(crate) started_ms: u64,
    /// Path of the configuration file.
    pub(crate) config: String,
    /// True if the daemon has adopted an earlier one's data plane.
    pub(crate) adopted: bool,
    /// Reason why `auto` didn't choose the kernel engine.
    pub(crate) engine_note: Option<String>,
    pub(crate) loaded: LoadedFile,
}

/// The file in force.
#[derive(Clone, Debug)]
pub(crate) struct LoadedFile {
    /// Time at which the file was read.
    pub(crate) at: SystemTime,
    /// Keys that require a restart.
    pub(crate) restart_needed_for: Option<String>,
    /// Reason why the file is not fully adopted.
    pub(crate) trouble: Option<String>,
    /// Number of reloads since the start of the daemon. Run-time changes don't count.
    pub(crate) reloads: u64,
}

/// Everything that is published.
#[derive(Clone)]
pub(crate) struct PublishedState {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) about: Arc<DaemonInfo>,
    /// Counters of removed servers, by service.
    pub(crate) gone: Arc<BTreeMap<String, ServerCounters>>,
    /// Name of the engine, and its attachment.
    pub(crate) engine: &'static str,
    pub(crate) engine_detail: String,
    pub(crate) readings: Arc<dyn DataPlane>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) bus: Bus,
    /// This host as a server, and its reader of punted connections.
    pub(crate) local: Option<LocalServerState>,
    /// Parts that are set up in the kernel.
    pub(crate) installed: Arc<Installed>,
    /// The file, with the run-time changes over it.
    pub(crate) state: Arc<FarmState>,
    /// Frontends of `redirect` groups.
    pub(crate) fronts: Arc<Frontends>,
    /// Counters of DNS queries.
    pub(crate) queries: Arc<QueryCounts>,
    pub(crate) directors: Arc<DirectorsState>,
}

/// Directors of the farm, as this director knows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirectorsState {
    /// Time of the state, in milliseconds.
    pub(crate) at_ms: u64,
    /// This director, with its address in the file.
    pub(crate) own: Option<(IpAddr, DirectorReport)>,
    /// Other directors, with their differences.
    pub(crate) others: Vec<(KnownDirector, Vec<DirectorDifference>)>,
    /// Reason why directors exchange no messages, if so.
    pub(crate) obstacle: Option<String>,
}

impl PublishedState {
    pub(crate) fn groups(&self) -> Vec<ShownGroup> {
        self.fronts.show(&self.snapshot)
    }
}

/// Published state with the matching counters.
pub(crate) struct CountedSnapshot {
    pub(crate) published: Arc<PublishedState>,
    pub(crate) counters: Counters,
    pub(crate) now_ms: u64,
}

/// Store of the published state.
pub(crate) struct SnapshotStore(ArcSwap<PublishedState>);

impl SnapshotStore {
    pub(crate) fn new(published: PublishedState) -> SnapshotStore {
        SnapshotStore(ArcSwap::from_pointee(published))
    }

    pub(crate) fn publish(&self, published: PublishedState) {
        self.0.store(Arc::new(published));
    }

    /// Returns the last published state.
    pub(crate) fn latest(&self) -> Arc<PublishedState> {
        self.0.load_full()
    }

    /// Returns the last published state with its counters. Blocks the caller for some milliseconds.
    pub(crate) fn moment(&self) -> CountedSnapshot {
        loop {
            let published = self.latest();
            let counters = published.readings.counters().unwrap_or_else(|error| {
                tracing::warn!(%error, "failed to read the counters");
                Counters::default()
            });
            // If the totals are unchanged, no counters of the published servers were cleared
            // meanwhile.
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
