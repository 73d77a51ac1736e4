//! Record of the agent's changes of this host, written before each change.
//! The next agent can undo the changes, no matter how this agent ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use evener_dataplane::server::namespace_cookie;
use serde::{Deserialize, Serialize};

use super::desired::{AgentIdentity, PlacedAddress};
use crate::runtime::files;

/// A changed kernel setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SysctlChange {
    pub(super) was: u32,
    pub(super) set: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AppliedState {
    /// Cookie of the network namespace. The folder's number may belong to another namespace by now.
    #[serde(default)]
    namespace: u64,
    /// Identity of the host, from the command line.
    pub(super) identity: AgentIdentity,
    #[serde(default)]
    pub(super) config: PathBuf,
    /// Addresses added to interfaces.
    pub(super) addresses: BTreeSet<PlacedAddress>,
    /// Changed settings, by path below `/proc/sys/net`.
    pub(super) settings: BTreeMap<String, SysctlChange>,
}

impl AppliedState {
    /// True if there is anything to undo.
    pub(super) fn has_changes(&self) -> bool {
        !(self.addresses.is_empty() && self.settings.is_empty())
    }
}

/// File with an [`AppliedState`].
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    pub(super) done: AppliedState,
}

impl StateFile {
    /// Loads the record of an earlier agent of this network namespace.
    pub(super) fn load(directory: &Path) -> io::Result<StateFile> {
        let path = path(directory);
        match read(directory) {
            Ok(done) => {
                let namespace = namespace_cookie()?;
                Ok(StateFile { path, done: AppliedState { namespace, ..done.unwrap_or_default() } })
            }
            // The agent replaces the file atomically, so a partial file is not the agent's.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(io::Error::other(format!(
                "{} is invalid ({error}); undo the changes that it lists by hand and remove it",
                path.display()
            ))),
            Err(error) => Err(error),
        }
    }

    pub(super) fn store(&self) -> io::Result<()> {
        files::replace(&self.path, &serde_json::to_vec_pretty(&self.done)?)
    }

    /// Removes the record, once everything is undone.
    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join("agent.json")
}

/// Reads the record of this network namespace's agent, if there is one.
pub(super) fn read(directory: &Path) -> io::Result<Option<AppliedState>> {
    match fs::read(path(directory)) {
        Ok(bytes) => {
            let done: AppliedState = serde_json::from_slice(&bytes)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let ours = done.namespace == namespace_cookie()?;
            Ok(ours.then_some(done))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn state_file_round_trips() {
        let folder = std::env::temp_dir().join(format!("evener-agent-state-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut state = StateFile::load(&folder).unwrap();
        assert!(!state.done.has_changes());
        state.done.settings.insert("ipv4/conf/all/arp_ignore".into(), SysctlChange { was: 0, set: 1 });
        state
            .done
            .addresses
            .insert(PlacedAddress { interface: "lo".into(), address: [192, 0, 2, 100].into() });
        state.store().unwrap();
        assert!(state.done.has_changes());
        assert_eq!(StateFile::load(&folder).unwrap().done, state.done);
        state.done.namespace += 1;
        state.store().unwrap();
        assert!(!StateFile::load(&folder).unwrap().done.has_changes(), "of a namespace that is gone");
        fs::write(path(&folder), "{").unwrap();
        assert!(StateFile::load(&folder).unwrap_err().to_string().contains("is invalid"));
        state.remove().unwrap();
        state.remove().unwrap();
        assert_eq!(read(&folder).unwrap(), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
