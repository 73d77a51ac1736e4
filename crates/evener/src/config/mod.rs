//! Configuration: parses TOML into a validated [`Config`], or reports all problems.
//!
//! [`parse`] is pure and never panics. The file is validated here once, and nowhere else.

mod addresses;
mod admin;
mod affinity;
mod agent;
mod announce;
mod defaults;
mod dispatcher;
mod dns;
mod group;
mod health;
mod include;
mod keys;
mod load;
mod member;
mod method;
mod once;
mod path_probes;
mod patterns;
mod period;
mod placement;
mod problems;
mod references;
mod report;
mod route;
mod section;
mod server;
mod service;
mod syntax;
mod unwritten;
mod values;
mod variables;
mod zone;
mod zone_data;
mod zone_text;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

pub use evener_core::farm::PeerOptions;
use evener_core::farm::{self, Announce, REDIRECT, Service};
use evener_core::net::Protocol;
use toml::Spanned;

pub use admin::{AdminConfig, AdminTls, ClientCertificates};
pub use agent::{AgentConfig, AgentListen, DelayKind};
pub use announce::{AnnounceConfig, WhenDrained};
pub(crate) use defaults::{FARM_ROUTES, LOAD_PORT, ROUTES, SERVERS, VIPS};
pub use dns::{DnsConfig, NameConfig, NamesText, ZoneConfig};
use dns::{NamesFile, ServiceReference};
use group::PlacedGroup;
pub use group::{GroupService, Tls};
use include::SourceText;
pub use keys::schema;
use keys::tables::{file, log};
pub(crate) use keys::{affinity_limits_ms, idle_limits_ms, interval_limits_ms};
pub use load::{Checked, LoadedConfig, Sources, check, load, load_tables, parse};
pub(crate) use load::{load_again, parse_changed};
pub use member::MemberConfig;
use once::FirstSeen;
use problems::{Problem, Span};
pub use problems::{ProblemReport, Problems};
use references::References;
use section::Section;
use service::ServiceEntry;
use unwritten::DefaultedPolicies;
pub(crate) use zone::{ZoneError, zones};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub engine: EngineConfig,
    pub admin: AdminConfig,
    pub log: LogConfig,
    pub agent: AgentConfig,
    pub farm: FarmConfig,
    pub announce: AnnounceConfig,
    /// Services whose packets are forwarded. Their names and addresses are unique.
    pub services: Vec<Service>,
    /// Services that redirect clients by HTTP. Their names and addresses are unique, too. The file
    /// has at least one service of either kind, or a zone.
    pub groups: Vec<GroupService>,
    pub dns: DnsConfig,
}

impl Config {
    /// Returns the services with placement every-host.
    pub fn every_host(&self) -> impl Iterator<Item = &Service> + Clone {
        self.services.iter().filter(|service| service.is_on_every_host())
    }

    /// Returns a warning if several directors choose differently because they share no secret.
    pub fn unlike_directors(&self) -> Option<String> {
        let is_alone = self.farm.directors.len() < 2 || self.farm.secret_file.is_some();
        (!is_alone && self.takes_packets()).then(|| {
            "[farm] `directors` lists several, and there is no `secret_file`: each chooses servers by a key of its own, so \
             connections break where another one gets their packets; `evener keygen FILE` makes a secret for all of them"
                .to_owned()
        })
    }

    /// Returns a warning for each service whose replies don't return to the director that has the
    /// session.
    pub fn misrouted_replies(&self) -> impl Iterator<Item = String> {
        let is_misrouted = |service: &&Service| {
            service.announce == Announce::Route && service.method.translates() && !service.source_nat
        };
        let several = self.farm.directors.len() > 1;
        self.services.iter().filter(is_misrouted).filter(move |_| several).map(|service| {
            format!(
                "{:?} has method \"nat\" and several directors by routes, and its servers' gateway is one of them, so \
                 replies to another one's connections are lost; add source_nat = true",
                service.name
            )
        })
    }

