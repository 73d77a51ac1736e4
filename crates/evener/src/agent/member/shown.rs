//! States of memberships for `evener agent --status`, in a file beside the agent's lock while the
//! agent runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::runtime::files;

/// State of one membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::agent) struct MembershipView {
    /// URL of the group.
    pub(in crate::agent) group: String,
    /// URL of the member, if known.
    pub(in crate::agent) url: Option<String>,
    /// True if the director has accepted the member.
    pub(in crate::agent) member: bool,
    /// True if the membership works without a problem.
    pub(in crate::agent) is_well: bool,
    pub(in crate::agent) state: String,
}

/// All memberships, by number.
pub(in crate::agent) struct MembershipViews {
    path: PathBuf,
    all: Mutex<BTreeMap<usize, MembershipView>>,
}

impl MembershipViews {
    pub(super) fn new(directory: &Path) -> MembershipViews {
        MembershipViews { path: path(directory), all: Mutex::default() }
    }

    pub(super) fn set(&self, number: usize, shown: MembershipView) {
        self.change(|all| all.insert(number, shown.clone()) != Some(shown));
    }

    pub(super) fn forget(&self, number: usize) {
        self.change(|all| all.remove(&number).is_some());
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<usize, MembershipView>) -> bool) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if !change(&mut all) {
            return;
        }
        let list: Vec<&MembershipView> = all.values().collect();
        let written = serde_json::to_vec(&list).map_err(std::io::Error::other);
        if let Err(error) = written.and_then(|bytes| files::replace(&self.path, &bytes)) {
            tracing::debug!(%error, "failed to publish the memberships for `evener agent --status`");
        }
    }

    pub(super) fn clear(&self) {
        // If the file does not exist, no membership is shown.
        let _ = fs::remove_file(&self.path);
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join("agent.members")
}

/// Reads the memberships of the running agent.
pub(in crate::agent) fn read(directory: &Path) -> Vec<MembershipView> {
    let bytes = fs::read(path(directory)).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}
