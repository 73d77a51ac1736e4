//! Processes in a namespace. A process ends when its [`Proc`] is dropped, and at the latest with
//! its farm: see [`crate::harness::cleanup`].

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

use crate::harness::wait::LONG;
use crate::network::host::Host;

/// Time that a process has to end after SIGTERM when its [`Proc`] is dropped.
const GRACE: Duration = Duration::from_secs(20);
/// Time limit until a server listens. A browser on a cold disk takes seconds. A process that has
/// ended is noticed at once.
const START_LIMIT: Duration = LONG;
const POLL: Duration = Duration::from_millis(5);

/// Running process whose output goes to a file. Dropping the value ends the process.
#[derive(Debug)]
pub struct Proc {
    child: Child,
    what: String,
    log: PathBuf,
    /// Offset of the process's output in the log, which may contain earlier output.
    log_from: usize,
}

impl Proc {
    /// Starts `command` with both outputs appended to the file `log`.
    pub(crate) fn spawn(mut command: Command, what: &str, log: &Path) -> Result<Proc> {
        let output = File::options().create(true).append(true).open(log)?;
        let log_from = usize::try_from(output.metadata()?.len())?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("{what} did not start"))?;
        Ok(Proc { child, what: what.to_owned(), log: log.to_owned(), log_from })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Memory of the process that no file on disk backs, in bytes. The number of resident pages of
    /// the program file is arbitrary.
    pub fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let kilobytes = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            Ok(line.with_context(|| format!("no {name}"))?.trim().trim_end_matches(" kB").parse()?)
        };
        Ok((kilobytes("RssAnon:")? + kilobytes("RssShmem:")?) * 1_024)
    }

    /// Returns the output of the process so far, on both streams.
    pub fn log(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.log_from..).unwrap_or_default()).into_owned()
    }

    /// Waits until the process has printed `text`. Returns an error if it ends before, or after
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

    /// Waits until `address` accepts connections from the same host.
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

    /// Returns the exit status; `None` while the process runs.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for the end of the process.
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

    /// Sends a signal to the process, unless it has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        // an ended child stays a zombie until it is waited for, so its id is not reused
        if self.status()?.is_none() {
            signal::kill(Pid::from_raw(self.pid().try_into()?), signal)?;
        }
        Ok(())
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill9(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.wait(GRACE).map(|_| ())
    }

    /// Sends SIGTERM and waits for the end. Returns the exit code, or 128 plus the signal.
    pub fn sigterm(&mut self, timeout: Duration) -> Result<i32> {
        self.signal(Signal::SIGTERM)?;
        let status = self.wait(timeout)?;
        status.code().or_else(|| Some(128 + status.signal()?)).ok_or_else(|| anyhow!("{status}"))
    }

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
