//! `evener doctor` on a server: finds problems that keep the server from serving. Nothing is
//! changed.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use evener_core::net::Protocol;
use evener_dataplane::server::{self, Hook, ProgramError, Reason};

use super::desired::{self, AgentIdentity, ArpMode, DesiredState, HostFacts, ServedService};
use super::firewall::{Firewall, Packet, Verdict};
use super::load;
use super::member;
use super::place::{dotted, read_setting};
use super::prerequisites;
use super::state::{self, AppliedState};
use crate::config::Config;
use crate::io::network::{Interface, Network};
use crate::io::sysctl::is_reverse_path_strict;
use crate::runtime::folders;
use crate::runtime::lock::Lock;
use crate::views::{Finding, Severity};

/// Returns the configuration file of this network namespace's agent, if there is one.
pub fn config_file() -> Option<PathBuf> {
    Some(done()?.config)
}

fn done() -> Option<AppliedState> {
    state::read(&folders::directory().ok()?).ok()?
}

/// Returns the findings if this host is a server of the file.
pub fn findings(config: &Config, network: &Network) -> Vec<Finding> {
    let identity = done().map(|done| done.identity).unwrap_or_default();
    let Ok(roles) = desired::roles(config, &identity, network) else { return Vec::new() };
    let host = HostFacts {
        reverse_path_filter: read_setting("ipv4/conf/all/rp_filter").unwrap_or(0),
        ..HostFacts::default()
    };
    let listening = Listening::read();
    let firewall = Firewall::read();
    let mut findings = Vec::new();
    findings.extend(left_behind());
    for role in &roles {
        findings.extend(addresses(role, network));
        findings.extend(silence(role, network));
        findings.extend(ports(role, &listening));
        findings.extend(admission(role, config, firewall.as_ref()));
        findings.extend(way_back(role, config, network));
        findings.extend(strict_reverse_path(role, network));
    }
    findings.extend(memberships(config, &identity, network));
    findings.extend(unfollowed(config));
    findings.extend(tunnels(&roles, config, network, &identity, &host));
    findings.extend(prerequisites::findings(&roles, config));
    findings
}

/// Reports an agent that has set up this host and no longer runs.
fn left_behind() -> Option<Finding> {
    let directory = folders::directory().ok()?;
    (done().is_some() && !Lock::is_held(&folders::agent_lock_path(&directory))).then(|| {
        let message =
            "The agent has set this host up and has stopped: changes of the file and of the network have no effect. Start `evener agent` again; it adopts the current setup."
                .to_owned();
        finding("agent", Severity::Warn, message)
    })
}

/// Reports an agent that can't track requests, so that its report of outstanding bytes is
/// incomplete.
fn unfollowed(config: &Config) -> Option<Finding> {
    let directory = folders::directory().ok()?;
    let measures = config.agent.listen.is_some() && !load::ports(config).is_empty();
    let is_blind = measures
        && Lock::is_held(&folders::agent_lock_path(&directory))
        && load::number_of(&directory).is_none();
    is_blind.then(|| {
        let message = "The agent can't track requests, so `bytes_to_send` is a lower bound; its log has the reason. It needs cgroup v2, CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON."
            .to_owned();
        finding("agent", Severity::Warn, message)
    })
}

/// Checks the membership in each group that the host should join.
fn memberships(config: &Config, identity: &AgentIdentity, network: &Network) -> Vec<Finding> {
    let (true, Ok(directory)) = (!member::wanted(config, identity, network).is_empty(), folders::directory())
    else {
        return Vec::new();
    };
    if !Lock::is_held(&folders::agent_lock_path(&directory)) {
        let message = "This host joins no server group while no agent runs: start `evener agent`.".to_owned();
        return vec![finding("agent", Severity::Warn, message)];
    }
    let shown = member::read_shown(&directory).into_iter();
    shown
        .map(|one| match one.is_well {
            true => finding("agent", Severity::Ok, format!("This host is a member of {}.", one.group)),
            false => {
                let message = format!("This host as a member of {}: {}.", one.group, one.state);
                finding("agent", Severity::Fail, message)
            }
        })
        .collect()
}

