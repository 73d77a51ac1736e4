//! Lifetime of the programs that track requests, and the file by which other processes find their
//! map.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evener_dataplane::pending::PendingPrograms;

use crate::runtime::files;

/// Tracks requests, across reloads: the state of open requests stays.
pub(super) struct RequestTracker {
    following: Option<Arc<PendingPrograms>>,
    /// File with the ID of the kernel's map.
    path: PathBuf,
}

impl RequestTracker {
    pub(super) fn new(directory: &Path) -> RequestTracker {
        RequestTracker { following: None, path: path(directory) }
    }

    /// Tracks requests to these ports. If the kernel refuses the programs, the bytes in the
    /// kernel's queues serve as a lower bound.
    pub(super) fn follow(&mut self, ports: &BTreeSet<u16>) -> Option<Arc<PendingPrograms>> {
        let done = match &self.following {
            Some(following) => following.follow(ports),
            None if ports.is_empty() => return None,
            None => PendingPrograms::start(ports).map(|following| self.following = Some(Arc::new(following))),
        };
        if let Err(error) = done {
            tracing::warn!(
                "{error}: the reported bytes to send are those in the kernel's queues, a lower bound"
            );
        }
        self.show();
        self.following.clone()
    }

    fn show(&self) {
        let number = self.following.as_deref().and_then(PendingPrograms::number);
        let text = number.map(|number| number.to_string()).unwrap_or_default();
        if let Err(error) = files::replace(&self.path, text.as_bytes()) {
            tracing::debug!(%error, "failed to publish the requests for `evener agent --requests`");
        }
    }
}

impl Drop for RequestTracker {
    fn drop(&mut self) {
        // If the file does not exist, no map is published.
        let _ = fs::remove_file(&self.path);
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join("agent.requests")
}

/// Returns the ID of the map in which this folder's agent tracks requests.
pub(in crate::agent) fn number_of(directory: &Path) -> Option<u32> {
    fs::read_to_string(path(directory)).ok()?.trim().parse().ok()
}
