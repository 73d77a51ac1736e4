//! Loading BPF programs on a thread that others signal.
//!
//! The verifier gives up with EAGAIN as soon as its thread has a signal to take (`do_check` in
//! kernel/bpf/verifier.c), and has to begin from nothing then. A process that is signalled more
//! often than a program takes to be verified, by a profiler's timer for instance, would never get a
//! large one loaded: libbpf tries five times.

use libbpf_rs::{Error, ErrorKind, Object, OpenObject, PrintLevel};
use nix::sys::signal::{SigSet, SigmaskHow};

/// How often a load is begun: what can't be held back, as a stop or a freezer's, may come again.
const TRIES: usize = 20;

/// Loads the program that `open` opens, with all signals held back from this thread; `refused`
/// makes the error. libbpf's messages are logged.
pub(crate) fn load<E>(
    open: impl Fn() -> Result<OpenObject, E>,
    refused: impl Fn(Error) -> E,
) -> Result<Object, E> {
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| {
        tracing::debug!(target: "libbpf", "{}", text.trim_end());
    })));
    let _held = BlockedSignals::all();
    let mut tries = 1;
    loop {
        match open()?.load() {
            Err(error) if error.kind() == ErrorKind::WouldBlock && tries < TRIES => tries += 1,
            loaded => return loaded.map_err(refused),
        }
    }
}

/// Signals to this thread wait for as long as this lives.
struct BlockedSignals(Option<SigSet>);

impl BlockedSignals {
    fn all() -> BlockedSignals {
        // Where it can't be done the load may still succeed.
        BlockedSignals(SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok())
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = before.thread_set_mask();
        }
    }
}