    /// Returns a note for each service whose connections end with their director.
    pub fn bound_connections(&self) -> impl Iterator<Item = String> {
        let several = self.farm.directors.len() > 1;
        self.services.iter().filter(move |service| several && service.source_nat).map(|service| {
            format!(
                "{:?} has source_nat, so its connections end with their director: replies come to ports of its \
                 address; those of \"l2\", \"tunnel\" and \"nat\" without it go on at another one",
                service.name
            )
        })
    }

    /// Returns the farm's description for a director.
    pub fn description(&self) -> farm::Farm {
        farm::Farm {
            interfaces: self.engine.interfaces.clone(),
            directors: self.farm.directors.clone(),
            peers: self.farm.peers,
            services: self.services.clone(),
            groups: self.groups.iter().map(|service| Arc::clone(&service.group)).collect(),
            names: self.dns.names.iter().map(|name| Arc::clone(&name.name)).collect(),
        }
    }

    /// Changes the weight of a listed server, on which no rule of the file depends. Returns `false`
    /// if the service lists no such server.
    pub(crate) fn set_weight(&mut self, service: &str, server: &str, weight: u16) -> bool {
        let services = self.services.iter_mut().filter(|known| known.name == service);
        let mut servers = services.flat_map(|known| &mut known.servers);
        if let Some(known) = servers.find(|known| known.name == server) {
            known.weight = weight;
            return true;
        }
        let mut groups = self.groups.iter_mut().map(|known| &mut known.group);
        let Some(group) = groups.find(|group| group.name == service) else { return false };
        let member = Arc::make_mut(group).members.iter_mut().find(|member| member.name == server);
        member.map(|member| member.weight = weight).is_some()
    }

    /// True if there is anything to serve. The file of a host that is only a member of another
    /// director's group has nothing to serve.
    pub fn has_services(&self) -> bool {
        !(self.services.is_empty() && self.groups.is_empty() && self.dns.listen.is_empty())
    }

    /// True if the farm needs an engine, and so privileges.
    pub fn takes_packets(&self) -> bool {
        !self.services.is_empty()
    }

    /// Returns the services with method `handoff`.
    pub fn handed_over(&self) -> impl Iterator<Item = &Service> + Clone {
        self.services.iter().filter(|service| service.method.hands_over())
    }

    pub fn hands_over(&self) -> bool {
        self.handed_over().next().is_some()
    }

    /// Returns the servers that clients connect to directly: listed members of groups, and servers
    /// of names alone.
    pub fn members(&self) -> impl Iterator<Item = ListedMember<'_>> {
        let of_groups = self.groups.iter().flat_map(|service| &service.group.members).map(|member| {
            let (address, port) = (member.url.address(), member.url.port());
            ListedMember { name: Cow::Borrowed(&member.name), address, port }
        });
        let of_names = self.dns.own_servers().map(|server| ListedMember {
            name: server.name(),
            address: Some(server.address.ip()),
            port: server.address.port(),
        });
        of_groups.chain(of_names)
    }

    /// Returns the addresses from which servers accept tunnels: of directors, and of every-host's
    /// hosts.
    pub fn tunnel_sources(&self) -> BTreeSet<IpAddr> {
        let hosts = self.every_host().flat_map(|service| &service.servers).map(|server| server.address);
        self.farm.directors.iter().copied().chain(hosts).collect()
    }

    /// Returns all addresses of directors in the file: the sources of tunnels, and the addresses of
    /// groups and names.
    pub fn director_addresses(&self) -> BTreeSet<IpAddr> {
        let of_groups = self.groups.iter().flat_map(|service| &service.group.addresses);
        let answering = of_groups.chain(&self.dns.listen).map(|address| address.ip().to_canonical());
        self.tunnel_sources()
            .into_iter()
            .chain(answering.filter(|address| !address.is_unspecified()))
            .collect()
    }
}

/// A server that clients connect to directly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMember<'a> {
    pub name: Cow<'a, str>,
    /// Address of the server. `None` if its clients resolve a name.
    pub address: Option<IpAddr>,
    /// Port of the server.
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    pub kind: EngineKind,
    pub xdp_mode: XdpMode,
    /// Interfaces of the director. If empty, they are found from the routes to services and
    /// servers.
    pub interfaces: Vec<String>,
    /// Maximum number of sessions of IPv4 clients.
    pub sessions_max: usize,
    /// Maximum number of sessions of IPv6 clients.
    pub sessions6_max: usize,
    /// Number of threads of the `packet` engine. `None`: one per processor.
    pub threads: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// `Xdp` if it works, else `Packet`.
    Auto,
    Xdp,
    /// In user space, through AF_PACKET.
    Packet,
}

