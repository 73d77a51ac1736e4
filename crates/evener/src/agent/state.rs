//! The agent's changes to this host, written down before they are made, so that the next agent,
//! however it ended, can take back exactly that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use evener_dataplane::server::namespace_cookie;
use serde::{Deserialize, Serialize};

use super::desired::{AgentIdentity, PlacedAddress};
use crate::runtime::files;

/// A kernel setting that was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SysctlChange {
    pub(super) was: u32,
    pub(super) set: u32,
}

/// The applied state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AppliedState {
    /// In which network namespace: the folder's number may be another's by now.
    #[serde(default)]
    namespace: u64,
    /// As whom.
    pub(super) identity: AgentIdentity,
    /// By which file.
    #[serde(default)]
    pub(super) config: PathBuf,
    /// Addresses that were put on interfaces.
    pub(super) addresses: BTreeSet<PlacedAddress>,
    /// Settings that were changed, by path below `/proc/sys/net`.
    pub(super) settings: BTreeMap<String, SysctlChange>,
}

impl AppliedState {
    /// Whether anything is to be taken back.
    pub(super) fn is_something(&self) -> bool {
        !(self.addresses.is_empty() && self.settings.is_empty())
    }
}

/// [`AppliedState`], kept in a file.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    pub(super) done: AppliedState,
}

impl StateFile {
    /// Takes up what an earlier agent of this network namespace has left.
    pub(super) fn load(directory: &Path) -> io::Result<StateFile> {
        let path = path(directory);
        match read(directory) {
            Ok(done) => {
                let namespace = namespace_cookie()?;
                Ok(StateFile { path, done: AppliedState { namespace, ..done.unwrap_or_default() } })
            }
            // Half a file is no record of anything: the file is replaced whole, so this one is not
            // ours.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(io::Error::other(format!(
                "{} can't be understood ({error}); remove it, and what it says was done",
                path.display()
            ))),
            Err(error) => Err(error),
        }
    }

    /// Writes it down.
    pub(super) fn store(&self) -> io::Result<()> {
        files::replace(&self.path, &serde_json::to_vec_pretty(&self.done)?)
    }

    /// Nothing is left to be taken back.
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

/// An agent's changes here, if one has made some and not taken them back.
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

/// Where the lock of the only agent here is.
pub(super) fn lock_path(directory: &Path) -> PathBuf {
    directory.join("agent.lock")
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
        assert!(!state.done.is_something());
        state.done.settings.insert("ipv4/conf/all/arp_ignore".into(), SysctlChange { was: 0, set: 1 });
        state
            .done
            .addresses
            .insert(PlacedAddress { interface: "lo".into(), address: [192, 0, 2, 100].into() });
        state.store().unwrap();
        assert!(state.done.is_something());
        assert_eq!(StateFile::load(&folder).unwrap().done, state.done);
        state.done.namespace += 1;
        state.store().unwrap();
        assert!(!StateFile::load(&folder).unwrap().done.is_something(), "of a namespace that is gone");
        fs::write(path(&folder), "{").unwrap();
        assert!(StateFile::load(&folder).unwrap_err().to_string().contains("can't be understood"));
        state.remove().unwrap();
        state.remove().unwrap();
        assert_eq!(read(&folder).unwrap(), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
