//! Changes of what is in force, made on another thread: a plan and the engine's part take longer
//! than the loop may. The engine goes with an order and comes back with its answer, so there is
//! nothing to lock; what the loop needs of it meanwhile is its [`DataPlane`].

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

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExecuteError {
    /// The farm can't be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The result of an order.
pub(super) struct ChangeResult {
    applied: Applied,
    result: Result<(), ExecuteError>,
}

/// The engine, and hash tables that were made lately.
struct EngineState {
    engine: Box<dyn Engine>,
    fills: Fills,
}

/// The engine, which is away while it changes what packets go by.
pub(super) struct EngineControl {
    /// There at all times.
    pub(super) plane: Arc<dyn DataPlane>,
    pub(super) kind: &'static str,
    here: Option<EngineState>,
    away: Option<JoinHandle<(EngineState, ChangeResult)>>,
    /// Whether the kernel is to be held against what was set up there once the engine is back.
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

    /// The engine, unless a change is on its way.
    pub(super) fn here(&mut self) -> Option<&mut dyn Engine> {
        self.here.as_mut().map(|workshop| &mut *workshop.engine as &mut dyn Engine)
    }

    /// The tables in force, unless a change is on its way.
    pub(super) fn tables(&self) -> Option<&Tables> {
        self.here.as_ref().map(|workshop| &**workshop.engine.tables())
    }

    /// The engine for good.
    pub(super) fn into_engine(self) -> Option<Box<dyn Engine>> {
        self.here.map(|workshop| workshop.engine)
    }

    /// Begins with a change. The director orders none while another one is on its way.
    pub(super) fn begin(&mut self, change: Change) {
        debug_assert!(self.here.is_some(), "one change at a time");
        if let Some(workshop) = self.here.take() {
            self.away = Some(spawn_blocking(move || workshop.carry_out(change)));
        }
    }

    /// The result of the change that is on its way. Cancel safe; where no change is on its way, it
    /// never ends.
    pub(super) async fn done(&mut self) -> ChangeResult {
        let Some(away) = &mut self.away else { return pending().await };
        let (workshop, done) = match away.await {
            Ok(back) => back,
            // Without its engine a daemon is none.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => return pending().await,
            },
        };
        (self.here, self.away) = (Some(workshop), None);
        done
    }

    /// Waits until the engine is back, whatever became of the change.
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
    /// Tells the director what became of a change, and does what it orders then. Gives the order's
    /// number, and what was refused.
    pub(super) fn finish_change(&mut self, done: ChangeResult) -> (u64, Result<(), ExecuteError>) {
        let ChangeResult { applied, result } = done;
        let number = applied.number;
        let before = Arc::clone(self.director.snapshot());
        self.director.handle(self.moment(), Input::Applied(Box::new(applied)));
        let now = self.director.snapshot();
        let plan = Arc::clone(&now.plan);
        let is_new = !Arc::ptr_eq(&before.plan, &plan);
        // The firewall's rules may have to change, before anybody is answered that a file is in
        // force.
        self.engine.restores_later |= before.reloads.done != now.reloads.done;
        if is_new {
            self.update_names(TableNames::of(&plan, Arc::clone(&plan.tables)));
        }
        self.catch_up();
        self.follow_orders();
        if is_new {
            // Only now: whose the servers were that are gone had to be known until here.
            self.totals.note_plan(&plan, false);
        }
        self.show();
        (number, result)
    }

    /// Does what had to wait for the engine.
    fn catch_up(&mut self) {
        self.describe();
        if std::mem::take(&mut self.engine.restores_later) {
            self.restore();
        }
        if let Err(error) = self.watch() {
            tracing::error!("{error}; it is tried again in a second");
        }
    }

    /// Waits for the change that is on its way, and for all that follow at once.
    ///
    /// # Errors
    /// The first thing that could not be put in force; what was is so still.
    pub(super) async fn finish(&mut self) -> Result<(), ExecuteError> {
        let mut result = Ok(());
        while self.engine.away.is_some() {
            let done = self.engine.done().await;
            result = result.and(self.finish_change(done).1);
        }
        result
    }
}
