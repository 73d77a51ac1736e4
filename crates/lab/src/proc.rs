//! Processes inside a namespace. They end with their [`Proc`], and at the latest with their farm,
//! whatever ends that: see [`crate::owner`].

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::host::Host;
use crate::wait::LONG;

/// How long a process may take to end after SIGTERM, when its [`Proc`] is dropped.
const GRACE: Duration = Duration::from_secs(20);
/// How long a server may take until it listens: a browser that is read from a cold disk takes
/// seconds, and one that has ended is noticed at once.
const START_LIMIT: Duration = LONG;
const POLL: Duration = Duration::from_millis(5);

/// A running process whose output goes to a file. Dropping it ends the process.
#[derive(Debug)]
pub struct Proc {
    child: Child,
    what: String,
    log: PathBuf,
    /// Where in the log its own output begins; others may have written there before.
    log_from: usize,
}

impl Proc {
    /// Starts `command`, both its outputs going to the end of the file `log`.
    pub(crate) fn spawn(mut command: Command, what: &str, log: &Path) -> Result<Proc> {
        let output = File::options().create(true).append(true).open(log)?;
        let log_from = usize::try_from(output.metadata()?.len())?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("{what} did not start"))?;
        Ok(Proc { child, what: what.to_owned(), log: log.to_owned(), log_from })
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its memory that no file of a disk backs, in bytes. Of the program's own file more or less
    /// happens to be in memory.
    pub fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let kilobytes = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            Ok(line.with_context(|| format!("no {name}"))?.trim().trim_end_matches(" kB").parse()?)
        };
        Ok((kilobytes("RssAnon:")? + kilobytes("RssShmem:")?) * 1_024)
    }

    /// All it has printed so far, on both outputs.
    pub fn log(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.log_from..).unwrap_or_default()).into_owned()
    }

    /// Waits until it has printed `text`; an error if it ends before, or takes longer than
    /// `timeout`.
    pub fn wait_for(&mut self, text: &str, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            let status = self.status()?;
            let log = self.log();
            if log.contains(text) {
                return Ok(());
            }
            if let Some(status) = status {
                bail!("{} ended ({status}) before it printed {text:?}; it printed:\n{log}", self.what);
            }
            if Instant::now() > deadline {
                bail!("{} did not print {text:?} within {timeout:?}; it printed:\n{log}", self.what);
            }
            thread::sleep(POLL);
        }
    }

    /// Waits until connections to `address`, made on the same host, are taken.
    pub fn wait_until_listening(&mut self, host: &Host, address: SocketAddr) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while host.enter(|| TcpStream::connect_timeout(&address, START_LIMIT))?.is_err() {
            if self.status()?.is_some() || Instant::now() > deadline {
                bail!("{} does not listen at {address}; it printed:\n{}", self.what, self.log());
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// How it ended, or nothing if it still runs.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for its end.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.status()? {
                Some(status) => return Ok(status),
                None if Instant::now() > deadline => bail!("{} still runs after {timeout:?}", self.what),
                None => thread::sleep(POLL),
            }
        }
    }

    /// Sends it a signal; nothing happens if it has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        // an ended child stays a zombie until it is waited for, so its number cannot be another's
        if self.status()?.is_none() {
            signal::kill(Pid::from_raw(self.pid().try_into()?), signal)?;
        }
        Ok(())
    }

    /// SIGKILL, and waits for its end.
    pub fn kill9(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.wait(GRACE).map(|_| ())
    }

    /// SIGTERM, and waits for its end; its exit code, or 128 and the signal's number.
    pub fn sigterm(&mut self, timeout: Duration) -> Result<i32> {
        self.signal(Signal::SIGTERM)?;
        let status = self.wait(timeout)?;
        status.code().or_else(|| Some(128 + status.signal()?)).ok_or_else(|| anyhow!("{status}"))
    }

    /// SIGHUP.
    pub fn sighup(&mut self) -> Result<()> {
        self.signal(Signal::SIGHUP)
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        if self.sigterm(GRACE).is_err() {
            let _ = self.kill9();
        }
    }
}
