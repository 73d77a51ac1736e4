//! Where a daemon keeps what its command line and its successor must find: one folder per network
//! namespace, so that instances in different ones never meet.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use evener_dataplane::xdp::pins::network_namespace;
use nix::unistd::{AccessFlags, Uid, access};

use super::lock::Lock;
use super::program::HostError;

/// Removes what daemons of network namespaces that are gone have left: a session file is memory.
pub(crate) fn clear_vanished(own: &Path) {
    let Some(root) = own.parent() else { return };
    let living = living_namespaces();
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("net-")).and_then(|n| n.parse().ok());
        // A namespace that only processes out of our sight are in may seem gone; its daemon's lock
        // is held.
        if number.is_some_and(|number: u64| !living.contains(&number))
            && let Ok(_lock) = Lock::try_take(&entry.path().join("lock"))
            && let Err(error) = fs::remove_dir_all(entry.path())
        {
            tracing::debug!(%error, folder = %entry.path().display(), "a vanished namespace's folder stays");
        }
    }
}

/// The numbers of all network namespaces that a process is in or a mount holds.
fn living_namespaces() -> BTreeSet<u64> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let of_processes =
        processes.filter_map(|process| Some(fs::metadata(process.path().join("ns/net")).ok()?.ino()));
    let named = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let of_names = named.filter_map(|name| Some(fs::metadata(name.path()).ok()?.ino()));
    of_processes.chain(of_names).collect()
}

/// Where daemons of the whole host have their folders.
const RUN: &str = "/run/evener";

/// The folder of this network namespace.
///
/// # Errors
/// When /proc is not there.
pub fn directory() -> io::Result<PathBuf> {
    Ok(root().join(format!("net-{}", network_namespace()?)))
}

/// The same, made if it isn't there.
///
/// # Errors
/// When it can't be made, with the cause and the remedy.
pub(crate) fn make_directory() -> Result<PathBuf, HostError> {
    let directory = directory().map_err(HostError::of("the network namespace can't be told"))?;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(HostError::of(format!(
        "{} can't be made (run as root, or set EVENER_RUN_DIR to a folder of your own)",
        directory.display()
    )))?;
    Ok(directory)
}

/// EVENER_RUN_DIR is for programs without the right to write to /run, as in a user namespace. Users
/// who can't write there either have a folder of their own mostly.
fn root() -> PathBuf {
    if let Some(named) = std::env::var_os("EVENER_RUN_DIR") {
        return PathBuf::from(named);
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|own| !own.is_empty());
    match own.filter(|_| !Uid::effective().is_root() && access(RUN, AccessFlags::W_OK).is_err()) {
        Some(own) => PathBuf::from(own).join("evener"),
        None => PathBuf::from(RUN),
    }
}

/// Where run-time changes of all network namespaces last, for root.
const STATE: &str = "/var/lib/evener";

/// The folder in which run-time changes of this network namespace last.
///
/// `EVENER_STATE_DIR` names the one for all namespaces. Where `EVENER_RUN_DIR` is set and this
/// isn't, they are kept there: daemons with folders of their own never share changes.
///
/// # Errors
/// When /proc is not there.
pub(crate) fn state_directory() -> io::Result<PathBuf> {
    let named = std::env::var_os("EVENER_STATE_DIR").map(PathBuf::from);
    let run = || Some(PathBuf::from(std::env::var_os("EVENER_RUN_DIR")?).join("state"));
    let own = || {
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
        let own = std::env::var_os("XDG_STATE_HOME").filter(|own| !own.is_empty()).map(PathBuf::from);
        own.or_else(home).filter(|_| !Uid::effective().is_root()).map(|own| own.join("evener"))
    };
    let root = named.or_else(run).or_else(own).unwrap_or_else(|| PathBuf::from(STATE));
    Ok(root.join(namespace_name()?))
}

/// A name of this network namespace that outlives a restart of the machine, where it has one:
/// `host` for the first one, and that which `ip netns` gives.
fn namespace_name() -> io::Result<String> {
    let number = network_namespace()?;
    let is_this = |path: &Path| fs::metadata(path).is_ok_and(|known| known.ino() == number);
    if is_this(Path::new("/proc/1/ns/net")) {
        return Ok("host".to_owned());
    }
    let named = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let name = named.filter(|entry| is_this(&entry.path())).map(|entry| entry.file_name()).min();
    Ok(match name.as_deref().and_then(|name| name.to_str()) {
        Some(name) => format!("netns-{name}"),
        None => format!("net-{number}"),
    })
}

/// The socket that the command line talks to.
///
/// # Errors
/// When /proc is not there.
pub fn admin_socket() -> io::Result<PathBuf> {
    Ok(directory()?.join("admin.sock"))
}
