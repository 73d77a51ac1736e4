//! Loading BPF programs on a thread that others signal.
//!
//! The verifier gives up with EAGAIN as soon as its thread has a signal to take (`do_check` in
//! kernel/bpf/verifier.c), and has to begin from nothing then. A process that is signalled more
//! often than a program takes to be verified, by a profiler's timer for instance, would never get a
//! large one loaded: libbpf tries five times.

use std::cell::RefCell;
use std::fmt;

use libbpf_rs::{Error, ErrorKind, Object, OpenObject, PrintLevel};
use nix::sys::signal::{SigSet, SigmaskHow};

/// How often a load is begun: what can't be held back, as a stop or a freezer's, may come again.
const TRIES: usize = 20;
/// Marks around the verifier's log in libbpf's messages.
const LOG_BEGINS: &str = "-- BEGIN PROG LOAD LOG --\n";
const LOG_ENDS: &str = "-- END PROG LOAD LOG --";

thread_local! {
    /// The log of the last program that the verifier refused on this thread.
    static REFUSAL: RefCell<Option<Refusal>> = const { RefCell::new(None) };
}

/// A program that the kernel's verifier refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The program's name in `bpf/`.
    pub program: String,
    /// The verifier's whole log.
    pub log: String,
}

impl Refusal {
    /// Reads a message of libbpf; `None` if it holds no log.
    fn read(message: &str) -> Option<Refusal> {
        let (head, rest) = message.split_once(LOG_BEGINS)?;
        let log = rest.split_once(LOG_ENDS).map_or(rest, |(log, _)| log);
        let program = head.split('\'').nth(1).unwrap_or_default();
        Some(Refusal { program: program.to_owned(), log: log.to_owned() })
    }

    /// The line of the log that says why: the last one before the count of instructions.
    fn reason(&self) -> &str {
        let lines = self.log.lines().map(str::trim);
        let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with("processed "));
        lines.next_back().unwrap_or("it gives no reason")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this kernel's verifier refuses the program {}: {}", self.program, self.reason())
    }
}

/// Cause of a failed load.
#[derive(Debug)]
pub(crate) enum LoadError {
    Refused(Refusal),
    Failed(Error),
}

/// Loads the program that `open` opens, with all signals held back from this thread; `refused`
/// makes the error. libbpf's messages are logged.
pub(crate) fn load<E>(
    open: impl Fn() -> Result<OpenObject, E>,
    refused: impl Fn(LoadError) -> E,
) -> Result<Object, E> {
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| {
        tracing::debug!(target: "libbpf", "{}", text.trim_end());
        if let Some(refusal) = Refusal::read(&text) {
            REFUSAL.set(Some(refusal));
        }
    })));
    let _held = BlockedSignals::all();
    let mut tries = 1;
    loop {
        REFUSAL.set(None);
        match open()?.load() {
            Err(error) if error.kind() == ErrorKind::WouldBlock && tries < TRIES => tries += 1,
            Err(error) => {
                let refusal = REFUSAL.take();
                return Err(refused(refusal.map_or(LoadError::Failed(error), LoadError::Refused)));
            }
            Ok(loaded) => return Ok(loaded),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]

    use super::*;

    #[test]
    fn refusal_names_program_and_last_line_of_the_log() {
        let message = "libbpf: prog 'director': -- BEGIN PROG LOAD LOG --\n\
                       0: (b7) r0 = 0\nR4 invalid zero-sized read: u64=[0,0]\n\
                       processed 9 insns (limit 1000000)\n-- END PROG LOAD LOG --\n";
        let refusal = Refusal::read(message).expect("a log");
        assert_eq!(
            refusal.to_string(),
            "this kernel's verifier refuses the program director: R4 invalid zero-sized read: u64=[0,0]"
        );
        assert!(refusal.log.starts_with("0: (b7) r0 = 0\n"), "{}", refusal.log);
        assert_eq!(Refusal::read("libbpf: failed to load object 'evener'\n"), None);
    }

    #[test]
    fn refusal_without_words_says_so() {
        let refusal = Refusal { program: "accept".into(), log: "processed 0 insns\n".into() };
        assert!(refusal.to_string().ends_with("accept: it gives no reason"), "{refusal}");
    }
}
