//! Handoff farm: a director and agents with one file and a shared secret.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::{Agent, Evener, in_turn, program};
use crate::farm::{Farm, WEB_PORT};
use crate::harness::wait::{self, LONG};
use crate::network::family::Family;
use crate::network::host::Host;

/// Settings of a handoff service's file, besides the farm's addresses.
#[derive(Clone, Debug)]
pub struct Offer {
    /// `auto`, `xdp` or `packet`.
    pub engine: String,
    /// Further lines of `[farm]`.
    pub farm: String,
    /// Lines of the service, such as its policy; [round robin](in_turn) without one.
    pub keys: String,
    /// Section with the health check.
    pub health: String,
    /// Weights of the listed servers; the farm may have more servers.
    pub weights: Vec<u16>,
    /// Routes in the file's format.
    pub routes: String,
    pub port: u16,
    /// Size of the session table.
    pub sessions_max: usize,
    /// True to run director and agents with the restrictions of the shipped units.
    pub in_units: bool,
}

impl Offer {
    /// Returns settings with a number of equal servers and routes, each as written by [`route`].
    pub fn new(engine: &str, servers: usize, routes: &[String]) -> Offer {
        Offer {
            engine: engine.to_owned(),
            farm: String::new(),
            keys: String::new(),
            health: "[service.health]\nkind = \"http\"\npath = \"/healthz\"\ninterval = \"500ms\"\n\
                     timeout = \"400ms\"\n"
                .to_owned(),
            weights: vec![1; servers],
            routes: routes.concat(),
            port: WEB_PORT,
            sessions_max: 65_536,
            in_units: false,
        }
    }

    pub fn file(&self, farm: &Farm, secret: &Path) -> String {
        let directors = farm.directors().iter().flat_map(|host| Family::BOTH.map(|f| host.address_in(f)));
        let directors: Vec<String> = directors.map(|address| address.to_string()).collect();
        let addresses = Family::BOTH.map(|f| SocketAddr::new(farm.vip_in(f, 0), self.port).to_string());
        let head = format!(
            "[engine]\nkind = \"{}\"\nsessions_max = {}\n\n[farm]\nsecret_file = \"{}\"\ndirectors = {directors:?}\n{}\n\
             [[service]]\nname = \"web\"\naddresses = {addresses:?}\nmethod = \"handoff\"\n{}\n{}\n",
            self.engine,
            self.sessions_max,
            secret.display(),
            self.farm,
            in_turn(&self.keys),
            self.health
        );
        let servers = self.weights.iter().zip(farm.servers()).map(|(weight, host)| {
            let (name, address) = (host.name(), host.address());
            format!("[[service.server]]\nname = \"{name}\"\naddress = \"{address}\"\nweight = {weight}\n\n")
        });
        head + &servers.collect::<String>() + &self.routes
    }

    /// Number of servers that take new connections.
    fn up(&self) -> usize {
        self.weights.iter().filter(|weight| **weight > 0).count()
    }
}

/// Waits until a counter has this value; an error contains the last value.
pub fn wait_for_count(name: &str, count: u64, value: impl FnMut() -> Result<u64>) -> Result<()> {
    match wait::for_value(LONG, value, |value| *value == count)? {
        Ok(_) => Ok(()),
        Err(value) => bail!("{name} is {value}, not {count}"),
    }
}

/// Returns a route to these servers. `keys` are its host, path and methods.
pub fn route(keys: &str, servers: &[&str]) -> String {
    format!("[[service.route]]\n{keys}\nservers = {servers:?}\n\n")
}

/// Director of a handoff farm, and servers with agents. Fields are dropped in order.
#[derive(Debug)]
pub struct Handoff {
    pub evener: Evener,
    /// By server, in the farm's order.
    pub agents: Vec<Agent>,
    pub offer: Offer,
    /// File of the secret.
    pub secret: PathBuf,
    pub farm: Farm,
}

impl Handoff {
    /// Starts the farm and waits until every listed server accepts connections. The farm is a
    /// [bare](crate::farm::Builder::bare) one, whose agents configure the servers.
    pub fn start(farm: Farm, offer: Offer) -> Result<Handoff> {
        let secret = farm.server(0).file("farm.key");
        let words = [program()?.to_string_lossy().into_owned(), "keygen".to_owned()];
        farm.server(0).run(&[&words[..], &[secret.to_string_lossy().into_owned()]].concat())?;
        let file = offer.file(&farm, &secret);
        let servers = &farm.servers()[..offer.weights.len()];
        let (agents, evener) = match offer.in_units {
            false => (Agent::start_all(servers, &file)?, Evener::start(farm.director(), &file)?),
            true => {
                let agents =
                    servers.iter().map(|host| Agent::start_in_unit(host, &file)).collect::<Result<_>>()?;
                (agents, Evener::start_in_unit(farm.director(), &file)?)
            }
        };
        evener.wait_for_servers(offer.up(), LONG)?;
        Ok(Handoff { evener, agents, offer, secret, farm })
    }

    pub fn client(&self) -> &Host {
        self.farm.client(0)
    }

    pub fn service(&self, family: Family) -> SocketAddr {
        SocketAddr::new(self.farm.vip_in(family, 0), self.offer.port)
    }

    pub fn file(&self) -> String {
        self.offer.file(&self.farm, &self.secret)
    }

    /// Reloads the director with the current settings.
    pub fn reload(&self) -> Result<()> {
        self.evener.reload(&self.file()).map(drop)
    }

    /// Number of packets that the director has counted for a reason.
    pub fn counted(&self, reason: &str) -> Result<u64> {
        Ok(self.evener.status()?.packets.get(reason).copied().unwrap_or_default())
    }

    /// Counter of control messages, or of connections in their answers, by name.
    pub fn lccp(&self, outcome: &str) -> Result<u64> {
        Ok(self.evener.status()?.lccp.get(outcome).copied().unwrap_or_default())
    }

    /// Waits until the director and all listed servers know each other.
    pub fn wait_for_nodes(&self) -> Result<()> {
        let known = |nodes: &BTreeMap<String, String>| {
            let known = |server: &Host| {
                nodes.get(&server.address().to_string()).is_some_and(|state| state == "known")
            };
            self.farm.servers()[..self.offer.weights.len()].iter().all(known)
        };
        wait::until("all nodes know each other", || Ok(known(&self.evener.status()?.nodes)))
    }

    /// Counter of punted connections, by outcome.
    pub fn punted(&self, outcome: &str) -> Result<u64> {
        Ok(self.evener.status()?.punted.get(outcome).copied().unwrap_or_default())
    }

    /// Waits until this number of punted connections has the outcome. A server answers its client
    /// before the director counts the connection.
    pub fn wait_for_punted(&self, outcome: &str, count: u64) -> Result<()> {
        wait_for_count(outcome, count, || self.punted(outcome))
    }

    /// Waits until a counter of control messages has this value.
    pub fn wait_for_lccp(&self, outcome: &str, count: u64) -> Result<()> {
        wait_for_count(outcome, count, || self.lccp(outcome))
    }
}
