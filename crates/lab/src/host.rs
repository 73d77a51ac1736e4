//! A host of a farm: a namespace, its interfaces, and what can be run there.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

use crate::family::Family;
use crate::netns::Netns;
use crate::proc::Proc;

/// Commands that are waited for are ended after this many seconds: a test should fail, not hang.
const RUN_LIMIT_S: &str = "150";

/// One end of a cable: a host's interface, and the switch port it goes to.
#[derive(Clone, Debug)]
pub struct Interface {
    /// As the host calls it: `eth0`, `eth1` ...
    pub name: String,
    /// Its address, in a /24.
    pub address: Ipv4Addr,
    /// Its IPv6 address, in a /64.
    pub address6: Ipv6Addr,
    /// Its MAC address: 02:00 and then the bytes of `address`, to be told at a glance in a trace.
    pub mac: String,
    /// As the switch calls the other end.
    pub port: String,
}

/// A host of a farm. Clones are the same host.
#[derive(Clone, Debug)]
pub struct Host {
    pub(crate) name: String,
    pub(crate) netns: Netns,
    pub(crate) interfaces: Vec<Interface>,
    /// Where the other ends of its cables are.
    pub(crate) switch: Netns,
    /// The farm's files.
    pub(crate) files: PathBuf,
}

impl Interface {
    /// Its address of either family.
    pub fn address_in(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.address.into(),
            Family::V6 => self.address6.into(),
        }
    }
}

impl Host {
    /// Its name in the farm: `router`, `director1`, `web1`, `client1` ...
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Its interfaces, `eth0` first.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// The address of `eth0`.
    pub fn address(&self) -> Ipv4Addr {
        self.interfaces[0].address
    }

    /// The address of `eth0`, of either family.
    pub fn address_in(&self, family: Family) -> IpAddr {
        self.interfaces[0].address_in(family)
    }

    /// The MAC address of `eth0`.
    pub fn mac(&self) -> &str {
        &self.interfaces[0].mac
    }

    /// Where a file called `name` of this host belongs; it goes with the farm.
    pub fn file(&self, name: &str) -> PathBuf {
        self.files.join(format!("{}.{name}", self.name))
    }

    /// Runs `work` in the host's network namespace: see [`Netns::enter`].
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        self.netns.enter(work)
    }

    /// A command for this host: its child is there if it is started by [`Host::enter`], which costs
    /// one process less than nsenter(1).
    fn command<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new(words.first().map_or(OsStr::new(""), AsRef::as_ref));
        command.args(words.iter().skip(1));
        // Run-time changes of one farm must not meet the next one, nor stay on the machine.
        command.env("EVENER_STATE_DIR", self.file("state"));
        command
    }

    /// Runs a command to its end, whatever that is.
    pub fn output<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<Output> {
        let mut limited: Vec<&OsStr> = ["timeout", RUN_LIMIT_S].map(AsRef::as_ref).into();
        limited.extend(words.iter().map(AsRef::as_ref));
        let mut command = self.command(&limited);
        self.enter(|| command.stdin(Stdio::null()).output())?.context("The program timeout is needed")
    }

    /// Runs a command that must succeed; what it printed on standard output.
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

    /// Starts a command that runs on; its output is kept in the file `NAME.log`, see
    /// [`Host::file`].
    pub fn spawn<S: AsRef<OsStr>>(&self, name: &str, words: &[S]) -> Result<Proc> {
        let (log, what) = (self.file(&format!("{name}.log")), format!("{name} on {}", self.name));
        let command = self.command(words);
        self.enter(|| Proc::spawn(command, &what, &log))?
    }

    /// Asks with curl(1), which gives up after ten seconds; the body of the answer.
    pub fn curl(&self, arguments: &[&str]) -> Result<String> {
        self.run(&[&["curl", "--silent", "--show-error", "--fail", "--max-time", "10"], arguments].concat())
    }

    /// Carries out lines of ip(8) commands here.
    pub fn ip(&self, lines: &[String]) -> Result<()> {
        self.netns.ip(lines)
    }

    /// Writes `text` to a file of this host.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.file(name);
        write(&path, text)?;
        Ok(path)
    }
}

pub(crate) fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    std::fs::write(path, contents).with_context(|| format!("Writing {} failed", path.display()))
}