pub(super) fn finding(check: &str, state: Severity, message: String) -> Finding {
    Finding { check: check.to_owned(), state, message }
}

/// Checks that the service addresses exist, and only on interfaces that don't answer for them.
fn addresses(role: &ServedService<'_>, network: &Network) -> Vec<Finding> {
    let check = role.service.name.as_str();
    let arp_mode = role.arp_mode();
    let vips = role.vips().into_iter().filter(|_| arp_mode != ArpMode::Absent);
    vips.map(|vip| {
        let holder = network
            .interfaces
            .values()
            .find(|interface| interface.addresses.iter().any(|(address, _)| *address == vip));
        match (holder, arp_mode) {
            (None, _) => {
                let (len, answers) = (if vip.is_ipv4() { 32 } else { 128 }, arp_mode == ArpMode::Answering);
                let on = if answers && vip.is_ipv6() { "the interface to the director" } else { "lo" };
                let message = format!(
                    "This server does not have {vip}: `evener agent` adds it; by hand: `ip address add {vip}/{len} dev {on}`."
                );
                finding(check, Severity::Fail, message)
            }
            (Some(on), ArpMode::Silent) if on.ethernet && !on.loopback => {
                let message = format!(
                    "{vip} is on {}, where this server answers for it in the director's place; move it to lo.",
                    on.name
                );
                finding(check, Severity::Fail, message)
            }
            (Some(on), ArpMode::Answering) if on.loopback && vip.is_ipv6() => {
                let message = format!(
                    "{vip} is on lo, so that no neighbour solicitation is answered and no director finds this \
                     server; move it to the interface to the director."
                );
                finding(check, Severity::Fail, message)
            }
            (Some(on), _) => finding(check, Severity::Ok, format!("{vip} is on {}.", on.name)),
        }
    })
    .collect()
}

/// Checks if this server answers ARP for its addresses exactly when it should.
fn silence(role: &ServedService<'_>, network: &Network) -> Vec<Finding> {
    let check = role.service.name.as_str();
    let there = |vip: &IpAddr| vip.is_ipv4() && network.is_local(*vip);
    let vips: Vec<IpAddr> = role.vips().into_iter().filter(there).collect();
    let ethernet = || network.interfaces.values().filter(|interface| interface.ethernet && interface.up);
    let (Some(vip), Some(example)) = (vips.first(), ethernet().next()) else { return Vec::new() };
    // The larger value of `all` and the interface counts (ip-sysctl, arp_ignore).
    let effective = |interface: &Interface, name: &str| {
        let of = |place: &str| read_setting(&format!("ipv4/conf/{place}/{name}")).unwrap_or_default();
        of("all").max(of(&interface.name))
    };
    let ignoring = |interface: &Interface| matches!(effective(interface, "arp_ignore"), 1 | 2 | 8);
    let mut findings = Vec::new();
    match role.arp_mode() {
        ArpMode::Silent => {
            for interface in ethernet().filter(|interface| !ignoring(interface)) {
                let message = format!(
                    "This server answers ARP for {vip} on {} instead of the director; `evener agent` stops that; by hand: `sysctl -w net.ipv4.conf.all.arp_ignore=1`.",
                    interface.name
                );
                findings.push(finding(check, Severity::Fail, message));
            }
        }
        ArpMode::Answering if on_loopback(*vip, network) && ethernet().all(ignoring) => {
            let message = format!(
                "This server does not answer ARP for {vip}, so no director finds it; `evener agent --service {check}` enables that; by hand: `sysctl -w net.ipv4.conf.all.arp_ignore=0`."
            );
            findings.push(finding(check, Severity::Fail, message));
        }
        ArpMode::Answering | ArpMode::Absent => {}
    }
    if role.arp_mode() != ArpMode::Absent && effective(example, "arp_announce") < 2 {
        let message = format!(
            "This server may announce {vip} by ARP; run `sysctl -w net.ipv4.conf.all.arp_announce=2`."
        );
        findings.push(finding(check, Severity::Warn, message));
    }
    findings
}