/// Attachment of the `xdp` engine to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// `Native` if the driver supports it, else `Tc` if the kernel supports it, else `Generic`.
    Auto,
    Native,
    /// After the driver, at the kernel's traffic control hook (tcx).
    Tc,
    /// In the kernel's own receive path, with any driver.
    Generic,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Log of handed-off connections and redirected requests. `None` for no log.
    pub access: Option<LogTarget>,
}

/// Destination of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    Stdout,
    /// A file, to which lines are appended.
    File(PathBuf),
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogTarget::Stdout => f.write_str("-"),
            LogTarget::File(path) => path.display().fmt(f),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarmConfig {
    /// Secret that authenticates the farm's hosts to each other, and handed-off connections.
    pub secret_file: Option<PathBuf>,
    /// Time that a client has at least between its handshake and its first data, with method
    /// `handoff`, in milliseconds.
    pub cookie_epoch_ms: u64,
    /// Time for which a director with a dead daemon counts as ready while its data plane forwards,
    /// in milliseconds.
    pub orphan_ms: u64,
    /// Own addresses of the directors. Servers accept tunnels from these addresses.
    pub directors: Vec<IpAddr>,
    /// Node that selects servers for the connections that other nodes have read. `None`: each node
    /// decides for itself.
    pub dispatcher: Option<IpAddr>,
    /// Exchange of reports between the hosts of placement `every-host`.
    pub peers: PeerOptions,
}

const ENGINE_KINDS: [(&str, EngineKind); 3] =
    [("auto", EngineKind::Auto), ("xdp", EngineKind::Xdp), ("packet", EngineKind::Packet)];
const XDP_MODES: [(&str, XdpMode); 4] = [
    ("auto", XdpMode::Auto),
    ("native", XdpMode::Native),
    ("tc", XdpMode::Tc),
    ("generic", XdpMode::Generic),
];

fn config(
    root: &Section<'_>,
    origin: SourceText<'_>,
    unwritten: &mut DefaultedPolicies,
) -> (Config, References, Vec<NamesFile>) {
    let mut refers = References::default();
    let engine = root.section(&file::ENGINE, |section| engine(section, &mut refers));
    let (mut farm, dispatcher) =
        root.section(&file::FARM, |section| (farm(section, &mut refers), dispatcher::read(section)));
    let admin = root.section(&file::ADMIN, |section| admin::read(section, &mut refers));
    let announce = root.section(&file::ANNOUNCE, |section| announce::read(section));
    let log = root.section(&file::LOG, |section| LogConfig {
        access: kept(section.get(&log::ACCESS, values::log_target), &mut refers.access_log),
    });
    let (agent, agent_listen) = root.section(&file::AGENT, |section| {
        (agent::read(section, &mut refers.member), section.key_span("listen"))
    });
    let read = root.sections(&file::SERVICE, |section| service_or_group(section, unwritten));
    if !root.has("service") && !root.has("dns") && !refers.member.names_group {
        root.missing("service",
            "there is no service",
            "add [[service]] with address = \"192.0.2.100:80\" and discover = \"arp\" or some [[service.server]]",
        );
    }
    let (placed, groups): (Vec<_>, Vec<_>) = read.into_iter().unzip();
    let placed: Vec<ServiceEntry> = placed.into_iter().flatten().collect();
    let mut groups: Vec<PlacedGroup> = groups.into_iter().flatten().collect();
    check_between_services(root, &placed, &groups);
    group::check_circles(root, &groups);
    refers.groups.extend(groups.iter_mut().map(|placed| std::mem::take(&mut placed.files)));
    placement::check(root, &farm, &placed);
    farm.dispatcher = dispatcher::find(root, dispatcher, &placed);
    route::check_capacity(root, &placed);
    let of_packets =
        placed.iter().map(|placed| ServiceReference::service(&placed.service, placed.name.clone()));
    let of_groups =
        groups.iter().map(|placed| ServiceReference::group(&placed.service.group, placed.name.clone()));
    let followed: Vec<_> = of_packets.chain(of_groups).collect();
    let (dns, files) = root.section(&file::DNS, |section| {
        refers.dns = section.span();
        refers.cookie_secret_file = section.key_span("cookie_secret_file");
        dns::read(section, &followed, origin, unwritten)
    });
    let services: Vec<Service> = placed.into_iter().map(|placed| placed.service).collect();
    let groups: Vec<GroupService> = groups.into_iter().map(|placed| placed.service).collect();
    let config = Config { engine, admin, log, agent, farm, announce, services, groups, dns };
    path_probes::check(root, &config, path_probes::ProblemSpans { dns: refers.dns.clone(), agent_listen });
    (config, refers, files)
}

