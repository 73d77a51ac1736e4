//! Computes the desired state of this host for the services that it serves. `place` applies it.

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

/// Length of tunnel headers, in bytes (RFC 791, RFC 8200, RFC 768, GUE).
const IPV4_LEN: u32 = 20;
const IPV6_LEN: u32 = 40;
const GUE_LEN: u32 = 12;
const TCP_LEN: u32 = 20;
/// Payload of an Ethernet frame, if the interface's MTU is unknown.
const MTU: u32 = 1500;

/// Identity of this host, if its addresses don't show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AgentIdentity {
    /// Name of the server that this host is.
    pub(super) host: Option<String>,
    /// Services that this host serves by discovery.
    pub(super) services: Vec<String>,
}

/// A service that this host serves.
#[derive(Clone, Debug)]
pub(super) struct ServedService<'a> {
    pub(super) service: &'a Service,
    /// The host's own addresses in the service's list, each with the server's own port if it has
    /// one. Empty with discovery.
    pub(super) own: Vec<(IpAddr, Option<u16>)>,
    /// Ports on which this host reads punted connections, by service address.
    pub(super) listeners: BTreeMap<IpAddr, u16>,
}

impl<'a> ServedService<'a> {
    fn new(service: &'a Service, own: Vec<(IpAddr, Option<u16>)>) -> ServedService<'a> {
        ServedService { service, own, listeners: BTreeMap::new() }
    }

    /// True if packets arrive in tunnels. In every-host farms, any packet may arrive in one: from a
    /// host that isn't on the link, or by a second chance.
    pub(super) fn has_tunnels(&self) -> bool {
        self.service.method.encapsulates() || self.service.is_on_every_host()
    }

    /// True if tunnel packets have marks, for which only GUE has room.
    fn is_marked(&self) -> bool {
        self.service.is_on_every_host() && self.service.encapsulation == Encapsulation::Gue
    }

    /// True if connections are handed off to this host.
    pub(super) fn is_handed_over(&self) -> bool {
        self.service.method.hands_over()
    }

    /// True if this host makes sockets for handed-off connections of its own servers, and doesn't
    /// only read connections.
    fn serves(&self) -> bool {
        self.listeners.is_empty() || self.service.is_on_every_host() && !self.own.is_empty()
    }

    /// True if handed-off connections arrive in tunnels, from directors behind a gateway.
    fn is_handed_over_from_afar(&self, directors: &[IpAddr], network: &Network) -> bool {
        let mut hops = directors.iter().filter_map(|director| network.next_hop(*director));
        self.is_handed_over() && self.listeners.is_empty() && hops.any(|hop| hop.gateway.is_some())
    }

    /// True if packets usually arrive in tunnels.
    fn is_tunnelled(&self, network: &Network) -> bool {
        let is_far = |address: IpAddr| network.next_hop(address).is_some_and(|hop| hop.gateway.is_some());
        self.service.method.encapsulates()
            || self.service.is_on_every_host() && self.service.servers.iter().any(|s| is_far(s.address))
    }

    /// Returns the service addresses, without duplicates.
    pub(super) fn vips(&self) -> BTreeSet<IpAddr> {
        self.service.addresses.iter().map(|address| address.ip()).collect()
    }

    /// Returns the targets of directors' probes that differ from the service's addresses: another
    /// port, or TCP for a UDP service.
    fn probes(&self) -> impl Iterator<Item = VipKey> {
        let service = self.service;
        let are_tcp = matches!(service.health.kind, HealthKind::Tcp | HealthKind::Http { .. });
        let to = service.addresses.iter().filter(move |_| are_tcp).map(|address| {
            let to = service.probe_address(*address);
            VipKey { address: to.ip(), port: to.port(), protocol: Protocol::Tcp }
        });
        to.filter(|key| !service.vip_keys().any(|other| other == *key))
    }

    /// Returns how this host must hold the service addresses.
    pub(super) fn arp_mode(&self) -> ArpMode {
        let method = self.service.method;
        match (method.translates(), method.needs_link_layer() && self.service.discover.is_some()) {
            (true, _) => ArpMode::Absent,
            (false, true) => ArpMode::Answering,
            (false, false) => ArpMode::Silent,
        }
    }
}

/// Mode of a service address on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArpMode {
    /// The server does not hold the address, because packets have the server's own address.
    Absent,
    /// The server holds the address, and does not answer ARP or neighbour solicitations for it.
    Silent,
    /// The server holds the address and answers. Directors discover the server by its ARP and
    /// neighbour replies.
    Answering,
}

