//! Imports keepalived.conf: virtual servers, groups of virtual servers, and checks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::draft::{DraftHealth, DraftMethod, DraftServer, DraftService, DraftTls, Placeholders, Sourced};
use super::features;
use super::ipvsadm::{has_server, hashes_address, policy};
use super::ledger::Ledger;
use super::reasons::{self, LeftReason};
use super::settle::{ADDRESSES, SERVERS};
use super::tree::{Statement, Tree};
use super::values::{self, EndpointHost};

/// Blocks and statements without a counterpart, by their first word. An entry that ends in a
/// punctuation mark matches as a prefix.
const LEFT: [(&str, &LeftReason); 51] = [
    ("vrrp_", &reasons::VRRP),
    ("global_defs", &reasons::PROCESS),
    ("static_", &reasons::VRRP),
    ("track_", &reasons::VRRP),
    ("bfd_", &reasons::VRRP),
    ("garp_group", &reasons::VRRP),
    ("linkbeat_", &reasons::PROCESS),
    ("process_", &reasons::PROCESS),
    ("checker_", &reasons::PROCESS),
    ("net_namespace", &reasons::PROCESS),
    ("net_namespace_ipvs", &reasons::PROCESS),
    ("instance", &reasons::CONDITION),
    ("interface_up_down_delays", &reasons::VRRP),
    ("include", &reasons::NOT_FOLLOWED),
    ("includer", &reasons::NOT_FOLLOWED),
    ("@", &reasons::CONDITION),
    ("$", &reasons::CONDITION),
    ("~", &reasons::CONDITION),
    ("quorum", &reasons::QUORUM),
    ("quorum_", &reasons::QUORUM),
    ("hysteresis", &reasons::QUORUM),
    ("alpha", &reasons::QUORUM),
    ("omega", &reasons::QUORUM),
    ("notify_", &reasons::SCRIPTS),
    ("ha_suspend", &reasons::VRRP),
    ("nat_mask", &reasons::CHECK_DETAIL),
    ("persistence_engine", &reasons::AFFINITY),
    ("ip_family", &reasons::FWMARK),
    ("ops", &reasons::ONE_PACKET),
    ("inhibit_on_failure", &reasons::CHECK_DETAIL),
    ("smtp_", &reasons::SCRIPTS),
    ("log_all_failures", &reasons::LOGGING),
    ("lthreshold", &reasons::MAX_CONNECTIONS),
    ("flag-", &reasons::POLICY),
    ("mh-", &reasons::POLICY),
    ("sh-", &reasons::POLICY),
    ("hashed", &reasons::POLICY),
    ("warmup", &reasons::CHECK_DETAIL),
    ("delay_before_retry", &reasons::CHECK_DETAIL),
    ("delay_loop", &reasons::ONE_CHECK),
    ("bindto", &reasons::CHECK_DETAIL),
    ("bind_", &reasons::CHECK_DETAIL),
    ("connect_ip", &reasons::CHECK_DETAIL),
    ("fwmark", &reasons::CHECK_DETAIL),
    ("http_protocol", &reasons::CHECK_DETAIL),
    ("enable_sni", &reasons::CHECK_DETAIL),
    ("tls_compliant", &reasons::CHECK_DETAIL),
    ("fast_recovery", &reasons::CHECK_DETAIL),
    ("retry", &reasons::CHECK_DETAIL),
    ("virtualhost", &reasons::CHECK_DETAIL),
    ("snmp_name", &reasons::PROCESS),
];

/// Comment on a service whose address VRRP moves.
const MOVED: &str = "keepalived goes on to move this address; see docs/operating/keepalived.md.";

/// Time of keepalived for persistence without a time, in seconds.
const PERSISTENCE: &str = "360";

