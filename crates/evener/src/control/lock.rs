//! One daemon per network namespace.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

/// How often the lock is asked for again, and how long between: as long as a killed daemon may take to end.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Held for as long as the daemon lives; the kernel releases it when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct Lock(#[allow(dead_code, reason = "it holds by being there")] Flock<File>);

/// Why there is no lock.
#[derive(Debug, thiserror::Error)]
pub(super) enum LockError {
    /// Another daemon has it.
    #[error(
        "another evener (pid {pid}) already runs in this network namespace; stop it, or use `evener reload` to \
         give it another configuration"
    )]
    Held {
        /// Its process.
        pid: String,
    },
    /// The file can't be used.
    #[error("the lock {path} can't be taken: {source}")]
    Io {
        /// Where it is.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl Lock {
    /// Takes the lock `path`, or says who holds it. A daemon that was just killed still does, for a moment.
    ///
    /// # Errors
    /// [`LockError::Held`] when a daemon runs.
    pub(super) fn take(path: &Path) -> Result<Lock, LockError> {
        for _ in 0..TRIES {
            match Lock::try_take(path) {
                Err(LockError::Held { .. }) => std::thread::sleep(PAUSE),
                taken => return taken,
            }
        }
        Lock::try_take(path)
    }

    fn try_take(path: &Path) -> Result<Lock, LockError> {
        let failed = |source| LockError::Io { path: path.display().to_string(), source };
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        match Flock::lock(file.map_err(failed)?, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                lock.set_len(0).and_then(|()| lock.rewind()).map_err(failed)?;
                writeln!(lock, "{}", std::process::id()).map_err(failed)?;
                Ok(Lock(lock))
            }
            Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
                let mut pid = String::new();
                let _ = (&mut file as &mut dyn Read).take(32).read_to_string(&mut pid);
                Err(LockError::Held { pid: pid.trim().to_owned() })
            }
            Err((_, errno)) => Err(failed(errno.into())),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_second_one_is_refused_with_the_first_ones_pid() {
        let path = std::env::temp_dir().join(format!("evener-lock-{}", std::process::id()));
        let first = Lock::take(&path).unwrap();
        let error = Lock::take(&path).unwrap_err();
        assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
        drop(first);
        Lock::take(&path).unwrap();
        std::fs::remove_file(path).unwrap();
    }
}
