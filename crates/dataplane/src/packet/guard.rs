//! Guard that drops the engine's packets before the host's own stack receives them. AF_PACKET only
//! copies: the stack would answer the packets with resets, or forward them a second time.
//!
//! With CAP_NET_ADMIN, an nftables table drops the packets at the interface, after packet sockets
//! have received their copy. The table has no sessions, so it also drops packets of servers that
//! belong to no session. The engine sends such packets to the stack over the loopback interface
//! ([`Withheld`]). Without CAP_NET_ADMIN, the stack must ignore the packets: the host must not have
//! a service address and must not forward.

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

/// Guard of the host's stack.
#[derive(Debug, Default)]
pub(super) struct Guard<R = Nft> {
    /// Table that was written last, for comparison with the kernel's table. A table read back from
    /// the kernel is no reference: another process may already have changed it.
    installed: Option<WantedTable>,
    ruleset: R,
    state: GuardState,
}

/// Table that the engine requires.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WantedTable {
    /// Interfaces by index. An interface that was created again under its old name has lost its
    /// hook.
    interfaces: Vec<u32>,
    /// Interfaces and their VLANs, by name.
    devices: Vec<String>,
    sets: String,
    /// Rules; empty if nothing is to be dropped.
    drops: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum GuardState {
    #[default]
    None,
    /// An earlier daemon may have left rules.
    Inherited,
    Rules,
    Silent,
}

/// Packets that the rules drop and the engine may pass: segments of servers that answer clients
/// directly, to other hosts than this one.
#[derive(Debug, Default)]
pub(super) struct Withheld {
    /// Addresses of this host in the rules; `None` without rules.
    local: Option<BTreeSet<IpAddr>>,
}

impl Withheld {
    /// True if the guard drops a frame received on interface `ingress` that the engine may pass.
    pub(super) fn has(&self, tables: &Tables, ingress: u32, frame: &[u8]) -> bool {
        let Some(local) = self.local.as_ref().filter(|_| !tables.endpoints.is_empty()) else { return false };
        let Parsed::Segment(segment) = parse(frame, tables.interfaces.get(&ingress).copied()) else {
            return false;
        };
        let from = VipKey { address: segment.at.src, port: segment.src_port, protocol: segment.protocol };
        !local.contains(&segment.at.dst) && is_open(tables, &from)
    }
}

/// True if a server with this endpoint replies to the clients' addresses, and not to an address of
/// this host (`source_nat`).
fn is_open(tables: &Tables, endpoint: &VipKey) -> bool {
    let stands_for_clients = |server: u16| own(tables, server).is_some();
    tables
        .endpoints
        .get(endpoint)
        .is_some_and(|behind| behind.iter().any(|behind| !stands_for_clients(behind.server)))
}

/// Returns the address of this host that replaces the client's address for a server; `None` without
/// `source_nat`.
fn own(tables: &Tables, server: u16) -> Option<IpAddr> {
    match tables.servers.get(&server)?.forwarding {
        Forwarding::Nat { own, source_nat: true, .. } => Some(own),
        _ => None,
    }
}

impl<R: RuleSet + Default> Guard<R> {
    /// Returns a guard without rules. `earlier` is true if an earlier daemon may have left rules.
    pub(super) fn after(earlier: bool) -> Self {
        Guard { state: if earlier { GuardState::Inherited } else { GuardState::None }, ..Guard::default() }
    }

    /// Replaces all rules, also the rules of a killed daemon, by rules for `tables`. Returns the
    /// packets that the engine has to send to the stack itself if it passes them.
    ///
    /// # Errors
    /// Fails if nft fails and the stack would interfere. Existing rules stay.
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
            // The existing rules match the tables in force and can't be removed either, so the new
            // tables are rejected.
            (Err(error), GuardState::Rules) => {
                return Err(EngineError::system("changing the guard", "CAP_NET_ADMIN", error));
            }
            (Err(error), state) => {
                stays_silent(tables, &interfaces, &error)?;
                tracing::info!(%error, "no nftables guard is needed: this host's stack ignores the services' packets");
                if state == GuardState::None {
                    self.state = GuardState::Silent;
                }
            }
        }
        self.installed = Some(wanted);
        Ok(())
    }

    pub(super) fn has_rules(&self) -> bool {
        self.state == GuardState::Rules
    }

    /// Writes the rules again if the kernel's rules differ. Returns `None` if the kernel's rules
    /// were right. Interfaces that are gone are left out until the next tables come.
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
        Some(
            done.map_err(|error| EngineError::system("restoring the nftables table", "CAP_NET_ADMIN", error)),
        )
    }

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

    /// State of the guard, for messages.
    pub(super) fn describe(&self) -> &'static str {
        match self.state {
            GuardState::None => "no guard yet",
            GuardState::Rules => "guarded by nftables",
            GuardState::Inherited | GuardState::Silent => "no guard needed",
        }
    }
}