/// Sets affinity if the scheduler hashes the client's address without its port, and removes what
/// counts as one client if there is no affinity.
fn hash_address(service: &mut DraftService, statements: &[Statement]) {
    let last = |names: [&str; 2]| statements.iter().rfind(|one| names.contains(&one.word(0)));
    let scheduler = last(["lb_algo", "lvs_sched"]).map_or("", |one| one.word(1));
    let flags = last(["mh-port", "sh-port"]).map_or("", |one| one.word(0));
    if hashes_address(scheduler, flags) {
        features::address_hash(&mut service.keys);
    }
    if !features::has_affinity(&service.keys) {
        features::remove_affinity(&mut service.keys);
    }
}

fn reason(word: &str) -> &'static LeftReason {
    let fits = |entry: &&(&str, _)| match entry.0.ends_with(['_', '-', '@', '$', '~']) {
        true => word.starts_with(entry.0),
        false => word == entry.0,
    };
    LEFT.iter().find(fits).map_or(&reasons::UNKNOWN, |(_, reason)| reason)
}

/// Statements `virtual_server_group`, by name.
type AddressGroups<'t> = BTreeMap<&'t str, &'t Statement>;

struct KeepalivedReader<'s, 'p> {
    ledger: Ledger<'s>,
    places: &'p mut Placeholders,
    services: Vec<DraftService>,
    /// Virtual addresses of VRRP instances.
    moved: BTreeSet<IpAddr>,
}

/// Returns the services of a file, and the ledger of its places.
pub(super) fn read<'s>(tree: &'s Tree, places: &mut Placeholders) -> (Vec<DraftService>, Ledger<'s>) {
    let statements = &tree.statements;
    let ledger = Ledger::new(&tree.source, tree.significant.clone());
    let mut reader = KeepalivedReader { ledger, places, services: Vec::new(), moved: moved(statements) };
    let is_group = |statement: &&Statement| statement.word(0) == "virtual_server_group";
    let groups: AddressGroups<'_> =
        statements.iter().filter(is_group).map(|statement| (statement.word(1), statement)).collect();
    for statement in statements {
        match statement.word(0) {
            "virtual_server" => reader.virtual_server(statement, &groups),
            "virtual_server_group" => {}
            word => reader.ledger.leave_statement(statement, reason(word)),
        }
    }
    for group in groups.values() {
        reader.ledger.leave_open(group.whole(), &reasons::UNREFERENCED);
    }
    (reader.services, reader.ledger)
}

