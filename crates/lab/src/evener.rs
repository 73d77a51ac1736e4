//! The product as its users meet it: the program, its file and its commands.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::farm::{Arp, Farm, WEB_PORT};
use crate::host::Host;
use crate::proc::Proc;

/// How long the daemon may take until it is ready, and until it has ended.
const LIMIT: Duration = Duration::from_secs(10);

/// Where the program is: as `EVENER` says, else beside this one (or above it, for tests), else
/// among the release builds.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("EVENER") {
        return Ok(path.into());
    }
    let own = std::env::current_exe().context("This program does not know where it is")?;
    let beside = own.ancestors().skip(1).take(2).map(|directory| directory.join("evener"));
    let released = PathBuf::from("target/release/evener");
    beside.chain([released]).find(|path| path.is_file()).with_context(|| {
        format!("There is no program evener beside {}; `cargo build --release` makes it", own.display())
    })
}

/// A file for one web service at a service address, in front of a farm's servers: discovered if they
/// answer ARP, else listed. `engine` is `auto`, `xdp` or `packet`.
pub fn web_service(farm: &Farm, vip: u8, engine: &str) -> String {
    let mut text = format!(
        "[engine]\nkind = \"{engine}\"\n\n[[service]]\nname = \"web\"\naddress = \"{}:{WEB_PORT}\"\n",
        farm.vip(vip)
    );
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

/// One server in `evener servers --json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Server {
    /// The service it serves.
    pub service: String,
    /// Its name in that service.
    pub name: String,
    /// Where it is, where that is known.
    pub address: Option<String>,
    /// `up`, `down` or `draining`.
    pub state: String,
    /// Its share of new sessions.
    pub weight: u32,
    /// Active sessions.
    pub sessions: u64,
    /// Sessions it was chosen for.
    pub connections: u64,
    /// Packets sent to it.
    pub packets: u64,
    /// Bytes sent to it.
    pub bytes: u64,
}

/// The daemon on a director. Dropping it stops it.
#[derive(Debug)]
pub struct Evener {
    host: Host,
    program: String,
    config: PathBuf,
    daemon: Proc,
}

impl Evener {
    /// Starts the daemon with a configuration, and waits until it is ready.
    pub fn start(host: &Host, config: &str) -> Result<Evener> {
        let program = program()?.to_string_lossy().into_owned();
        let config = host.write("evener.toml", config)?;
        let daemon = run(host, &program, &config)?;
        Ok(Evener { host: host.clone(), program, config, daemon })
    }

    /// The daemon's process.
    pub fn daemon(&mut self) -> &mut Proc {
        &mut self.daemon
    }

    /// Starts the daemon again, once it has ended.
    pub fn start_again(&mut self) -> Result<()> {
        if self.daemon.status()?.is_none() {
            bail!("The daemon still runs");
        }
        self.daemon = run(&self.host, &self.program, &self.config)?;
        Ok(())
    }

    /// Stops the daemon as an operator would; its exit code.
    pub fn stop(&mut self) -> Result<i32> {
        self.daemon.sigterm(LIMIT)
    }

    /// Writes another configuration, and has the daemon read it.
    pub fn reload(&self, config: &str) -> Result<String> {
        fs::write(&self.config, config)?;
        self.command(&["reload"])
    }

    /// Runs one of the program's commands on the same host; what it printed.
    pub fn command(&self, words: &[&str]) -> Result<String> {
        self.host.run(&[&[self.program.as_str()], words].concat())
    }

    /// The servers as the daemon sees them.
    pub fn servers(&self) -> Result<Vec<Server>> {
        let text = self.command(&["servers", "--json"])?;
        serde_json::from_str(&text).with_context(|| format!("`evener servers --json` printed: {text}"))
    }

    /// Waits until so many servers are up, and no others; they.
    pub fn wait_for_servers(&self, up: usize, timeout: Duration) -> Result<Vec<Server>> {
        let deadline = Instant::now() + timeout;
        loop {
            let servers = self.servers()?;
            if servers.iter().filter(|server| server.state == "up").count() == up {
                return Ok(servers);
            }
            if Instant::now() > deadline {
                bail!("After {timeout:?} there are not {up} servers up: {servers:?}\n{}", self.daemon.log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn run(host: &Host, program: &str, config: &std::path::Path) -> Result<Proc> {
    let mut daemon = host.spawn("evener", &[program, "run", "--config", &config.to_string_lossy()])?;
    daemon.wait_for("evener: ready", LIMIT)?;
    Ok(daemon)
}
