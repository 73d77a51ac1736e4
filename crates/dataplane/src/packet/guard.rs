//! Keeps the host's own stack from what the engine handles. AF_PACKET only copies: the stack would
//! answer the same packets with resets, or forward them a second time.
//!
//! With CAP_NET_ADMIN, an nftables table drops them at the interface, behind the point where packet
//! sockets take their copy. It knows no sessions: what a server sends that belongs to none is
//! dropped with the rest, and the engine gives it to the stack by the loopback interface
//! ([`Withheld`]). Without it, the host must be one whose stack drops them silently: one that
//! neither has a service address nor forwards.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{IpAddr, UdpSocket};

use evener_core::path::parse::{Parsed, parse};
use evener_core::path::ports::{FIRST_PORT, PORTS};
use evener_core::path::tables::{Forwarding, Tables, VipKey};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_indextoname;

use super::rules::{self, Nft, REMOVE, RuleSet, TableShape, nft};
use crate::EngineError;

/// How the host's stack is kept out.
#[derive(Debug, Default)]
pub(super) struct Guard<R = Nft> {
    /// The table that was written last: the reference for every later look at the kernel. A table
    /// that is read back may be another one, or missing, a moment after the write.
    installed: Option<WantedTable>,
    ruleset: R,
    state: GuardState,
}

/// The table that the engine wants.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WantedTable {
    /// Interfaces by number: an interface that comes back under its name has lost its hook.
    interfaces: Vec<u32>,
    /// Interfaces and their VLANs, by name.
    devices: Vec<String>,
    sets: String,
    /// Empty if nothing is to be dropped.
    drops: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum GuardState {
    #[default]
    None,
    /// Those of an earlier daemon, perhaps.
    Inherited,
    Rules,
    Silent,
}

/// The packets that the rules drop and the engine may pass: segments from servers that answer
/// clients, to any host but this one.
#[derive(Debug, Default)]
pub(super) struct Withheld {
    /// This host's addresses as the rules have them; `None` where there are no rules.
    local: Option<BTreeSet<IpAddr>>,
}

impl Withheld {
    /// Whether a frame that came in by interface `ingress` is one of them.
    pub(super) fn has(&self, tables: &Tables, ingress: u32, frame: &[u8]) -> bool {
        let Some(local) = self.local.as_ref().filter(|_| !tables.endpoints.is_empty()) else { return false };
        let Parsed::Segment(segment) = parse(frame, tables.interfaces.get(&ingress).copied()) else {
            return false;
        };
        let from = VipKey { address: segment.at.src, port: segment.src_port, protocol: segment.protocol };
        !local.contains(&segment.at.dst) && is_open(tables, &from)
    }
}

/// Whether answers that come from here are addressed to clients, and not to this host that stands
/// for them.
fn is_open(tables: &Tables, endpoint: &VipKey) -> bool {
    let stands_for_clients = |server: u16| own(tables, server).is_some();
    tables
        .endpoints
        .get(endpoint)
        .is_some_and(|behind| behind.iter().any(|behind| !stands_for_clients(behind.server)))
}

/// This host's address that stands for the clients of a server, if one does.
fn own(tables: &Tables, server: u16) -> Option<IpAddr> {
    match tables.servers.get(&server)?.forwarding {
        Forwarding::Nat { own, source_nat: true, .. } => Some(own),
        _ => None,
    }
}

impl<R: RuleSet + Default> Guard<R> {
    /// No rules yet, but for what an earlier daemon may have left.
    pub(super) fn after(earlier: bool) -> Self {
        Guard { state: if earlier { GuardState::Inherited } else { GuardState::None }, ..Guard::default() }
    }

    /// Keeps the stack from the packets of these tables, in the place of what an earlier call or a
    /// killed daemon set up. Says what the engine has to give to the stack itself, if it passes it.
    ///
    /// # Errors
    /// When nft refuses and the stack would interfere. Rules that are in force stay so.
    pub(super) fn apply(&mut self, tables: &Tables) -> Result<Withheld, EngineError> {
        let local = local_addresses();
        self.change(tables, &local)?;
        Ok(Withheld { local: (self.state == GuardState::Rules).then_some(local) })
    }

