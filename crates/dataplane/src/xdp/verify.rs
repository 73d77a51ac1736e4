//! The verifier's answer to BPF objects from files: for tests of other kernels and compilers.

use std::ffi::OsString;
use std::path::Path;

use evener_core::path::seed::Seed;
use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{ErrorKind, ObjectBuilder, OpenObject, PrintLevel, Program};

use super::abi::{self, Settings};
use super::program::{buckets, fib_parts, prepare, refused};
use crate::EngineError;

/// Sessions of the tables that the programs are loaded with.
const SESSIONS_MAX: usize = 65_536;
/// How often a load is begun: a signal to this thread interrupts the verifier.
const TRIES: usize = 20;

/// The verifier's answer to one program.
#[derive(Clone, Debug)]
pub struct Verification {
    /// Name of the program.
    pub program: String,
    /// Number of instructions that the verifier processed. `None` if it refused the program.
    pub instructions: Option<u32>,
}

/// Loads each program of the object in this file, one at a time, with the director's tables as the
/// daemon makes them. The verifier's log of a refused program goes to standard error.
///
/// # Errors
/// A file that isn't a BPF object.
pub fn verify(object: &Path) -> Result<Vec<Verification>, EngineError> {
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| eprint!("{text}"))));
    let open = open(object)?;
    open.progs().map(|program| verify_program(object, program.name().to_owned())).collect()
}

fn open(object: &Path) -> Result<OpenObject, EngineError> {
    let failed = |error| refused(format!("opening {}", object.display()), error);
    ObjectBuilder::default().open_file(object).map_err(failed)
}

fn verify_program(object: &Path, name: OsString) -> Result<Verification, EngineError> {
    let program = name.to_string_lossy().into_owned();
    for _ in 0..TRIES {
        let mut open = open(object)?;
        for mut program in open.progs_mut() {
            let is_wanted = program.name() == name;
            program.set_autoload(is_wanted);
        }
        if open.maps().any(|map| map.name() == "sessions") {
            prepare(&mut open, settings()?, None)?;
        }
        match open.load() {
            Ok(loaded) => {
                let loaded = loaded.progs().find(|program| program.name() == name);
                let instructions = loaded.and_then(|program| verified_instructions(&program));
                return Ok(Verification { program, instructions });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    Ok(Verification { program, instructions: None })
}

fn verified_instructions(program: &Program<'_>) -> Option<u32> {
    use std::os::fd::AsFd as _;
    let id = Program::id_from_fd(program.as_fd()).ok()?;
    ProgInfoIter::default().find(|info| info.id == id).map(|info| info.verified_insns)
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
