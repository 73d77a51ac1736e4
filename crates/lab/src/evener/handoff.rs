//! The product where connections are handed over: a director and agents, one file and a secret for
//! all.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::{Agent, Evener, in_turn, program};
use crate::family::Family;
use crate::farm::{Farm, WEB_PORT};
use crate::host::Host;
use crate::wait::{self, LONG};

/// A service by handoff: what its file says besides the farm's own addresses.
#[derive(Clone, Debug)]
pub struct Offer {
    /// `auto`, `xdp` or `packet`.
    pub engine: String,
    /// More lines of `[farm]`.
    pub farm: String,
    /// Lines of the service, such as its policy; [in turn](in_turn) without one.
    pub keys: String,
    /// How servers are probed.
    pub health: String,
    /// The servers that are listed, by weight; the farm may have more.
    pub weights: Vec<u16>,
    /// The routes, as the file has them.
    pub routes: String,
    /// The port of the service.
    pub port: u16,
    /// Room for sessions.
    pub sessions_max: usize,
    /// Whether director and servers run inside what the shipped units say.
    pub in_units: bool,
}

impl Offer {
    /// So many servers alike, and these routes, each as [`route`] writes it.
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

    /// The file.
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

    /// Servers that new connections are given to.
    fn up(&self) -> usize {
        self.weights.iter().filter(|weight| **weight > 0).count()
    }
}

/// Waits until a count is exactly this; an error has the last one.
pub fn wait_for_count(name: &str, count: u64, value: impl FnMut() -> Result<u64>) -> Result<()> {
    match wait::for_value(LONG, value, |value| *value == count)? {
        Ok(_) => Ok(()),
        Err(value) => bail!("{name} is {value}, not {count}"),
    }
}

/// A route to these servers. `keys` are its host, path and methods.
pub fn route(keys: &str, servers: &[&str]) -> String {
    format!("[[service.route]]\n{keys}\nservers = {servers:?}\n\n")
}

/// A director that hands connections over, and servers with agents. Fields are dropped in order.
#[derive(Debug)]
pub struct Handoff {
    /// On the director.
    pub evener: Evener,
    /// By server, as the farm counts them.
    pub agents: Vec<Agent>,
    /// Their last offer.
    pub offer: Offer,
    /// The file of their secret.
    pub secret: PathBuf,
    /// Their farm.
    pub farm: Farm,
}

impl Handoff {
    /// Starts all of it, and waits until connections can be handed to every server that is listed.
    /// The farm is a [bare](crate::farm::Builder::bare) one: its agents see to its servers.
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

    /// The first client.
    pub fn client(&self) -> &Host {
        self.farm.client(0)
    }

    /// The service.
    pub fn service(&self, family: Family) -> SocketAddr {
        SocketAddr::new(self.farm.vip_in(family, 0), self.offer.port)
    }

    /// The file in force.
    pub fn file(&self) -> String {
        self.offer.file(&self.farm, &self.secret)
    }

    /// Has the director read the offer as it is now.
    pub fn reload(&self) -> Result<()> {
        self.evener.reload(&self.file()).map(drop)
    }

    /// How often the director counted packets for a reason.
    pub fn counted(&self, reason: &str) -> Result<u64> {
        Ok(self.evener.status()?.packets.get(reason).copied().unwrap_or_default())
    }

    /// The count of control messages, and of connections that they were about, by this name.
    pub fn lccp(&self, outcome: &str) -> Result<u64> {
        Ok(self.evener.status()?.lccp.get(outcome).copied().unwrap_or_default())
    }

    /// Waits until the director and every server that is listed know each other.
    pub fn wait_for_nodes(&self) -> Result<()> {
        let known = |nodes: &BTreeMap<String, String>| {
            let known = |server: &Host| {
                nodes.get(&server.address().to_string()).is_some_and(|state| state == "known")
            };
            self.farm.servers()[..self.offer.weights.len()].iter().all(known)
        };
        wait::until("all nodes know each other", || Ok(known(&self.evener.status()?.nodes)))
    }

    /// The count of connections that were read in user space, by this name.
    pub fn punted(&self, outcome: &str) -> Result<u64> {
        Ok(self.evener.status()?.punted.get(outcome).copied().unwrap_or_default())
    }

    /// Waits until so many connections that were read in user space have this outcome. A server
    /// answers its client before the director has counted the connection.
    pub fn wait_for_punted(&self, outcome: &str, count: u64) -> Result<()> {
        wait_for_count(outcome, count, || self.punted(outcome))
    }

    /// The same for the counts of control messages.
    pub fn wait_for_lccp(&self, outcome: &str, count: u64) -> Result<()> {
        wait_for_count(outcome, count, || self.lccp(outcome))
    }
}
