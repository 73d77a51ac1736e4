//! Lock that allows one daemon and one agent per network namespace and per folder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evener_dataplane::claim::{Claim, Role};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Pid;

use super::Exit;

/// Number of attempts to get the lock, and the pause between them. A killed daemon may need that
/// time to end.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Lock of a daemon or an agent. The kernel releases it when the process ends, for any reason.
#[derive(Debug)]
pub(crate) struct Lock {
    #[allow(dead_code, reason = "it holds by being there")]
    file: Flock<File>,
    path: PathBuf,
    /// The file locks the folder. The claim locks the namespace's pinned and attached programs.
    claim: Option<Claim>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    #[error(
        "another evener (pid {pid}) already runs in this network namespace; stop it, or use `evener reload` to \
         give it another configuration"
    )]
    Held {
        /// PID from the lock file.
        pid: String,
    },
    /// Another process owns the data plane of this network namespace.
    #[error(
        "another evener{} uses the data plane of this network namespace, with another EVENER_RUN_DIR or a removed folder; stop it, or run this one in another namespace", by_pid(*pid)
    )]
    Claimed {
        /// PID of the claimant, if /proc shows it.
        pid: Option<i32>,
    },
    /// The owner of the data plane can't be found.
    #[error(
        "failed to find out whether another evener runs in this network namespace (needs CAP_NET_RAW): {0}"
    )]
    Unclaimed(io::Error),
    /// The file can't be used.
    #[error("failed to lock {path}: {source}")]
    Io {
        /// Path of the lock file.
        path: String,
        source: io::Error,
    },
}

impl LockError {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            LockError::Held { .. } | LockError::Claimed { .. } => Exit::Running,
            LockError::Io { source, .. } | LockError::Unclaimed(source)
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Exit::Privileges
            }
            LockError::Io { .. } | LockError::Unclaimed(_) => Exit::Failed,
        }
    }
}

/// Retries while another process holds the lock. A daemon that was just killed still holds it for a
/// moment.
fn patiently<T>(take: impl Fn() -> Result<T, LockError>) -> Result<T, LockError> {
    for _ in 0..TRIES {
        match take() {
            Err(LockError::Held { .. } | LockError::Claimed { .. }) => std::thread::sleep(PAUSE),
            taken => return taken,
        }
    }
    take()
}

impl Lock {
    /// Locks `path`. Waits up to two seconds for another process to release it.
    ///
    /// # Errors
    /// [`LockError::Held`] if another process still holds the lock.
    pub(crate) fn acquire(path: &Path) -> Result<Lock, LockError> {
        patiently(|| match Lock::try_take(path) {
            // A daemon that ends at this moment removes the folder.
            Err(LockError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let folder = path.parent().unwrap_or(path);
                let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
                made.map_err(|source| LockError::Io { path: path.display().to_string(), source })?;
                Lock::try_take(path)
            }
            taken => taken,
        })
    }

    /// Like [`Lock::acquire`], but without waiting, and without creating the folder.
    ///
    /// # Errors
    /// [`LockError::Held`] if another process holds the lock.
    pub(crate) fn try_take(path: &Path) -> Result<Lock, LockError> {
        let failed = |source| LockError::Io { path: path.display().to_string(), source };
        loop {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
            match Flock::lock(file.map_err(failed)?, FlockArg::LockExclusiveNonblock) {
                Ok(mut file) if is_there(&file, path) => {
                    file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
                    writeln!(file, "{}", std::process::id()).map_err(failed)?;
                    return Ok(Lock { file, path: path.to_owned(), claim: None });
                }
                // The previous holder has just removed this file. Other processes will lock a new
                // one.
                Ok(_) => {}
                Err((mut file, Errno::EWOULDBLOCK)) => {
                    let mut pid = String::new();
                    let _ = (&mut file as &mut dyn Read).take(32).read_to_string(&mut pid);
                    return Err(LockError::Held { pid: pid.trim().to_owned() });
                }
                Err((_, errno)) => return Err(failed(errno.into())),
            }
        }
    }

