//! Signals that control a running daemon or agent.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signal handlers of daemon and agent.
pub(crate) struct ProcessSignals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hangup: Signal,
    user: Signal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalAction {
    /// Ends the program. The command line decides if the setup is removed.
    Stop,
    /// Ends the program and removes the whole setup, independent of the command line.
    Dismantle,
    /// Reads the file again.
    Reload,
    /// Opens log files again, after a log rotation.
    Reopen,
}

impl ProcessSignals {
    pub(crate) fn new() -> io::Result<ProcessSignals> {
        Ok(ProcessSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hangup: signal(SignalKind::hangup())?,
            user: signal(SignalKind::user_defined1())?,
        })
    }

    /// Returns the next signal's action. Cancel safe: no signal is lost if the future is dropped.
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
