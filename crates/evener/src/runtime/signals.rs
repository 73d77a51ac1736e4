//! How a running program is told what to do by those who have no socket to it.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that daemon and agent answer to.
pub(crate) struct ProcessSignals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hangup: Signal,
    user: Signal,
}

/// The meaning of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalAction {
    /// End, as the command line says.
    Stop,
    /// End, and take back all that was set up, whatever the command line says.
    Dismantle,
    /// Read the file again.
    Reload,
    /// Open logs again, which may have been moved aside.
    Reopen,
}

impl ProcessSignals {
    /// From now on they are heard.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn new() -> io::Result<ProcessSignals> {
        Ok(ProcessSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hangup: signal(SignalKind::hangup())?,
            user: signal(SignalKind::user_defined1())?,
        })
    }

    /// The next one. Nothing is lost if this is not waited for to the end.
    pub(crate) async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::Stop,
            _ = self.interrupt.recv() => SignalAction::Stop,
            _ = self.quit.recv() => SignalAction::Dismantle,
            _ = self.hangup.recv() => SignalAction::Reload,
            _ = self.user.recv() => SignalAction::Reopen,
        }
    }
}
