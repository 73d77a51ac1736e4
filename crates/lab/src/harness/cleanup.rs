//! Removal of namespaces and control groups when their owner ends.
//!
//! Names of namespaces, control groups and folders start with the id and start time of their
//! process. The start time distinguishes processes with a reused id. Three mechanisms remove
//! namespaces and folders. Dropping the farm removes them. A guardian removes them after the end of
//! the owner: a small process that survives its owner, even after `kill -9`. If the guardian was
//! killed too, the next farm's builder removes them.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

const REAP: &str = include_str!("reap.sh");
/// Folder of named network namespaces (ip-netns(8)).
const NETNS: &str = "/run/netns";

/// Folder of control groups (cgroups(7)): of version 2, or of hierarchies of version 1.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Guardian process; its standard input closes when this process ends.
static GUARDIAN: Mutex<Option<Child>> = Mutex::new(None);
static FARMS: AtomicU32 = AtomicU32::new(0);

/// Returns a unique prefix for all names of a farm.
///
/// The first call also removes the remains of dead owners, and starts the guardian.
pub(crate) fn next_prefix() -> Result<String> {
    let mut guardian = GUARDIAN.lock().unwrap_or_else(PoisonError::into_inner);
    if guardian.is_none() {
        reap_dead();
        let child =
            start_guardian().context("The guardian that cleans up after this process did not start")?;
        *guardian = Some(child);
    }
    let number = FARMS.fetch_add(1, Ordering::Relaxed);
    Ok(format!("{}{number}-", own_prefix()?))
}

/// Folder of the farms' files.
pub(crate) fn directory() -> PathBuf {
    std::env::temp_dir().join("evener-lab")
}

/// Returns a file that all farms of this process share. The first caller creates it; it is removed
/// with the process.
pub(crate) fn shared_file(name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let _one_at_a_time = GUARDIAN.lock().unwrap_or_else(PoisonError::into_inner);
    let path = directory().join(format!("{}{name}", own_prefix()?));
    if !path.exists() {
        let begun = path.with_extension("begun");
        make(&begun)?;
        fs::rename(&begun, &path)?;
    }
    Ok(path)
}

/// Removes all namespaces, processes and folders whose name starts with `prefix`.
pub(crate) fn reap(prefix: &str) {
    // a failure has no remedy here: the next owner tries again
    let _ = Command::new("sh").arg("-c").arg(REAP).arg("reap").arg(prefix).arg(directory()).status();
}

/// Returns the names of a process's namespaces, by process id. For tests of the testbed itself.
pub fn namespaces_of(pid: u32) -> Vec<String> {
    names(NETNS.into()).into_iter().filter(|name| name.starts_with(&format!("ev{pid}-"))).collect()
}

/// Returns the names of a process's control groups, by process id. For tests of the testbed itself.
pub fn control_groups_of(pid: u32) -> Vec<String> {
    control_groups().filter(|name| name.starts_with(&format!("ev{pid}-"))).collect()
}

/// Returns the names of the topmost control groups, in all hierarchies.
fn control_groups() -> impl Iterator<Item = String> {
    let mounts = names(CGROUPS.into()).into_iter().map(|mount| Path::new(CGROUPS).join(mount));
    std::iter::once(PathBuf::from(CGROUPS)).chain(mounts).flat_map(names)
}

/// Removes the remains of owners that no longer exist.
pub fn reap_dead() {
    let mut prefixes: Vec<String> = names(NETNS.into())
        .into_iter()
        .chain(control_groups())
        .chain(names(directory()))
        .filter_map(|name| Some((owner_of(&name)?, name)))
        .filter(|((pid, start), _)| start_time(*pid).ok().as_deref() != Some(start))
        .map(|((pid, start), _)| format!("ev{pid}-{start}-"))
        .collect();
    prefixes.sort();
    prefixes.dedup();
    prefixes.iter().for_each(|prefix| reap(prefix));
}

fn start_guardian() -> Result<Child> {
    let script = format!("trap '' INT TERM HUP\ncat >/dev/null\n{REAP}");
    Ok(Command::new("sh")
        .args(["-c", &script, "evener-lab-guardian", &own_prefix()?])
        .arg(directory())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // a separate process group, so that ^C does not end the guardian with its owner
        .process_group(0)
        .spawn()?)
}

fn own_prefix() -> Result<String> {
    let pid = process::id();
    let start = start_time(pid).context("The start time of this process is not to be read in /proc")?;
    Ok(format!("ev{pid}-{start}-"))
}

/// Returns process id and start time in the name of a farm's object.
fn owner_of(name: &str) -> Option<(u32, String)> {
    let mut parts = name.strip_prefix("ev")?.splitn(3, '-');
    let pid = parts.next()?.parse().ok()?;
    let start = parts.next()?.to_owned();
    parts.next().map(|_| (pid, start))
}

/// Returns the start time of a process in clock ticks since boot: field 22 of its stat line
/// (proc_pid_stat(5)).
fn start_time(pid: u32) -> io::Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // field 2, the command name, may contain any text, but the last parenthesis ends it
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().nth(22 - 3))
        .map(str::to_owned)
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

fn names(directory: PathBuf) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_names_contain_owner() {
        assert_eq!(owner_of("ev12-345-0-web1"), Some((12, "345".to_owned())));
        for other in ["ev12", "ev12-345", "everest-1-2", "blue", "ev-1-2-3"] {
            assert_eq!(owner_of(other), None, "{other}");
        }
    }

    #[test]
    fn start_time_is_found() {
        assert!(start_time(process::id()).is_ok_and(|ticks| ticks.parse::<u64>().is_ok()));
        assert!(start_time(u32::MAX).is_err());
    }
}