/// Returns the services that this host serves, or a sentence on why there are none. The list is
/// empty if the host only reports its load.
pub(super) fn roles<'a>(
    config: &'a Config,
    identity: &AgentIdentity,
    network: &Network,
) -> Result<Vec<ServedService<'a>>, String> {
    for name in &identity.services {
        match config.services.iter().find(|service| service.name == *name) {
            None => return Err(format!("the file has no service {name:?} (--service)")),
            Some(service) if service.discover.is_none() => {
                return Err(format!(
                    "service {name:?} has no `discover`, so its servers are the listed ones: add this host to the list, and omit --service"
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
        Some(host) => format!("no service of the file has a server {host:?} (--host)"),
        None => format!(
            "this host is not a server of the file: its addresses are {}. Add one of them, or name the server with --host NAME; with discovery, name the service with --service NAME",
            network.own_addresses()
        ),
    })
}

/// True if clients reach this host by a name or a redirect, without any work of an agent. The agent
/// then only reports the load.
fn is_name_or_group_member(config: &Config, identity: &AgentIdentity, network: &Network) -> bool {
    config.agent.member.group.is_some()
        || config.members().any(|member| match &identity.host {
            Some(host) => member.name == *host,
            None => member.address.is_some_and(|address| network.is_local(address)),
        })
}

/// Returns the every-host services of this host, and the handoff services whose connections this
/// host reads.
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

/// Kernel setting: the acceptable values, and the value to set otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SysctlSetting {
    pub(super) right: &'static [u32],
    pub(super) value: u32,
}

/// Desired state of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DesiredState {
    /// Kernel settings, by path below `/proc/sys/net`.
    pub(super) settings: BTreeMap<String, SysctlSetting>,
    /// Service addresses, each with its interface.
    pub(super) addresses: BTreeSet<PlacedAddress>,
    /// Tables and attach points of the programs for tunnels and handoffs. `None` if no service
    /// needs them.
    pub(super) programs: Option<(Tables, AttachPoints)>,
}

/// Facts about this host that the desired state depends on, besides the network.
#[derive(Clone, Debug, Default)]
pub(super) struct HostFacts {
    /// Software interfaces. XDP programs in the drivers of such interfaces save no time.
    pub(super) software: BTreeSet<u32>,
    /// `net.ipv4.conf.all.rp_filter`.
    pub(super) reverse_path_filter: u32,
    /// Hook for the decapsulation of tunnels, if the operator has set one.
    pub(super) hook: Option<Hook>,
    /// Key that verifies marks of other hosts, in an every-host farm.
    pub(super) mark_key: Option<Seed>,
    /// Interfaces of this host's director. Packets with invalid marks must be dropped on these
    /// interfaces.
    pub(super) deciding: BTreeSet<u32>,
}

