//! The state of the farm and of the loop itself, as published.

use std::sync::Arc;

use super::executor::Executor;
use crate::board::LocalServerState;
use crate::board::installed::Installed;
use crate::board::{DaemonInfo, DirectorsState, LoadedFile, PublishedState, SnapshotStore};
use crate::state::FarmState;

/// The state that is published next, and where.
pub(super) struct SnapshotPublisher {
    pub(super) board: Arc<SnapshotStore>,
    state: PublishedState,
    /// About the file that a reload is putting in force.
    next: Option<LoadedFile>,
}

impl SnapshotPublisher {
    pub(super) fn begin(state: PublishedState) -> SnapshotPublisher {
        SnapshotPublisher { board: Arc::new(SnapshotStore::new(state.clone())), state, next: None }
    }

    pub(super) fn about(&self) -> &DaemonInfo {
        &self.state.about
    }

    /// The parts set up in the kernel.
    pub(super) fn installed(&self) -> &Installed {
        &self.state.installed
    }

    /// Has this shown with all that is published next.
    pub(super) fn set_installed(&mut self, installed: Installed) {
        self.state.installed = Arc::new(installed);
    }

    /// The notes on a file once it is in force: at once with the farm that it describes.
    pub(super) fn will_load(&mut self, loaded: Option<LoadedFile>) {
        self.next = loaded;
    }
}

impl Executor {
    /// Notes how the engine is attached, for whoever looks while it is away.
    pub(super) fn describe(&mut self) {
        if let Some(engine) = self.engine.here() {
            self.showing.state.engine_detail = engine.describe();
        }
    }

    /// How the engine was attached when it was here last.
    pub(super) fn engine_detail(&self) -> &str {
        &self.showing.state.engine_detail
    }

    /// The file in force, and the run-time changes over it.
    pub(super) fn farm_state(&self) -> &FarmState {
        &self.showing.state.state
    }

    /// Whether the operator has drained this director itself.
    pub(super) fn is_drained(&self) -> bool {
        self.farm_state().states.is_director_drained
    }

    /// Publishes what has changed, if something has.
    pub(super) fn show(&mut self) {
        let (latest, installed) = (self.showing.board.latest(), &self.showing.state.installed);
        let is_shown = Arc::ptr_eq(self.director.snapshot(), &latest.snapshot);
        if !is_shown || !Arc::ptr_eq(installed, &latest.installed) {
            self.publish(|_| {});
        }
    }

    /// Publishes the farm as it is now, after `change`.
    pub(super) fn publish(&mut self, change: impl FnOnce(&mut PublishedState)) {
        let SnapshotPublisher { board, state, next } = &mut self.showing;
        let snapshot = Arc::clone(self.director.snapshot());
        if snapshot.reloads.done != state.snapshot.reloads.done
            && let Some(loaded) = next.take()
        {
            Arc::make_mut(&mut state.about).loaded = loaded;
        }
        state.snapshot = snapshot;
        change(state);
        board.publish(state.clone());
    }

    /// Publishes what is known of the farm's directors.
    pub(super) fn show_directors(&mut self, directors: DirectorsState) {
        self.publish(|state| state.directors = Arc::new(directors));
    }

    /// Publishes what this host is as a server.
    pub(super) fn show_local(&mut self, local: Option<LocalServerState>) {
        self.publish(|state| state.local = local);
    }

    /// Publishes the file and the run-time changes over it.
    pub(super) fn show_state(&mut self, farm: Arc<FarmState>) {
        self.publish(|state| state.state = farm);
    }

    /// Publishes what keeps the file in force from being followed.
    pub(super) fn show_trouble(&mut self, trouble: String) {
        self.publish(|state| Arc::make_mut(&mut state.about).loaded.trouble = Some(trouble));
    }
}
