//! Loads BPF programs on a thread that receives signals.
//!
//! The verifier fails with EAGAIN as soon as its thread has a pending signal (`do_check` in
//! kernel/bpf/verifier.c), and the load must start again. libbpf tries five times. Signals that
//! arrive faster than the verifier finishes, for instance from a profiler's timer, would prevent
//! every load of a large program.

use std::cell::RefCell;
use std::fmt;

use libbpf_rs::{Error, ErrorKind, Object, OpenObject, PrintLevel};
use nix::sys::signal::{SigSet, SigmaskHow};

/// Maximum number of attempts. Stops and freezers can't be blocked and may interrupt again.
const TRIES: usize = 20;
/// Delimiters of the verifier's log in libbpf's messages.
const LOG_BEGINS: &str = "-- BEGIN PROG LOAD LOG --\n";
const LOG_ENDS: &str = "-- END PROG LOAD LOG --";

thread_local! {
    /// Last refusal of the verifier on this thread.
    static REFUSAL: RefCell<Option<Refusal>> = const { RefCell::new(None) };
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the program in `bpf/`.
    pub program: String,
    /// Complete log of the verifier.
    pub log: String,
}

impl Refusal {
    /// Parses a message of libbpf. Returns `None` if the message contains no verifier log.
    fn read(message: &str) -> Option<Refusal> {
        let (head, rest) = message.split_once(LOG_BEGINS)?;
        let log = rest.split_once(LOG_ENDS).map_or(rest, |(log, _)| log);
        let program = head.split('\'').nth(1).unwrap_or_default();
        Some(Refusal { program: program.to_owned(), log: log.to_owned() })
    }

    /// Returns the line of the log that gives the reason: the last one before the instruction
    /// count.
    fn reason(&self) -> &str {
        let lines = self.log.lines().map(str::trim);
        let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with("processed "));
        lines.next_back().unwrap_or("no reason given")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this kernel's verifier refuses the program {}: {}", self.program, self.reason())
    }
}

#[derive(Debug)]
pub(crate) enum LoadError {
    Refused(Refusal),
    Failed(Error),
}

/// Loads the program that `open` opens, with all signals of this thread blocked. `refused` converts
/// a failure to the caller's error. libbpf's messages are logged.
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

/// Blocks all signals of this thread until this value is dropped.
struct BlockedSignals(Option<SigSet>);

impl BlockedSignals {
    fn all() -> BlockedSignals {
        // If blocking fails, the load may still succeed.
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
        assert!(refusal.to_string().ends_with("accept: no reason given"), "{refusal}");
    }
}
