//! Farms of each method, set up as users do, for tests of properties that do not depend on the
//! method.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::Result;
use evener_lab::evener::{Agent, Evener};
use evener_lab::farm::{Builder, Farm, WEB_PORT};
use evener_lab::harness::wait::LONG;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use evener_lab::servers::nginx;

use crate::{file, shares_of};

/// Method of forwarding packets to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By the server's MAC address.
    L2,
    /// NAT of the destination. Servers are behind the director.
    Nat,
    /// NAT of both source and destination. Servers are anywhere.
    SourceNat,
    Ipip,
    Gue,
}

impl Way {
    /// Returns the builder of a matching farm. Servers are unconfigured if agents configure them.
    pub(crate) fn builder(self) -> Builder {
        match self {
            Way::L2 => Farm::builder(),
            Way::Nat => Farm::builder().routed(),
            Way::SourceNat | Way::Ipip | Way::Gue => Farm::builder().remote().bare(),
        }
    }

    pub(crate) fn is_tunnel(self) -> bool {
        matches!(self, Way::Ipip | Way::Gue)
    }

    pub(crate) fn is_nat(self) -> bool {
        matches!(self, Way::Nat | Way::SourceNat)
    }

    /// Returns the service keys of this method.
    pub(crate) fn keys(self) -> &'static str {
        match self {
            Way::L2 => "",
            Way::Nat => "method = \"nat\"\n",
            Way::SourceNat => "method = \"nat\"\nsource_nat = true\n",
            Way::Ipip => "method = \"tunnel\"\n",
            Way::Gue => "method = \"tunnel\"\nencapsulation = \"gue\"\n",
        }
    }
}

/// The parameters of a farm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) engine: &'a str,
    pub(crate) way: Way,
    /// IP version of the service's address.
    pub(crate) family: Family,
    /// IP version of the servers' addresses.
    pub(crate) servers: Family,
}

impl<'a> Plan<'a> {
    /// Returns a plan with one IP version for all addresses.
    pub(crate) fn new(engine: &'a str, way: Way, family: Family) -> Plan<'a> {
        Plan { engine, way, family, servers: family }
    }

    pub(crate) fn service(&self, farm: &Farm) -> SocketAddr {
        farm.service_in(self.family)
    }

    /// Returns a configuration whose service has these additional keys and these servers by weight.
    pub(crate) fn file(&self, farm: &Farm, keys: &str, health: &str, weights: &[u16]) -> String {
        self.head(farm) + &self.part(farm, ("web", WEB_PORT, nginx::OTHER_PORT), keys, health, weights)
    }

    /// Returns a configuration with a web service and a UDP service, both with all servers.
    pub(crate) fn file_with_udp(&self, farm: &Farm, port: u16) -> String {
        let weights = vec![1; farm.servers().len()];
        let udp = "protocol = \"udp\"\n";
        self.file(farm, "", file::ALWAYS_UP, &weights)
            + &self.part(farm, ("udp", port, port), udp, file::ALWAYS_UP, &weights)
    }

    fn head(&self, farm: &Farm) -> String {
        let directors = Family::BOTH.map(|family| farm.director().address_in(family).to_string());
        format!("{}\n[farm]\ndirectors = {directors:?}\n\n", file::engine(self.engine))
    }

    /// Returns a service with its servers. With NAT, servers listen on a different port.
    fn part(
        &self,
        farm: &Farm,
        (name, port, servers_port): (&str, u16, u16),
        keys: &str,
        health: &str,
        weights: &[u16],
    ) -> String {
        let address = SocketAddr::new(farm.vip_in(self.family, 0), port);
        let servers = farm.servers().iter().zip(weights);
        let servers = servers.map(|(host, weight)| self.server(host, servers_port, *weight));
        file::service(name, address, &format!("{}{keys}", self.way.keys()))
            + health
            + &servers.collect::<String>()
    }

    fn server(&self, host: &Host, port: u16, weight: u16) -> String {
        let (name, address) = (host.name(), host.address_in(self.servers));
        let port = if self.way.is_nat() { format!("port = {port}\n") } else { String::new() };
        format!("[[service.server]]\nname = \"{name}\"\naddress = \"{address}\"\nweight = {weight}\n{port}")
    }

    /// Starts a farm of `servers` equal servers and waits until all are up.
    pub(crate) fn stage(&self, servers: u8) -> Result<Stage> {
        let farm = self.way.builder().servers(servers).build()?;
        self.start(farm, "", file::ALWAYS_UP, &vec![1; servers.into()])
    }

    /// Starts the plan on an existing farm and waits until all servers are up.
    pub(crate) fn start(&self, farm: Farm, keys: &str, health: &str, weights: &[u16]) -> Result<Stage> {
        let up = weights.iter().filter(|weight| **weight > 0).count();
        let file = self.file(&farm, keys, health, weights);
        self.start_with(farm, &file, up)
    }

    /// Starts this configuration on an existing farm and waits until `up` servers are up.
    pub(crate) fn start_with(&self, farm: Farm, file: &str, up: usize) -> Result<Stage> {
        let agents = if self.way.is_tunnel() { Agent::start_all(farm.servers(), file)? } else { Vec::new() };
        let evener = Evener::start(farm.director(), file)?;
        evener.wait_for_servers(up, LONG)?;
        Ok(Stage { service: self.service(&farm), agents, evener, farm })
    }
}

/// A running farm. Fields are dropped in order.
pub(crate) struct Stage {
    pub(crate) service: SocketAddr,
    pub(crate) evener: Evener,
    pub(crate) agents: Vec<Agent>,
    pub(crate) farm: Farm,
}

impl Stage {
    pub(crate) fn client(&self) -> &Host {
        self.farm.client(0)
    }

    /// Returns the number of connections per server, of new connections.
    pub(crate) fn shares(&self, connections: u64) -> Result<BTreeMap<String, u64>> {
        shares_of(&self.farm, self.service, connections)
    }

    /// Returns the count of a packet reason.
    pub(crate) fn counted(&self, reason: &str) -> Result<u64> {
        Ok(self.evener.status()?.packets.get(reason).copied().unwrap_or_default())
    }
}