/// Reads a service, or a group if its method is `redirect`. A service without a policy is recorded.
fn service_or_group(
    section: &mut Section<'_>,
    unwritten: &mut DefaultedPolicies,
) -> (Option<ServiceEntry>, Option<PlacedGroup>) {
    let is_written = section.key_span("policy").is_some();
    let read = match section.has_word("method", REDIRECT) {
        true => (None, group::read(section)),
        false => (service::read(section), None),
    };
    let service = read.0.as_ref().map(|placed| (&placed.service.name, placed.service.policy));
    let group = read.1.as_ref().map(|placed| &placed.service.group);
    let group = group.map(|group| (&group.name, group.policy.name));
    if let Some((name, policy)) = service.or(group).filter(|_| !is_written) {
        unwritten.service(name, policy);
    }
    read
}

/// Returns the value, and stores it with its position in the file for errors about missing files.
fn kept<T: Clone>(read: Option<Spanned<T>>, place: &mut Option<Spanned<T>>) -> Option<T> {
    place.clone_from(&read);
    read.map(Spanned::into_inner)
}

fn engine(section: &Section<'_>, refers: &mut References) -> EngineConfig {
    use keys::tables::engine as keys;

    let interfaces = section.list(&keys::INTERFACES, values::interface);
    let mut once = FirstSeen::new();
    for interface in &interfaces {
        let name = interface.get_ref();
        let message = format!("interface {name:?} is listed twice");
        once.first(section, name, interface.span(), message, "list it once");
    }
    refers.interfaces.clone_from(&interfaces);
    let sessions_max = section.number_or(&keys::SESSIONS_MAX);
    EngineConfig {
        kind: section.word(&keys::KIND, &ENGINE_KINDS),
        xdp_mode: section.word(&keys::XDP_MODE, &XDP_MODES),
        interfaces: interfaces.into_iter().map(Spanned::into_inner).collect(),
        sessions_max,
        sessions6_max: section
            .number(&keys::SESSIONS6_MAX)
            .map_or_else(|| defaults::sessions6_max(sessions_max), Spanned::into_inner),
        threads: section.number(&keys::THREADS).map(Spanned::into_inner),
    }
}

fn farm(section: &Section<'_>, refers: &mut References) -> FarmConfig {
    use keys::tables::farm as keys;

    let directors = section.list(&keys::DIRECTORS, addresses::director_address);
    let mut once = FirstSeen::new();
    for director in &directors {
        let message = format!("director {} is listed twice", director.get_ref());
        once.first(section, *director.get_ref(), director.span(), message, "list it once");
    }
    FarmConfig {
        secret_file: kept(section.get(&keys::SECRET_FILE, values::path), &mut refers.secret_file),
        cookie_epoch_ms: section.time_or(&keys::COOKIE_EPOCH),
        orphan_ms: section.time_or(&keys::ORPHAN),
        directors: directors.into_iter().map(Spanned::into_inner).collect(),
        dispatcher: None,
        peers: peers(section),
    }
}