    fn change(&mut self, tables: &Tables, local: &BTreeSet<IpAddr>) -> Result<(), EngineError> {
        let interfaces = names(tables)?;
        let devices = with_vlans(&interfaces, &vlans());
        let wanted = WantedTable::of(tables, devices, local);
        if self.installed.as_ref() == Some(&wanted) {
            return Ok(());
        }
        match (self.ruleset.write(&wanted.script()), self.state) {
            (Ok(()), _) => self.state = GuardState::Rules,
            // They are made for what is in force, and can't be taken back either: so nothing else
            // comes into force.
            (Err(error), GuardState::Rules) => {
                return Err(EngineError::system("changing the guard", "CAP_NET_ADMIN", error));
            }
            (Err(error), state) => {
                stays_silent(tables, &interfaces, &error)?;
                tracing::info!(%error, "no guard set up: this host's stack ignores the services' packets anyway");
                if state == GuardState::None {
                    self.state = GuardState::Silent;
                }
            }
        }
        self.installed = Some(wanted);
        Ok(())
    }

    /// Whether rules are in force.
    pub(super) fn has_rules(&self) -> bool {
        self.state == GuardState::Rules
    }

    /// Writes the rules again if the kernel holds others or none; `None` if it holds the right
    /// ones. Interfaces that are gone are left out until the next tables come.
    pub(super) fn restore(&mut self) -> Option<Result<(), EngineError>> {
        if !self.has_rules() || !self.ruleset.may_have_changed() {
            return None;
        }
        let mut wanted = self.installed.clone()?;
        let names = wanted.interfaces.iter().filter_map(|ifindex| if_indextoname(*ifindex).ok());
        let names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
        wanted.devices = with_vlans(&names, &vlans());
        let script = wanted.script();
        let held = self.ruleset.list().unwrap_or_default();
        if wanted.devices.is_empty() || TableShape::of(&script) == TableShape::of(&held) {
            return None;
        }
        let done = self.ruleset.write(&script);
        Some(done.map_err(|error| EngineError::system("writing the guard again", "CAP_NET_ADMIN", error)))
    }

    /// Takes the rules back.
    pub(super) fn remove(&mut self) -> Result<(), EngineError> {
        match std::mem::take(self).state {
            GuardState::Rules => {
                nft(REMOVE).map_err(|error| EngineError::system("removing the guard", "CAP_NET_ADMIN", error))
            }
            GuardState::Inherited => {
                remove_stale();
                Ok(())
            }
            GuardState::None | GuardState::Silent => Ok(()),
        }
    }

    /// For people.
    pub(super) fn describe(&self) -> &'static str {
        match self.state {
            GuardState::None => "no guard yet",
            GuardState::Rules => "guarded by nftables",
            GuardState::Inherited | GuardState::Silent => "no guard needed",
        }
    }
}

/// Removes the guard of an engine that is gone: under another engine it would drop what that one
/// passes.
pub(super) fn remove_stale() {
    let Err(error) = nft(REMOVE) else { return };
    if rules::list().is_some() {
        tracing::warn!(
            %error,
            "the guard that an earlier packet engine left can't be removed, and keeps packets from this host's own stack: \
             `nft delete table netdev evener`"
        );
    } else {
        tracing::debug!(%error, "no guard to remove, or no right to look");
    }
}

fn names(tables: &Tables) -> Result<Vec<String>, EngineError> {
    let name = |ifindex: &u32| {
        let refuse =
            |why: &str| EngineError::Interface { interface: format!("number {ifindex}"), why: why.into() };
        let name = if_indextoname(*ifindex).map_err(|_| refuse("it is gone"))?;
        match name.into_string() {
            Ok(name) if !name.contains('"') => Ok(name),
            _ => Err(refuse("its name is not text that nft understands; rename it")),
        }
    };
    tables.interfaces.keys().map(name).collect()
}

/// The interfaces, and those of their VLANs that this host has. The hook of an interface is passed
/// by tagged frames too, with the outer tag set aside; what stands behind an inner one it doesn't
/// see, but the hook of the VLAN's own interface does.
fn with_vlans(interfaces: &[String], vlans: &str) -> Vec<String> {
    let mut devices = interfaces.to_vec();
    let below = |line: &str| -> Option<(String, String)> {
        let mut words = line.split('|').map(str::trim);
        Some((words.next()?.to_owned(), words.nth(1)?.to_owned()))
    };
    let mut above: Vec<(String, String)> = vlans.lines().skip(2).filter_map(below).collect();
    // A VLAN may be one of a VLAN's.
    loop {
        let (more, rest) = above.into_iter().partition::<Vec<_>, _>(|(_, below)| devices.contains(below));
        if more.is_empty() {
            return devices;
        }
        for (name, _) in more {
            if !devices.contains(&name) && !name.contains('"') {
                devices.push(name);
            }
        }
        above = rest;
    }
}