    /// Claims the network namespace's data plane, too.
    ///
    /// # Errors
    /// [`LockError::Claimed`] if another process has claimed it, [`LockError::Unclaimed`] without
    /// CAP_NET_RAW.
    pub(crate) fn claim(&mut self, role: Role) -> Result<(), LockError> {
        self.claim = Some(patiently(|| match Claim::acquire(role) {
            Ok(Some(claim)) => Ok(claim),
            Ok(None) => Err(LockError::Claimed { pid: claimant(role) }),
            Err(error) => Err(LockError::Unclaimed(error)),
        })?);
        Ok(())
    }

    /// Returns the process that holds the lock. The PID in the file counts only if that process has
    /// the file open. Otherwise the PID may be of another PID namespace.
    pub(crate) fn holder(path: &Path) -> io::Result<Pid> {
        let unknown =
            || io::Error::other(format!("no process of this PID namespace holds {}", path.display()));
        let pid = fs::read_to_string(path)?.trim().parse().map_err(|_| unknown())?;
        match has_open(pid, |link| link == path) {
            Ok(true) => Ok(Pid::from_raw(pid)),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Err(unknown()),
        }
    }

    /// True if a process holds the lock.
    pub(crate) fn is_held(path: &Path) -> bool {
        let Ok(file) = File::open(path) else { return false };
        matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK)))
    }
}

/// Returns the PID of another process with a claim's socket open, as far as /proc shows.
fn claimant(role: Role) -> Option<i32> {
    let sockets = fs::read_to_string("/proc/net/packet").ok()?;
    let of_claims = sockets.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(3);
        let is_claim = u16::from_str_radix(fields.next()?, 16) == Ok(role as u16);
        fields.nth(4).filter(|_| is_claim).map(|inode| format!("socket:[{inode}]"))
    });
    let links: Vec<PathBuf> = of_claims.map(PathBuf::from).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    let own = Pid::this().as_raw();
    pids.find(|pid| *pid != own && has_open(*pid, |link| links.contains(link)).unwrap_or_default())
}

/// True if a process has a file open whose link in /proc is one that is looked for.
fn has_open(pid: i32, is_meant: impl Fn(&PathBuf) -> bool) -> io::Result<bool> {
    let open = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    Ok(open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|link| is_meant(&link)))
}

fn by_pid(pid: Option<i32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}

fn is_there(file: &File, path: &Path) -> bool {
    let same =
        |there: fs::Metadata, ours: fs::Metadata| (ours.dev(), ours.ino()) == (there.dev(), there.ino());
    fs::metadata(path).is_ok_and(|there| file.metadata().is_ok_and(|ours| same(there, ours)))
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // Director and agent share the folder. It is removed once it is empty.
        if let Some(directory) = self.path.parent() {
            let _ = fs::remove_dir(directory);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lock_of_a_folder_that_vanished_makes_the_folder_again() {
        let folder = std::env::temp_dir().join(format!("evener-lock-folder-{}", std::process::id()));
        let path = folder.join("net-1").join("lock");
        let lock = Lock::acquire(&path).unwrap();
        assert!(Lock::is_held(&path));
        drop(lock);
        fs::remove_dir_all(&folder).unwrap();
        assert!(Lock::try_take(&path).is_err(), "without waiting it makes none");
    }

    #[test]
    fn second_lock_is_refused_with_pid_and_leaves_no_file() {
        let folder = std::env::temp_dir().join(format!("evener-lock-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("lock");
        let first = Lock::acquire(&path).unwrap();
        let error = Lock::acquire(&path).unwrap_err();
        assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
        assert!(Lock::is_held(&path));
        assert_eq!(Lock::holder(&path).unwrap(), Pid::this());
        let stranger = folder.join("stranger");
        fs::write(&stranger, "1\n").unwrap();
        assert!(Lock::holder(&stranger).is_err(), "process 1 does not have it open");
        fs::remove_file(&stranger).unwrap();
        drop(first);
        assert!(!Lock::is_held(&path) && !folder.exists());
    }
}
