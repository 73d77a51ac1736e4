//! Farm of network namespaces: clients, a router, a switch, directors and web servers.
//!
//! [`Shape`] has three layouts. The networks are bridges in one namespace, the switch. Every host
//! has an IPv4 and an IPv6 address in each of its networks.

mod cards;
mod raise;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::harness::cleanup;
use crate::harness::process::Proc;
use crate::network::family::Family;
use crate::network::host::Host;
use crate::network::lan::{self, Lan};
use crate::network::netns::Netns;
use crate::servers::nginx;

/// Port of the web servers.
pub const WEB_PORT: u16 = 80;
/// Maximum numbers of servers in a network, and of directors, with separate host numbers.
const HOSTS_MAX: u8 = 80;
const DIRECTORS_MAX: u8 = 8;

/// Hosts that answer ARP for the service addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arp {
    /// The servers answer, and the router has a route to the director: LSMAC's set-up (section
    /// 3.1).
    Answering,
    /// The director answers, and the servers do not.
    Silent,
}

/// Layout of directors and servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Directors are on every network of servers. Servers reply through the router and bypass the
    /// director.
    ///
    /// ```text
    ///  client1 .. ─── clients ─── router ─┬─ lan0 ─── web1, web3 ..
    ///                                     │    └───── director1 ..
    ///                                     └─ lan1 ─── web2, web4 ..    (and the directors)
    /// ```
    Lan,
    /// Servers are behind the directors. The first director is their router, so replies pass
    /// through it.
    ///
    /// ```text
    ///  client1 .. ─── clients ─── router ─── lan0 ─── director1 ─┬─ lan1 ─── web1, web3 ..
    ///                                                            └─ lan2 ─── web2, web4 ..
    /// ```
    Routed,
    /// Directors are on a separate network. Servers reply through the router.
    ///
    /// ```text
    ///  client1 .. ─── clients ─── router ─┬─ lan0 ─── director1 ..
    ///                                     ├─ lan1 ─── web1, web3 ..
    ///                                     └─ lan2 ─── web2, web4 ..
    /// ```
    Remote,
}

/// Hosts that leave checksums and segmentation to the receiver, as is possible on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offload {
    /// No host: every packet looks as on a physical network.
    None,
    /// Hosts whose packets no director sees.
    Replies,
    All,
}

/// Settings of a farm; see [`Farm::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    shape: Shape,
    servers: u8,
    clients: u8,
    directors: u8,
    server_lans: u8,
    vips: u8,
    arp: Arp,
    director_serves: bool,
    bare: bool,
    offload: Offload,
    cards: bool,
}

/// Running farm. Dropping the value removes it.
#[derive(Debug)]
pub struct Farm {
    spec: Builder,
    prefix: String,
    files: PathBuf,
    switch: Netns,
    router: Host,
    directors: Vec<Host>,
    servers: Vec<Host>,
    clients: Vec<Host>,
    /// nginx by server; `None` while stopped.
    webs: Vec<Option<Proc>>,
    /// nginx of directors that also serve.
    director_webs: Vec<Proc>,
}

impl Builder {
    /// Sets the number of web servers; default 1. With two networks, servers alternate between
    /// them.
    pub fn servers(self, servers: u8) -> Self {
        Builder { servers, ..self }
    }

    /// Sets the number of clients; default 1.
    pub fn clients(self, clients: u8) -> Self {
        Builder { clients, ..self }
    }

    /// Sets the number of hosts of an every-host farm, without directors. Each host has a service
    /// address ([`Farm::own_vip`]). The hosts run only their web server, and Evener adds the rest.
    /// With several [networks](Builder::server_lans) the hosts reach each other through the router.
    pub fn every_host(self, hosts: u8) -> Self {
        Builder { servers: hosts, vips: hosts, directors: 0, bare: true, ..self }
    }

    /// Puts servers behind the director as their router: [`Shape::Routed`], for `nat`. Only the
    /// director has the service addresses.
    pub fn routed(self) -> Self {
        Builder { shape: Shape::Routed, bare: true, ..self }
    }

    /// Puts servers on other networks than the directors: [`Shape::Remote`], for `tunnel`.
    pub fn remote(self) -> Self {
        Builder { shape: Shape::Remote, ..self }
    }

    /// Configures only a web server on servers, without service addresses and their settings: for
    /// agents, which configure both, and for `nat`, which needs neither.
    pub fn bare(self) -> Self {
        Builder { bare: true, ..self }
    }

    /// Sets the number of directors; default 1. [`Shape`] shows their networks.
    pub fn directors(self, directors: u8) -> Self {
        Builder { directors, ..self }
    }

    /// Sets the number of the servers' networks; default 1.
    pub fn server_lans(self, server_lans: u8) -> Self {
        Builder { server_lans, ..self }
    }

    /// Sets the number of service addresses; default 1. With [`Builder::answering`] the router's
    /// routes to them are distributed over the directors.
    pub fn vips(self, vips: u8) -> Self {
        Builder { vips, ..self }
    }

