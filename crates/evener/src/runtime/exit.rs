//! The exit status.

use std::process::{ExitCode, Termination};

/// How the program ends; scripts rely on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// The request failed, or the file has errors.
    Failed = 1,
    /// An import lost statements that change who is served. A wrong command line ends so too.
    Lossy = 2,
    /// Privileges are missing.
    Privileges = 3,
    /// The network or the kernel is not as the file needs it.
    Environment = 4,
    /// Another daemon already runs for these services.
    Running = 5,
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        ExitCode::from(self as u8)
    }
}
