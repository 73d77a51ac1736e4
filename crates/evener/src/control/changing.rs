//! Puts changes in force on another thread, because a plan and the engine's work block for too
//! long. The thread owns the engine meanwhile, and returns it with the result. So no lock is
//! needed. Meanwhile the loop uses the engine's [`DataPlane`].

use std::future::pending;
use std::panic::resume_unwind;
use std::sync::Arc;

use evener_core::director::{Applied, Change, Input};
use evener_core::farm::plan::PlanError;
use evener_core::path::tables::Tables;
use evener_core::pool::policy::Fills;
use evener_dataplane::{DataPlane, Engine, EngineError};
use tokio::task::{JoinHandle, spawn_blocking};

use super::executor::Executor;
use crate::record::TableNames;

/// Error of an order to the engine.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExecuteError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

pub(super) struct ChangeResult {
    applied: Applied,
    result: Result<(), ExecuteError>,
}

/// The engine, and the hash tables that were filled last.
struct EngineState {
    engine: Box<dyn Engine>,
    fills: Fills,
}

/// The engine. While another thread applies a change, the engine is away.
pub(super) struct EngineControl {
    /// Usable at all times, also while the engine is away.
    pub(super) plane: Arc<dyn DataPlane>,
    pub(super) kind: &'static str,
    here: Option<EngineState>,
    away: Option<JoinHandle<(EngineState, ChangeResult)>>,
    /// True if the kernel's state must be checked once the engine is back.
    pub(super) restores_later: bool,
}

impl EngineControl {
    pub(super) fn new(engine: Box<dyn Engine>) -> EngineControl {
        EngineControl {
            plane: engine.data_plane(),
            kind: engine.kind(),
            here: Some(EngineState { engine, fills: Fills::default() }),
            away: None,
            restores_later: false,
        }
    }

    /// Returns the engine, unless a change is under way.
    pub(super) fn here(&mut self) -> Option<&mut dyn Engine> {
        self.here.as_mut().map(|state| &mut *state.engine as &mut dyn Engine)
    }

    /// Returns the tables in force, unless a change is under way.
    pub(super) fn tables(&self) -> Option<&Tables> {
        self.here.as_ref().map(|state| &**state.engine.tables())
    }

    /// Returns the engine and ends its control.
    pub(super) fn into_engine(self) -> Option<Box<dyn Engine>> {
        self.here.map(|state| state.engine)
    }

    /// Starts a change. The director orders one change at a time.
    pub(super) fn begin(&mut self, change: Change) {
        debug_assert!(self.here.is_some(), "one change at a time");
        if let Some(state) = self.here.take() {
            self.away = Some(spawn_blocking(move || state.carry_out(change)));
        }
    }

    /// Returns the result of the change under way. Cancel safe. Never resolves if no change is
    /// under way.
    pub(super) async fn done(&mut self) -> ChangeResult {
        let Some(away) = &mut self.away else { return pending().await };
        let (state, done) = match away.await {
            Ok(back) => back,
            // A daemon can't go on without its engine.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => return pending().await,
            },
        };
        (self.here, self.away) = (Some(state), None);
        done
    }

    /// Waits until the engine is back, and discards the result.
    pub(super) async fn come_back(&mut self) {
        if self.away.is_some() {
            self.done().await;
        }
    }
}

impl EngineState {
    fn carry_out(mut self, change: Change) -> (EngineState, ChangeResult) {
        let planned = change.plan(&mut self.fills);
        let result = match planned.tables() {
            Ok(Some(tables)) => self.engine.apply(tables).map_err(ExecuteError::from),
            Ok(None) => Ok(()),
            Err(error) => Err(error.into()),
        };
        let refusal = result.as_ref().err().map(ToString::to_string);
        let applied = planned.answer(Arc::clone(self.engine.tables()), refusal);
        (self, ChangeResult { applied, result })
    }
}

impl Executor {
    /// Reports a change's result to the director and executes the director's next orders. Returns
    /// the order's number and its result.
    pub(super) fn finish_change(&mut self, done: ChangeResult) -> (u64, Result<(), ExecuteError>) {
        let ChangeResult { applied, result } = done;
        let number = applied.number;
        let before = Arc::clone(self.director.snapshot());
        self.director.handle(self.moment(), Input::Applied(Box::new(applied)));
        let now = self.director.snapshot();
        let plan = Arc::clone(&now.plan);
        let is_new = !Arc::ptr_eq(&before.plan, &plan);
        // The firewall's rules may have to change before a caller learns that a file is in force.
        self.engine.restores_later |= before.reloads.done != now.reloads.done;
        if is_new {
            self.update_names(TableNames::of(&plan, Arc::clone(&plan.tables)));
        }
        self.catch_up();
        self.follow_orders();
        if is_new {
            // After the orders, which look up the services of removed servers in the old totals.
            self.totals.note_plan(&plan, false);
        }
        self.show();
        (number, result)
    }

    /// Does the work that was postponed while the engine was away.
    fn catch_up(&mut self) {
        self.describe();
        if std::mem::take(&mut self.engine.restores_later) {
            self.restore();
        }
        if let Err(error) = self.watch() {
            tracing::error!("{error}; retrying in a second");
        }
    }

    /// Waits for the change under way, and for all changes that the director then orders.
    ///
    /// # Errors
    /// The first error. Earlier changes stay in force.
    pub(super) async fn finish(&mut self) -> Result<(), ExecuteError> {
        let mut result = Ok(());
        while self.engine.away.is_some() {
            let done = self.engine.done().await;
            result = result.and(self.finish_change(done).1);
        }
        result
    }
}
