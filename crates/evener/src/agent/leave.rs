//! `evener leave`: ends Evener's programs of this network namespace, which then restore all that
//! they have attached and changed, as on SIGQUIT.

use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::runtime::lock::Lock;
use crate::runtime::{Exit, folders};

/// Maximum time until a program has ended: it may wait for the engine and for other hosts.
const TIMEOUT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);

/// Ends the announcer, the daemon and the agent, and waits until all have ended.
pub fn run() -> Exit {
    let directory = match folders::directory() {
        Ok(directory) => directory,
        Err(error) => {
            eprintln!("evener: failed to read the network namespace: {error}; is /proc mounted?");
            return Exit::Failed;
        }
    };
    // Clients go elsewhere first.
    let programs = [
        ("announcer", folders::announcer_lock_path(&directory)),
        ("daemon", folders::lock_path(&directory)),
        ("agent", folders::agent_lock_path(&directory)),
    ];
    let running: Vec<_> = programs.iter().filter(|(_, lock)| Lock::is_held(lock)).collect();
    if running.is_empty() {
        eprintln!("evener: neither a daemon nor an agent runs in this network namespace");
        return Exit::NoDaemon;
    }
    let mut exit = Exit::Ok;
    for (name, lock) in running {
        match end(lock) {
            Ok(pid) => println!("the {name} (pid {pid}) has ended and restored this host"),
            Err(error) => {
                eprintln!("evener: failed to end the {name}: {error}");
                let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
                exit = if is_denied { Exit::Privileges } else { Exit::Failed };
            }
        }
    }
    exit
}

fn end(lock: &Path) -> io::Result<Pid> {
    let pid = Lock::holder(lock)?;
    kill(pid, Signal::SIGQUIT)?;
    let until = Instant::now() + TIMEOUT;
    while Lock::is_held(lock) {
        if Instant::now() >= until {
            let message = format!("pid {pid} has not ended within {} s; see its log", TIMEOUT.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        sleep(PAUSE);
    }
    Ok(pid)
}
