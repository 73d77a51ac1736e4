//! A farm: clients, a router, a switch, directors and web servers, each a network namespace.
//!
//! There are three shapes of them, see [`Shape`]. The networks are bridges in one namespace, the
//! switch; every host has an IPv4 and an IPv6 address in each of its networks.

mod cards;
mod raise;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::family::Family;
use crate::host::Host;
use crate::lan::{self, Lan};
use crate::netns::Netns;
use crate::owner;
use crate::proc::Proc;
use crate::web;

/// The port that the web servers listen on.
pub const WEB_PORT: u16 = 80;
/// Directors, servers in a network, and service addresses have this much room for their numbers.
const HOSTS_MAX: u8 = 80;
const DIRECTORS_MAX: u8 = 8;

/// The hosts that answer ARP for the service addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arp {
    /// The servers do, and the router has a route to the director: LSMAC's own set-up (section
    /// 3.1).
    Answering,
    /// The servers keep silent, and the director answers in their stead.
    Silent,
}

/// Where directors and servers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Directors are on every network that servers are on. Servers reply by the router, past the
    /// director.
    ///
    /// ```text
    ///  client1 .. ─── clients ─── router ─┬─ lan0 ─── web1, web3 ..
    ///                                     │    └───── director1 ..
    ///                                     └─ lan1 ─── web2, web4 ..    (and the directors)
    /// ```
    Lan,
    /// Servers are behind the directors: the first of these is their router, and replies go through
    /// it.
    ///
    /// ```text
    ///  client1 .. ─── clients ─── router ─── lan0 ─── director1 ─┬─ lan1 ─── web1, web3 ..
    ///                                                            └─ lan2 ─── web2, web4 ..
    /// ```
    Routed,
    /// Directors are on a network of their own, servers on others. Servers reply by the router.
    ///
    /// ```text
    ///  client1 .. ─── clients ─── router ─┬─ lan0 ─── director1 ..
    ///                                     ├─ lan1 ─── web1, web3 ..
    ///                                     └─ lan2 ─── web2, web4 ..
    /// ```
    Remote,
}

/// Which hosts leave checksums and segmentation to the receiver, as hosts on one machine may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offload {
    /// None: every packet is on the wire as a network card would put it there.
    None,
    /// Those whose packets no director sees.
    Replies,
    /// All.
    All,
}

/// The description of a farm; see [`Farm::builder`].
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

/// A running farm. Dropping it removes it.
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
    /// By server, as long as it runs.
    webs: Vec<Option<Proc>>,
    /// Those of directors that serve themselves.
    director_webs: Vec<Proc>,
}

impl Builder {
    /// How many web servers; one by default. Two networks take turns.
    pub fn servers(self, servers: u8) -> Self {
        Builder { servers, ..self }
    }

    /// How many clients; one by default.
    pub fn clients(self, clients: u8) -> Self {
        Builder { clients, ..self }
    }

    /// So many hosts that serve and pass on, for placement `every-host`: there is no director, a
    /// service address for each host ([`Farm::own_vip`]), and nothing on the hosts but their web
    /// server; the product does the rest. With several [networks](Builder::server_lans) they are
    /// behind the router to one another.
    pub fn every_host(self, hosts: u8) -> Self {
        Builder { servers: hosts, vips: hosts, directors: 0, bare: true, ..self }
    }

    /// Servers are behind the director, which is their router: [`Shape::Routed`], for `nat`. The
    /// service addresses are the director's alone.
    pub fn routed(self) -> Self {
        Builder { shape: Shape::Routed, bare: true, ..self }
    }

    /// Servers are on other networks than the directors: [`Shape::Remote`], for `tunnel`.
    pub fn remote(self) -> Self {
        Builder { shape: Shape::Remote, ..self }
    }

    /// Servers have nothing but their web server: no service addresses, and no settings for them.
    /// For agents, which see to that themselves, and for `nat`, which wants none.
    pub fn bare(self) -> Self {
        Builder { bare: true, ..self }
    }

    /// How many directors; one by default. See [`Shape`] for where they are.
    pub fn directors(self, directors: u8) -> Self {
        Builder { directors, ..self }
    }