/// The VLANs of this network namespace, as the kernel lists them (net/8021q/vlanproc.c): two lines
/// of titles, then `NAME | ID | DEVICE BELOW`.
fn vlans() -> String {
    // Without any there is no such file.
    fs::read_to_string("/proc/thread-self/net/vlan/config").unwrap_or_default()
}

impl WantedTable {
    /// Each IP version has its sets and rules.
    fn of(tables: &Tables, devices: Vec<String>, local: &BTreeSet<IpAddr>) -> WantedTable {
        let (mut sets, mut drops) = (String::new(), String::new());
        for v6 in [false, true].into_iter().filter(|_| !tables.vips.is_empty()) {
            let guarded = Guarded::of(tables, local, v6);
            guarded.write_sets(&mut sets);
            guarded.write_rules(&mut drops);
        }
        WantedTable { interfaces: tables.interfaces.keys().copied().collect(), devices, sets, drops }
    }

    /// The commands for nft, in one transaction. The chain's name holds the digest of sets and
    /// rules: nft before 0.9.7 knows no comments of tables.
    fn script(&self) -> String {
        let mut text = REMOVE.to_owned();
        if self.drops.is_empty() || self.devices.is_empty() {
            return text;
        }
        let mut digest = DefaultHasher::new();
        (&self.sets, &self.drops).hash(&mut digest);
        let devices: Vec<String> = self.devices.iter().map(|name| format!("\"{name}\"")).collect();
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "table netdev evener {{
{}    chain guard_{:016x} {{
        type filter hook ingress devices = {{ {} }} priority -500; policy accept;
{}    }}
}}
",
            self.sets,
            digest.finish(),
            devices.join(", "),
            self.drops
        );
        text
    }
}

/// The packets of one IP version that the stack must not see.
struct Guarded {
    v6: bool,
    /// Addresses, transports and ports of services.
    services: BTreeSet<String>,
    /// Addresses of services.
    addresses: BTreeSet<IpAddr>,
    /// Where answers come from that are addressed to clients.
    open: BTreeSet<String>,
    open_addresses: BTreeSet<IpAddr>,
    /// Where answers come from that are addressed to this host, which stands for the clients, and
    /// its address.
    hidden: BTreeSet<String>,
    /// This host's addresses: a server's answer to one of them is to a probe.
    local: BTreeSet<IpAddr>,
}

impl Guarded {
    fn of(tables: &Tables, local: &BTreeSet<IpAddr>, v6: bool) -> Guarded {
        let element = |key: &VipKey| format!("{} . {} . {}", key.address, key.protocol, key.port);
        let hidden = || {
            let all = tables.endpoints.iter().filter(|(key, _)| key.address.is_ipv6() == v6);
            let owns = all.flat_map(|(key, behind)| behind.iter().map(move |behind| (key, behind.server)));
            owns.filter_map(|(key, server)| Some(format!("{} . {}", element(key), own(tables, server)?)))
        };
        let vips = || tables.vips.keys().filter(|key| key.address.is_ipv6() == v6);
        let open = || {
            let all = tables.endpoints.keys().filter(|key| key.address.is_ipv6() == v6);
            all.filter(|key| is_open(tables, key))
        };
        Guarded {
            v6,
            services: vips().map(element).collect(),
            addresses: vips().map(|key| key.address).collect(),
            open: open().map(element).collect(),
            open_addresses: open().map(|key| key.address).collect(),
            hidden: hidden().collect(),
            local: local.iter().filter(|address| address.is_ipv6() == v6).copied().collect(),
        }
    }