impl KeepalivedReader<'_, '_> {
    fn virtual_server(&mut self, statement: &Statement, groups: &AddressGroups<'_>) {
        if self.services.len() >= ADDRESSES {
            return self.ledger.leave_statement(statement, &reasons::TOO_MANY);
        }
        let protocol = statement.inner().iter().rev().find(|inner| inner.word(0) == "protocol");
        if protocol.is_some_and(|protocol| !matches!(protocol.word(1), "TCP" | "UDP")) {
            return self.ledger.leave_statement(statement, &reasons::PROTOCOL);
        }
        let tunnel = statement.inner().iter().find(|inner| matches!(inner.word(0), "lb_kind" | "lvs_method"));
        let own = tunnel.is_some_and(|tunnel| {
            let after =
                |word: &str| tunnel.words.iter().skip_while(|one| *one != word).nth(1).map(String::as_str);
            after("type") == Some("gre") || after("port").is_some_and(|port| port != "6080")
        });
        if own {
            return self.ledger.leave_statement(statement, &reasons::TUNNEL_DETAIL);
        }
        let mut lines = BTreeSet::from([statement.first]);
        let addresses = match statement.word(1) {
            "fwmark" => return self.ledger.leave_statement(statement, &reasons::FWMARK),
            "group" => match groups.get(statement.word(2)) {
                Some(group) => {
                    lines.insert(group.first);
                    self.group(group)
                }
                None => return self.ledger.leave_statement(statement, &reasons::NO_ADDRESS),
            },
            address => match (address.parse::<IpAddr>(), values::port(statement.word(2))) {
                (Ok(ip), Some(port)) => {
                    let value = SocketAddr::new(ip, port);
                    vec![Sourced { value, line: statement.first, remark: None }]
                }
                (Ok(_), None) => return self.ledger.leave_statement(statement, &reasons::ANY_PORT),
                (Err(_), _) => return self.ledger.leave_statement(statement, &reasons::NOT_ADDRESS),
            },
        };
        if addresses.is_empty() {
            return self.ledger.leave_statement(statement, &reasons::NO_ADDRESS);
        }
        let name = statement.words.iter().skip(1).filter(|word| *word != "group");
        let mut service = DraftService::new(
            &name.cloned().collect::<Vec<_>>().join(":"),
            DraftMethod::Nat { source_nat: false },
        );
        service.addresses = addresses;
        service.lines = lines;
        service.policy = Some("least-connections");
        self.ledger.carry_all(service.lines.clone());
        let mut checks = Checks::default();
        for inner in statement.inner() {
            if !matches!(inner.word(0), "real_server" | "sorry_server") {
                self.setting(&mut service, inner, &mut checks);
            }
        }
        for inner in statement.inner().iter().filter(|inner| inner.word(0) == "real_server") {
            self.real_server(&mut service, inner, &mut checks);
        }
        if let Some(sorry) = statement.inner().iter().rfind(|inner| inner.word(0) == "sorry_server") {
            self.sorry_server(&mut service, sorry, &checks);
            let quorum = statement.inner().iter().find(|inner| inner.word(0) == "quorum");
            if let Some(quorum) = quorum.filter(|quorum| quorum.word(1) != "1") {
                self.ledger.leave_statement(quorum, &reasons::QUORUM_SORRY);
            }
        }
        hash_address(&mut service, statement.inner());
        self.finish_health(&mut service, checks);
        let is_moved = |at: &Sourced<SocketAddr>| self.moved.contains(&at.value.ip());
        let (moved, others): (Vec<_>, Vec<_>) = service.addresses.iter().cloned().partition(is_moved);
        let mut announced = service.clone();
        announced.addresses = others;
        service.addresses = moved;
        if service.has_address() {
            service.keys.push("announce = \"host\"".to_owned());
            service.comments.push(MOVED.to_owned());
        }
        for service in [service, announced].into_iter().filter(DraftService::has_address) {
            self.ledger.carry_all(service.all_lines());
            self.services.push(service);
        }
    }

    /// Returns the addresses of a group. An entry may be a range such as `192.0.2.3-10`.
    fn group(&mut self, group: &Statement) -> Vec<Sourced<SocketAddr>> {
        let mut addresses = Vec::new();
        for entry in group.inner() {
            if entry.word(0) == "fwmark" {
                self.ledger.leave_statement(entry, &reasons::FWMARK);
                continue;
            }
            let Some(port) = values::port(entry.word(1)) else {
                self.ledger.leave_statement(entry, &reasons::ANY_PORT);
                continue;
            };
            let range = range(entry.word(0));
            if range.is_empty() {
                self.ledger.leave_statement(entry, &reasons::NOT_ADDRESS);
            }
            for ip in range {
                self.ledger.carry_all(entry.lines());
                addresses.push(Sourced { value: SocketAddr::new(ip, port), line: entry.first, remark: None });
            }
        }
        addresses
    }

    /// Reads a statement of a virtual server.
    fn setting(&mut self, service: &mut DraftService, statement: &Statement, checks: &mut Checks) {
        let value = statement.word(1);
        let line = statement.first;
        let mut left = None;
        match statement.word(0) {
            "delay_loop" => checks.interval = values::seconds_ms(value).map(|ms| (ms, line)),
            "lb_algo" | "lvs_sched" => {
                let (policy, reason) = policy(value);
                service.policy = policy.or(service.policy);
                left = reason;
            }
            "mh-port" | "sh-port" => {}
            "lb_kind" | "lvs_method" => service.method = method(statement),
            "protocol" => service.is_udp = value == "UDP",
            "persistence_timeout" => {
                let seconds = if value.is_empty() { PERSISTENCE } else { value };
                if let Err(reason) = features::affinity(&mut service.keys, values::seconds_ms(seconds)) {
                    return self.ledger.leave_statement(statement, reason);
                }
            }
            "persistence_granularity" => match values::client_mask(value) {
                Some(lens) => features::affinity_mask(&mut service.keys, lens),
                None => return self.ledger.leave_statement(statement, &reasons::AFFINITY),
            },
            "virtualhost" => checks.host = Some(value.to_owned()),
            "connect_timeout" | "retry" | "nb_get_retry" | "connect_port" => {
                checks.general.push(statement.clone());
                return;
            }
            word => return self.ledger.leave_statement(statement, reason(word)),
        }
        self.ledger.carry_all(statement.whole());
        service.lines.extend(statement.lines());
        if let Some(reason) = left {
            self.ledger.leave(line, reason);
        }
    }

