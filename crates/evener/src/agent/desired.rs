//! The state that this host needs for the services that it is a server of: decided here, carried
//! out in `place`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use evener_core::farm::{Server, Service};
use evener_core::net::{Encapsulation, Protocol};
use evener_core::path::mark::MARK_LEN;
use evener_core::path::seed::Seed;
use evener_core::path::tables::{RehandoffMode, VipKey};
use evener_core::pool::HealthKind;
use evener_dataplane::server::{AttachPoints, Hook, Offer, Tables};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::io::network::{Interface, Network};

/// Length of the headers that tunnels put in front, in bytes (RFC 791, RFC 8200, RFC 768, GUE).
const IPV4_LEN: u32 = 20;
const IPV6_LEN: u32 = 40;
const GUE_LEN: u32 = 12;
const TCP_LEN: u32 = 20;
/// An Ethernet frame's content, where the interface can't be asked.
const MTU: u32 = 1500;

/// This host's identity, where its addresses don't say it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AgentIdentity {
    /// It is the server of this name.
    pub(super) host: Option<String>,
    /// It is a server of these services, by discovery.
    pub(super) services: Vec<String>,
}

/// A service that this host is a server of.
#[derive(Clone, Debug)]
pub(super) struct ServedService<'a> {
    pub(super) service: &'a Service,
    /// The host's own addresses as the service lists them, with the server's port where it has one
    /// of its own; none with discovery.
    pub(super) own: Vec<(IpAddr, Option<u16>)>,
    /// Where this host reads for the data plane: the ports where connections then arrive, by
    /// service address.
    pub(super) listeners: BTreeMap<IpAddr, u16>,
}

impl<'a> ServedService<'a> {
    fn new(service: &'a Service, own: Vec<(IpAddr, Option<u16>)>) -> ServedService<'a> {
        ServedService { service, own, listeners: BTreeMap::new() }
    }

    /// Whether packets come to it in tunnels: any may, from a host that isn't on its link, or by a
    /// second chance.
    pub(super) fn has_tunnels(&self) -> bool {
        self.service.method.encapsulates() || self.service.is_on_every_host()
    }

    /// Whether what comes to it in tunnels has marks: of tunnels only GUE has room for them.
    fn is_marked(&self) -> bool {
        self.service.is_on_every_host() && self.service.encapsulation == Encapsulation::Gue
    }

    /// Whether connections are handed over to it.
    pub(super) fn is_handed_over(&self) -> bool {
        self.service.method.hands_over()
    }

    /// Whether it makes sockets of them for servers of its own, and doesn't read only.
    fn serves(&self) -> bool {
        self.listeners.is_empty() || self.service.is_on_every_host() && !self.own.is_empty()
    }

    /// Whether they come in tunnels, from directors beyond this host's links.
    fn is_handed_over_from_afar(&self, directors: &[IpAddr], network: &Network) -> bool {
        let mut hops = directors.iter().filter_map(|director| network.next_hop(*director));
        self.is_handed_over() && self.listeners.is_empty() && hops.any(|hop| hop.gateway.is_some())
    }

    /// Whether tunnels are the way that most of its packets come, and not the exception.
    fn is_tunnelled(&self, network: &Network) -> bool {
        let is_far = |address: IpAddr| network.next_hop(address).is_some_and(|hop| hop.gateway.is_some());
        self.service.method.encapsulates()
            || self.service.is_on_every_host() && self.service.servers.iter().any(|s| is_far(s.address))
    }

    /// The service addresses, each once.
    pub(super) fn vips(&self) -> BTreeSet<IpAddr> {
        self.service.addresses.iter().map(|address| address.ip()).collect()
    }

    /// Where directors' probes come that go to no address of the service: to a port of their own,
    /// or by TCP to a service of UDP.
    fn probes(&self) -> impl Iterator<Item = VipKey> {
        let service = self.service;
        let are_tcp = matches!(service.health.kind, HealthKind::Tcp | HealthKind::Http { .. });
        let to = service.addresses.iter().filter(move |_| are_tcp).map(|address| {
            let to = service.probe_address(*address);
            VipKey { address: to.ip(), port: to.port(), protocol: Protocol::Tcp }
        });
        to.filter(|key| !service.vip_keys().any(|other| other == *key))
    }

    /// How this host has the addresses.
    pub(super) fn arp_mode(&self) -> ArpMode {
        let method = self.service.method;
        match (method.translates(), method.needs_link_layer() && self.service.discover.is_some()) {
            (true, _) => ArpMode::Absent,
            (false, true) => ArpMode::Answering,
            (false, false) => ArpMode::Silent,
        }
    }
}

/// How a server has a service address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArpMode {
    /// Not at all: packets come with the server's own address.
    Absent,
    /// Without answering ARP or neighbour solicitations for it.
    Silent,
    /// Answering them, by which directors find it.
    Answering,
}