    /// Sets as the rules name them, without those that would be empty.
    fn write_sets(&self, text: &mut String) {
        let address = if self.v6 { "ipv6_addr" } else { "ipv4_addr" };
        let endpoint = format!("{address} . inet_proto . inet_service");
        let version = self.version();
        let mut set = |name: &str, kind: &str, elements: Vec<String>| {
            if !elements.is_empty() {
                let elements = elements.join(", ");
                let _ =
                    writeln!(text, "    set {name}{version} {{ type {kind}; elements = {{ {elements} }}; }}");
            }
        };
        let strings = |addresses: &BTreeSet<IpAddr>| addresses.iter().map(IpAddr::to_string).collect();
        set("services", &endpoint, self.services.iter().cloned().collect());
        set("addresses", address, strings(&self.addresses));
        set("open", &endpoint, self.open.iter().cloned().collect());
        set("open_addresses", address, strings(&self.open_addresses));
        set("hidden", &format!("{endpoint} . {address}"), self.hidden.iter().cloned().collect());
        set("local", address, strings(&self.local));
    }

    /// Fragments and ICMP carry no port, and odd headers are refused: they belong to the address.
    fn write_rules(&self, text: &mut String) {
        let (ip, version) = (if self.v6 { "ip6" } else { "ip" }, self.version());
        let mut drop = |rule: String| {
            let _ = writeln!(text, "        {rule} drop");
        };
        if !self.services.is_empty() {
            drop(format!("{ip} daddr . meta l4proto . th dport @services{version}"));
            for rule in if self.v6 { ODD_V6 } else { ODD_V4 } {
                drop(format!("{ip} daddr @addresses{version} {rule}"));
            }
        }
        let not_local = match self.local.is_empty() {
            true => String::new(),
            false => format!(" {ip} daddr != @local{version}"),
        };
        if !self.open.is_empty() {
            drop(format!("{ip} saddr . meta l4proto . th sport @open{version}{not_local}"));
            let later = if self.v6 { "frag frag-off != 0" } else { "ip frag-off & 0x1fff != 0" };
            drop(format!("{ip} saddr @open_addresses{version} {later}{not_local}"));
        }
        if !self.hidden.is_empty() {
            let last = usize::from(FIRST_PORT) + PORTS - 1;
            drop(format!(
                "{ip} saddr . meta l4proto . th sport . {ip} daddr @hidden{version} th dport {FIRST_PORT}-{last}"
            ));
        }
    }

    fn version(&self) -> u8 {
        if self.v6 { 6 } else { 4 }
    }
}

/// A packet for a service's address that names no port, or has headers that are not taken for what
/// they say.
const ODD_V4: &[&str] = &[
    "ip protocol { icmp, tcp, udp } ip frag-off & 0x3fff != 0",
    "ip protocol { icmp, tcp, udp } ip hdrlength > 5",
    "icmp type { echo-request, destination-unreachable, time-exceeded, parameter-problem }",
];
const ODD_V6: &[&str] = &[
    "ip6 nexthdr { 0, 43, 44, 60 }",
    "icmpv6 type { echo-request, destination-unreachable, packet-too-big, time-exceeded, parameter-problem }",
];

/// This host's addresses. One that comes later is known when tables are next applied.
fn local_addresses() -> BTreeSet<IpAddr> {
    let of = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    getifaddrs().into_iter().flatten().filter_map(|interface| of(interface.address?)).collect()
}

/// Whether the stack ignores packets for the service addresses without being told to.
fn stays_silent(tables: &Tables, interfaces: &[String], nft: &io::Error) -> Result<(), EngineError> {
    let remedy = "grant CAP_NET_ADMIN and install nft, so that the packet engine can keep it out";
    if let Some(vip) = tables.vips.keys().find(|vip| is_local(vip.address)) {
        return Err(EngineError::Host(format!(
            "This host has the service address {} itself, so its own stack would answer beside the engine: \
             remove the address, or {remedy} ({nft}).",
            vip.address
        )));
    }
    let hides = |way: Forwarding| matches!(way, Forwarding::Nat { source_nat: true, .. });
    if tables.servers.values().any(|server| hides(server.forwarding)) {
        return Err(EngineError::Host(format!(
            "With source_nat, servers answer to this host's own address, and its own stack would refuse what they \
             say: switch source_nat off, or {remedy} ({nft})."
        )));
    }
    let versions: BTreeSet<bool> = tables.vips.keys().map(|vip| vip.address.is_ipv6()).collect();
    for v6 in versions {
        let version = if v6 { "ipv6" } else { "ipv4" };
        if let Some(name) = interfaces.iter().find(|name| forwards(version, name)) {
            return Err(EngineError::Host(format!(
                "This host forwards what comes in on {name}, so its own stack would send packets of services on \
                 beside the engine: set net.{version}.conf.{name}.forwarding=0, or {remedy} ({nft})."
            )));
        }
    }
    Ok(())
}