    /// Returns the server that a statement names, or `None` if the statement has no address.
    fn server(&mut self, statement: &Statement) -> Option<DraftServer> {
        let (word, line) = (statement.word(1), statement.first);
        let (address, remark) = match values::endpoint(word).host {
            EndpointHost::Address(address) => (address, None),
            EndpointHost::Other(name) if !name.is_empty() => {
                let address = self.places.server();
                let todo = format!("the address of {name}");
                self.ledger.blank(line, address, todo.clone());
                (address, Some(format!("TO FILL IN: {todo}.")))
            }
            _ => return None,
        };
        Some(DraftServer {
            name: None,
            address: Sourced { value: address, line, remark },
            port: values::port(statement.word(2)),
            weight: 1,
            keys: Vec::new(),
            lines: Vec::new(),
        })
    }

    /// Adds the sorry server as a backup. keepalived doesn't check it.
    fn sorry_server(&mut self, service: &mut DraftService, statement: &Statement, checks: &Checks) {
        let Some(mut server) = self.server(statement) else {
            return self.ledger.leave_statement(statement, &reasons::NOT_ADDRESS);
        };
        if has_server(service, server.address.value, server.port) {
            return self.ledger.leave_statement(statement, &reasons::DUPLICATE);
        }
        if let Err(reason) = features::backup(&mut server) {
            return self.ledger.leave_statement(statement, reason);
        }
        if checks.health.is_some() {
            self.ledger.leave_part(statement.first, "that it is not checked", &reasons::UNCHECKED);
        }
        server.lines.extend(statement.lines());
        service.servers.push(server);
    }

    fn real_server(&mut self, service: &mut DraftService, statement: &Statement, checks: &mut Checks) {
        let line = statement.first;
        if service.servers.len() >= SERVERS {
            return self.ledger.leave_statement(statement, &reasons::TOO_MANY);
        }
        let Some(mut server) = self.server(statement) else {
            return self.ledger.leave_statement(statement, &reasons::NOT_ADDRESS);
        };
        if has_server(service, server.address.value, server.port) {
            return self.ledger.leave_statement(statement, &reasons::DUPLICATE);
        }
        server.lines.extend(statement.lines());
        let own = statement.inner().iter().find(|inner| matches!(inner.word(0), "lb_kind" | "lvs_method"));
        if own.is_some_and(|own| method(own) != service.method) {
            return self.ledger.leave_statement(statement, &reasons::OWN_METHOD);
        }
        let is_other = |port: u16| service.addresses.iter().any(|at| at.value.port() != port);
        if !service.method.has_ports() && server.port.is_some_and(is_other) {
            self.ledger.leave_part(line, statement.word(2), &reasons::KEEPS_PORT);
        }
        let mut has_check = false;
        for inner in statement.inner() {
            match inner.word(0) {
                "weight" => {
                    server.weight = inner.word(1).parse().unwrap_or(1);
                    server.lines.extend(inner.lines());
                }
                "uthreshold" => {
                    let most = inner.word(1).parse().unwrap_or_default();
                    match features::max_connections(&mut server, most) {
                        Ok(()) => server.lines.extend(inner.lines()),
                        Err(reason) => self.ledger.leave_statement(inner, reason),
                    }
                }
                "lb_kind" | "lvs_method" => server.lines.extend(inner.lines()),
                // keepalived ignores such a check without a URL.
                "HTTP_GET" | "SSL_GET" if !inner.inner().iter().any(|url| url.word(0) == "url") => {
                    self.ledger.leave_statement(inner, &reasons::UNUSED);
                }
                "HTTP_GET" | "SSL_GET" | "TCP_CHECK" => {
                    has_check = true;
                    self.check(inner, checks);
                }
                word if word.ends_with("_CHECK") => {
                    self.ledger.leave_statement(inner, &reasons::CHECK_KIND);
                }
                word => self.ledger.leave_statement(inner, reason(word)),
            }
        }
        if !has_check {
            checks.unchecked.push(line);
        }
        service.servers.push(server);
    }

