//! Start and end of the daemon and the agent, and their notifications to the service manager.

use std::fmt::Display;
use std::io;

use sd_notify::NotifyState;
use tokio::runtime::Builder;

use super::{Exit, log};

/// Runs a program to its end. `threads` names the runtime in an error.
pub(crate) fn run<E: Display>(
    threads: &str,
    mut runtime: Builder,
    exit: impl FnOnce(&E) -> Exit,
    program: impl Future<Output = Result<(), E>>,
) -> Exit {
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            log::error(format_args!("{threads} can't be started: {error}"));
            return Exit::Failed;
        }
    };
    match runtime.block_on(program) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            log::error(&error);
            exit(&error)
        }
    }
}

/// Notifies the service manager, if there is one (sd_notify(3)).
pub(crate) fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "failed to notify the service manager");
    }
}

/// A failed step on this host, with the system's error.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub(crate) struct HostError {
    what: String,
    source: io::Error,
}

impl HostError {
    /// Returns a function that turns an I/O error of the step `what` into this error.
    pub(crate) fn of(what: impl Into<String>) -> impl FnOnce(io::Error) -> HostError {
        let what = what.into();
        move |source| HostError { what, source }
    }

    pub(crate) fn exit(&self) -> Exit {
        match self.source.kind() {
            io::ErrorKind::PermissionDenied => Exit::Privileges,
            _ => Exit::Failed,
        }
    }
}
