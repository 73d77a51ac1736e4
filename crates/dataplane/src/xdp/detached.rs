//! The kernel's side without a network, for who runs packets through programs of his own.

use std::sync::Arc;

use evener_core::path::seed::Seed;
use evener_core::path::sessions::buckets_in_use_for;
use evener_core::path::tables::Tables;
use libbpf_rs::OpenObject;

use super::attach::Hook;
use super::program::{Program, TableSizes, refused};
use crate::{Counters, EngineError};

/// Any will do whose bits are mixed.
const SEED: Seed = Seed(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f);

/// Loads the director's program for `hook` with the smallest tables, without attaching it: whether
/// this kernel takes it.
///
/// # Errors
/// Missing privileges, or the kernel's refusal.
pub fn try_load(hook: Hook) -> Result<(), EngineError> {
    super::lift_memlock();
    let size =
        TableSizes { sessions_max: 2, sessions6_max: 2, seed: SEED, ring_seed: None, clock_is_given: false };
    Program::load(size, None)?.deciding(hook).map(drop)
}

/// The director's maps, filled, and no interface that anything comes in by.
pub struct DetachedProgram(Program);

impl DetachedProgram {
    /// Loads a table for `sessions_max` sessions of IPv4.
    ///
    /// # Errors
    /// As [`super::XdpEngine::start`].
    pub fn new(sessions_max: usize, tables: &Arc<Tables>) -> Result<DetachedProgram, EngineError> {
        super::lift_memlock();
        let size =
            TableSizes { sessions_max, sessions6_max: 2, seed: SEED, ring_seed: None, clock_is_given: false };
        let mut program = Program::load(size, None)?;
        program.apply(tables)?;
        Ok(DetachedProgram(program))
    }

    /// Has the programs of an object that includes `bpf/director/decide.h` decide by these maps.
    ///
    /// # Errors
    /// When its maps are others.
    pub fn share(&self, open: &mut OpenObject) -> Result<(), EngineError> {
        self.0.share(open).map_err(|error| refused("sharing the director's maps", error))
    }

    /// The counts.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn counters(&self) -> Result<Counters, EngineError> {
        self.0.counters()
    }

    /// Ends all sessions.
    pub fn forget(&self) {
        let memory = self.0.memory();
        memory.sessions.clear(self.0.now());
    }

    /// Has the table in use become as large as a daemon makes it in which so many sessions come to
    /// stand. No packet may be on its way.
    pub fn fit_for(&self, sessions: usize) {
        let memory = self.0.memory();
        memory.sessions.begin_move([buckets_in_use_for(sessions), 1]);
        let left = memory.sessions.move_some(0..memory.sessions.buckets(), memory.seed, self.0.now());
        assert_eq!(left, 0, "a table for {sessions} sessions has no room for those that it holds");
        memory.sessions.end_move();
    }

    /// Live sessions.
    pub fn fill(&self) -> usize {
        self.0.memory().sessions.list(self.0.now()).count()
    }
}
