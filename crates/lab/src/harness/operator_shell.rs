//! Shell of a host's operator. The command `evener` is in its path, and `/etc/evener` belongs to
//! the host, while the rest of `/etc` is the machine's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context, Result};

use crate::evener::program;
use crate::harness::process::Proc;
use crate::harness::wait::LONG;
use crate::network::host::Host;

/// Mounts a writable overlay on `/etc` in a mount namespace, which lasts as long as the script
/// runs. The upper layer is in memory, since the farm's folder may not support one.
const OWN_ETC: &str = "set -e
mount -t tmpfs tmpfs \"$1\"
mkdir \"$1/upper\" \"$1/work\"
mount -t overlay overlay -o \"lowerdir=/etc,upperdir=$1/upper,workdir=$1/work\" /etc
rm -rf /etc/evener
echo mounted
exec sleep infinity";

/// Shell on a host. Dropping the value does not end commands that it has started.
#[derive(Debug)]
pub struct Shell {
    host: Host,
    /// Process whose mount namespace all commands use.
    mounts: Proc,
    path: String,
}

impl Shell {
    /// Creates the host's own, empty `/etc/evener`.
    pub fn open(host: &Host) -> Result<Shell> {
        let [etc, programs] = ["etc", "bin"].map(|name| host.file(name));
        fs::create_dir_all(&etc)?;
        fs::create_dir_all(&programs)?;
        std::os::unix::fs::symlink(program()?.canonicalize()?, programs.join("evener"))?;
        let script = ["unshare", "--mount", "--propagation", "private", "sh", "-c", OWN_ETC, "sh"];
        let mut mounts = host.spawn("mounts", &[&script[..], &[&etc.to_string_lossy()]].concat())?;
        mounts.wait_for("mounted", LONG)?;
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
        Ok(Shell { host: host.clone(), mounts, path })
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the path of a host's file from this program's view.
    pub fn file(&self, path: &str) -> PathBuf {
        Path::new("/proc").join(self.mounts.pid().to_string()).join("root").join(path.trim_start_matches('/'))
    }

    /// Writes a file of the host, and creates its folders.
    pub fn write(&self, path: &str, contents: &[u8]) -> Result<()> {
        let file = self.file(path);
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&file, contents).with_context(|| format!("Writing {path} on {} failed", self.host.name()))
    }

    /// Runs a shell line to its end and returns its output, whatever the exit code.
    pub fn output(&self, line: &str) -> Result<Output> {
        self.host.output(&self.words(line))
    }

    /// Runs a shell line that must succeed, and returns its standard output.
    pub fn run(&self, line: &str) -> Result<String> {
        self.host.run(&self.words(line))
    }

    /// Starts a single long-running command. Its output goes to the file `NAME.log`.
    pub fn spawn(&self, name: &str, command: &str) -> Result<Proc> {
        // replaces the shell, so that signals reach the command
        self.host.spawn(name, &self.words(&format!("exec {command}")))
    }

    fn words(&self, line: &str) -> Vec<String> {
        let mounts = format!("--mount=/proc/{}/ns/mnt", self.mounts.pid());
        let path = format!("PATH={}", self.path);
        ["nsenter", &mounts, "--", "env", &path, "sh", "-c", line].map(str::to_owned).into()
    }
}