    /// Makes servers answer ARP for the service addresses, and the router have a route: for
    /// `discover = "arp"`.
    pub fn answering(self) -> Self {
        Builder { arp: Arp::Answering, ..self }
    }

    /// Makes directors announce the service addresses, while servers do not answer ARP. The
    /// default.
    pub fn silent(self) -> Self {
        Builder { arp: Arp::Silent, ..self }
    }

    /// Makes directors also serve: they have the service addresses and a web server (LSMAC, section
    /// 4.2.4).
    pub fn director_serves(self) -> Self {
        Builder { director_serves: true, ..self }
    }

    /// Leaves checksums and segmentation to the receiver for packets that no director sees. For
    /// benchmarks.
    ///
    /// By default every packet looks as on a physical network: with its checksum, and within the
    /// MTU. Directors and packet sockets must see such packets. But large replies, which bypass the
    /// director, would then cost more than with any network card.
    pub fn offload_replies(self) -> Self {
        Builder { offload: Offload::Replies, ..self }
    }

    /// Leaves checksums and segmentation to the receiver on all hosts. Packets of up to 64 KB
    /// without a checksum are sent, as between virtual machines and containers on one host.
    pub fn offload_all(self) -> Self {
        Builder { offload: Offload::All, ..self }
    }

    /// Builds the farm and starts nginx on its servers. Requires root.
    pub fn build(self) -> Result<Farm> {
        self.check()?;
        if !nix::unistd::geteuid().is_root() {
            bail!("Network namespaces need root: run this as root, or with sudo");
        }
        let prefix = cleanup::next_prefix()?;
        let files = cleanup::directory().join(format!("{prefix}files"));
        fs::create_dir_all(&files).with_context(|| format!("Making {} failed", files.display()))?;
        let mut farm = Farm::planned(self, prefix, files);
        farm.raise().context("Building the farm failed; what was built of it is removed again")?;
        Ok(farm)
    }

    fn check(&self) -> Result<()> {
        if self.server_lans == 0 || self.directors > DIRECTORS_MAX || self.vips > HOSTS_MAX {
            bail!(
                "A farm has 1 network for servers or more, {DIRECTORS_MAX} directors at most, {HOSTS_MAX} addresses at most"
            );
        }
        if self.servers > HOSTS_MAX || self.clients > HOSTS_MAX {
            bail!("A farm has {HOSTS_MAX} servers and {HOSTS_MAX} clients at most");
        }
        Ok(())
    }

    fn servers_lans(&self) -> impl Iterator<Item = Lan> + use<> {
        let first = u8::from(self.shape != Shape::Lan);
        (first..first + self.server_lans).map(Lan::Servers)
    }

    /// All networks except the clients'; first the one with the service addresses.
    fn lans(&self) -> impl Iterator<Item = Lan> + use<> {
        let own = (self.shape != Shape::Lan).then_some(Lan::Servers(0));
        own.into_iter().chain(self.servers_lans())
    }

    fn router_lans(&self) -> Vec<Lan> {
        let lans = self.lans().take(if self.shape == Shape::Routed { 1 } else { usize::MAX });
        std::iter::once(Lan::Clients).chain(lans).collect()
    }

    fn director_lans(&self) -> Vec<Lan> {
        self.lans().take(if self.shape == Shape::Remote { 1 } else { usize::MAX }).collect()
    }
}

impl Farm {
    /// Returns a builder with one server, one client and one director; servers do not answer ARP.
    pub fn builder() -> Builder {
        Builder {
            shape: Shape::Lan,
            servers: 1,
            clients: 1,
            directors: 1,
            server_lans: 1,
            vips: 1,
            arp: Arp::Silent,
            director_serves: false,
            bare: false,
            offload: Offload::None,
            cards: false,
        }
    }

    /// Router between clients and servers.
    pub fn router(&self) -> &Host {
        &self.router
    }

    pub fn director(&self) -> &Host {
        &self.directors[0]
    }

    pub fn directors(&self) -> &[Host] {
        &self.directors
    }

    /// Returns a web server, counted from 0; number 0 is called `web1`.
    pub fn server(&self, number: usize) -> &Host {
        &self.servers[number]
    }

    pub fn servers(&self) -> &[Host] {
        &self.servers
    }

    /// Returns a client, counted from 0; number 0 is called `client1`.
    pub fn client(&self, number: usize) -> &Host {
        &self.clients[number]
    }

    pub fn clients(&self) -> &[Host] {
        &self.clients
    }

    /// Namespace of the switch. Its ports are named by
    /// [`Interface::port`](crate::network::host::Interface::port).
    pub fn switch(&self) -> &Netns {
        &self.switch
    }

    /// Returns an IPv4 service address, counted from 0.
    pub fn vip(&self, number: u8) -> Ipv4Addr {
        Lan::Servers(0).address(lan::number::vip(number))
    }

    /// Returns a service address of either family, counted from 0.
    pub fn vip_in(&self, family: Family, number: u8) -> IpAddr {
        lan::vip(family, number)
    }