/// The services that this host is a server of, or a sentence that says why there is none. None at
/// all where it only tells its load.
pub(super) fn roles<'a>(
    config: &'a Config,
    identity: &AgentIdentity,
    network: &Network,
) -> Result<Vec<ServedService<'a>>, String> {
    for name in &identity.services {
        match config.services.iter().find(|service| service.name == *name) {
            None => return Err(format!("there is no service {name:?} in the file, as --service says")),
            Some(service) if service.discover.is_none() => {
                return Err(format!(
                    "service {name:?} has no `discover`, so its servers are those listed: list this host, and \
                     leave out --service"
                ));
            }
            Some(_) => {}
        }
    }
    let roles: Vec<ServedService<'_>> = config
        .services
        .iter()
        .filter_map(|service| {
            let listed = service.servers.iter().filter(|server| match &identity.host {
                Some(host) => server.name == *host,
                None => network.is_local(server.address),
            });
            let own: Vec<_> = listed.map(|server| (server.address, server.port)).collect();
            let named = identity.services.contains(&service.name);
            (named || !own.is_empty()).then(|| ServedService::new(service, own))
        })
        .collect();
    if !roles.is_empty() || is_name_or_group_member(config, identity, network) {
        return Ok(roles);
    }
    Err(match &identity.host {
        Some(host) => format!("no service of the file has a server called {host:?}, as --host says"),
        None => format!(
            "this host is none of the file's servers: its addresses are {}. List one of them, or name the server \
             with --host NAME; where servers are found by discovery, say --service NAME",
            network.own_addresses()
        ),
    })
}

/// Whether clients come to this host without anything that an agent would have to do for it, by a
/// name or a redirect: then it tells its load.
fn is_name_or_group_member(config: &Config, identity: &AgentIdentity, network: &Network) -> bool {
    config.agent.member.group.is_some()
        || config.members().any(|member| match &identity.host {
            Some(host) => member.name == *host,
            None => member.address.is_some_and(|address| network.is_local(address)),
        })
}

/// The services that this host serves and decides, and those that it hands over, by where
/// connections are read for them.
pub(super) fn resident_roles<'a>(
    config: &'a Config,
    network: &Network,
    listeners: &BTreeMap<IpAddr, u16>,
) -> Vec<ServedService<'a>> {
    let role = |service: &'a Service| {
        let serves = |server: &&Server| service.is_on_every_host() && network.is_local(server.address);
        let here = service.servers.iter().filter(serves);
        let own: Vec<_> = here.map(|server| (server.address, server.port)).collect();
        let role = ServedService::new(service, own);
        match role.is_handed_over() {
            true => Some(ServedService { listeners: listeners.clone(), ..role }),
            false => (!role.own.is_empty()).then_some(role),
        }
    };
    config.services.iter().filter_map(role).collect()
}

/// A service address on an interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct PlacedAddress {
    pub(super) interface: String,
    pub(super) address: IpAddr,
}

/// A kernel setting: which values are right, and which one to set if it has another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SysctlSetting {
    pub(super) right: &'static [u32],
    pub(super) value: u32,
}

/// All that this host has to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DesiredState {
    /// Kernel settings, by path below `/proc/sys/net`.
    pub(super) settings: BTreeMap<String, SysctlSetting>,
    /// Service addresses, and where they are put.
    pub(super) addresses: BTreeSet<PlacedAddress>,
    /// The services whose packets come out of tunnels, and those handed over; `None` where no
    /// service is reached so.
    pub(super) programs: Option<(Tables, AttachPoints)>,
}

