//! End of a reload: the rest of the daemon adopts the file, and the caller gets a reply.

use evener_dataplane::heap;
use sd_notify::NotifyState;

use super::prepare::remedy;
use super::reading::ReloadReply;
use super::{Daemon, display};
use crate::events::DaemonEvent;
use crate::runtime::program;
use crate::state::{Edit, places};

impl Daemon {
    /// Makes the rest of the daemon adopt the file in force, and answers the reload.
    pub(super) async fn reloaded(&mut self, dropped: &[Edit], answer: Option<ReloadReply>) {
        self.executor.warn_of_host();
        self.settle().await;
        self.directors.follow(&self.executor).await;
        heap::give_back();
        let later = self.executor.showing.about().loaded.restart_needed_for.clone();
        let (file, dropped) = (display(&self.config_path), self.report_dropped(dropped));
        let reply = self.follow_log().map(|()| match &later {
            Some(keys) => format!("{file} is in force, but for {keys}: {}{dropped}", remedy(keys)),
            None => format!("{file} is in force{dropped}"),
        });
        let restart_needed_for = later.map(|keys| (keys.clone(), remedy(&keys)));
        let trouble = self.executor.showing.about().loaded.trouble.clone();
        self.executor.bus.publish(DaemonEvent::Reloaded { file, restart_needed_for, trouble });
        reply_to_reload(answer, reply);
    }

    /// Publishes and returns which run-time changes were dropped because the new file
    /// has other values at the same places.
    fn report_dropped(&self, dropped: &[Edit]) -> String {
        if dropped.is_empty() {
            return String::new();
        }
        let places = places(dropped);
        self.executor.bus.publish(DaemonEvent::ChangesDropped { places: places.clone() });
        format!("; the file's value replaces the run-time change of {places}")
    }

    /// Reports a reload that changes nothing, with the reason.
    pub(super) fn report_refusal(&mut self, error: String, answer: Option<ReloadReply>) {
        heap::give_back();
        // A program that has rotated the log waits until the log is reopened, even if the file is
        // invalid.
        if let Err(error) = self.executor.reopen_log() {
            tracing::warn!("{error}; the log stays in the previous file");
        }
        let (file, error) = (display(&self.config_path), format!("nothing was changed: {error}"));
        self.executor.bus.publish(DaemonEvent::ReloadRefused { file, error: error.clone() });
        reply_to_reload(answer, Err(error));
    }

    /// Opens the access log again, without reading the file.
    pub(super) fn reopen(&mut self) -> Result<String, String> {
        let reopened = self.executor.reopen_log();
        match &reopened {
            Ok(()) => tracing::info!("reopened the access log"),
            Err(error) => tracing::warn!("{error}; the log stays in the previous file"),
        }
        reopened.map(|()| "the access log is open again".to_owned())
    }

    /// Opens the log of the file in force.
    fn follow_log(&mut self) -> Result<(), String> {
        self.executor.reopen_log().map_err(|error| {
            let trouble = format!("{} is in force, but for its log: {error}", display(&self.config_path));
            self.executor.show_trouble(trouble.clone());
            trouble
        })
    }
}

/// Replies to the caller of a reload. The caller may have disconnected.
pub(super) fn reply_to_reload(answer: Option<ReloadReply>, reply: Result<String, String>) {
    program::notify(NotifyState::Ready);
    let _ = answer.map(|answer| answer.send(reply));
}
