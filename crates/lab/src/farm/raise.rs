//! Construction of a farm.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Arp, Builder, Farm, Offload, Shape};
use crate::network::family::Family;
use crate::network::host::{Host, Interface};
use crate::network::lan::{self, Lan, number};
use crate::network::netns::{Netns, ip_batch};
use crate::servers::nginx;

/// Settings of every host. Replies take another path than requests, so strict reverse path filters
/// are off. IPv6 addresses are only the configured ones, and usable at once.
const SETTINGS: [(&str, &str); 6] = [
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/autoconf", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/dad_transmits", "0"),
];

const FORWARDING: [(&str, &str); 3] =
    [("ipv4/ip_forward", "1"), ("ipv4/conf/all/send_redirects", "0"), ("ipv6/conf/all/forwarding", "1")];

impl Farm {
    /// Returns the description of the farm; nothing exists yet.
    pub(super) fn planned(spec: Builder, prefix: String, files: PathBuf) -> Farm {
        let switch = Netns::new(format!("{prefix}switch"));
        let host = |name: String, number: u8, lans: &[Lan]| {
            planned_host(&prefix, &files, &switch, name, number, lans)
        };
        let router = host("router".to_owned(), number::ROUTER, &spec.router_lans());
        let director_lans = spec.director_lans();
        let directors = (0..spec.directors)
            .map(|place| host(format!("director{}", place + 1), number::director(place), &director_lans))
            .collect();
        let clients = (0..spec.clients)
            .map(|place| host(format!("client{}", place + 1), number::host(place), &[Lan::Clients]))
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

    pub(super) fn planned_server(&self, place: u8) -> Host {
        let lans: Vec<Lan> = self.spec.servers_lans().collect();
        let lan = lans[usize::from(place) % lans.len()];
        let name = format!("web{}", place + 1);
        planned_host(&self.prefix, &self.files, &self.switch, name, number::host(place), &[lan])
    }

    pub(super) fn raise(&mut self) -> Result<()> {
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
        nginx::write_pages(&self.files)?;
        for host in &self.servers {
            self.webs.push(Some(nginx::start(host)?));
        }
        if self.spec.director_serves {
            for host in &self.directors {
                let mut nginx = nginx::start(host)?;
                nginx::wait_until_listening(host, &mut nginx)?;
                self.director_webs.push(nginx);
            }
        }
        // all start in parallel, then all are awaited
        let webs = self.webs.iter_mut().flatten();
        self.servers.iter().zip(webs).try_for_each(|(host, nginx)| nginx::wait_until_listening(host, nginx))
    }

    /// Creates namespaces and links, and configures the hosts' addresses.
    pub(super) fn connect(&self, hosts: &[Host]) -> Result<()> {
        let namespaces: Vec<String> =
            hosts.iter().map(|host| format!("netns add {}", host.netns.name())).collect();
        ip_batch(&[], &namespaces)?;
        hosts.iter().try_for_each(|host| host.netns.sysctl(&SETTINGS))?;
        let mut cables = Vec::new();
        let mut ports = Vec::new();
        for host in hosts {
            for interface in &host.interfaces {
                let Interface { name, mac, port, address, .. } = interface;
                ports.push(format!("link set {port} master {} up", Lan::of(*address).bridge()));
                if self.spec.cards && self.directors.iter().any(|director| director.name == host.name) {
                    self.plug_cards(host, interface)?;
                    continue;
                }
                let (inside, switch) = (host.netns.name(), self.switch.name());
                cables.push(format!(
                    "link add {name} address {mac} netns {inside} type veth peer name {port} netns {switch}"
                ));
            }
        }
        ip_batch(&[], &cables)?;
        self.switch.ip(&ports)?;
        hosts.iter().try_for_each(|host| {
            let mut lines = vec!["link set lo up".to_owned()];
            for Interface { name, address, address6, .. } in &host.interfaces {
                lines.push(format!("addr add {address}/24 dev {name}"));
                lines.push(format!("addr add {address6}/64 dev {name} nodad"));
                lines.push(format!("link set {name} up"));
            }
            host.ip(&lines)
        })
    }

    fn configure_router(&self) -> Result<()> {
        self.router.netns.sysctl(&FORWARDING)?;
        let mut routes = Vec::new();
        if self.spec.arp == Arp::Answering && !self.directors.is_empty() {
            let vips = Family::BOTH.map(|family| self.vips(family).zip(self.directors.iter().cycle()));
            routes.extend(vips.into_iter().flatten().map(|(vip, via)| {
                format!("route add {} via {}", alone(vip), via.address_in(Family::of(vip)))
            }));
        }
        if let (Shape::Routed, Some(director)) = (self.spec.shape, self.directors.first()) {
            for family in Family::BOTH {
                let via = director.address_in(family);
                routes.extend(
                    self.spec.servers_lans().map(|lan| format!("route add {} via {via}", lan.prefix(family))),
                );
            }
        }
        self.router.ip(&routes)?;
        // packets to clients never pass a director
        let (to_clients, to_servers) = self.router.interfaces.split_at(1);
        if self.spec.offload == Offload::None {
            real_packets(&self.router, to_clients)?;
        }
        self.real_packets_unless(&self.router, to_servers, &[Offload::All])
    }

    fn configure_director(&self, host: &Host) -> Result<()> {
        let mut lines = default_routes(Lan::Servers(0), number::ROUTER).to_vec();
        if self.spec.director_serves {
            self.silence(host)?;
            lines.extend(self.service_addresses("lo"));
        }
        host.ip(&lines)?;
        self.real_packets_unless(host, &host.interfaces, &[Offload::Replies, Offload::All])
    }

    pub(super) fn configure_server(&self, host: &Host) -> Result<()> {
        let gateway = if self.spec.shape == Shape::Routed { number::director(0) } else { number::ROUTER };
        let mut lines = default_routes(Lan::of(host.address()), gateway).to_vec();
        if !self.spec.bare {
            self.silence(host)?;
            lines.extend(self.service_addresses(if self.spec.arp == Arp::Silent { "lo" } else { "eth0" }));
        }
        host.ip(&lines)?;
        self.real_packets_unless(host, &host.interfaces, &[Offload::Replies, Offload::All])
    }

    fn configure_client(&self, host: &Host) -> Result<()> {
        // ports for many short connections to one address
        host.netns.sysctl(&[("ipv4/ip_local_port_range", "1024 65535")])?;
        host.ip(&default_routes(Lan::Clients, number::ROUTER))?;
        self.real_packets_unless(host, &host.interfaces, &[Offload::All])
    }

    /// Sets the MTU of all links of the farm, for instance for jumbo frames.
    pub fn widen(&self, mtu: u16) -> Result<()> {
        let hosts = self.servers.iter().chain(&self.directors).chain(&self.clients).chain([&self.router]);
        let mut ports = Vec::new();
        for host in hosts {
            let interfaces = host.interfaces.iter();
            ports
                .extend(interfaces.clone().map(|interface| format!("link set {} mtu {mtu}", interface.port)));
            host.ip(&interfaces
                .map(|interface| format!("link set {} mtu {mtu}", interface.name))
                .collect::<Vec<_>>())?;
        }
        let bridges =
            self.spec.lans().chain([Lan::Clients]).map(|lan| format!("link set {} mtu {mtu}", lan.bridge()));
        ports.extend(bridges);
        self.switch.ip(&ports)
    }

    /// Adds a second interface, `eth1`, to a server on the same network. Replies leave through it,
    /// while requests arrive on the first. Its address is the source of its ARP requests.
    pub fn answer_by_second_cable(&self, host: &Host) -> Result<()> {
        let lan = Lan::of(host.address());
        let port = format!("{}-1", host.name());
        host.ip(&[
            format!("link add eth1 type veth peer name {port} netns {}", self.switch.name()),
            "link set eth1 up".to_owned(),
            format!("addr add {}/32 dev eth1", lan.address(number::SECOND_LINK)),
            format!("route replace default via {} dev eth1 onlink", lan.address(number::ROUTER)),
        ])?;
        self.switch.ip(&[format!("link set {port} master {} up", lan.bridge())])?;
        host.run(&["ethtool", "-K", "eth1", "tx", "off"]).map(drop)
    }

    /// Makes directors forward packets for no service, as the router of servers behind them.
    pub fn forward_on_directors(&self) -> Result<()> {
        self.directors.iter().try_for_each(|host| host.netns.sysctl(&FORWARDING))
    }

    /// Stops a host with the service addresses from answering ARP for them, unless the farm wants
    /// answers. For IPv6 nothing is needed: neighbour discovery never answers for addresses of
    /// another interface.
    fn silence(&self, host: &Host) -> Result<()> {
        match self.spec.arp {
            Arp::Answering => Ok(()),
            Arp::Silent => {
                host.netns.sysctl(&[("ipv4/conf/all/arp_ignore", "1"), ("ipv4/conf/all/arp_announce", "2")])
            }
        }
    }

    /// Returns commands that add the service addresses to a host. IPv6 addresses that the host must
    /// answer for are on the receiving interface. They are deprecated, so the host never selects
    /// them as a source (RFC 6724, rule 3).
    fn service_addresses(&self, interface6: &'static str) -> impl Iterator<Item = String> {
        let v4 = self.vips(Family::V4).map(|vip| format!("addr add {vip}/32 dev lo"));
        let v6 = self
            .vips(Family::V6)
            .map(move |vip| format!("addr add {vip}/128 dev {interface6} nodad preferred_lft 0"));
        v4.chain(v6)
    }

    fn real_packets_unless(&self, host: &Host, interfaces: &[Interface], offload: &[Offload]) -> Result<()> {
        if offload.contains(&self.spec.offload) { Ok(()) } else { real_packets(host, interfaces) }
    }

    fn vips(&self, family: Family) -> impl Iterator<Item = IpAddr> + use<> {
        (0..self.spec.vips).map(move |number| lan::vip(family, number))
    }
}

/// Returns the address as a host route.
fn alone(address: IpAddr) -> String {
    format!("{address}/{}", Family::of(address).bits())
}

fn default_routes(lan: Lan, gateway: u8) -> [String; 2] {
    Family::BOTH.map(|family| {
        let any = if family == Family::V4 { "0.0.0.0/0" } else { "::/0" };
        format!("route add {any} via {}", lan.address_in(family, gateway))
    })
}

fn planned_host(prefix: &str, files: &Path, switch: &Netns, name: String, number: u8, lans: &[Lan]) -> Host {
    let interface = |(place, lan): (usize, &Lan)| Interface {
        name: format!("eth{place}"),
        address: lan.address(number),
        address6: lan.address6(number),
        mac: lan::mac(lan.address(number)),
        port: format!("{name}-{place}"),
    };
    let interfaces = lans.iter().enumerate().map(interface).collect();
    let netns = Netns::new(format!("{prefix}{name}"));
    Host { name, netns, interfaces, switch: switch.clone(), files: files.to_owned() }
}

/// Makes a host send packets as on a physical network: with checksums, and within the MTU. By
/// default veth leaves both to the receiver, which a director must not depend on.
fn real_packets(host: &Host, interfaces: &[Interface]) -> Result<()> {
    let lines = interfaces.iter().map(|interface| format!("ethtool -K {} tx off\n", interface.name));
    host.run(&["sh", "-ec", &lines.collect::<String>()]).map(drop)
}