/// The facts of this host that the desired state depends on, beyond the network.
#[derive(Clone, Debug, Default)]
pub(super) struct HostFacts {
    /// Interfaces that are made by software, whose drivers gain nothing from running programs
    /// early.
    pub(super) software: BTreeSet<u32>,
    /// `net.ipv4.conf.all.rp_filter`.
    pub(super) reverse_path_filter: u32,
    /// Where tunnels are to be opened, if the operator says so.
    pub(super) hook: Option<Hook>,
    /// By which marks of other hosts are believed, where this one decides, too.
    pub(super) mark_key: Option<Seed>,
    /// The interfaces of what it decides: nobody else's marks may come by them.
    pub(super) deciding: BTreeSet<u32>,
}

/// The state that `roles` want of this host.
pub(super) fn desired(
    roles: &[ServedService<'_>],
    directors: &[IpAddr],
    network: &Network,
    host: &HostFacts,
) -> Result<DesiredState, String> {
    let mut desired = DesiredState::default();
    let with = |arp_mode| {
        let roles = roles.iter().filter(move |role| role.arp_mode() == arp_mode);
        roles.flat_map(ServedService::vips).collect::<BTreeSet<IpAddr>>()
    };
    let (silent, answering) = (with(ArpMode::Silent), with(ArpMode::Answering));
    let keeps_silent = silent.iter().any(IpAddr::is_ipv4);
    for address in &silent {
        desired.addresses.insert(PlacedAddress { interface: loopback(network), address: *address });
    }
    for address in answering.difference(&silent) {
        // IPv6 never answers for what lo has, and IPv4 doesn't where other addresses must be kept
        // silent.
        let on_loopback = address.is_ipv4() && !keeps_silent;
        let interface = if on_loopback { loopback(network) } else { towards(*address, directors, network)? };
        desired.addresses.insert(PlacedAddress { interface, address: *address });
    }
    let mut setting =
        |path: String, right, value| desired.settings.insert(path, SysctlSetting { right, value });
    if keeps_silent {
        // 1 and 2: only for what the asked interface has; 8: for nothing (ip-sysctl, arp_ignore).
        setting("ipv4/conf/all/arp_ignore".into(), &[1, 2, 8], 1);
    } else if answering.iter().any(IpAddr::is_ipv4) {
        setting("ipv4/conf/all/arp_ignore".into(), &[0], 0);
    }
    if keeps_silent || answering.iter().any(IpAddr::is_ipv4) {
        setting("ipv4/conf/all/arp_announce".into(), &[2], 2);
    }
    let tunnelled: Vec<_> = roles
        .iter()
        .filter(|role| role.has_tunnels() || role.is_handed_over_from_afar(directors, network))
        .collect();
    if !tunnelled.is_empty() {
        if directors.is_empty() {
            return Err("[farm] has no `directors`, so tunnels would be accepted from nobody: list the \
                        directors' addresses, as in directors = [\"10.0.0.1\"]"
                .into());
        }
        let places = places(&tunnelled, directors, network, host);
        desired.settings.extend(loose_filters(places.tunnels.keys(), network, host));
        let tables = tables(&tunnelled, directors, network, host, &places);
        let places = AttachPoints { tunnels: with_deciding(places.tunnels, &tables, host), ..places };
        desired.programs = Some((tables, places));
    }
    let handed_over: Vec<_> = roles.iter().filter(|role| role.is_handed_over()).collect();
    if !handed_over.is_empty() {
        let (tables, places) = desired.programs.get_or_insert_default();
        accept(&handed_over, network, host, tables, places);
        let loopback = loopback(network);
        if handed_over.iter().any(|role| role.serves()) {
            // From clients comes there what was read here, or by another node.
            desired.settings.insert(format!("ipv4/conf/{loopback}/rp_filter"), loose_filter(host));
            // And by the links what follows the handoff.
            let links = inbound(&handed_over, directors, network);
            desired.settings.extend(loose_filters(&links, network, host));
        }
        if handed_over.iter().any(|role| role.service.is_on_every_host()) {
            // And from this host itself its own probes.
            let accept_local = SysctlSetting { right: &[1], value: 1 };
            desired.settings.insert(format!("ipv4/conf/{loopback}/accept_local"), accept_local);
        }
    }
    Ok(desired)
}

/// The kernel goes by the larger of `all` and the interface's own; 2 is loose, 1 refuses clients
/// that are answered by another interface than their packets come in by.
fn loose_filter(host: &HostFacts) -> SysctlSetting {
    let right: &[u32] = match host.reverse_path_filter {
        0 => &[0, 2],
        1 => &[2],
        _ => &[0, 1, 2],
    };
    SysctlSetting { right, value: 2 }
}

fn loose_filters<'a>(
    links: impl IntoIterator<Item = &'a u32>,
    network: &Network,
    host: &HostFacts,
) -> impl Iterator<Item = (String, SysctlSetting)> {
    let interfaces = links.into_iter().filter_map(|ifindex| network.interfaces.get(ifindex));
    interfaces.map(|interface| (format!("ipv4/conf/{}/rp_filter", interface.name), loose_filter(host)))
}