fn on_loopback(address: IpAddr, network: &Network) -> bool {
    let loopbacks = network.interfaces.values().filter(|interface| interface.loopback);
    loopbacks.flat_map(|interface| &interface.addresses).any(|(own, _)| *own == address)
}

/// Listening sockets of this host.
struct Listening(BTreeSet<(&'static str, SocketAddr)>);

impl Listening {
    fn read() -> Listening {
        let tables = ["tcp", "tcp6", "udp", "udp6"].iter().flat_map(|table| {
            let text = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
            let protocol = &table[..3];
            sockets(&text, protocol == "tcp").into_iter().map(move |address| (protocol, address))
        });
        Listening(tables.collect())
    }

    fn has(&self, protocol: Protocol, wanted: SocketAddr) -> bool {
        let name = if protocol == Protocol::Tcp { "tcp" } else { "udp" };
        let any = |address: IpAddr| self.0.contains(&(name, SocketAddr::new(address, wanted.port())));
        // A listener at :: also accepts IPv4 clients, unless a socket option forbids that. The
        // table does not show the option.
        any(wanted.ip())
            || any(Ipv6Addr::UNSPECIFIED.into())
            || (wanted.is_ipv4() && any(Ipv4Addr::UNSPECIFIED.into()))
    }
}

/// Parses local addresses in /proc/net/tcp and similar tables (proc_net_tcp(5)): words of 32 bits
/// in the host's byte order.
fn sockets(text: &str, tcp: bool) -> Vec<SocketAddr> {
    let socket = |line: &str| {
        let mut columns = line.split_whitespace().skip(1);
        let (address, port) = columns.next()?.split_once(':')?;
        // 0A is LISTEN. Unconnected UDP sockets have state 07.
        let state = columns.nth(1)?;
        if state != if tcp { "0A" } else { "07" } {
            return None;
        }
        let port = u16::from_str_radix(port, 16).ok()?;
        let words: Option<Vec<u8>> = (0..address.len() / 8)
            .map(|i| Some(u32::from_str_radix(address.get(i * 8..i * 8 + 8)?, 16).ok()?.to_ne_bytes()))
            .collect::<Option<Vec<_>>>()
            .map(|words| words.concat());
        let bytes = words?;
        let ip: IpAddr = match bytes.len() {
            4 => <[u8; 4]>::try_from(bytes).ok()?.into(),
            16 => <[u8; 16]>::try_from(bytes).ok()?.into(),
            _ => return None,
        };
        Some(SocketAddr::new(ip.to_canonical(), port))
    };
    text.lines().skip(1).filter_map(socket).collect()
}

/// Returns the addresses at which clients' packets arrive at this host.
fn arrivals(role: &ServedService<'_>) -> BTreeSet<SocketAddr> {
    let service = role.service;
    match service.method.translates() {
        true => {
            let port = service.addresses.first().map_or(0, SocketAddr::port);
            role.own.iter().map(|(own, own_port)| SocketAddr::new(*own, own_port.unwrap_or(port))).collect()
        }
        false => service.addresses.iter().copied().collect(),
    }
}

/// Checks if this host's firewall accepts clients.
fn admission(
    role: &ServedService<'_>,
    config: &Config,
    firewall: Result<&Firewall, &String>,
) -> Option<Finding> {
    let service = role.service;
    let check = format!("{} firewall", service.name);
    let firewall = match firewall {
        Ok(firewall) => firewall,
        Err(why) => {
            return Some(finding(
                &check,
                Severity::Ok,
                format!("The nftables rules were not checked: {why}."),
            ));
        }
    };
    let judge = |to: SocketAddr, from: Option<IpAddr>| {
        firewall.judge(&Packet { from, to, protocol: service.protocol })
    };
    // With source_nat, clients' packets have a director's address as source.
    let clients = |to: SocketAddr| match config.farm.directors.iter().find(|_| service.source_nat) {
        Some(director) => judge(to, Some(*director)),
        None => judge(to, None),
    };
    let protocol = service.protocol;
    let found = arrivals(role).into_iter().find_map(|to| match clients(to) {
        Verdict::Accepted => None,
        Verdict::Unknown => {
            let message = format!("Whether its rules let clients in to {to} ({protocol}) can't be seen from them.");
            Some(finding(&check, Severity::Ok, message))
        }
        Verdict::Dropped(place) => {
            let same_family = |director: &&IpAddr| director.is_ipv4() == to.is_ipv4();
            let mut directors = config.farm.directors.iter().filter(same_family);
            let admits_director = directors.any(|director| judge(to, Some(*director)) == Verdict::Accepted);
            Some(match admits_director {
                true => finding(
                    &check,
                    Severity::Warn,
                    format!(
                        "The firewall lets directors in to {to} ({protocol}), so probes succeed, and drops clients that no rule \
                         names: {place}."
                    ),
                ),
                false => finding(
                    &check,
                    Severity::Fail,
                    format!("The firewall drops what clients send to {to} ({protocol}): {place}."),
                ),
            })
        }
    });
    Some(found.unwrap_or_else(|| finding(&check, Severity::Ok, "Clients are let in.".to_owned())))
}

/// Checks that a socket listens at each address that clients' packets arrive at.
fn ports(role: &ServedService<'_>, listening: &Listening) -> Vec<Finding> {
    let service = role.service;
    arrivals(role)
        .into_iter()
        .map(|address| match listening.has(service.protocol, address) {
            true => finding(&service.name, Severity::Ok, format!("Something listens at {address}.")),
            false => {
                let protocol = service.protocol;
                let message = format!(
                    "Nothing listens at {address} ({protocol}), nor at all addresses with that port."
                );
                finding(&service.name, Severity::Fail, message)
            }
        })
        .collect()
}

/// Checks for method `nat` that replies leave through the director.
fn way_back(role: &ServedService<'_>, config: &Config, network: &Network) -> Option<Finding> {
    let service = role.service;
    if !service.method.sees_replies() || service.source_nat {
        return None;
    }
    let directors = &config.farm.directors;
    let ipv4 = role.own.iter().any(|(own, _)| own.is_ipv4());
    let defaults = network.routes.iter().filter(|route| route.destination.1 == 0);
    let gateways: Vec<IpAddr> =
        defaults.filter_map(|route| route.gateway).filter(|gateway| gateway.is_ipv4() == ipv4).collect();
    let (state, message) = match (gateways.first(), directors.is_empty()) {
        (None, _) => (
            Severity::Warn,
            "There is no default route: answers to clients must go by the director; `ip route add default via` it, \
             or set source_nat = true."
                .to_owned(),
        ),
        (Some(gateway), true) => (
            Severity::Warn,
            format!(
                "Answers leave by {gateway}, which must be the director; list it in [farm] directors to have that \
                 checked."
            ),
        ),
        (Some(gateway), false) if gateways.iter().any(|gateway| directors.contains(gateway)) => {
            (Severity::Ok, format!("Answers leave by {gateway}, a director."))
        }
        (Some(gateway), false) => (
            Severity::Warn,
            format!(
                "Replies leave by {gateway}, which is not in `directors` of [farm], so clients would not accept them; route them through a director, or set source_nat = true."
            ),
        ),
    };
    Some(finding(&service.name, state, message))
}

/// Checks the kernel's reverse path filter for packets that the director forwards unchanged. For
/// tunnels, the agent sets the filter.
fn strict_reverse_path(role: &ServedService<'_>, network: &Network) -> Vec<Finding> {
    if role.arp_mode() == ArpMode::Absent || role.has_tunnels() {
        return Vec::new();
    }
    // A discovered server is on the link of the service address.
    let own: BTreeSet<IpAddr> = match role.own.is_empty() {
        true => role.vips(),
        false => role.own.iter().map(|(own, _)| *own).collect(),
    };
    let links: BTreeSet<u32> =
        own.into_iter().filter(IpAddr::is_ipv4).filter_map(|own| network.route_to(own)).collect();
    let name = |ifindex: u32| Some(network.interfaces.get(&ifindex)?.name.as_str());
    let Some(way_back) = network.next_hop(Ipv4Addr::UNSPECIFIED.into()).map(|hop| hop.ifindex) else {
        return Vec::new();
    };
    let other = name(way_back).unwrap_or_default();
    let links = links.into_iter().filter(|ifindex| *ifindex != way_back).filter_map(name);
    links
        .filter(|name| is_reverse_path_strict(name))
        .map(|name| {
            let message = format!(
                "The reverse path filter of {name} is strict, and the default route leaves by {other}: the kernel drops \
                 what clients send that are answered by another interface; \
                 `sysctl -w net.ipv4.conf.{name}.rp_filter=2`."
            );
            finding(&role.service.name, Severity::Warn, message)
        })
        .collect()
}

/// Checks the decapsulation of tunnels.
fn tunnels(
    roles: &[ServedService<'_>],
    config: &Config,
    network: &Network,
    identity: &AgentIdentity,
    host: &HostFacts,
) -> Vec<Finding> {
    const CHECK: &str = "tunnel";
    let tunnelled: Vec<_> = roles.iter().filter(|role| role.has_tunnels()).collect();
    if tunnelled.is_empty() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut fail = |message: String| findings.push(finding(CHECK, Severity::Fail, message));
    for (role, (own, _)) in tunnelled.iter().flat_map(|role| role.own.iter().map(move |own| (role, own))) {
        if !network.is_local(*own) {
            let name = identity.host.as_deref().unwrap_or_default();
            let service = &role.service.name;
            fail(format!("Tunnels for {name} in {service} go to {own}, which is not this host's."));
        }
    }
    let sources: Vec<IpAddr> = config.tunnel_sources().into_iter().collect();
    for director in &sources {
        if !network.is_local(*director) && network.next_hop(*director).is_none() {
            fail(format!("No route leads to the director {director}."));
        }
    }
    let desired = match desired::desired(roles, &sources, network, host) {
        Ok(desired) => desired,
        Err(error) => {
            fail(format!("{error}."));
            return findings;
        }
    };
    findings.extend(reverse_paths(&desired));
    findings.extend(refused_programs());
    findings.extend(programs(&desired, network));
    findings.extend(tunnelled.iter().flat_map(|role| lengths(role, &desired, network)));
    findings
}

/// Loads the decapsulation programs as a test, and drops them.
fn refused_programs() -> Option<Finding> {
    let loaded = server::try_load(Hook::Native).or_else(|_| server::try_load(Hook::Tc));
    match loaded {
        Ok(()) | Err(ProgramError::Privilege { .. }) => None,
        Err(error) => {
            let message = format!("Tunnel packets can't be decapsulated: {error}.");
            Some(finding("tunnel", Severity::Fail, message))
        }
    }
}

fn reverse_paths(desired: &DesiredState) -> impl Iterator<Item = Finding> {
    desired.settings.iter().filter(|(path, _)| path.ends_with("rp_filter")).filter_map(|(path, setting)| {
        let is = read_setting(path).filter(|is| !setting.right.contains(is))?;
        let name = dotted(path);
        let message = format!(
            "{name} is {is}, or all's is 1: clients' packets are dropped where answers leave by another interface; \
             `sysctl -w {name}=2`."
        );
        Some(finding("rp_filter", Severity::Fail, message))
    })
}

fn programs(desired: &DesiredState, network: &Network) -> Vec<Finding> {
    const CHECK: &str = "tunnel program";
    let Some((_, places)) = &desired.programs else { return Vec::new() };
    let pins = server::existing_directory();
    let attached = pins.as_ref().map(|pins| server::attached(pins)).unwrap_or_default();
    let name =
        |ifindex: &u32| network.interfaces.get(ifindex).map_or("?", |interface| interface.name.as_str());
    let mut findings = Vec::new();
    for ifindex in places.tunnels.keys() {
        let opens = |hook: &Hook| !matches!(hook, Hook::Egress | Hook::Accept);
        let hook = attached.iter().find(|(there, hook)| there == ifindex && opens(hook));
        findings.push(match hook {
            Some((_, hook)) => {
                let message = format!("It runs on {} ({}).", name(ifindex), hook.name());
                finding(CHECK, Severity::Ok, message)
            }
            None => {
                let message = format!(
                    "No program decapsulates tunnel packets on {}; run `evener agent`.",
                    name(ifindex)
                );
                finding(CHECK, Severity::Fail, message)
            }
        });
    }
    let clamped = |ifindex: &&u32| attached.contains(&(**ifindex, Hook::Egress));
    if let Some(ifindex) = places
        .answers
        .iter()
        .find(|ifindex| !clamped(ifindex))
        .filter(|_| !attached.is_empty() && !places.tunnels.is_empty())
    {
        let message = format!(
            "TCP segment sizes are not lowered on {}, so large uploads depend on ICMP that reaches clients. Lowering needs Linux 6.6.",
            name(ifindex)
        );
        findings.push(finding(CHECK, Severity::Warn, message));
    }
    let counted = pins.and_then(|pins| server::counters(&pins)).unwrap_or_default();
    let refused = counted.iter().filter(|(reason, count)| reason.is_refusal() && **count > 0);
    let refused: Vec<String> = refused.map(|(reason, count)| format!("{count} {}", reason.name())).collect();
    if !refused.is_empty() {
        let unlisted = counted.get(&Reason::UnlistedSource).copied().unwrap_or_default() > 0;
        let hint = if unlisted { "; is every director's own address in [farm] directors?" } else { "." };
        let message = format!("It has dropped packets: {}{hint}", refused.join(", "));
        findings.push(finding(CHECK, Severity::Warn, message));
    }
    findings
}

/// Checks if the director's packets fit this host's interfaces.
fn lengths(role: &ServedService<'_>, desired: &DesiredState, network: &Network) -> Vec<Finding> {
    let (Some((_, places)), Some(mtu)) = (&desired.programs, role.service.tunnel_mtu) else {
        return Vec::new();
    };
    let interfaces = places.tunnels.keys().filter_map(|ifindex| network.interfaces.get(ifindex));
    let short = interfaces.filter(|interface| interface.mtu < u32::from(mtu));
    short
        .map(|interface| {
            let message = format!(
                "The service's mtu is {mtu}, but that of {} is {} bytes; lower it in the file, or raise that of the interface.",
                interface.name, interface.mtu
            );
            finding(&role.service.name, Severity::Warn, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_are_read() {
        let tcp = "  sl  local_address rem_address   st\n   0: 00000000:0050 00000000:0000 0A 0\n   \
                   1: 640200C0:01BB 00000000:0000 0A 0\n   2: 0100007F:0CEA 0100007F:1F90 01 0\n";
        let expected: Vec<SocketAddr> =
            [([0, 0, 0, 0], 80).into(), ([192, 0, 2, 100], 443).into()].into_iter().collect();
        if cfg!(target_endian = "little") {
            assert_eq!(sockets(tcp, true), expected);
        }
        let any = format!("head\n 0: {}:0035 {}:0000 07 0\n", "0".repeat(32), "0".repeat(32));
        assert_eq!(sockets(&any, false), [SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 53)]);
        let listening = Listening([("udp", SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 53))].into());
        assert!(listening.has(Protocol::Udp, ([192, 0, 2, 1], 53).into()));
        assert!(!listening.has(Protocol::Tcp, ([192, 0, 2, 1], 53).into()));
        assert_eq!(sockets("head\nrubbish\n 0: zz:zz 1 0A\n", true), []);
    }
}