    /// How many networks the servers are on; one by default.
    pub fn server_lans(self, server_lans: u8) -> Self {
        Builder { server_lans, ..self }
    }

    /// How many service addresses every server has; one by default. With [`Builder::answering`],
    /// the router's routes to them go to the directors in turn.
    pub fn vips(self, vips: u8) -> Self {
        Builder { vips, ..self }
    }

    /// Servers answer ARP for the service addresses, and the router has a route: for `discover =
    /// "arp"`.
    pub fn answering(self) -> Self {
        Builder { arp: Arp::Answering, ..self }
    }

    /// Servers are silent for the service addresses, and directors announce them. The default.
    pub fn silent(self) -> Self {
        Builder { arp: Arp::Silent, ..self }
    }

    /// Directors have the service addresses and a web server too, and serve themselves (LSMAC,
    /// section 4.2.4).
    pub fn director_serves(self) -> Self {
        Builder { director_serves: true, ..self }
    }

    /// Leaves checksums and segmentation to the receiver wherever no director sees the packets.
    ///
    /// By default every packet is on the wire as a network card would put it there: with its
    /// checksum, and within the MTU. That is what directors and packet sockets must see, but it
    /// makes large replies, which go past the director, dearer than any network card would. For
    /// benchmarks.
    pub fn offload_replies(self) -> Self {
        Builder { offload: Offload::Replies, ..self }
    }

    /// Leaves checksums and segmentation to the receiver everywhere, directors included: packets of
    /// up to 64 KB without a checksum, as virtual machines and containers on one host send them.
    pub fn offload_all(self) -> Self {
        Builder { offload: Offload::All, ..self }
    }