fn loopback(network: &Network) -> String {
    let found = network.interfaces.values().find(|interface| interface.loopback);
    found.map_or_else(|| "lo".to_owned(), |interface| interface.name.clone())
}

/// The interface of the link that directors ask for the address on.
fn towards(address: IpAddr, directors: &[IpAddr], network: &Network) -> Result<String, String> {
    let by_directors = directors.iter().find_map(|director| network.route_to(*director));
    // Once this host has the address, no route leads to it any more: it stays where it was put.
    let there = || {
        let has = |interface: &Interface| interface.addresses.iter().any(|(own, _)| *own == address);
        network
            .interfaces
            .iter()
            .find(|(_, i)| i.ethernet && !i.loopback && has(i))
            .map(|(ifindex, _)| *ifindex)
    };
    let by_address = || network.route_to(address).or_else(|| Some(network.next_hop(address)?.ifindex));
    let not_loopback = |ifindex: &u32| network.interfaces.get(ifindex).is_some_and(|i| !i.loopback);
    let only = || network.interfaces.iter().find(|(_, i)| i.up && i.ethernet).map(|(ifindex, _)| *ifindex);
    let found = by_directors.or_else(there).or_else(by_address).filter(not_loopback).or_else(only);
    found
        .and_then(|ifindex| Some(network.interfaces.get(&ifindex)?.name.clone()))
        .ok_or_else(|| format!("no interface leads to whoever asks for {address}: this host has no Ethernet"))
}

