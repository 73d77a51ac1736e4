//! State of the announcer, as a file for its successor, for `evener announce --status` and for
//! `evener doctor`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::level::Level;
use crate::config::AnnounceConfig;
use crate::runtime::files;

/// Maximum size of the file, in bytes.
const FILE_BYTES: u64 = 8 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AnnouncedState {
    /// Settings of the routes. An announcer with another table or protocol removes these routes.
    pub(super) settings: Option<AnnounceConfig>,
    /// Tables and protocol numbers of earlier settings that may still have routes.
    #[serde(default)]
    pub(super) former: BTreeSet<(u32, u8)>,
    /// Reason in words why the kernel's routes are not as they should be.
    pub(crate) problem: Option<String>,
    pub(crate) addresses: Vec<AnnouncedAddress>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AnnouncedAddress {
    pub(crate) address: IpAddr,
    pub(super) state: Level,
    /// Metric of its route in the kernel. `None` if there is none.
    pub(super) metric: Option<u32>,
    /// Reason in words why the address isn't announced. Empty if it is.
    pub(super) reason: String,
}

impl AnnouncedAddress {
    pub(crate) fn is_announced(&self) -> bool {
        self.state == Level::Announced && self.metric.is_some()
    }

    /// Describes the state in one line.
    pub(crate) fn describe(&self) -> String {
        let route = match (self.state, self.metric) {
            (_, Some(metric)) => format!(", metric {metric}"),
            (Level::Withdrawn, None) => String::new(),
            (_, None) => ", but the kernel has no such route".to_owned(),
        };
        let reason = if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
        format!("{}{route}{reason}", self.state.name())
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join("announce.json")
}

/// Reads the state that the last announcer has written.
///
/// # Errors
/// If the file can't be read or understood.
pub(super) fn read(directory: &Path) -> io::Result<Option<AnnouncedState>> {
    match files::bounded(&path(directory), FILE_BYTES) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the state, unless the file has it already.
pub(super) fn write_changed(
    directory: &Path,
    last: &AnnouncedState,
    state: &AnnouncedState,
) -> io::Result<()> {
    if state == last && path(directory).exists() {
        return Ok(());
    }
    files::replace(&path(directory), &serde_json::to_vec(state)?)
}

pub(super) fn remove(directory: &Path) {
    // There is none if no address needed a route.
    let _ = fs::remove_file(path(directory));
}
