//! Paths of the files that a daemon shares with its command line and its successor. Each network
//! namespace has a separate folder, so daemons in different namespaces never interfere.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use evener_dataplane::xdp::pins::network_namespace;
use nix::unistd::{AccessFlags, Uid, access};

use super::lock::Lock;
use super::program::HostError;

/// Removes the folders of network namespaces that no longer exist. Their session files occupy
/// memory.
pub(crate) fn clear_vanished(own: &Path) {
    let Some(root) = own.parent() else { return };
    let living = living_namespaces();
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("net-")).and_then(|n| n.parse().ok());
        // A namespace may seem gone if only processes invisible to this one are in it. Its daemon
        // then still holds the lock.
        if number.is_some_and(|number: u64| !living.contains(&number))
            && ![agent_lock_path(&entry.path()), announcer_lock_path(&entry.path())]
                .iter()
                .any(|path| Lock::is_held(path))
            && let Ok(_lock) = Lock::try_take(&lock_path(&entry.path()))
            && let Err(error) = fs::remove_dir_all(entry.path())
        {
            tracing::debug!(%error, folder = %entry.path().display(), "failed to remove the folder of a network namespace that is gone");
        }
    }
}

/// Returns the inode numbers of all network namespaces that a process is in or a mount in
/// /run/netns holds.
fn living_namespaces() -> BTreeSet<u64> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let of_processes =
        processes.filter_map(|process| Some(fs::metadata(process.path().join("ns/net")).ok()?.ino()));
    let named = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let of_names = named.filter_map(|name| Some(fs::metadata(name.path()).ok()?.ino()));
    of_processes.chain(of_names).collect()
}

/// Parent of the folders of all network namespaces.
const RUN: &str = "/run/evener";

/// Returns the folder of this network namespace.
///
/// # Errors
/// If /proc is not mounted.
pub fn directory() -> io::Result<PathBuf> {
    Ok(root().join(format!("net-{}", network_namespace()?)))
}

/// Lock of the daemon whose folder this is.
pub(crate) fn lock_path(directory: &Path) -> PathBuf {
    directory.join("lock")
}

/// Lock of the agent whose folder this is.
pub(crate) fn agent_lock_path(directory: &Path) -> PathBuf {
    directory.join("agent.lock")
}

/// Lock of the announcer whose folder this is.
pub(crate) fn announcer_lock_path(directory: &Path) -> PathBuf {
    directory.join("announce.lock")
}

/// Returns the folder of this network namespace, and creates it if it does not exist.
///
/// # Errors
/// If the folder can't be created, with the cause and the remedy.
pub(crate) fn make_directory() -> Result<PathBuf, HostError> {
    let directory = directory().map_err(HostError::of("failed to read the network namespace"))?;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(HostError::of(format!(
        "{} can't be made (run as root, or set EVENER_RUN_DIR to a folder of your own)",
        directory.display()
    )))?;
    Ok(directory)
}

/// Returns the parent of the namespaces' folders. EVENER_RUN_DIR is for programs that can't write
/// to /run, as in a user namespace. Without EVENER_RUN_DIR, users who can't write to /run get a
/// folder in XDG_RUNTIME_DIR.
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

/// Parent of the folders of run-time changes, for root.
const STATE: &str = "/var/lib/evener";

/// Returns the folder that stores run-time changes of this network namespace.
///
/// `EVENER_STATE_DIR` sets the parent folder of all namespaces. If only `EVENER_RUN_DIR` is set,
/// changes are stored below it: daemons with folders of their own never share changes.
///
/// # Errors
/// If /proc is not mounted.
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

/// Returns a name of this network namespace, which survives a reboot if possible: `host` for the
/// initial namespace, else the name that `ip netns` uses.
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

/// Returns the path of the admin socket.
///
/// # Errors
/// If /proc is not mounted.
pub fn admin_socket() -> io::Result<PathBuf> {
    Ok(directory()?.join("admin.sock"))
}
