//! The program on every host of a farm, with one file and a shared secret.

use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, anyhow};

use super::{Evener, Peer, program};
use crate::farm::{Farm, WEB_PORT};
use crate::harness::wait::{self, LONG};
use crate::network::family::Family;
use crate::network::host::Host;

/// Port of the datagrams between hosts.
pub const PEERS_PORT: u16 = 9181;

/// Settings of an every-host farm's file.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `auto`, `xdp` or `packet`.
    pub engine: String,
    /// Lines of every service, such as method and policy.
    pub keys: String,
    /// Section with the health check.
    pub health: String,
    /// Weights of the listed hosts; the farm may have more hosts.
    pub weights: Vec<u16>,
    /// Family of the service addresses and of the hosts' own addresses.
    pub family: Family,
    /// Port of an additional service over UDP.
    pub udp: Option<u16>,
    /// Routes of the web service, in the file's format.
    pub routes: String,
    /// Further lines of `[farm]`.
    pub farm: String,
    /// True to run hosts with the restrictions of the shipped unit.
    pub in_unit: bool,
}

impl Plan {
    /// Returns settings with a number of equal hosts without probes, over IPv4.
    pub fn new(engine: &str, keys: &str, hosts: usize) -> Plan {
        Plan {
            engine: engine.to_owned(),
            keys: keys.to_owned(),
            health: "[service.health]\nkind = \"none\"\n".to_owned(),
            weights: vec![1; hosts],
            family: Family::V4,
            udp: None,
            routes: String::new(),
            farm: String::new(),
            in_unit: false,
        }
    }

    /// Returns the file for hosts that share a secret.
    pub fn file(&self, farm: &Farm, secret: &Path) -> String {
        let mut text = format!(
            "[engine]\nkind = \"{}\"\nsessions_max = 65536\n\n[farm]\nsecret_file = \"{}\"\n{}\n",
            self.engine,
            secret.display(),
            self.farm
        );
        text += &self.service(farm, "web", WEB_PORT, "");
        text += &self.routes;
        if let Some(port) = self.udp {
            text += &self.service(farm, "udp", port, "protocol = \"udp\"\n");
        }
        text
    }

    fn start_one(&self, host: &Host, file: &str, options: &[&str]) -> Result<Evener> {
        let started = match self.in_unit {
            false => Evener::start_by(host, file, &[], options),
            true => Evener::start_in_unit(host, file),
        };
        started.with_context(|| format!("{} did not start", host.name()))
    }

    fn service(&self, farm: &Farm, name: &str, port: u16, more: &str) -> String {
        let addresses: Vec<String> = self.services(farm, port).map(|service| service.to_string()).collect();
        let head = format!(
            "[[service]]\nname = \"{name}\"\naddresses = {addresses:?}\nplacement = \"every-host\"\n{}{more}\n{}\n",
            self.keys, self.health
        );
        let hosts = self.weights.iter().zip(farm.servers()).enumerate();
        hosts.fold(head, |text, (number, (weight, host))| {
            text + &format!(
                "[[service.server]]\nname = \"{}\"\naddress = \"{}\"\npublish = \"{}\"\nweight = {weight}\n\n",
                host.name(),
                host.address_in(self.family),
                farm.own_vip(self.family, number),
            )
        })
    }

    fn services<'a>(
        &'a self,
        farm: &'a Farm,
        port: u16,
    ) -> impl Iterator<Item = std::net::SocketAddr> + use<'a> {
        (0..self.weights.len()).map(move |number| (farm.own_vip(self.family, number), port).into())
    }
}

/// Hosts that all run Evener. Fields are dropped in order.
#[derive(Debug)]
pub struct Team {
    /// By host, in the order of the farm's servers.
    pub hosts: Vec<Evener>,
    pub plan: Plan,
    /// File of the secret.
    pub secret: PathBuf,
    pub farm: Farm,
}

impl Team {
    /// Starts Evener on all listed hosts and waits until they are [together](Team::together).
    pub fn start(farm: Farm, plan: Plan) -> Result<Team> {
        Self::start_by(farm, plan, &[])
    }