    /// Reads the check of one server. The first check becomes that of the service; a different one
    /// is left.
    fn check(&mut self, statement: &Statement, checks: &mut Checks) {
        let mut health = DraftHealth::default();
        let mut carried: Vec<usize> = statement.lines().collect();
        health.kind = Some(if statement.word(0) == "TCP_CHECK" { "tcp" } else { "http" });
        let is_tls = statement.word(0) == "SSL_GET";
        let mut urls = 0;
        // keepalived's defaults: one retry after a failure, and one success is enough.
        (health.rise, health.fall) = (Some(1), Some(2));
        for inner in checks.general.clone().iter().chain(statement.inner()) {
            if inner.word(0) == "url" {
                urls += 1;
                match (urls, health.kind) {
                    (1, Some("http")) => self.url(inner, &mut health, &mut carried),
                    (1, _) => self.ledger.leave_statement(inner, &reasons::HTTPS_CHECK),
                    _ => self.ledger.leave_statement(inner, &reasons::ONE_CHECK),
                }
                continue;
            }
            for pair in inner.words.chunks(2) {
                let value = pair.get(1).map_or("", String::as_str);
                match pair.first().map_or("", String::as_str) {
                    "connect_timeout" => health.timeout_ms = values::seconds_ms(value),
                    "connect_port" => health.port = values::port(value),
                    // The first attempt doesn't count as a retry.
                    "retry" | "nb_get_retry" => {
                        health.fall =
                            value.parse::<u64>().ok().map(|retries| retries.saturating_add(1).min(100));
                    }
                    word => {
                        self.ledger.leave_statement(inner, reason(word));
                        continue;
                    }
                }
                carried.extend(inner.lines());
            }
        }
        if health.kind == Some("http") && health.status.is_empty() {
            health.status.push("200-299".to_owned());
        }
        // keepalived accepts every certificate.
        let name = health.host.clone().or(checks.host.clone());
        if is_tls
            && let Err(reason) =
                features::https_check(&mut health, Some(DraftTls { name, ca: None, verify: false }), true)
        {
            self.ledger.leave(statement.first, reason);
        }
        match &checks.health {
            None => checks.health = Some((health, statement.first)),
            Some((first, _)) if *first == health => {}
            Some(_) => return self.ledger.leave_statement(statement, &reasons::ONE_CHECK),
        }
        self.ledger.carry_all(carried);
    }

    fn url(&mut self, statement: &Statement, health: &mut DraftHealth, carried: &mut Vec<usize>) {
        carried.extend(statement.lines());
        const KEYS: [&str; 6] = ["path", "digest", "status_code", "virtualhost", "regex", "regex_no_match"];
        for inner in statement.inner() {
            let mut key = "";
            for word in &inner.words {
                if KEYS.contains(&word.as_str()) {
                    key = word;
                    continue;
                }
                match key {
                    "path" if word.starts_with('/') => health.path = Some(word.clone()),
                    "status_code" => health.status.push(word.clone()),
                    "virtualhost" => health.host = Some(word.clone()),
                    "digest" => {
                        self.ledger.leave_statement(inner, &reasons::DIGEST);
                        continue;
                    }
                    _ => {
                        self.ledger.leave_statement(inner, &reasons::CHECK_DETAIL);
                        continue;
                    }
                }
                carried.extend(inner.lines());
            }
        }
    }

