//! The programs that follow requests, as long as the agent measures; and where others find what
//! they know.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evener_dataplane::pending::PendingPrograms;

use crate::runtime::files;

/// Follows requests, over reloads too: what is known of those under way stays.
pub(super) struct RequestTracker {
    following: Option<Arc<PendingPrograms>>,
    /// Has the number of the kernel's map.
    path: PathBuf,
}

impl RequestTracker {
    pub(super) fn new(directory: &Path) -> RequestTracker {
        RequestTracker { following: None, path: path(directory) }
    }

    /// Follows requests to these ports from now on. Where the kernel doesn't let it, what it holds
    /// in its queues is a lower bound.
    pub(super) fn follow(&mut self, ports: &BTreeSet<u16>) -> Option<Arc<PendingPrograms>> {
        let done = match &self.following {
            Some(following) => following.follow(ports),
            None if ports.is_empty() => return None,
            None => PendingPrograms::start(ports).map(|following| self.following = Some(Arc::new(following))),
        };
        if let Err(error) = done {
            tracing::warn!("{error}: bytes to send are what the kernel's queues hold, a lower bound");
        }
        self.show();
        self.following.clone()
    }

    fn show(&self) {
        let number = self.following.as_deref().and_then(PendingPrograms::number);
        let text = number.map(|number| number.to_string()).unwrap_or_default();
        if let Err(error) = files::replace(&self.path, text.as_bytes()) {
            tracing::debug!(%error, "requests can't be shown");
        }
    }
}

impl Drop for RequestTracker {
    fn drop(&mut self) {
        // Where there is none, none is shown.
        let _ = fs::remove_file(&self.path);
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join("agent.requests")
}

/// The number of the map in which the agent of this folder follows requests.
pub(in crate::agent) fn number_of(directory: &Path) -> Option<u32> {
    fs::read_to_string(path(directory)).ok()?.trim().parse().ok()
}