    /// Returns the service address of a host in an every-host farm, counted like servers. The
    /// address is in the host's own network, so that the host can answer ARP for it.
    pub fn own_vip(&self, family: Family, server: usize) -> IpAddr {
        let lan = Lan::of(self.servers[server].address());
        lan.address_in(family, lan::number::vip(u8::try_from(server).unwrap_or(u8::MAX)))
    }

    /// Returns the web service at each host's [own](Farm::own_vip) address.
    pub fn own_services(&self, family: Family) -> Vec<SocketAddr> {
        (0..self.servers.len()).map(|server| (self.own_vip(family, server), WEB_PORT).into()).collect()
    }

    /// Returns the web service at the first IPv4 service address.
    pub fn service(&self) -> SocketAddr {
        self.service_in(Family::V4)
    }

    /// Returns the web service at the first service address of a family.
    pub fn service_in(&self, family: Family) -> SocketAddr {
        (self.vip_in(family, 0), WEB_PORT).into()
    }

    /// Returns the servers' IPv4 addresses, for direct connections.
    pub fn straight(&self) -> Vec<SocketAddr> {
        self.straight_in(Family::V4)
    }

    /// Returns the servers' addresses of a family, for direct connections.
    pub fn straight_in(&self, family: Family) -> Vec<SocketAddr> {
        self.servers.iter().map(|host| (host.address_in(family), WEB_PORT).into()).collect()
    }

    /// Returns the MAC address of a client's or server's default gateway.
    pub fn gateway_of(&self, host: &Host) -> &str {
        let lan = Lan::of(host.address());
        let behind_director = self.spec.shape == Shape::Routed && lan != Lan::Clients;
        let gateway = if behind_director { self.director() } else { &self.router };
        let here = gateway.interfaces().iter().find(|interface| Lan::of(interface.address) == lan);
        here.map_or("", |interface| &interface.mac)
    }

    /// Prefix of the clients' network.
    pub fn client_prefix(&self, family: Family) -> String {
        Lan::Clients.prefix(family)
    }

    /// Layout of directors and servers.
    pub fn shape(&self) -> Shape {
        self.spec.shape
    }

    /// Limits the path MTU to the clients, like a narrow link behind the router. The router reports
    /// the limit to senders of longer packets (RFC 1191, RFC 8201).
    pub fn narrow_to_clients(&self, mtu: u16) -> Result<()> {
        self.narrow([Lan::Clients].into_iter(), mtu)
    }

    /// Limits the path MTU from the router to the networks of directors and servers.
    pub fn narrow_to_servers(&self, mtu: u16) -> Result<()> {
        self.narrow(self.spec.router_lans().into_iter().skip(1), mtu)
    }

    /// Limits the path MTU from the directors to [remote](Shape::Remote) servers.
    pub fn narrow_behind_directors(&self, mtu: u16) -> Result<()> {
        self.narrow(self.spec.router_lans().into_iter().skip(2), mtu)
    }

    fn narrow(&self, lans: impl Iterator<Item = Lan>, mtu: u16) -> Result<()> {
        let places = self.spec.router_lans();
        let lines = lans.flat_map(|lan| {
            let interface = places.iter().position(|place| *place == lan).unwrap_or_default();
            let (v4, v6) = (lan.prefix(Family::V4), lan.prefix(Family::V6));
            // changes the kernel's own route for the interface's address
            [
                format!("route replace {v4} dev eth{interface} mtu lock {mtu}"),
                format!("route replace {v6} dev eth{interface} metric 256 mtu {mtu}"),
            ]
        });
        self.router.ip(&lines.collect::<Vec<_>>())
    }

    /// Hosts that answer ARP for the service addresses.
    pub fn arp(&self) -> Arp {
        self.spec.arp
    }

    /// Adds a web server while the farm runs, and returns it.
    pub fn add_server(&mut self) -> Result<Host> {
        let number = u8::try_from(self.servers.len()).unwrap_or(u8::MAX);
        self.spec.servers = number.saturating_add(1);
        self.spec.check()?;
        let host = self.planned_server(number);
        self.connect(std::slice::from_ref(&host))?;
        self.configure_server(&host)?;
        self.servers.push(host.clone());
        self.webs.push(None);
        self.start_web(usize::from(number))?;
        Ok(host)
    }

    /// Starts a server's nginx and waits until it listens.
    pub fn start_web(&mut self, number: usize) -> Result<()> {
        let host = &self.servers[number];
        let mut nginx = nginx::start(host)?;
        nginx::wait_until_listening(host, &mut nginx)?;
        self.webs[number] = Some(nginx);
        Ok(())
    }

    /// Kills a server's nginx, like a crash.
    pub fn stop_web(&mut self, number: usize) -> Result<()> {
        self.webs[number].take().map_or(Ok(()), |mut web| web.kill9())
    }

    /// Makes a server's `/healthz` return 200 or 503; all other pages are served as before.
    pub fn set_healthy(&self, number: usize, healthy: bool) -> Result<()> {
        nginx::set_healthy(&self.servers[number], healthy)
    }
}

impl Drop for Farm {
    fn drop(&mut self) {
        self.webs.clear();
        self.director_webs.clear();
        cleanup::reap(&self.prefix);
    }
}
