//! Director's programs without a network, for callers that run packets through their own programs.

use std::sync::Arc;

use evener_core::path::seed::Seed;
use evener_core::path::sessions::buckets_in_use_for;
use evener_core::path::tables::Tables;
use libbpf_rs::OpenObject;

use super::attach::Hook;
use super::program::{DataPlaneOptions, Program, refused};
use crate::{Counters, EngineError};

/// Hash key. Any value with mixed bits is suitable.
const SEED: Seed = Seed(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f);

/// Loads the director's program for `hook` with the smallest tables and without attaching it, to
/// test the kernel.
///
/// # Errors
/// Fails if privileges are missing or the kernel refuses the program.
pub fn try_load(hook: Hook) -> Result<(), EngineError> {
    super::lift_memlock();
    let size = DataPlaneOptions {
        sessions_max: 2,
        sessions6_max: 2,
        seed: SEED,
        ring_seed: None,
        clock_is_given: false,
    };
    Program::load(size, None)?.deciding(hook).map(drop)
}

/// Director's maps with tables, without attached programs.
pub struct DetachedProgram(Program);

impl DetachedProgram {
    /// Loads the maps with room for `sessions_max` IPv4 sessions and applies `tables`.
    ///
    /// # Errors
    /// See [`super::XdpEngine::start`].
    pub fn new(sessions_max: usize, tables: &Arc<Tables>) -> Result<DetachedProgram, EngineError> {
        super::lift_memlock();
        let size = DataPlaneOptions {
            sessions_max,
            sessions6_max: 2,
            seed: SEED,
            ring_seed: None,
            clock_is_given: false,
        };
        let mut program = Program::load(size, None)?;
        program.apply(tables)?;
        Ok(DetachedProgram(program))
    }

    /// Makes an object that includes `bpf/director/decide.h` use these maps.
    ///
    /// # Errors
    /// Fails if the object's maps differ.
    pub fn share(&self, open: &mut OpenObject) -> Result<(), EngineError> {
        self.0.share(open).map_err(|error| refused("sharing the director's maps", error))
    }

    /// Returns the counters.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn counters(&self) -> Result<Counters, EngineError> {
        self.0.counters()
    }

    pub fn forget(&self) {
        let memory = self.0.memory();
        memory.sessions.clear(self.0.now());
    }

    /// Resizes the table in use to the size that a daemon selects for this number of sessions. No
    /// packet may be in progress.
    pub fn fit_for(&self, sessions: usize) {
        let memory = self.0.memory();
        memory.sessions.begin_move([buckets_in_use_for(sessions), 1]);
        let left = memory.sessions.move_some(0..memory.sessions.buckets(), memory.seed, self.0.now());
        assert_eq!(left, 0, "a table for {sessions} sessions is too small for the current sessions");
        memory.sessions.end_move();
    }

    /// Returns the number of live sessions.
    pub fn fill(&self) -> usize {
        self.0.memory().sessions.list(self.0.now()).count()
    }
}
