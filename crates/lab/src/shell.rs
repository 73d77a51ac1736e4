//! The shell of a host's operator: `evener` is found by its name, and `/etc/evener` is the host's
//! own, while all else below `/etc` is the machine's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context, Result};

use crate::evener::program;
use crate::host::Host;
use crate::proc::Proc;
use crate::wait::LONG;

/// Lays a writable layer over `/etc` in a mount namespace, which lasts as long as this runs. The
/// layer is in memory, since the folder of a farm may be of a kind that can't hold one.
const OWN_ETC: &str = "set -e
mount -t tmpfs tmpfs \"$1\"
mkdir \"$1/upper\" \"$1/work\"
mount -t overlay overlay -o \"lowerdir=/etc,upperdir=$1/upper,workdir=$1/work\" /etc
rm -rf /etc/evener
echo mounted
exec sleep infinity";

/// A shell on a host. Dropping it leaves the commands that it has started alone.
#[derive(Debug)]
pub struct Shell {
    host: Host,
    /// Its mount namespace is that of all commands.
    mounts: Proc,
    path: String,
}

impl Shell {
    /// Makes the host's own `/etc/evener`, in which there is nothing.
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

    /// The host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Where a file of the host is for this program.
    pub fn file(&self, path: &str) -> PathBuf {
        Path::new("/proc").join(self.mounts.pid().to_string()).join("root").join(path.trim_start_matches('/'))
    }

    /// Writes a file of the host, and the folders that it is in.
    pub fn write(&self, path: &str, contents: &[u8]) -> Result<()> {
        let file = self.file(path);
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&file, contents).with_context(|| format!("Writing {path} on {} failed", self.host.name()))
    }

    /// Runs a line to its end, whatever that is.
    pub fn output(&self, line: &str) -> Result<Output> {
        self.host.output(&self.words(line))
    }

    /// Runs a line that must succeed; what it printed on standard output.
    pub fn run(&self, line: &str) -> Result<String> {
        self.host.run(&self.words(line))
    }

    /// Starts a single command that runs on; its output is kept in the file `NAME.log`.
    pub fn spawn(&self, name: &str, command: &str) -> Result<Proc> {
        // in the shell's place, so that signals reach it
        self.host.spawn(name, &self.words(&format!("exec {command}")))
    }

    fn words(&self, line: &str) -> Vec<String> {
        let mounts = format!("--mount=/proc/{}/ns/mnt", self.mounts.pid());
        let path = format!("PATH={}", self.path);
        ["nsenter", &mounts, "--", "env", &path, "sh", "-c", line].map(str::to_owned).into()
    }
}