/// The interfaces that directors' packets come in by: those that lead to directors, and those that
/// have the addresses they go to.
fn inbound(roles: &[&ServedService<'_>], directors: &[IpAddr], network: &Network) -> BTreeSet<u32> {
    let own: BTreeSet<IpAddr> =
        roles.iter().flat_map(|role| &role.own).map(|(address, _)| *address).collect();
    let has_own = |interface: &Interface| interface.addresses.iter().any(|(a, _)| own.contains(a));
    let leading = directors.iter().filter_map(|director| Some(network.next_hop(*director)?.ifindex));
    let holding = network.interfaces.iter().filter(|(_, found)| has_own(found)).map(|(ifindex, _)| *ifindex);
    let usable = |ifindex: &u32| network.interfaces.get(ifindex).is_some_and(|i| i.ethernet && i.up);
    leading.chain(holding).filter(usable).collect()
}

/// Tunnels come in by the interfaces of directors' packets.
fn places(
    roles: &[&ServedService<'_>],
    directors: &[IpAddr],
    network: &Network,
    host: &HostFacts,
) -> AttachPoints {
    let links = inbound(roles, directors, network).into_iter();
    let tunnels = links.map(|ifindex| (ifindex, !host.software.contains(&ifindex))).collect();
    let clamps = roles.iter().any(|role| role.service.clamp_mss && role.service.protocol == Protocol::Tcp);
    let answers = if clamps { answering(network) } else { BTreeSet::new() };
    AttachPoints { tunnels, answers, accept: BTreeSet::new(), hook: host.hook }
}

/// The interfaces that answers to clients leave by.
fn answering(network: &Network) -> BTreeSet<u32> {
    let usable = |ifindex: &u32| network.interfaces.get(ifindex).is_some_and(|i| i.ethernet && i.up);
    network.routes.iter().filter_map(|route| route.ifindex).filter(usable).collect()
}

/// Where every host decides, the opener stands before whoever decides: nobody else's marks get
/// there.
fn with_deciding(tunnels: BTreeMap<u32, bool>, tables: &Tables, host: &HostFacts) -> BTreeMap<u32, bool> {
    let deciding = host.deciding.iter().filter(|_| tables.marks.is_some());
    deciding.map(|ifindex| (*ifindex, !host.software.contains(ifindex))).chain(tunnels).collect()
}

fn tables(
    roles: &[&ServedService<'_>],
    directors: &[IpAddr],
    network: &Network,
    host: &HostFacts,
    places: &AttachPoints,
) -> Tables {
    let interfaces = places.tunnels.keys().filter_map(|ifindex| network.interfaces.get(ifindex));
    let mtu = interfaces.map(|interface| interface.mtu).min().unwrap_or(MTU);
    let mut tables = Tables {
        directors: directors.iter().copied().collect(),
        marks: roles
            .iter()
            .any(|role| role.service.is_on_every_host())
            .then(|| host.mark_key.unwrap_or_default()),
        ..Tables::default()
    };
    for role in roles {
        tables.addresses.extend(role.own.iter().map(|(address, _)| *address));
        for key in role.service.vip_keys() {
            let mss = segment_max(role, key.address, mtu).filter(|_| role.is_tunnelled(network));
            tables.services.insert(key, Offer { mss, is_marked: role.is_marked(), ..Offer::default() });
        }
    }
    // A key that another service has is its clients'.
    for (role, key) in roles.iter().flat_map(|role| role.probes().map(move |key| (role, key))) {
        let offer = Offer { is_marked: role.is_marked(), ..Offer::default() };
        tables.services.entry(key).or_insert(offer);
    }
    tables
}

/// Has connections that are handed over made here, whichever link they come by. An engine that gets
/// copies of frames gives those that are for here to the stack by the loopback interface, and the
/// stack sees no others; where every host decides, also what was read here and is to be served here
/// comes by that.
fn accept(
    roles: &[&ServedService<'_>],
    network: &Network,
    host: &HostFacts,
    tables: &mut Tables,
    places: &mut AttachPoints,
) {
    let by_loopback = host.hook == Some(Hook::Generic) && roles.iter().any(|role| !role.listeners.is_empty());
    for role in roles {
        for key in role.service.vip_keys() {
            let listener = role.listeners.get(&key.address).copied();
            let only_reads = listener.filter(|_| role.own.is_empty());
            let offer = tables.services.entry(key).or_default();
            (offer.listener, offer.punt_listener) = (Some(only_reads.unwrap_or(key.port)), listener);
            offer.turns = only_reads.is_none() && role.service.later_requests == RehandoffMode::Rehandoff;
        }
    }
    let served = roles.iter().filter(|role| role.serves()).flat_map(|role| role.probes());
    for key in served {
        tables.services.entry(key).or_default().listener.get_or_insert(key.port);
    }
    let is_link = |found: &Interface| found.ethernet && !found.loopback;
    // A connection that is handed over by another node's message comes by the loopback interface,
    // too.
    let serves = roles.iter().any(|role| role.serves());
    let takes = |found: &Interface| match found.loopback {
        true => by_loopback || serves,
        false => !by_loopback && is_link(found),
    };
    let usable = network.interfaces.iter().filter(|(_, found)| found.up && takes(found));
    places.accept.extend(usable.map(|(ifindex, _)| *ifindex));
    // There the stack's resets leave, of which some would come too early.
    places.answers.extend(answering(network));
}

/// The largest segment that fits into the tunnel, in bytes (RFC 9293, section 3.7.1); `None` where
/// servers offer what they like.
fn segment_max(role: &ServedService<'_>, vip: IpAddr, interface_mtu: u32) -> Option<u16> {
    let service = role.service;
    if !service.clamp_mss || service.protocol != Protocol::Tcp {
        return None;
    }
    let ip_len = |address: IpAddr| if address.is_ipv4() { IPV4_LEN } else { IPV6_LEN };
    let outer = role.own.iter().map(|(own, _)| ip_len(*own)).max().unwrap_or(IPV6_LEN);
    let gue = match service.encapsulation {
        Encapsulation::Ipip => 0,
        Encapsulation::Gue if role.is_marked() => GUE_LEN + MARK_LEN as u32,
        Encapsulation::Gue => GUE_LEN,
    };
    let mtu = service.tunnel_mtu.map_or(interface_mtu, u32::from);
    u16::try_from(mtu.saturating_sub(outer + gue + ip_len(vip) + TCP_LEN)).ok().filter(|mss| *mss > 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
