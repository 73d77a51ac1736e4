//! Folder in which maps and links outlive the daemon: in the BPF file system, one folder per
//! network namespace.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::attach::{Link, Mode};
use crate::EngineError;

const BPFFS: &str = "/sys/fs/bpf";

/// Returns the inode number of this network namespace, which distinguishes instances on one
/// machine.
///
/// # Errors
/// Fails without /proc.
pub fn network_namespace() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// Returns the folder for this network namespace's pins, and mounts a BPF file system if necessary.
///
/// # Errors
/// Fails if no BPF file system is mounted and none can be mounted.
pub fn directory() -> Result<PathBuf, EngineError> {
    let failed = |error| EngineError::system("mounting the BPF file system", "CAP_SYS_ADMIN", error);
    let namespace = network_namespace().map_err(failed)?;
    Ok(bpffs().map_err(failed)?.join("evener").join(format!("net-{namespace}")))
}

/// Returns the folder of this network namespace's pins if it exists; mounts nothing.
pub fn existing_directory() -> Option<PathBuf> {
    let name = format!("evener/net-{}", network_namespace().ok()?);
    roots().into_iter().filter(|root| is_bpffs(root)).map(|root| root.join(&name)).find(|dir| dir.is_dir())
}

/// True if the pins in `dir` end with this mount namespace, which may be private to the program.
pub fn ends_with_mounts(dir: &Path) -> bool {
    dir.starts_with(BPFFS) && mounts_differ(&first_process())
}

/// True if a process has another mount namespace than this one.
fn mounts_differ(process: &Path) -> bool {
    match (fs::metadata("/proc/self/ns/mnt"), fs::metadata(process.join("ns/mnt"))) {
        (Ok(own), Ok(other)) => own.ino() != other.ino(),
        _ => false,
    }
}

/// Possible mount points of the BPF file system that an engine uses.
pub fn roots() -> [PathBuf; 2] {
    [first_bpffs(), PathBuf::from(BPFFS)]
}

/// Returns the BPF file system that lives longest. `ip netns exec` runs each command in a separate
/// mount namespace, whose pins end with the command. So the mounts of [`first_process`] are used if
/// they differ from the own mounts.
fn bpffs() -> io::Result<PathBuf> {
    let own = PathBuf::from(BPFFS);
    let first = first_bpffs();
    if mounts_differ(&first_process()) {
        if !is_bpffs(&first) {
            // Without the privilege to enter the first process's namespace, this process's mounts
            // are used.
            if let Err(error) = mount_in_first() {
                tracing::warn!(
                    %error,
                    "traffic will stop when this program's mount namespace ends: the BPF file system is not mounted outside of it, and mounting it failed; run `mount -t bpf bpf /sys/fs/bpf`"
                );
            }
        }
        if is_bpffs(&first) {
            return Ok(first);
        }
    }
    if !is_bpffs(&own) {
        mount_here()?;
    }
    Ok(own)
}

fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC)
}

fn mount_here() -> io::Result<()> {
    Ok(mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), Some("mode=0700"))?)
}

