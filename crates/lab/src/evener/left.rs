//! Remains of a daemon on its host.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::network::host::Host;

/// Folders of daemons' files and pins, with a subfolder for each network namespace.
const FOLDERS: [&str; 2] = ["/run/evener", "/sys/fs/bpf/evener"];
/// Remains that may stay: the lock file of a killed daemon is harmless, since no process holds the
/// lock.
const HARMLESS: &str = "lock";

/// Describes programs on interfaces, packet filters, pins and files of a daemon on this host.
pub fn left_on(host: &Host) -> Result<Vec<String>> {
    let links = host.run(&["ip", "-details", "link"])?;
    let attached = links.lines().filter(|line| line.contains("prog/xdp") || line.contains("xdpgeneric"));
    let tables = host.run(&["nft", "list", "tables"])?;
    let guards = tables.lines().filter(|line| line.contains("evener"));
    let mut left: Vec<String> = attached.chain(guards).map(|line| line.trim().to_owned()).collect();
    for folder in FOLDERS {
        let folder = folder_of(host, folder)?;
        left.extend(names_in(&folder).into_iter().filter(|name| name != HARMLESS));
    }
    Ok(left)
}

/// Returns the subfolder of a host's network namespace.
fn folder_of(host: &Host, below: &str) -> Result<PathBuf> {
    Ok(Path::new(below).join(format!("net-{}", host.netns().inode()?)))
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
