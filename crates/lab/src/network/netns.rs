//! Network namespace, and running code in it.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::panic;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};

/// Named network namespace. Dropping the value does not remove it: see [`crate::harness::cleanup`].
#[derive(Clone, Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    pub(crate) fn new(name: String) -> Netns {
        Netns { name }
    }

    /// Name in ip-netns(8).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Path of the file that represents the namespace.
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// Inode number, unique among existing namespaces.
    pub fn inode(&self) -> Result<u64> {
        let about = std::fs::metadata(self.path());
        Ok(about.with_context(|| format!("There is no namespace {}", self.name))?.ino())
    }

    /// Runs `work` in the namespace, on a new thread. Sockets and threads that it creates stay in
    /// the namespace; the caller stays in its own.
    ///
    /// Only the network namespace changes. `ip netns exec` would also change the mounts, and so
    /// hide pins in a BPF file system.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let file = File::open(self.path()).with_context(|| format!("There is no namespace {}", self.name))?;
        let inside = || -> Result<T> {
            setns(&file, CloneFlags::CLONE_NEWNET)
                .with_context(|| format!("Entering namespace {} was refused", self.name))?;
            Ok(work())
        };
        thread::scope(|scope| scope.spawn(inside).join().unwrap_or_else(|cause| panic::resume_unwind(cause)))
    }

    /// Runs ip(8) commands in the namespace, as one batch.
    pub fn ip(&self, lines: &[String]) -> Result<()> {
        ip_batch(&["-n", &self.name], lines)
    }

    /// Writes kernel settings below `/proc/sys/net`, as pairs of path and value.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.enter(|| {
            for (path, value) in settings {
                let path = PathBuf::from("/proc/sys/net").join(path);
                std::fs::write(&path, value).with_context(|| {
                    format!("Setting {} to {value} in {} failed", path.display(), self.name)
                })?;
            }
            Ok(())
        })?
    }
}

/// Runs ip(8) commands as one batch in one process.
pub(crate) fn ip_batch(options: &[&str], lines: &[String]) -> Result<()> {
    let mut child = Command::new("ip")
        .args(options)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("The program ip did not start; `make setup` installs it")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(lines.join("\n").as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!(
            "ip refused: {}\nof these commands:\n{}",
            String::from_utf8_lossy(&output.stderr),
            lines.join("\n")
        );
    }
    Ok(())
}
