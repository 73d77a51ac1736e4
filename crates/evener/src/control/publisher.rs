//! The state of the farm and of the loop itself, as published.

use std::sync::Arc;

use evener_core::director::Director;
use evener_dataplane::{DataPlane, Engine};

use super::executor::Executor;
use crate::board::LocalServerState;
use crate::board::installed::Installed;
use crate::board::{DaemonInfo, DirectorsState, LoadedFile, PublishedState, SnapshotStore};
use crate::events::Bus;
use crate::names::QueryCounts;
use crate::redirect::Frontends;
use crate::state::FarmState;

/// Where it goes, and what of it the director doesn't know.
pub(super) struct SnapshotPublisher {
    pub(super) board: Arc<SnapshotStore>,
    about: Arc<DaemonInfo>,
    readings: Arc<dyn DataPlane>,
    /// About the file that a reload is putting in force.
    next: Option<LoadedFile>,
    local: Option<LocalServerState>,
    pub(super) installed: Arc<Installed>,
    state: Arc<FarmState>,
    fronts: Arc<Frontends>,
    queries: Arc<QueryCounts>,
    directors: Arc<DirectorsState>,
}

impl SnapshotPublisher {
    pub(super) fn begin(
        about: DaemonInfo,
        director: &Director,
        engine: &dyn Engine,
        bus: Bus,
    ) -> SnapshotPublisher {
        let (about, readings) = (Arc::new(about), engine.data_plane());
        let board = SnapshotStore::new(PublishedState {
            snapshot: Arc::clone(director.snapshot()),
            about: Arc::clone(&about),
            gone: Arc::default(),
            engine: engine.kind(),
            engine_detail: engine.describe(),
            readings: Arc::clone(&readings),
            recorder: Arc::default(),
            bus,
            local: None,
            installed: Arc::default(),
            state: Arc::default(),
            fronts: Arc::default(),
            queries: Arc::default(),
            directors: Arc::default(),
        });
        SnapshotPublisher {
            board: Arc::new(board),
            about,
            readings,
            next: None,
            local: None,
            installed: Arc::default(),
            state: Arc::default(),
            fronts: Arc::default(),
            queries: Arc::default(),
            directors: Arc::default(),
        }
    }

    pub(super) fn about(&self) -> &DaemonInfo {
        &self.about
    }

    /// The notes on a file once it is in force: at once with the farm that it describes.
    pub(super) fn will_load(&mut self, loaded: Option<LoadedFile>) {
        self.next = loaded;
    }
}

impl Executor {
    /// Notes how the engine is attached, for whoever looks while it is away.
    pub(super) fn describe(&mut self) {
        if let Some(engine) = self.changing.engine() {
            self.engine_detail = engine.describe();
        }
    }

    /// The file in force, and the run-time changes over it.
    pub(super) fn farm_state(&self) -> &FarmState {
        &self.showing.state
    }

    /// Whether the operator has drained this director itself.
    pub(super) fn is_drained(&self) -> bool {
        self.showing.state.states.is_director_drained
    }

    /// Publishes what has changed, if something has.
    pub(super) fn show(&mut self) {
        if !Arc::ptr_eq(self.director.snapshot(), &self.showing.board.latest().snapshot) {
            self.publish();
        }
    }

    pub(super) fn publish(&mut self) {
        let snapshot = Arc::clone(self.director.snapshot());
        let before = self.showing.board.latest();
        if snapshot.reloads.done != before.snapshot.reloads.done
            && let Some(loaded) = self.showing.next.take()
        {
            Arc::make_mut(&mut self.showing.about).loaded = loaded;
        }
        self.showing.board.publish(PublishedState {
            snapshot,
            about: Arc::clone(&self.showing.about),
            gone: self.totals.gone(),
            engine: self.kind,
            engine_detail: self.engine_detail.clone(),
            readings: Arc::clone(&self.showing.readings),
            recorder: Arc::clone(&self.trace.recorder),
            bus: self.bus.clone(),
            local: self.showing.local.clone(),
            installed: Arc::clone(&self.showing.installed),
            state: Arc::clone(&self.showing.state),
            fronts: Arc::clone(&self.showing.fronts),
            queries: Arc::clone(&self.showing.queries),
            directors: Arc::clone(&self.showing.directors),
        });
    }

    /// Publishes what is known of the farm's directors.
    pub(super) fn show_directors(&mut self, directors: DirectorsState) {
        self.showing.directors = Arc::new(directors);
        self.publish();
    }

    /// Publishes what this host is as a server.
    pub(super) fn show_local(&mut self, local: Option<LocalServerState>) {
        self.showing.local = local;
        self.publish();
    }

    /// Publishes what is counted of groups and names.
    pub(super) fn show_groups(&mut self, fronts: Arc<Frontends>, queries: Arc<QueryCounts>) {
        self.showing.fronts = fronts;
        self.showing.queries = queries;
        self.publish();
    }

    /// Publishes the file and the run-time changes over it.
    pub(super) fn show_state(&mut self, state: Arc<FarmState>) {
        self.showing.state = state;
        self.publish();
    }

    /// Publishes what keeps the file in force from being followed.
    pub(super) fn show_trouble(&mut self, trouble: String) {
        Arc::make_mut(&mut self.showing.about).loaded.trouble = Some(trouble);
        self.publish();
    }
}
