//! The server's programs: the same frames pass through `evener_core::server` and the C programs.

mod accept;
mod exchange;
mod network;
mod open;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use evener_dataplane::server::{self, AttachPoints, Hook, ProgramError, Reason, ServerPrograms, Tables};
use proptest::test_runner::TestCaseError;

/// Count of each reason.
pub type Counts = BTreeMap<Reason, u64>;

/// The C programs with their own maps.
pub struct Programs {
    pub server: ServerPrograms,
    pub dir: PathBuf,
    counted: RefCell<Counts>,
}

/// The C program's result for a frame.
#[derive(Debug)]
pub struct Ran {
    pub goes_on: bool,
    pub frame: Vec<u8>,
    pub counted: Counts,
}

impl Programs {
    pub fn start(tables: &Tables) -> Option<Programs> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: loading programs and pinning their maps needs root");
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-server-{}-{number}", std::process::id());
        let dir = server::directory().unwrap().with_file_name(name);
        let mut server = ServerPrograms::start(dir.clone()).unwrap();
        server.apply(tables, &AttachPoints::default()).unwrap();
        let counted = RefCell::new(server.counters().unwrap());
        Some(Programs { server, dir, counted })
    }

    /// Starts the programs of services with handoff, in a new network namespace.
    pub fn start_handing_over(tables: &Tables) -> Option<Programs> {
        if let Err(missing) = server::handoff_support() {
            println!("skipped: {missing}");
            return None;
        }
        if nix::unistd::geteuid().is_root() {
            network::set_up();
        }
        Programs::start(tables)
    }

    /// `None` if a TC test run rejects the frame because it ends before the IP header of its
    /// EtherType.
    pub fn run(&self, hook: Hook, frame: &[u8]) -> Result<Option<Ran>, TestCaseError> {
        let is_tc = !matches!(hook, Hook::Native | Hook::Generic);
        let (goes_on, after) = match self.server.test_run(hook, frame) {
            Err(ProgramError::Io { source, .. })
                if is_tc && frame.len() < 54 && source.raw_os_error() == Some(libc::EINVAL) =>
            {
                return Ok(None);
            }
            ran => ran.map_err(|error| TestCaseError::fail(error.to_string()))?,
        };
        let now = self.server.counters().unwrap();
        let before = self.counted.replace(now.clone());
        let since = now.into_iter().map(|(reason, count)| (reason, count - before[&reason]));
        let counted = since.filter(|(_, count)| *count != 0).collect();
        Ok(Some(Ran { goes_on, frame: after, counted }))
    }
}

/// Returns the fuzzing corpus.
pub fn corpus(name: &str) -> impl Iterator<Item = Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let files = fs::read_dir(corpus).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap());
    files.filter(|frame| frame.len() > 14)
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = server::clear(&self.dir);
    }
}
