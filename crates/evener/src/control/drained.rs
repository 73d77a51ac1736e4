//! The servers that the operator drained, for the next daemon: by their names, whether the file has
//! them or not, until they are wanted again.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use evener_core::director::{Director, ServerOwner};
use evener_core::farm::plan::ServerName;

use super::groups::replace;

/// A file for each kind of owner, and for each group.
fn path(directory: &Path, owner: ServerOwner, group: &str) -> PathBuf {
    match owner {
        ServerOwner::Service => directory.join("drained"),
        ServerOwner::Group => directory.join(format!("group.{group}.drained")),
        ServerOwner::Name => directory.join("names.drained"),
    }
}

/// Servers of services, or of names, one `OWNER/SERVER` a line. No server's name has a slash, and
/// names may (RFC 2317).
pub(super) fn read(directory: &Path, owner: ServerOwner) -> BTreeSet<ServerName> {
    let text = fs::read_to_string(path(directory, owner, "")).unwrap_or_default();
    let names = text.lines().filter_map(|line| line.rsplit_once('/'));
    names.map(|(service, server)| ServerName { service: service.into(), server: server.into() }).collect()
}

/// Members of a group, one a line.
pub(super) fn read_group(directory: &Path, group: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(path(directory, ServerOwner::Group, group)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Notes what is drained of an owner of this kind; of a group by its name.
///
/// # Errors
/// When it can't be written; then it holds as long as this daemon runs.
pub(super) fn write(
    directory: &Path,
    director: &Director,
    owner: ServerOwner,
    group: &str,
) -> io::Result<()> {
    let named = |name: &ServerName| format!("{}/{}\n", name.service, name.server);
    let text: String = match owner {
        ServerOwner::Service => director.drained().iter().map(named).collect(),
        ServerOwner::Name => director.drained_of_names().iter().map(named).collect(),
        ServerOwner::Group => {
            let members = director.group(group).into_iter().flat_map(|members| members.drained());
            members.map(|name| format!("{name}\n")).collect()
        }
    };
    replace(&path(directory, owner, group), &text)
}

/// Has the next daemon know nothing of what is drained of services and names.
pub(super) fn forget(directory: &Path) {
    for owner in [ServerOwner::Service, ServerOwner::Name] {
        let _ = fs::remove_file(path(directory, owner, ""));
    }
}

/// The same of a group.
pub(super) fn forget_group(directory: &Path, group: &str) {
    let _ = fs::remove_file(path(directory, ServerOwner::Group, group));
}