fn peers(section: &Section<'_>) -> PeerOptions {
    use keys::tables::farm as keys;

    let interval_ms = section.time_or(&keys::INTERVAL);
    let silence = section.time(&keys::SILENCE);
    let silence_ms = silence.as_ref().map_or(interval_ms * defaults::SILENCE, |silence| *silence.get_ref());
    // One lost report must not count as silence.
    if let Some(silence) = silence.filter(|_| silence_ms < interval_ms * defaults::SILENCE_LEAST) {
        let message = format!("`silence` is less than {} intervals", defaults::SILENCE_LEAST);
        let least = values::written(interval_ms * defaults::SILENCE_LEAST);
        section.problem(Problem::new(silence.span(), message, format!("write \"{least}\" or more")));
    }
    PeerOptions { port: section.number_or(&keys::PORT), interval_ms, silence_ms }
}

/// Reports names and addresses that several services have.
fn check_between_services(root: &Section<'_>, placed: &[ServiceEntry], groups: &[PlacedGroup]) {
    let mut names = FirstSeen::new();
    let mut vips: FirstSeen<(SocketAddr, Protocol)> = FirstSeen::new();
    let services = placed
        .iter()
        .map(|placed| (&placed.service.name, placed.service.protocol, &placed.name, &placed.addresses));
    let groups = groups
        .iter()
        .map(|placed| (&placed.service.group.name, Protocol::Tcp, &placed.name, &placed.addresses));
    for (called, protocol, name, addresses) in services.chain(groups) {
        let message = format!("two services are called {called:?}");
        names.first(root, called, name.clone(), message, "give each a name of its own");
        for address in addresses {
            let vip = *address.get_ref();
            let message = format!("{vip} over {protocol} is configured twice");
            let help = "one address, port and protocol belongs to one service: remove one, or change it";
            vips.first(root, (vip, protocol), address.span(), message, help);
        }
    }
    check_announcers(root, placed);
    check_servers(root, placed);
    let count = placed.iter().map(|placed| placed.addresses.len()).sum::<usize>();
    let last = placed.iter().flat_map(|placed| &placed.addresses).nth(defaults::VIPS);
    if let Some(one_too_many) = last {
        let message = format!("the services have {count} addresses with port together");
        let help = format!("this is the first too many: a farm can have {}", defaults::VIPS);
        root.problem(Problem::new(one_too_many.span(), message, help));
    }
}

/// Reports servers with a service's address. The data plane would intercept their packets, so no
/// packet would reach the server.
fn check_servers(root: &Section<'_>, placed: &[ServiceEntry]) {
    let servers: BTreeMap<IpAddr, (&ServiceEntry, &str)> = placed
        .iter()
        .flat_map(|of| {
            of.service.servers.iter().map(move |server| (server.address, (of, server.name.as_str())))
        })
        .collect();
    for ServiceEntry { service, addresses, .. } in placed {
        for address in addresses {
            let ip = address.get_ref().ip();
            if let Some((of, server)) = servers.get(&ip).filter(|(of, _)| of.service.name != service.name) {
                let message =
                    format!("{ip} is the address of {server} too, a server of {:?}", of.service.name);
                let help =
                    "use another address for the service: all packets to this one would go to the service";
                let problem = Problem::new(address.span(), message, help);
                root.problem(problem.also(of.name.clone(), "whose server it is"));
            }
        }
    }
}

/// Reports discovery on an address that the director announces. ARP and neighbour discovery have no
/// ports, so discovery would find the director.
fn check_announcers(root: &Section<'_>, placed: &[ServiceEntry]) {
    let with = |is_announced: bool| {
        placed
            .iter()
            .filter(move |placed| (placed.service.announce != Announce::Never) == is_announced)
            .flat_map(|placed| &placed.addresses)
    };
    let announced: BTreeMap<IpAddr, Span> = with(true).map(|a| (a.get_ref().ip(), a.span())).collect();
    for ServiceEntry { service, addresses, .. } in
        placed.iter().filter(|placed| placed.service.discover.is_some())
    {
        for address in addresses.iter().filter(|_| service.announce == Announce::Never) {
            let ip = address.get_ref().ip();
            if let Some(span) = announced.get(&ip) {
                let message =
                    format!("servers are discovered by {ip}, which the director answers for itself");
                let help = "add announce = false to the service without `discover`, or use another address";
                root.problem(
                    Problem::new(address.span(), message, help).also(span.clone(), "announced here"),
                );
            }
        }
    }
}
