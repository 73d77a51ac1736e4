//! Publishes the state of the farm and of the loop.

use std::sync::Arc;

use super::executor::Executor;
use crate::board::LocalServerState;
use crate::board::installed::Installed;
use crate::board::{DaemonInfo, DirectorsState, LoadedFile, PublishedState, SnapshotStore};
use crate::state::FarmState;

/// State that is published next, and the store for it.
pub(super) struct SnapshotPublisher {
    pub(super) board: Arc<SnapshotStore>,
    state: PublishedState,
    /// Notes on the file that a reload is putting in force.
    next: Option<LoadedFile>,
}

impl SnapshotPublisher {
    pub(super) fn begin(state: PublishedState) -> SnapshotPublisher {
        SnapshotPublisher { board: Arc::new(SnapshotStore::new(state.clone())), state, next: None }
    }

    pub(super) fn about(&self) -> &DaemonInfo {
        &self.state.about
    }

    pub(super) fn installed(&self) -> &Installed {
        &self.state.installed
    }

    /// Sets the parts that are set up in the kernel, for the next published state.
    pub(super) fn set_installed(&mut self, installed: Installed) {
        self.state.installed = Arc::new(installed);
    }

    /// Sets the notes on a file. The notes are published together with the file's farm, once the
    /// farm is in force.
    pub(super) fn will_load(&mut self, loaded: Option<LoadedFile>) {
        self.next = loaded;
    }
}

impl Executor {
    /// Records how the engine is attached, for readers while the engine is away.
    pub(super) fn describe(&mut self) {
        if let Some(engine) = self.engine.here() {
            self.showing.state.engine_detail = engine.describe();
        }
    }

    /// Returns how the engine was attached before the current change took it away.
    pub(super) fn engine_detail(&self) -> &str {
        &self.showing.state.engine_detail
    }

    /// Returns the file in force, with the run-time changes over it.
    pub(super) fn farm_state(&self) -> &FarmState {
        &self.showing.state.state
    }

    /// True if the operator has drained this director itself.
    pub(super) fn is_drained(&self) -> bool {
        self.farm_state().states.is_director_drained
    }

    /// Publishes the state if it has changed.
    pub(super) fn show(&mut self) {
        let (latest, installed) = (self.showing.board.latest(), &self.showing.state.installed);
        let is_shown = Arc::ptr_eq(self.director.snapshot(), &latest.snapshot);
        if !is_shown || !Arc::ptr_eq(installed, &latest.installed) {
            self.publish(|_| {});
        }
    }

    /// Publishes the current state, after `change`.
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

    /// Publishes the known state of the farm's directors.
    pub(super) fn show_directors(&mut self, directors: DirectorsState) {
        self.publish(|state| state.directors = Arc::new(directors));
    }

    /// Publishes the state of this host as a server.
    pub(super) fn show_local(&mut self, local: Option<LocalServerState>) {
        self.publish(|state| state.local = local);
    }

    /// Publishes the file and the run-time changes over it.
    pub(super) fn show_state(&mut self, farm: Arc<FarmState>) {
        self.publish(|state| state.state = farm);
    }

    /// Publishes why the file in force is not fully adopted.
    pub(super) fn show_trouble(&mut self, trouble: String) {
        self.publish(|state| Arc::make_mut(&mut state.about).loaded.trouble = Some(trouble));
    }
}
