//! Host of a farm: a namespace, its interfaces, and commands in it.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

use crate::harness::process::Proc;
use crate::network::family::Family;
use crate::network::netns::Netns;

/// Timeout of awaited commands in seconds, so that a test fails instead of hanging.
const RUN_LIMIT_S: &str = "150";

/// Interface of a host, and the switch port of its link.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Name on the host: `eth0`, `eth1` ...
    pub name: String,
    /// IPv4 address, in a /24.
    pub address: Ipv4Addr,
    /// IPv6 address, in a /64.
    pub address6: Ipv6Addr,
    /// MAC address: 02:00 and then the bytes of `address`, which makes it recognizable in a trace.
    pub mac: String,
    /// Name of the other end in the switch.
    pub port: String,
}

/// Host of a farm. Clones are the same host.
#[derive(Clone, Debug)]
pub struct Host {
    pub(crate) name: String,
    pub(crate) netns: Netns,
    pub(crate) interfaces: Vec<Interface>,
    /// Namespace with the other ends of the host's links.
    pub(crate) switch: Netns,
    /// Folder of the farm's files.
    pub(crate) files: PathBuf,
}

impl Interface {
    /// Returns the address of a family.
    pub fn address_in(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.address.into(),
            Family::V6 => self.address6.into(),
        }
    }
}

impl Host {
    /// Name in the farm: `router`, `director1`, `web1`, `client1` ...
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Interfaces, `eth0` first.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// IPv4 address of `eth0`.
    pub fn address(&self) -> Ipv4Addr {
        self.interfaces[0].address
    }

    /// Address of `eth0` in a family.
    pub fn address_in(&self, family: Family) -> IpAddr {
        self.interfaces[0].address_in(family)
    }

    /// MAC address of `eth0`.
    pub fn mac(&self) -> &str {
        &self.interfaces[0].mac
    }

    /// Returns the path of a file of this host; it is removed with the farm.
    pub fn file(&self, name: &str) -> PathBuf {
        self.files.join(format!("{}.{name}", self.name))
    }

    /// Runs `work` in the host's network namespace: see [`Netns::enter`].
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        self.netns.enter(work)
    }

    /// Returns a command for this host. Callers start it within [`Host::enter`], which needs one
    /// process less than nsenter(1).
    fn command<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new(words.first().map_or(OsStr::new(""), AsRef::as_ref));
        command.args(words.iter().skip(1));
        // Run-time changes of a farm must neither reach the next farm nor stay on the machine.
        command.env("EVENER_STATE_DIR", self.file("state"));
        command
    }

    /// Runs a command to its end and returns its output, whatever the exit code.
    pub fn output<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<Output> {
        let mut limited: Vec<&OsStr> = ["timeout", RUN_LIMIT_S].map(AsRef::as_ref).into();
        limited.extend(words.iter().map(AsRef::as_ref));
        let mut command = self.command(&limited);
        self.enter(|| command.stdin(Stdio::null()).output())?.context("The program timeout is needed")
    }

    /// Runs a command that must succeed, and returns its standard output.
    pub fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<String> {
        let output = self.output(words)?;
        if !output.status.success() {
            let words: Vec<_> = words.iter().map(|word| word.as_ref().to_string_lossy()).collect();
            bail!(
                "On {}, `{}` ended with {}:\n{}{}",
                self.name,
                words.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr),
                String::from_utf8_lossy(&output.stdout),
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts a long-running command. Its output goes to the file `NAME.log`, see [`Host::file`].
    pub fn spawn<S: AsRef<OsStr>>(&self, name: &str, words: &[S]) -> Result<Proc> {
        let (log, what) = (self.file(&format!("{name}.log")), format!("{name} on {}", self.name));
        let command = self.command(words);
        self.enter(|| Proc::spawn(command, &what, &log))?
    }

    /// Sends a request with curl(1), with a timeout of ten seconds. Returns the body of the
    /// response.
    pub fn curl(&self, arguments: &[&str]) -> Result<String> {
        self.run(&[&["curl", "--silent", "--show-error", "--fail", "--max-time", "10"], arguments].concat())
    }

    /// Runs ip(8) commands on this host.
    pub fn ip(&self, lines: &[String]) -> Result<()> {
        self.netns.ip(lines)
    }

    /// Writes `text` to a file of this host and returns its path.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.file(name);
        write(&path, text)?;
        Ok(path)
    }
}

pub(crate) fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    std::fs::write(path, contents).with_context(|| format!("Writing {} failed", path.display()))
}
