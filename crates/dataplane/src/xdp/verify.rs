//! Verifies BPF objects from files, for tests of other kernels and compilers.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::path::Path;

use evener_core::path::seed::Seed;
use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{Object, ObjectBuilder, OpenObject, Program};

use super::abi::{self, Settings};
use super::program::{buckets, fib_parts, not_loaded, prepare, refused};
use crate::EngineError;
use crate::load::load;

/// Number of sessions of the tables.
const SESSIONS_MAX: usize = 65_536;
/// Result of the verifier for one program.
#[derive(Debug)]
pub struct Verification {
    pub program: String,
    /// Number of instructions that the verifier processed, or its refusal.
    pub instructions: Result<u32, EngineError>,
}

/// Loads each program of the object in this file, one at a time, with the director's tables as the
/// daemon creates them.
///
/// # Errors
/// Fails if the file is not a BPF object.
pub fn verify(object: &Path) -> Result<Vec<Verification>, EngineError> {
    super::lift_memlock();
    let open = open(object)?;
    let names = open.progs().map(|program| program.name().to_owned());
    Ok(names.map(|name| verify_program(object, &name)).collect())
}

fn open(object: &Path) -> Result<OpenObject, EngineError> {
    let failed = |error| refused(format!("opening {}", object.display()), error);
    ObjectBuilder::default().open_file(object).map_err(failed)
}

fn verify_program(object: &Path, name: &OsStr) -> Verification {
    let open = || {
        let mut open = open(object)?;
        for mut program in open.progs_mut() {
            let is_wanted = program.name() == name;
            program.set_autoload(is_wanted);
        }
        if open.maps().any(|map| map.name() == "sessions") {
            prepare(&mut open, settings()?, None)?;
        }
        Ok(open)
    };
    let loaded = load(open, |error| not_loaded("loading the program", error));
    Verification {
        program: name.to_string_lossy().into_owned(),
        instructions: loaded.and_then(|object| verified_instructions(&object, name)),
    }
}

fn verified_instructions(object: &Object, name: &OsStr) -> Result<u32, EngineError> {
    let failed = |error| refused("reading the number of verified instructions", error);
    let missing = || EngineError::Capacity("the kernel lists no such program".into());
    let program = object.progs().find(|program| program.name() == name).ok_or_else(missing)?;
    let id = Program::id_from_fd(program.as_fd()).map_err(failed)?;
    let info = ProgInfoIter::default().find(|info| info.id == id).ok_or_else(missing)?;
    Ok(info.verified_insns)
}

fn settings() -> Result<Settings, EngineError> {
    Ok(Settings {
        abi_version: abi::ABI_VERSION,
        buckets: buckets(SESSIONS_MAX)?,
        seed: Seed(1, 2),
        jiffy_ns: abi::jiffy_ns(),
        buckets6: buckets(SESSIONS_MAX)?,
        fib_parts: fib_parts()?,
        ring_seed: Seed(1, 2),
    })
}
