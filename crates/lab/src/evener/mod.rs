//! Evener as used by its operators: program, file and commands.

mod admin;
mod agent;
mod handoff;
mod left;
mod team;
mod views;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

use crate::farm::{Arp, Farm, WEB_PORT};
use crate::harness::process::Proc;
use crate::harness::wait;
use crate::network::host::Host;
use crate::unit_files;

pub use admin::AdminSocket;
pub use agent::Agent;
pub use handoff::{Handoff, Offer, route, wait_for_count};
pub use left::left_on;
pub use team::{PEERS_PORT, Plan, Team};
pub use views::{AccessLog, AffinityEntry, Explanation, Installed, Peer, Server, Service, Session, Status};

/// Time limit of the daemon's start and end, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Path of the program: from `EVENER`, or else beside this program (one folder up for tests), or
/// else among the release builds.
pub fn program() -> Result<PathBuf> {
    match std::env::var_os("EVENER") {
        Some(path) => Ok(path.into()),
        None => beside("evener"),
    }
}

/// Returns the path of a program that is built together with this one.
pub(crate) fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("This program does not know where it is")?;
    let beside = own.ancestors().skip(1).take(2).map(|directory| directory.join(name));
    let released = Path::new("target/release").join(name);
    beside.chain([released]).find(|path| path.is_file()).with_context(|| {
        format!("There is no program {name} beside {}; `cargo build --release` makes it", own.display())
    })
}

/// Returns a file with one web service at a service address, for the farm's servers: discovered if
/// they answer ARP, else listed. `engine` is `auto`, `xdp` or `packet`.
pub fn web_service(farm: &Farm, vip: u8, engine: &str) -> String {
    web_service_by(farm, vip, engine, "")
}

/// Adds round robin to the keys of a service without a policy, so that tests know each server's
/// share.
pub fn in_turn(keys: &str) -> String {
    let is_logged = keys.lines().any(|line| line.starts_with("policy = "));
    format!("{}{keys}", if is_logged { "" } else { "policy = \"round-robin\"\n" })
}

/// Like [`web_service`], with further keys of the service, completed by [`in_turn`].
pub fn web_service_by(farm: &Farm, vip: u8, engine: &str, keys: &str) -> String {
    let mut text = format!("[engine]\nkind = \"{engine}\"\n\n");
    if keys.contains("tunnel") {
        let directors: Vec<String> = farm.directors().iter().map(|host| host.address().to_string()).collect();
        text += &format!("[farm]\ndirectors = {directors:?}\n\n");
    }
    let keys = in_turn(keys);
    text += &format!("[[service]]\nname = \"web\"\naddress = \"{}:{WEB_PORT}\"\n{keys}", farm.vip(vip));
    if farm.arp() == Arp::Answering {
        text += "discover = \"arp\"\ndiscover_interval = \"500ms\"\n";
    }
    text += "\n[service.health]\nkind = \"http\"\npath = \"/healthz\"\ninterval = \"500ms\"\ntimeout = \"300ms\"\n";
    if farm.arp() == Arp::Silent {
        for server in farm.servers() {
            text += &format!(
                "\n[[service.server]]\nname = \"{}\"\naddress = \"{}\"\n",
                server.name(),
                server.address()
            );
        }
    }
    text
}

/// Returns a file of server groups on the director. All their members are one server of the farm,
/// and each member is probed once an interval.
pub fn groups(farm: &Farm, groups: usize, members: usize, interval: &str) -> String {
    let (director, server) = (farm.director().address(), farm.server(0).address());
    let mut file = String::new();
    for group in 0..groups {
        let port = 8_000 + group;
        file += &format!(
            "[[service]]\nname = \"shop{group:02}\"\naddress = \"{director}:{port}\"\nmethod = \"redirect\"\n\
             [service.health]\nkind = \"tcp\"\ninterval = \"{interval}\"\n"
        );
        for member in group * members..(group + 1) * members {
            file +=
                &format!("[[service.server]]\nname = \"m{member:04}\"\nurl = \"http://{server}/{member}\"\n");
        }
    }
    file
}

/// Running daemon on a director. Dropping the value stops it.
#[derive(Debug)]
pub struct Evener {
    host: Host,
    program: String,
    config: PathBuf,
    /// Command line of the daemon.
    words: Vec<String>,
    daemon: Proc,
}

impl Evener {
    /// Starts the daemon with a configuration and waits until it is ready.
    pub fn start(host: &Host, config: &str) -> Result<Evener> {
        Self::start_by(host, config, &[], &[])
    }

    /// Starts the daemon with words before its command, such as setpriv(1) with its options, and
    /// with further options of the daemon.
    pub fn start_by(host: &Host, config: &str, before: &[&str], options: &[&str]) -> Result<Evener> {
        let program = program()?.to_string_lossy().into_owned();
        let config = host.write("evener.toml", config)?;
        let path = config.to_string_lossy();
        let words = [before, &[&program, "run", "--config", &path], options].concat();
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let daemon = run(host, &words)?;
        Ok(Evener { host: host.clone(), program, config, words, daemon })
    }

    /// Starts the daemon with the restrictions of the shipped unit.
    pub fn start_in_unit(host: &Host, config: &str) -> Result<Evener> {
        let program = program()?.to_string_lossy().into_owned();
        let config = host.write("evener.toml", config)?;
        let words = unit_files::words("evener.service", &program, &config)?;
        let daemon = run(host, &words)?;
        Ok(Evener { host: host.clone(), program, config, words, daemon })
    }

