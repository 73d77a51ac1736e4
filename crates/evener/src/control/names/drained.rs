//! Which servers of names their operator drains: known by their names, whether the file has them or not, until they are wanted again.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use evener_core::farm::plan::ServerName;

use crate::control::groups::replace;

fn path(directory: &Path) -> PathBuf {
    directory.join("names.drained")
}

/// Those of the daemon before.
pub(crate) fn read(directory: &Path) -> BTreeSet<ServerName> {
    let text = fs::read_to_string(path(directory)).unwrap_or_default();
    // Servers' names have no slash, and names may (RFC 2317).
    let servers = text.lines().filter_map(|line| line.rsplit_once('/'));
    servers.map(|(name, server)| ServerName { service: name.to_owned(), server: server.to_owned() }).collect()
}

/// Notes them for the next daemon.
///
/// # Errors
/// When they can't be written; then they hold as long as this daemon runs.
pub(crate) fn write(directory: &Path, drained: &BTreeSet<ServerName>) -> io::Result<()> {
    let lines = drained.iter().map(|name| format!("{}/{}\n", name.service, name.server));
    replace(&path(directory), &lines.collect::<String>())
}

/// Has the next daemon know nothing of them.
pub(crate) fn forget(directory: &Path) {
    let _ = fs::remove_file(path(directory));
}