    /// Builds the farm, and starts nginx on its servers. Needs root.
    pub fn build(self) -> Result<Farm> {
        self.check()?;
        if !nix::unistd::geteuid().is_root() {
            bail!("Network namespaces need root: run this as root, or with sudo");
        }
        let prefix = owner::next_prefix()?;
        let files = owner::directory().join(format!("{prefix}files"));
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

    /// The networks that servers are on.
    fn servers_lans(&self) -> impl Iterator<Item = Lan> + use<> {
        let first = u8::from(self.shape != Shape::Lan);
        (first..first + self.server_lans).map(Lan::Servers)
    }

    /// All networks but the clients', the one with the service addresses first.
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
    /// One server, one client, one director, servers silent; change what shall be otherwise.
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

    /// The router between clients and servers.
    pub fn router(&self) -> &Host {
        &self.router
    }

    /// The first director.
    pub fn director(&self) -> &Host {
        &self.directors[0]
    }

    /// All directors.
    pub fn directors(&self) -> &[Host] {
        &self.directors
    }

    /// A web server, counted from 0; number 0 is called `web1`.
    pub fn server(&self, number: usize) -> &Host {
        &self.servers[number]
    }

    /// All web servers.
    pub fn servers(&self) -> &[Host] {
        &self.servers
    }

    /// A client, counted from 0; number 0 is called `client1`.
    pub fn client(&self, number: usize) -> &Host {
        &self.clients[number]
    }

    /// All clients.
    pub fn clients(&self) -> &[Host] {
        &self.clients
    }

    /// The switch: its ports carry the names of `Interface::port`.
    pub fn switch(&self) -> &Netns {
        &self.switch
    }

    /// An IPv4 service address, counted from 0.
    pub fn vip(&self, number: u8) -> Ipv4Addr {
        Lan::Servers(0).address(lan::number::vip(number))
    }

    /// A service address of either family, counted from 0.
    pub fn vip_in(&self, family: Family, number: u8) -> IpAddr {
        lan::vip(family, number)
    }

    /// The service address that a server owns where every host does, counted as servers are: in the
    /// server's own network, so that it can answer for it there.
    pub fn own_vip(&self, family: Family, server: usize) -> IpAddr {
        let lan = Lan::of(self.servers[server].address());
        lan.address_in(family, lan::number::vip(u8::try_from(server).unwrap_or(u8::MAX)))
    }

    /// The web service at each host's [own](Farm::own_vip) address.
    pub fn own_services(&self, family: Family) -> Vec<SocketAddr> {
        (0..self.servers.len()).map(|server| (self.own_vip(family, server), WEB_PORT).into()).collect()
    }

    /// The web service at the first service address.
    pub fn service(&self) -> SocketAddr {
        self.service_in(Family::V4)
    }

    /// The same of either family.
    pub fn service_in(&self, family: Family) -> SocketAddr {
        (self.vip_in(family, 0), WEB_PORT).into()
    }

    /// The servers themselves, for clients that go straight to them.
    pub fn straight(&self) -> Vec<SocketAddr> {
        self.straight_in(Family::V4)
    }

    /// The same of either family.
    pub fn straight_in(&self, family: Family) -> Vec<SocketAddr> {
        self.servers.iter().map(|host| (host.address_in(family), WEB_PORT).into()).collect()
    }

    /// The MAC address of a client's or a server's next hop to everywhere else.
    pub fn gateway_of(&self, host: &Host) -> &str {
        let lan = Lan::of(host.address());
        let behind_director = self.spec.shape == Shape::Routed && lan != Lan::Clients;
        let gateway = if behind_director { self.director() } else { &self.router };
        let here = gateway.interfaces().iter().find(|interface| Lan::of(interface.address) == lan);
        here.map_or("", |interface| &interface.mac)
    }

    /// The clients' network, in the notation of routes.
    pub fn client_prefix(&self, family: Family) -> String {
        Lan::Clients.prefix(family)
    }

    /// Where directors and servers are.
    pub fn shape(&self) -> Shape {
        self.spec.shape
    }

    /// Makes the way to the clients take packets of so many bytes at most, as if there were a
    /// narrow link somewhere behind the router: who sends longer ones is told by the router (RFC
    /// 1191, RFC 8201).
    pub fn narrow_to_clients(&self, mtu: u16) -> Result<()> {
        self.narrow([Lan::Clients].into_iter(), mtu)
    }

    /// The same for the ways from the router to the networks of directors and servers.
    pub fn narrow_to_servers(&self, mtu: u16) -> Result<()> {
        self.narrow(self.spec.router_lans().into_iter().skip(1), mtu)
    }

    /// A narrow link between the directors and [remote](Shape::Remote) servers, on the way there.
    pub fn narrow_behind_directors(&self, mtu: u16) -> Result<()> {
        self.narrow(self.spec.router_lans().into_iter().skip(2), mtu)
    }

    fn narrow(&self, lans: impl Iterator<Item = Lan>, mtu: u16) -> Result<()> {
        let places = self.spec.router_lans();
        let lines = lans.flat_map(|lan| {
            let interface = places.iter().position(|place| *place == lan).unwrap_or_default();
            let (v4, v6) = (lan.prefix(Family::V4), lan.prefix(Family::V6));
            // on the very route that the kernel made for the interface's address
            [
                format!("route replace {v4} dev eth{interface} mtu lock {mtu}"),
                format!("route replace {v6} dev eth{interface} metric 256 mtu {mtu}"),
            ]
        });
        self.router.ip(&lines.collect::<Vec<_>>())
    }

    /// The hosts that answer ARP for the service addresses.
    pub fn arp(&self) -> Arp {
        self.spec.arp
    }

    /// Adds a web server while the farm runs; the new server.
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

    /// Starts a server's nginx, and waits until it listens.
    pub fn start_web(&mut self, number: usize) -> Result<()> {
        let host = &self.servers[number];
        let mut nginx = web::start(host)?;
        web::wait_until_listening(host, &mut nginx)?;
        self.webs[number] = Some(nginx);
        Ok(())
    }

    /// Ends a server's nginx at once, as a crash would.
    pub fn stop_web(&mut self, number: usize) -> Result<()> {
        self.webs[number].take().map_or(Ok(()), |mut web| web.kill9())
    }

    /// Makes a server's `/healthz` answer 200 or 503; everything else is served all the same.
    pub fn set_healthy(&self, number: usize, healthy: bool) -> Result<()> {
        web::set_healthy(&self.servers[number], healthy)
    }
}

impl Drop for Farm {
    fn drop(&mut self) {
        self.webs.clear();
        self.director_webs.clear();
        owner::reap(&self.prefix);
    }
}
