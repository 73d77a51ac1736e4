//! Where maps and links outlive the daemon: a folder of the BPF file system, one per network
//! namespace.

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

/// The inode number of this network namespace: what tells instances on one machine apart.
///
/// # Errors
/// When /proc is not there.
pub fn network_namespace() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// The folder for this network namespace's pins, on a BPF file system that is mounted if need be.
///
/// # Errors
/// When there is none and it can't be mounted.
pub fn directory() -> Result<PathBuf, EngineError> {
    let failed = |error| EngineError::system("mounting the BPF file system", "CAP_SYS_ADMIN", error);
    let namespace = network_namespace().map_err(failed)?;
    Ok(bpffs().map_err(failed)?.join("evener").join(format!("net-{namespace}")))
}

/// The folder where an engine of this network namespace has pinned something, if one has; nothing
/// is mounted to look.
pub fn existing_directory() -> Option<PathBuf> {
    let name = format!("evener/net-{}", network_namespace().ok()?);
    roots().into_iter().filter(|root| is_bpffs(root)).map(|root| root.join(&name)).find(|dir| dir.is_dir())
}

/// Whether what is pinned in `dir` ends with this mount namespace, which may be this program's own.
pub fn ends_with_mounts(dir: &Path) -> bool {
    dir.starts_with(BPFFS) && mounts_differ(&first_process())
}

/// Whether a process sees other mounts than this one.
fn mounts_differ(process: &Path) -> bool {
    match (fs::metadata("/proc/self/ns/mnt"), fs::metadata(process.join("ns/mnt"))) {
        (Ok(own), Ok(other)) => own.ino() != other.ino(),
        _ => false,
    }
}

/// Where a BPF file system may be mounted that an engine here would use.
pub fn roots() -> [PathBuf; 2] {
    [first_bpffs(), PathBuf::from(BPFFS)]
}

/// The BPF file system that lives longest. `ip netns exec` gives each command a mount namespace of
/// its own: what is pinned there is gone with the command, so the mounts of [`first_process`] are
/// used where they differ.
fn bpffs() -> io::Result<PathBuf> {
    let own = PathBuf::from(BPFFS);
    let first = first_bpffs();
    if mounts_differ(&first_process()) {
        if !is_bpffs(&first) {
            // Without the right to enter the first process's namespace our own must do.
            if let Err(error) = mount_in_first() {
                tracing::warn!(
                    %error,
                    "traffic ends with this program's mount namespace: there is no BPF file system outside of it, and none \
                     can be mounted there (`mount -t bpf bpf /sys/fs/bpf`)"
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

/// A thread enters the first process's mount namespace, mounts, and ends.
fn mount_in_first() -> io::Result<()> {
    let namespace = fs::File::open(first_process().join("ns/mnt"))?;
    let thread = std::thread::spawn(move || -> io::Result<()> {
        unshare(CloneFlags::CLONE_FS)?;
        setns(namespace, CloneFlags::CLONE_NEWNS)?;
        mount_here()
    });
    thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

/// Detaches and forgets what a kernel engine that is gone left in this network namespace for its
/// successor, which now is another engine: its programs would take every packet first.
///
/// # Errors
/// When it can't be removed.
pub fn clear_left() -> Result<(), EngineError> {
    let namespace = network_namespace().unwrap_or_default();
    for root in [PathBuf::from(BPFFS), first_bpffs()] {
        let dir = root.join("evener").join(format!("net-{namespace}"));
        if is_bpffs(&root) && dir.exists() {
            clear(&dir).map_err(|e| {
                EngineError::system(format!("unpinning {}", dir.display()), "CAP_SYS_ADMIN", e)
            })?;
            tracing::info!("detached what an earlier kernel engine had left");
        }
    }
    Ok(())
}

/// The BPF file system as the first process sees it.
fn first_bpffs() -> PathBuf {
    first_process().join("root").join(BPFFS.trim_start_matches('/'))
}

/// The first of this process's ancestors whose mounts may be looked at: number 1, unless that is
/// kept from us.
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

/// The parent of a process: field 4 of its stat line (proc_pid_stat(5)), the second after its name.
fn parent(process: &Path) -> Option<u32> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

/// A link pinned by an earlier daemon.
pub(super) struct PinnedLink {
    /// The interface it is attached to, and how; `None` when that is gone.
    pub(super) place: Option<(u32, Mode)>,
    pub(super) path: PathBuf,
    pub(super) link: Link,
}

/// The links pinned in `dir`.
///
/// # Errors
/// When one can't be looked at: it may be at work, and whoever overlooked it would attach a second
/// program.
pub(super) fn links(dir: &Path) -> io::Result<Vec<PinnedLink>> {
    let mut links = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(LINK) {
            let link = Link::open(&path)?;
            links.push(PinnedLink { place: link.place()?, path, link });
        }
    }
    Ok(links)
}

/// The interfaces that programs of this network namespace's engine are attached to, whether a
/// daemon lives or not.
///
/// # Errors
/// When a link can't be looked at.
pub fn attached() -> io::Result<BTreeSet<u32>> {
    let Some(dir) = existing_directory() else { return Ok(BTreeSet::new()) };
    Ok(links(&dir)?.into_iter().filter_map(|found| found.place).map(|(ifindex, _)| ifindex).collect())
}

/// The kernel lets nothing be pinned in `dir`.
pub(super) fn refused(dir: &Path, error: io::Error) -> EngineError {
    EngineError::system(format!("pinning in {}", dir.display()), "CAP_SYS_ADMIN", error)
}

/// The prefix of pinned links' names.
const LINK: &str = "link-";

pub(super) fn link_path(dir: &Path, ifindex: u32) -> PathBuf {
    dir.join(format!("{LINK}{ifindex}"))
}

/// Pins a link in the place of what is pinned for its interface: at any moment one of them is.
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

/// Unpins everything in `dir`; what nothing else holds ends with it.
pub(super) fn clear(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Clears what namespaces that are gone have left. Namespace numbers are used again, so `own` is
/// looked at as well.
pub(super) fn clear_stale(own: &Path) {
    // A pin that can't be looked at isn't known to be stale.
    clear_gone(own, |dir| {
        let found = links(dir).unwrap_or_default();
        !found.is_empty() && found.iter().all(|found| found.place.is_none())
    });
}

/// Clears those folders beside `own`, and itself, that are `gone`: their links are attached to no
/// interface any more. One process at a time: whose namespace has the number of one that is gone
/// clears that folder before it pins its own, and another that had looked before that would clear
/// what is at work.
pub(crate) fn clear_gone(own: &Path, gone: impl Fn(&Path) -> bool) {
    let Some(root) = own.parent() else { return };
    let Ok(entries) = fs::read_dir(root) else { return };
    let lock = |root| Flock::lock(root, FlockArg::LockExclusive).ok();
    let Some(_lock) = fs::File::open(root).ok().and_then(lock) else { return };
    for dir in entries.flatten().map(|entry| entry.path()).filter(|dir| gone(dir)) {
        tracing::info!(pins = %dir.display(), "cleared what a vanished network namespace left");
        if let Err(error) = clear(&dir) {
            tracing::warn!(%error, pins = %dir.display(), "stale pins stay");
        }
    }
}