    fn finish_health(&mut self, service: &mut DraftService, checks: Checks) {
        let has_health = checks.health.is_some();
        let mut health = checks.health.map(|(health, _)| health).unwrap_or_default();
        if matches!(health.kind, Some("http" | "https")) && health.host.is_none() {
            health.host = checks.host;
        }
        // `delay_loop` is the time between two checks; its default is 60 s.
        match checks.interval {
            Some((ms, _)) if values::interval_limits_ms().contains(&ms) => health.interval_ms = Some(ms),
            Some((_, line)) => self.ledger.leave(line, &reasons::CHECK_TIME),
            None if has_health => health.interval_ms = Some(60_000),
            None => {}
        }
        // The default timeout is 5 s.
        if has_health {
            let (timeout, interval) =
                (health.timeout_ms.unwrap_or(5_000), health.interval_ms.unwrap_or(2_000));
            health.timeout_ms = Some(values::fitting_timeout_ms(timeout, interval));
        }
        if service.is_udp && health.kind.is_some() {
            health.kind = Some("tcp");
        }
        if has_health {
            for line in &checks.unchecked {
                self.ledger.leave_part(*line, "that it is not checked", &reasons::UNCHECKED);
            }
            // keepalived removes all servers that fail, including the last one.
            service.keys.push("keep_last = false".to_owned());
        }
        if !has_health && !service.is_udp {
            service
                .comments
                .push("keepalived checks no servers here; Evener probes them by its default.".to_owned());
        }
        for general in checks.general {
            if has_health {
                self.ledger.carry_all(general.lines());
            }
            self.ledger.leave_open(general.whole(), &reasons::UNUSED);
        }
        service.health = health;
    }
}

/// The checks of a virtual server while it is read.
#[derive(Default)]
struct Checks {
    /// The first check, and its line.
    health: Option<(DraftHealth, usize)>,
    interval: Option<(u64, usize)>,
    host: Option<String>,
    /// Statements of the virtual server that apply to all checks.
    general: Vec<Statement>,
    /// Lines of servers without a check that Evener supports.
    unchecked: Vec<usize>,
}

/// Returns the method of `lb_kind KIND` or `lvs_method KIND`.
fn method(statement: &Statement) -> DraftMethod {
    match statement.word(1) {
        "DR" => DraftMethod::L2,
        "TUN" => DraftMethod::Tunnel { gue: statement.words.iter().any(|word| word == "gue") },
        "FNAT" | "FULLNAT" => DraftMethod::Nat { source_nat: true },
        _ => DraftMethod::Nat { source_nat: false },
    }
}

/// Returns the addresses of all `vrrp_instance` blocks.
fn moved(statements: &[Statement]) -> BTreeSet<IpAddr> {
    let instances = statements.iter().filter(|statement| statement.word(0) == "vrrp_instance");
    let lists = instances.flat_map(Statement::inner);
    let lists =
        lists.filter(|list| matches!(list.word(0), "virtual_ipaddress" | "virtual_ipaddress_excluded"));
    let addresses = lists.flat_map(Statement::inner).filter_map(|entry| entry.word(0).split('/').next());
    addresses.filter_map(|address| address.parse().ok()).collect()
}

/// Parses an address, or a range of addresses that differ in their last number.
fn range(text: &str) -> Vec<IpAddr> {
    let (first, last) = text.split_once('-').unwrap_or((text, ""));
    let Ok(first_ip) = first.parse::<IpAddr>() else { return Vec::new() };
    if last.is_empty() {
        return vec![first_ip];
    }
    let (separator, radix) = if first_ip.is_ipv4() { ('.', 10) } else { (':', 16) };
    let Some((stem, low)) = first.rsplit_once(separator) else { return Vec::new() };
    match (u16::from_str_radix(low, radix), u16::from_str_radix(last, radix)) {
        (Ok(low), Ok(high)) if low <= high && high - low < 256 => {
            let texts = (low..=high).map(|number| match radix {
                10 => format!("{stem}.{number}"),
                _ => format!("{stem}:{number:x}"),
            });
            texts.filter_map(|text| text.parse().ok()).collect()
        }
        _ => Vec::new(),
    }
}