/// Whether the address is this host's: only then may a socket have it.
fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

fn forwards(version: &str, interface: &str) -> bool {
    let setting = fs::read_to_string(format!("/proc/sys/net/{version}/conf/{interface}/forwarding"));
    // An unreadable setting must not pass for a safe one; where there is no such version, there is
    // none.
    match setting {
        Ok(value) => value.trim() != "0",
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nix::net::if_::if_nametoindex;

    use super::*;

    /// A kernel that loses the table right after some of the writes.
    #[derive(Default)]
    struct FlushedRuleSet {
        table: Option<String>,
        flushes: usize,
    }

    impl RuleSet for FlushedRuleSet {
        fn write(&mut self, script: &str) -> io::Result<()> {
            let is_flushed = self.flushes > 0;
            self.flushes = self.flushes.saturating_sub(1);
            self.table = script.strip_prefix(REMOVE).map(str::to_owned).filter(|_| !is_flushed);
            Ok(())
        }

        fn list(&self) -> Option<String> {
            self.table.clone()
        }

        fn may_have_changed(&mut self) -> bool {
            true
        }
    }

    fn guard_after(flushes: usize) -> Guard<FlushedRuleSet> {
        let mut ruleset = FlushedRuleSet { table: None, flushes };
        let wanted = WantedTable {
            interfaces: vec![if_nametoindex("lo").unwrap()],
            devices: vec!["lo".to_owned()],
            sets: "    set local4 { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2 }; }\n".to_owned(),
            drops: "        ip daddr @local4 drop\n".to_owned(),
        };
        ruleset.write(&wanted.script()).unwrap();
        Guard { installed: Some(wanted), ruleset, state: GuardState::Rules }
    }

    #[test]
    fn guard_flushed_after_each_write_is_restored() {
        let mut guard = guard_after(5);
        for _ in 0..5 {
            assert!(guard.ruleset.table.is_none());
            assert!(matches!(guard.restore(), Some(Ok(()))));
        }
        assert!(guard.ruleset.table.is_some());
        assert!(guard.restore().is_none(), "the whole table is left alone");
    }

    #[test]
    fn guard_with_missing_parts_is_restored() {
        let changes = [
            ("        ip daddr @local4 drop\n", ""),
            (", 192.0.2.2", ""),
            ("devices = { \"lo\" }", "devices = { \"lo\", \"eth0\" }"),
            ("chain guard_", "chain other_"),
        ];
        for (part, other) in changes {
            let mut guard = guard_after(0);
            let whole = guard.ruleset.table.clone();
            let changed = whole.clone().unwrap().replace(part, other);
            assert_ne!(Some(&changed), whole.as_ref());
            guard.ruleset.table = Some(changed);
            assert!(matches!(guard.restore(), Some(Ok(()))), "{part}");
            assert_eq!(guard.ruleset.table, whole);
        }
    }

    #[test]
    fn listing_of_nft_counts_as_its_script() {
        let script = guard_after(0).installed.unwrap();
        let digest = TableShape::of(&script.script());
        let name = script.script().lines().find(|line| line.contains("chain")).unwrap().to_owned();
        let listing = format!(
            "table netdev evener {{\n\tset local4 {{\n\t\ttype ipv4_addr\n\t\telements = {{ 192.0.2.1,\n\t\t\t     \
             192.0.2.2 }}\n\t}}\n\n\t{}\n\t\ttype filter hook ingress device \"lo\" priority -500; policy \
             accept;\n\t\tip daddr @local4 drop\n\t}}\n}}\n",
            name.trim()
        );
        assert_eq!(TableShape::of(&listing), digest);
    }

    #[test]
    fn vlans_of_guarded_interface_are_guarded() {
        let vlans = "VLAN Dev name\t | VLAN ID\n\
                     Name-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n\
                     eth0.5.6       | 6  | eth0.5\n\
                     eth0.5         | 5  | eth0\n\
                     eth1.5         | 5  | eth1\n\
                     web            | 7  | eth0\n";
        let names = |names: &[&str]| -> Vec<String> { names.iter().map(|name| (*name).to_owned()).collect() };
        assert_eq!(with_vlans(&names(&["eth0"]), vlans), names(&["eth0", "eth0.5", "web", "eth0.5.6"]));
        assert_eq!(with_vlans(&names(&["eth0"]), ""), names(&["eth0"]));
    }
}