/// Mounts in the first process's mount namespace, from a temporary thread.
fn mount_in_first() -> io::Result<()> {
    let namespace = fs::File::open(first_process().join("ns/mnt"))?;
    let thread = std::thread::spawn(move || -> io::Result<()> {
        unshare(CloneFlags::CLONE_FS)?;
        setns(namespace, CloneFlags::CLONE_NEWNS)?;
        mount_here()
    });
    thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

/// Detaches and removes the pins that an earlier XDP engine left in this network namespace, when
/// another engine starts. The old programs would process every packet first.
///
/// # Errors
/// Fails if the pins can't be removed.
pub fn clear_left() -> Result<(), EngineError> {
    let namespace = network_namespace().unwrap_or_default();
    for root in [PathBuf::from(BPFFS), first_bpffs()] {
        let dir = root.join("evener").join(format!("net-{namespace}"));
        if is_bpffs(&root) && dir.exists() {
            clear(&dir).map_err(|e| {
                EngineError::system(format!("unpinning {}", dir.display()), "CAP_SYS_ADMIN", e)
            })?;
            tracing::info!("detached the programs of an earlier kernel engine");
        }
    }
    Ok(())
}

/// Returns the BPF file system of the first process.
fn first_bpffs() -> PathBuf {
    first_process().join("root").join(BPFFS.trim_start_matches('/'))
}

/// Returns the highest ancestor of this process whose mounts are readable: usually process 1.
fn first_process() -> PathBuf {
    let mut first = PathBuf::from("/proc/self");
    let mut next = Some(std::os::unix::process::parent_id());
    while let Some(pid) = next.filter(|pid| *pid > 0) {
        let process = PathBuf::from(format!("/proc/{pid}"));
        next = parent(&process);
        if fs::metadata(process.join("ns/mnt")).is_ok() {
            first = process;
        }
    }
    first
}

/// Returns the parent of a process: field 4 of its stat line (proc_pid_stat(5)), the second one
/// after the name.
fn parent(process: &Path) -> Option<u32> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

/// Link pinned by an earlier daemon.
pub(super) struct PinnedLink {
    /// Interface and mode of the link; `None` if the interface is gone.
    pub(super) place: Option<(u32, Mode)>,
    pub(super) path: PathBuf,
    pub(super) link: Link,
}

/// Returns the links pinned in `dir`.
///
/// # Errors
/// Fails if a link can't be read: the link may be active, and a caller that ignored it would attach
/// a second program.
pub(super) fn links(dir: &Path) -> io::Result<Vec<PinnedLink>> {
    let mut links = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(LINK) {
            let link = match Link::open(&path) {
                // The link may have been detached since the folder was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                link => link?,
            };
            links.push(PinnedLink { place: link.place()?, path, link });
        }
    }
    Ok(links)
}

/// Returns the interfaces to which programs of this network namespace's engine are attached, with
/// or without a daemon.
///
/// # Errors
/// Fails if a link can't be read.
pub fn attached() -> io::Result<BTreeSet<u32>> {
    let Some(dir) = existing_directory() else { return Ok(BTreeSet::new()) };
    Ok(links(&dir)?.into_iter().filter_map(|found| found.place).map(|(ifindex, _)| ifindex).collect())
}

/// Returns the error of a failed pin in `dir`.
pub(super) fn refused(dir: &Path, error: io::Error) -> EngineError {
    EngineError::system(format!("pinning in {}", dir.display()), "CAP_SYS_ADMIN", error)
}

/// Prefix of the file names of pinned links.
const LINK: &str = "link-";

pub(super) fn link_path(dir: &Path, ifindex: u32) -> PathBuf {
    dir.join(format!("{LINK}{ifindex}"))
}

/// Replaces the pinned link of an interface atomically.
pub(super) fn pin_link(dir: &Path, ifindex: u32, link: &Link) -> io::Result<()> {
    let draft = dir.join(format!("new-{LINK}{ifindex}"));
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    link.pin(&draft)?;
    fs::rename(&draft, link_path(dir, ifindex)).inspect_err(|_| {
        let _ = fs::remove_file(&draft);
    })
}

/// Removes all pins in `dir`. Maps and links without another reference end.
pub(super) fn clear(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the pins of network namespaces that are gone. Inode numbers are reused, so `own` is
/// checked too.
pub(super) fn clear_stale(own: &Path) {
    // An unreadable pin is not known to be stale.
    clear_gone(own, |dir| {
        let found = links(dir).unwrap_or_default();
        !found.is_empty() && found.iter().all(|found| found.place.is_none())
    });
}

/// Removes the folders beside `own`, and `own` itself, that are `gone`: none of their links has an
/// interface. A lock admits one process at a time. Without the lock, a process could find an old
/// folder stale and remove it. Meanwhile, another process with the same namespace number could have
/// cleared the folder and pinned anew.
pub(crate) fn clear_gone(own: &Path, gone: impl Fn(&Path) -> bool) {
    let Some(root) = own.parent() else { return };
    let Ok(entries) = fs::read_dir(root) else { return };
    let lock = |root| Flock::lock(root, FlockArg::LockExclusive).ok();
    let Some(_lock) = fs::File::open(root).ok().and_then(lock) else { return };
    for dir in entries.flatten().map(|entry| entry.path()).filter(|dir| gone(dir)) {
        tracing::info!(pins = %dir.display(), "removed the pins of a network namespace that is gone");
        if let Err(error) = clear(&dir) {
            tracing::warn!(%error, pins = %dir.display(), "failed to remove stale pins");
        }
    }
}