    /// Like [`Team::start`], with options such as `--keep`.
    pub fn start_by(farm: Farm, plan: Plan, options: &[&str]) -> Result<Team> {
        let secret = farm.server(0).file("farm.key");
        let words = [program()?.to_string_lossy().into_owned(), "keygen".to_owned()];
        farm.server(0).run(&[&words[..], &[secret.to_string_lossy().into_owned()]].concat())?;
        let file = plan.file(&farm, &secret);
        let hosts = &farm.servers()[..plan.weights.len()];
        let hosts = thread::scope(|scope| {
            let (plan, file) = (&plan, file.as_str());
            let start = |host| scope.spawn(move || plan.start_one(host, file, options));
            let starting: Vec<_> = hosts.iter().map(start).collect();
            let started =
                starting.into_iter().map(|one| one.join().map_err(|_| anyhow!("A start panicked"))?);
            started.collect::<Result<Vec<_>>>()
        })?;
        let team = Team { hosts, plan, secret, farm };
        team.together()?;
        Ok(team)
    }

    /// Waits until every host shows all hosts as alive and up, and each host owns the address that
    /// it publishes.
    pub fn together(&self) -> Result<()> {
        for evener in &self.hosts {
            let views = wait::for_value(LONG, || evener.hosts(), |peers| self.is_whole(peers))?;
            views.map_err(|peers| {
                anyhow!("{} does not see all: {peers:?}\n{}", evener.host.name(), evener.daemon.log())
            })?;
            evener.wait_for_servers(self.up() * (1 + usize::from(self.plan.udp.is_some())), LONG)?;
        }
        Ok(())
    }

    /// Number of hosts that take new sessions.
    fn up(&self) -> usize {
        self.plan.weights.iter().filter(|weight| **weight > 0).count()
    }

    fn is_whole(&self, peers: &[Peer]) -> bool {
        let running = self.hosts.len();
        peers.len() >= running
            && peers.iter().all(|peer| peer.own || peer.state == "alive")
            && (0..running).all(|number| self.owners_seen(peers, number) == [self.farm.server(number).name()])
    }

    /// Returns the owners of the address of host `number`, as one host shows them.
    fn owners_seen<'a>(&self, peers: &'a [Peer], number: usize) -> Vec<&'a str> {
        let vip = self.farm.own_vip(self.plan.family, number).to_string();
        peers
            .iter()
            .filter(|peer| peer.addresses_owned.contains(&vip))
            .map(|peer| peer.name.as_str())
            .collect()
    }

    /// Returns the hosts among `among` that claim the address of host `number`.
    pub fn owners(&self, number: usize, among: &[usize]) -> Result<Vec<usize>> {
        let vip = self.farm.own_vip(self.plan.family, number).to_string();
        let mut owners = Vec::new();
        for &host in among {
            let own = self.hosts[host].hosts()?.into_iter().find(|peer| peer.own);
            if own.context("A host does not list itself")?.addresses_owned.contains(&vip) {
                owners.push(host);
            }
        }
        Ok(owners)
    }

    pub fn file(&self) -> String {
        self.plan.file(&self.farm, &self.secret)
    }

    /// Returns the file in which these hosts are backups. Hosts with it and without it have
    /// different configurations.
    pub fn file_with_backups(&self, backups: &[usize]) -> String {
        let names = backups.iter().map(|number| format!("name = \"{}\"\n", self.farm.server(*number).name()));
        names.fold(self.file(), |text, name| text.replace(&name, &format!("{name}backup = true\n")))
    }

    /// Reloads every host with the current settings, one after another, and starts Evener on newly
    /// listed hosts. Waits until all are together.
    pub fn reload(&mut self) -> Result<()> {
        let file = self.file();
        for evener in &self.hosts {
            evener.reload(&file)?;
        }
        for host in &self.farm.servers()[self.hosts.len()..self.plan.weights.len()] {
            self.hosts.push(self.plan.start_one(host, &file, &[])?);
        }
        self.together()
    }

    /// Number of packets that a host has counted for a reason.
    pub fn counted(&self, host: usize, reason: &str) -> Result<u64> {
        Ok(self.hosts[host].status()?.packets.get(reason).copied().unwrap_or_default())
    }
}
