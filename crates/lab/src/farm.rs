//! A farm: clients, a router, a switch, directors and web servers, each a network namespace.
//!
//! ```text
//!  client1 .. ─── clients ─── router ─┬─ lan0 ─── web1, web3 ..
//!                                     │    └───── director1 ..
//!                                     └─ lan1 ─── web2, web4 ..    (and the directors)
//! ```
//!
//! The networks are bridges in one namespace, the switch. Servers have a default route through the
//! router, so that their replies bypass the director.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::host::{Host, Interface};
use crate::lan::{self, Lan};
use crate::netns::{Netns, ip_batch};
use crate::owner;
use crate::proc::Proc;
use crate::web;

/// The port that the web servers listen on.
pub const WEB_PORT: u16 = 80;
/// Directors, servers in a network, and service addresses have this much room for their numbers.
const HOSTS_MAX: u8 = 80;
const DIRECTORS_MAX: u8 = 8;

/// Who answers ARP for the service addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arp {
    /// The servers do, and the router has a route to the director: LSMAC's own set-up (section 3.1).
    Answering,
    /// The servers keep silent, and the director answers in their stead.
    Silent,
}

/// What a farm shall be; see [`Farm::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    servers: u8,
    clients: u8,
    directors: u8,
    server_lans: u8,
    vips: u8,
    arp: Arp,
    director_serves: bool,
    offload_replies: bool,
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

    /// How many directors, each on all networks that servers are on; one by default.
    pub fn directors(self, directors: u8) -> Self {
        Builder { directors, ..self }
    }

    /// How many networks the servers are on; one by default.
    pub fn server_lans(self, server_lans: u8) -> Self {
        Builder { server_lans, ..self }
    }

    /// How many service addresses every server has; one by default. With [`Builder::answering`], the
    /// router's routes to them go to the directors in turn.
    pub fn vips(self, vips: u8) -> Self {
        Builder { vips, ..self }
    }

    /// Servers answer ARP for the service addresses, and the router has a route: for `discover = "arp"`.
    pub fn answering(self) -> Self {
        Builder { arp: Arp::Answering, ..self }
    }

    /// Servers are silent for the service addresses, and directors announce them. The default.
    pub fn silent(self) -> Self {
        Builder { arp: Arp::Silent, ..self }
    }

    /// Directors have the service addresses and a web server too, and serve themselves (LSMAC, section 4.2.4).
    pub fn director_serves(self) -> Self {
        Builder { director_serves: true, ..self }
    }

    /// Leaves checksums and segmentation to the receiver wherever no director sees the packets.
    ///
    /// By default every packet is on the wire as a network card would put it there: with its checksum,
    /// and within the MTU. That is what directors and packet sockets must see, but it makes large
    /// replies, which go past the director, dearer than any network card would. For benchmarks.
    pub fn offload_replies(self) -> Self {
        Builder { offload_replies: true, ..self }
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

    fn lans(&self) -> impl Iterator<Item = Lan> + use<> {
        (0..self.server_lans).map(Lan::Servers)
    }
}