/// Computes the state that `roles` require of this host.
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
        // IPv6 never answers for addresses on lo. IPv4 doesn't either, if `arp_ignore` is set
        // because other addresses must be silent.
        let on_loopback = address.is_ipv4() && !keeps_silent;
        let interface = if on_loopback { loopback(network) } else { towards(*address, directors, network)? };
        desired.addresses.insert(PlacedAddress { interface, address: *address });
    }
    let mut setting =
        |path: String, right, value| desired.settings.insert(path, SysctlSetting { right, value });
    if keeps_silent {
        // 1 and 2: answer only for addresses of the receiving interface. 8: never answer
        // (ip-sysctl, arp_ignore).
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
            return Err("[farm] has no `directors`, so no tunnel packets would be accepted: list the directors' addresses, for example directors = [\"10.0.0.1\"]"
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
            // Connections that this host or another node has read arrive at the loopback interface,
            // with clients' addresses.
            desired.settings.insert(format!("ipv4/conf/{loopback}/rp_filter"), loose_filter(host));
            // Packets after the handoff arrive through the links.
            let links = inbound(&handed_over, directors, network);
            desired.settings.extend(loose_filters(&links, network, host));
        }
        if handed_over.iter().any(|role| role.service.is_on_every_host()) {
            // This host's own probes arrive at the loopback interface, too.
            let accept_local = SysctlSetting { right: &[1], value: 1 };
            desired.settings.insert(format!("ipv4/conf/{loopback}/accept_local"), accept_local);
        }
    }
    Ok(desired)
}

/// Returns the setting of a loose reverse path filter. The kernel uses the larger value of `all`
/// and the interface. 2 is loose. 1 drops packets of clients that are answered through another
/// interface.
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

/// Returns the interface on which directors send ARP requests for the address.
fn towards(address: IpAddr, directors: &[IpAddr], network: &Network) -> Result<String, String> {
    let by_directors = directors.iter().find_map(|director| network.route_to(*director));
    // Once this host has the address, no route leads to the address any more. The interface that
    // has the address is used.
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

/// Returns the interfaces through which directors' packets arrive: the interfaces that lead to
/// directors, and the interfaces with the packets' destination addresses.
fn inbound(roles: &[&ServedService<'_>], directors: &[IpAddr], network: &Network) -> BTreeSet<u32> {
    let own: BTreeSet<IpAddr> =
        roles.iter().flat_map(|role| &role.own).map(|(address, _)| *address).collect();
    let has_own = |interface: &Interface| interface.addresses.iter().any(|(a, _)| own.contains(a));
    let leading = directors.iter().filter_map(|director| Some(network.next_hop(*director)?.ifindex));
    let holding = network.interfaces.iter().filter(|(_, found)| has_own(found)).map(|(ifindex, _)| *ifindex);
    let usable = |ifindex: &u32| network.interfaces.get(ifindex).is_some_and(|i| i.ethernet && i.up);
    leading.chain(holding).filter(usable).collect()
}

/// Returns the attach points. Tunnels arrive through the interfaces of directors' packets.
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

/// Returns the interfaces through which replies to clients leave.
fn answering(network: &Network) -> BTreeSet<u32> {
    let usable = |ifindex: &u32| network.interfaces.get(ifindex).is_some_and(|i| i.ethernet && i.up);
    network.routes.iter().filter_map(|route| route.ifindex).filter(usable).collect()
}

/// Adds the director's interfaces in an every-host farm. The decapsulator runs before the
/// director's program, and drops packets with invalid marks.
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
    // If another service has this key, its entry stays.
    for (role, key) in roles.iter().flat_map(|role| role.probes().map(move |key| (role, key))) {
        let offer = Offer { is_marked: role.is_marked(), ..Offer::default() };
        tables.services.entry(key).or_insert(offer);
    }
    tables
}

/// Adds handed-off connections to the tables, for every link that they arrive through. An engine
/// with copies of frames delivers local packets only through the loopback interface. In an
/// every-host farm, connections that were read and are served here arrive through it, too.
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
    // A connection that another node hands off by a message arrives through the loopback interface,
    // too.
    let serves = roles.iter().any(|role| role.serves());
    let takes = |found: &Interface| match found.loopback {
        true => by_loopback || serves,
        false => !by_loopback && is_link(found),
    };
    let usable = network.interfaces.iter().filter(|(_, found)| found.up && takes(found));
    places.accept.extend(usable.map(|(ifindex, _)| *ifindex));
    // Resets of this host's stack leave through these interfaces, and the programs must drop some.
    places.answers.extend(answering(network));
}

/// Returns the largest segment that fits into the tunnel, in bytes (RFC 9293, section 3.7.1).
/// `None` if the segment size is not clamped.
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
