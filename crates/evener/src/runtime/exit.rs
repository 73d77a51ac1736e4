//! Exit status of the program.

use std::process::{ExitCode, Termination};

/// Exit status. Scripts rely on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Ok = 0,
    /// The request failed, or the file has errors.
    Failed = 1,
    /// An import dropped statements that change which server gets a request. A wrong command line
    /// ends with this number too.
    Lossy = 2,
    Privileges = 3,
    /// The network or the kernel does not meet the file's needs.
    Environment = 4,
    /// Another daemon already runs in this network namespace or folder.
    Running = 5,
    /// No daemon answers on the admin socket.
    NoDaemon = 6,
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        ExitCode::from(self as u8)
    }
}