    /// Starts a daemon that is expected to refuse. Returns the exit code and the standard error.
    pub fn refused(host: &Host, config: &str, before: &[&str]) -> Result<(i32, String)> {
        let config = host.write("refused.toml", config)?;
        let program = program()?.to_string_lossy().into_owned();
        let output =
            host.output(&[before, &[&program, "run", "--config", &config.to_string_lossy()]].concat())?;
        let code = output.status.code().context("The daemon was ended by a signal")?;
        Ok((code, String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    pub fn daemon(&mut self) -> &mut Proc {
        &mut self.daemon
    }

    /// Path of the configuration file.
    pub fn file(&self) -> &Path {
        &self.config
    }

    /// Starts a daemon that has ended again, in the same way.
    pub fn start_again(&mut self) -> Result<()> {
        if self.daemon.status()?.is_none() {
            bail!("The daemon still runs");
        }
        self.daemon = run(&self.host, &self.words)?;
        Ok(())
    }

    /// Starts another copy of the program instead of the old one, like an upgrade.
    pub fn upgrade(&mut self) -> Result<()> {
        let copy = self.host.file("evener");
        let copy = copy.to_string_lossy().into_owned();
        // copied by another process: a process forked from this one at the same time could keep the
        // copy open for writing
        let new = format!("{copy}.new");
        self.host.run(&["cp", &self.program, &new])?;
        self.host.run(&["mv", &new, &copy])?;
        self.words.iter_mut().filter(|word| **word == self.program).for_each(|word| copy.clone_into(word));
        self.program = copy;
        self.start_again()
    }

    /// Stops the daemon like an operator. Returns the exit code.
    pub fn stop(&mut self) -> Result<i32> {
        self.daemon.sigterm(LIMIT)
    }

    /// Writes another configuration, without a reload.
    pub fn write(&self, config: &str) -> Result<()> {
        fs::write(&self.config, config).context("Writing the configuration failed")
    }

    /// Writes another configuration and reloads the daemon.
    pub fn reload(&self, config: &str) -> Result<String> {
        self.write(config)?;
        self.command(&["reload"])
    }

    /// Runs a command of the program on the same host and returns its output.
    pub fn command(&self, words: &[&str]) -> Result<String> {
        self.host.run(&[&[self.program.as_str()], words].concat())
    }

    /// Starts a long-running command of the program on the same host.
    pub fn begin(&self, name: &str, words: &[&str]) -> Result<Proc> {
        self.host.spawn(name, &[&[self.program.as_str()], words].concat())
    }

    /// Runs a command that is expected to fail. Returns the exit code and the standard error.
    pub fn failure(&self, words: &[&str]) -> Result<(i32, String)> {
        let output = self.host.output(&[&[self.program.as_str()], words].concat())?;
        let code = output.status.code().context("The command was ended by a signal")?;
        Ok((code, String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// Runs `ready` for a service or for all. Returns the exit code and the standard output.
    pub fn ready(&self, subject: &[&str]) -> Result<(i32, String)> {
        let output = self.host.output(&[&[self.program.as_str(), "ready"], subject].concat())?;
        let code = output.status.code().context("The command was ended by a signal")?;
        Ok((code, String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    /// Returns the output of a command with `--json`.
    pub fn json<T: DeserializeOwned>(&self, words: &[&str]) -> Result<T> {
        let text = self.command(&[words, &["--json"]].concat())?;
        serde_json::from_str(&text)
            .with_context(|| format!("`evener {} --json` printed: {text}", words.join(" ")))
    }

    pub fn status(&self) -> Result<Status> {
        self.json(&["status"])
    }

    pub fn services(&self) -> Result<Vec<Service>> {
        self.json(&["services"])
    }

    pub fn servers(&self) -> Result<Vec<Server>> {
        self.json(&["servers"])
    }

    /// Returns the server with this name, of any service.
    pub fn server(&self, name: &str) -> Result<Server> {
        let servers = self.servers()?;
        let found = servers.iter().find(|server| server.name == name);
        found.cloned().with_context(|| format!("There is no server {name}: {servers:?}"))
    }

    /// Returns `evener hosts`, for every-host farms.
    pub fn hosts(&self) -> Result<Vec<Peer>> {
        self.json(&["hosts"])
    }

    pub fn sessions(&self) -> Result<Vec<Session>> {
        self.json(&["sessions"])
    }

    /// Waits until exactly this number of servers is up. Returns all servers.
    pub fn wait_for_servers(&self, up: usize, timeout: Duration) -> Result<Vec<Server>> {
        self.wait_for(&format!("{up} servers up"), timeout, |servers| {
            servers.iter().filter(|server| server.state == "up").count() == up
        })
    }

    /// Waits until `right` accepts the servers, and returns them.
    pub fn wait_for(
        &self,
        what: &str,
        timeout: Duration,
        right: impl Fn(&[Server]) -> bool,
    ) -> Result<Vec<Server>> {
        let found = wait::for_value(timeout, || self.servers(), |servers| right(servers))?;
        found.map_err(|servers| anyhow::anyhow!("No {what}: {servers:?}\n{}", self.daemon.log()))
    }
}

fn run(host: &Host, words: &[String]) -> Result<Proc> {
    let mut daemon = host.spawn("evener", words)?;
    daemon.wait_for("evener: ready", LIMIT)?;
    Ok(daemon)
}