/// Removes the guard of an engine that is gone. Under another engine the old guard would drop
/// packets that the new engine passes.
pub(super) fn remove_stale() {
    let Err(error) = nft(REMOVE) else { return };
    if rules::list().is_some() {
        tracing::warn!(
            %error,
            "failed to remove the nftables table of an earlier packet engine, which drops packets to this host's stack; run `nft delete table netdev evener`"
        );
    } else {
        tracing::debug!(%error, "failed to look for an nftables table to remove");
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

/// Returns the interfaces and their VLANs on this host. The hook of an interface sees tagged frames
/// without their outer tag, but not behind an inner tag. The hook of the VLAN's own interface sees
/// the packet.
fn with_vlans(interfaces: &[String], vlans: &str) -> Vec<String> {
    let mut devices = interfaces.to_vec();
    let below = |line: &str| -> Option<(String, String)> {
        let mut words = line.split('|').map(str::trim);
        Some((words.next()?.to_owned(), words.nth(1)?.to_owned()))
    };
    let mut above: Vec<(String, String)> = vlans.lines().skip(2).filter_map(below).collect();
    // A VLAN may be stacked on another VLAN.
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

/// Returns the VLANs of this network namespace, as the kernel lists them (net/8021q/vlanproc.c):
/// two title lines, then `NAME | ID | DEVICE BELOW`.
fn vlans() -> String {
    // The file does not exist without VLANs.
    fs::read_to_string("/proc/thread-self/net/vlan/config").unwrap_or_default()
}

impl WantedTable {
    /// Returns the table for these tables; each IP version has its own sets and rules.
    fn of(tables: &Tables, devices: Vec<String>, local: &BTreeSet<IpAddr>) -> WantedTable {
        let (mut sets, mut drops) = (String::new(), String::new());
        for v6 in [false, true].into_iter().filter(|_| !tables.vips.is_empty()) {
            let guarded = Guarded::of(tables, local, v6);
            guarded.write_sets(&mut sets);
            guarded.write_rules(&mut drops);
        }
        WantedTable { interfaces: tables.interfaces.keys().copied().collect(), devices, sets, drops }
    }

    /// Returns the nft commands of one transaction. The chain's name contains the digest of sets
    /// and rules: nft before 0.9.7 does not support comments of tables.
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

/// Packets of one IP version that the stack must not receive.
struct Guarded {
    v6: bool,
    /// Address, transport and port of each service.
    services: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
    /// Endpoints of servers that reply to the clients' addresses.
    open: BTreeSet<String>,
    open_addresses: BTreeSet<IpAddr>,
    /// Endpoints of servers that reply to an address of this host (`source_nat`), with that
    /// address.
    hidden: BTreeSet<String>,
    /// Addresses of this host. A server's reply to such an address belongs to a probe.
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

    /// Writes the sets that the rules refer to, without empty sets.
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

    /// Writes the rules. Fragments, ICMP and packets with unusual headers have no usable port, so
    /// the rules match their address alone.
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

/// Matches for packets to a service address that have no port, or whose headers the engine refuses.
const ODD_V4: &[&str] = &[
    "ip protocol { icmp, tcp, udp } ip frag-off & 0x3fff != 0",
    "ip protocol { icmp, tcp, udp } ip hdrlength > 5",
    "icmp type { echo-request, destination-unreachable, time-exceeded, parameter-problem }",
];
const ODD_V6: &[&str] = &[
    "ip6 nexthdr { 0, 43, 44, 60 }",
    "icmpv6 type { echo-request, destination-unreachable, packet-too-big, time-exceeded, parameter-problem }",
];

/// Returns the addresses of this host. Later addresses are included when tables are applied again.
fn local_addresses() -> BTreeSet<IpAddr> {
    let of = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    getifaddrs().into_iter().flatten().filter_map(|interface| of(interface.address?)).collect()
}

/// Returns an error if the stack would answer or forward packets for the service addresses without
/// a guard.
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
            "With source_nat, servers reply to this host's own address, and its stack would reset these connections: switch source_nat off, or {remedy} ({nft})."
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

/// True if the host has the address: bind(2) fails for any other address.
fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

fn forwards(version: &str, interface: &str) -> bool {
    let setting = fs::read_to_string(format!("/proc/sys/net/{version}/conf/{interface}/forwarding"));
    // An unreadable setting must not count as safe. The file does not exist if the kernel lacks the
    // IP version.
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

    /// Rule set of a kernel that loses the table right after the first writes.
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