impl Farm {
    /// One server, one client, one director, servers silent; change what shall be otherwise.
    pub fn builder() -> Builder {
        Builder {
            servers: 1,
            clients: 1,
            directors: 1,
            server_lans: 1,
            vips: 1,
            arp: Arp::Silent,
            director_serves: false,
            offload_replies: false,
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

    /// The switch: its ports carry the names of [`Interface::port`].
    pub fn switch(&self) -> &Netns {
        &self.switch
    }

    /// A service address, counted from 0.
    pub fn vip(&self, number: u8) -> Ipv4Addr {
        lan::vip(number)
    }

    /// The web service at the first service address.
    pub fn service(&self) -> SocketAddr {
        (self.vip(0), WEB_PORT).into()
    }

    /// The servers themselves, for clients that go straight to them.
    pub fn straight(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|host| (host.address(), WEB_PORT).into()).collect()
    }

    /// Who answers ARP for the service addresses.
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

/// How a farm comes to be.
impl Farm {
    /// The farm as it will be; nothing of it exists yet.
    fn planned(spec: Builder, prefix: String, files: PathBuf) -> Farm {
        let switch = Netns::new(format!("{prefix}switch"));
        let host =
            |name: String, cables: Vec<(Lan, Ipv4Addr)>| planned_host(&prefix, &files, &switch, name, cables);
        let to_servers = |address: fn(Lan, u8) -> Ipv4Addr, number| {
            spec.lans().map(|lan| (lan, address(lan, number))).collect::<Vec<_>>()
        };
        let mut router_cables = vec![(Lan::Clients, Lan::Clients.router())];
        router_cables.extend(to_servers(|lan, _| lan.router(), 0));
        let router = host("router".to_owned(), router_cables);
        let directors = (0..spec.directors)
            .map(|number| host(format!("director{}", number + 1), to_servers(Lan::director, number)))
            .collect();
        let clients = (0..spec.clients)
            .map(|number| {
                host(format!("client{}", number + 1), vec![(Lan::Clients, Lan::Clients.host(number))])
            })
            .collect();
        let mut farm = Farm {
            spec,
            prefix,
            files,
            switch,
            router,
            directors,
            servers: Vec::new(),
            clients,
            webs: Vec::new(),
            director_webs: Vec::new(),
        };
        farm.servers = (0..farm.spec.servers).map(|number| farm.planned_server(number)).collect();
        farm
    }

    fn planned_server(&self, number: u8) -> Host {
        let lan = Lan::Servers(number % self.spec.server_lans);
        let cables = vec![(lan, lan.host(number))];
        planned_host(&self.prefix, &self.files, &self.switch, format!("web{}", number + 1), cables)
    }

    fn raise(&mut self) -> Result<()> {
        ip_batch(&[], &[format!("netns add {}", self.switch.name())])?;
        self.switch.sysctl(&[("ipv6/conf/default/disable_ipv6", "1")])?;
        let bridges = self.spec.lans().chain([Lan::Clients]).map(Lan::bridge).flat_map(|bridge| {
            [
                format!("link add {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"),
                format!("link set {bridge} up"),
            ]
        });
        self.switch.ip(&bridges.collect::<Vec<_>>())?;
        let mut hosts = vec![self.router.clone()];
        hosts.extend_from_slice(&self.directors);
        hosts.extend_from_slice(&self.servers);
        hosts.extend_from_slice(&self.clients);
        self.connect(&hosts)?;
        self.configure_router()?;
        self.directors.iter().try_for_each(|host| self.configure_director(host))?;
        self.servers.iter().try_for_each(|host| self.configure_server(host))?;
        self.clients.iter().try_for_each(|host| self.configure_client(host))?;
        web::write_pages(&self.files)?;
        for host in &self.servers {
            self.webs.push(Some(web::start(host)?));
        }
        if self.spec.director_serves {
            for host in &self.directors {
                let mut nginx = web::start(host)?;
                web::wait_until_listening(host, &mut nginx)?;
                self.director_webs.push(nginx);
            }
        }
        // all start together, then all are waited for
        let webs = self.webs.iter_mut().flatten();
        self.servers.iter().zip(webs).try_for_each(|(host, nginx)| web::wait_until_listening(host, nginx))
    }

    /// Makes namespaces and cables, and gives hosts their addresses.
    fn connect(&self, hosts: &[Host]) -> Result<()> {
        let mut lines: Vec<String> =
            hosts.iter().map(|host| format!("netns add {}", host.netns.name())).collect();
        let mut ports = Vec::new();
        for host in hosts {
            for interface in &host.interfaces {
                let Interface { name, mac, port, address } = interface;
                let (inside, switch) = (host.netns.name(), self.switch.name());
                lines.push(format!(
                    "link add {name} address {mac} netns {inside} type veth peer name {port} netns {switch}"
                ));
                ports.push(format!("link set {port} master {} up", self.bridge_of(*address)));
            }
        }
        ip_batch(&[], &lines)?;
        self.switch.ip(&ports)?;
        hosts.iter().try_for_each(|host| {
            // the farm is IPv4's; and replies take another way than requests, which strict filters refuse
            host.netns.sysctl(&[
                ("ipv6/conf/all/disable_ipv6", "1"),
                ("ipv4/conf/all/rp_filter", "0"),
                ("ipv4/conf/default/rp_filter", "0"),
            ])?;
            let mut lines = vec!["link set lo up".to_owned()];
            for Interface { name, address, .. } in &host.interfaces {
                lines.push(format!("addr add {address}/24 dev {name}"));
                lines.push(format!("link set {name} up"));
            }
            host.ip(&lines)
        })
    }

    fn bridge_of(&self, address: Ipv4Addr) -> String {
        let same_network = |lan: &Lan| lan.router().octets()[..3] == address.octets()[..3];
        self.spec.lans().find(same_network).unwrap_or(Lan::Clients).bridge()
    }

    fn configure_router(&self) -> Result<()> {
        self.router.netns.sysctl(&[("ipv4/ip_forward", "1"), ("ipv4/conf/all/send_redirects", "0")])?;
        if self.spec.arp == Arp::Answering && !self.directors.is_empty() {
            let directors = self.directors.iter().cycle();
            let routes = self
                .vips()
                .zip(directors)
                .map(|(vip, via)| format!("route add {vip}/32 via {}", via.address()));
            self.router.ip(&routes.collect::<Vec<_>>())?;
        }
        // what goes to the clients never meets a director
        let (to_clients, to_servers) = self.router.interfaces.split_at(1);
        if !self.spec.offload_replies {
            real_packets(&self.router, to_clients)?;
        }
        real_packets(&self.router, to_servers)
    }

    fn configure_director(&self, host: &Host) -> Result<()> {
        let mut lines = vec![format!("route add default via {}", Lan::Servers(0).router())];
        if self.spec.director_serves {
            self.silence(host)?;
            lines.extend(self.vips().map(|vip| format!("addr add {vip}/32 dev lo")));
        }
        host.ip(&lines)?;
        self.real_packets_unless_offloaded(host)
    }

    fn configure_server(&self, host: &Host) -> Result<()> {
        self.silence(host)?;
        let [a, b, c, _] = host.address().octets();
        let mut lines = vec![format!("route add default via {a}.{b}.{c}.1")];
        lines.extend(self.vips().map(|vip| format!("addr add {vip}/32 dev lo")));
        host.ip(&lines)?;
        self.real_packets_unless_offloaded(host)
    }

    fn configure_client(&self, host: &Host) -> Result<()> {
        // room for many short connections to one address
        host.netns.sysctl(&[("ipv4/ip_local_port_range", "1024 65535")])?;
        host.ip(&[format!("route add default via {}", Lan::Clients.router())])?;
        real_packets(host, &host.interfaces)
    }

    /// Keeps a host that has the service addresses from answering ARP for them, where that is the set-up.
    fn silence(&self, host: &Host) -> Result<()> {
        match self.spec.arp {
            Arp::Answering => Ok(()),
            Arp::Silent => {
                host.netns.sysctl(&[("ipv4/conf/all/arp_ignore", "1"), ("ipv4/conf/all/arp_announce", "2")])
            }
        }
    }

    fn real_packets_unless_offloaded(&self, host: &Host) -> Result<()> {
        if self.spec.offload_replies { Ok(()) } else { real_packets(host, &host.interfaces) }
    }

    fn vips(&self) -> impl Iterator<Item = Ipv4Addr> + use<> {
        (0..self.spec.vips).map(lan::vip)
    }
}

fn planned_host(
    prefix: &str,
    files: &std::path::Path,
    switch: &Netns,
    name: String,
    cables: Vec<(Lan, Ipv4Addr)>,
) -> Host {
    let interface = |(number, (_, address)): (usize, (Lan, Ipv4Addr))| Interface {
        name: format!("eth{number}"),
        address,
        mac: lan::mac(address),
        port: format!("{name}-{number}"),
    };
    let interfaces = cables.into_iter().enumerate().map(interface).collect();
    let netns = Netns::new(format!("{prefix}{name}"));
    Host { name, netns, interfaces, switch: switch.clone(), files: files.to_owned() }
}

/// Has a host send packets as a network card puts them on the wire: with checksums, and within the MTU.
/// Over veth they would else be left to the receiver, who is a director that must not count on that.
fn real_packets(host: &Host, interfaces: &[Interface]) -> Result<()> {
    interfaces
        .iter()
        .try_for_each(|interface| host.run(&["ethtool", "-K", &interface.name, "tx", "off"]).map(|_| ()))
}
