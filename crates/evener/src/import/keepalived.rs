//! keepalived.conf: virtual servers, groups of them, and checks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::draft::{DraftHealth, DraftMethod, DraftServer, DraftService, Placeholders, Sourced};
use super::features;
use super::ipvsadm::{has_server, policy};
use super::ledger::Ledger;
use super::reasons::{self, LeftReason};
use super::settle::{ADDRESSES, SERVERS};
use super::source::{ImportError, Source};
use super::tree::{self, Statement, Syntax};
use super::values::{self, EndpointHost};

/// Blocks and statements without a counterpart, by their first word or the beginning of it.
const LEFT: [(&str, &LeftReason); 34] = [
    ("vrrp", &reasons::VRRP),
    ("global_defs", &reasons::PROCESS),
    ("static_", &reasons::VRRP),
    ("track_", &reasons::VRRP),
    ("bfd_", &reasons::VRRP),
    ("linkbeat", &reasons::PROCESS),
    ("net_namespace", &reasons::PROCESS),
    ("interface_up_down_delays", &reasons::VRRP),
    ("include", &reasons::NOT_FOLLOWED),
    ("@", &reasons::CONDITION),
    ("$", &reasons::CONDITION),
    ("~", &reasons::CONDITION),
    ("quorum", &reasons::QUORUM),
    ("hysteresis", &reasons::QUORUM),
    ("alpha", &reasons::QUORUM),
    ("omega", &reasons::QUORUM),
    ("notify", &reasons::SCRIPTS),
    ("ha_suspend", &reasons::VRRP),
    ("nat_mask", &reasons::CHECK_DETAIL),
    ("persistence_granularity", &reasons::AFFINITY),
    ("persistence_engine", &reasons::AFFINITY),
    ("ip_family", &reasons::FWMARK),
    ("ops", &reasons::ONE_PACKET),
    ("inhibit_on_failure", &reasons::CHECK_DETAIL),
    ("smtp_alert", &reasons::SCRIPTS),
    ("log_all_failures", &reasons::LOGGING),
    ("lthreshold", &reasons::MAX_CONNECTIONS),
    ("flag-", &reasons::POLICY),
    ("mh-", &reasons::POLICY),
    ("sh-", &reasons::POLICY),
    ("hashed", &reasons::POLICY),
    ("warmup", &reasons::CHECK_DETAIL),
    ("delay_before_retry", &reasons::CHECK_DETAIL),
    ("bind", &reasons::CHECK_DETAIL),
];

fn reason(word: &str) -> &'static LeftReason {
    let found = LEFT.iter().find(|(beginning, _)| word.starts_with(beginning));
    found.map_or(&reasons::UNKNOWN, |(_, reason)| reason)
}

/// The entries of a group: addresses with their lines.
type AddressGroups<'t> = BTreeMap<&'t str, &'t Statement>;

struct KeepalivedReader<'s, 'p> {
    ledger: Ledger<'s>,
    places: &'p mut Placeholders,
    services: Vec<DraftService>,
}

/// The services of a file, and the account of its lines.
pub(super) fn read<'s>(
    source: &'s Source,
    places: &mut Placeholders,
) -> Result<(Vec<DraftService>, Ledger<'s>), ImportError> {
    let (statements, significant) = tree::read(source, Syntax::Lines)?;
    let mut reader =
        KeepalivedReader { ledger: Ledger::new(source, significant), places, services: Vec::new() };
    let is_group = |statement: &&Statement| statement.word(0) == "virtual_server_group";
    let groups: AddressGroups<'_> =
        statements.iter().filter(is_group).map(|statement| (statement.word(1), statement)).collect();
    for statement in &statements {
        match statement.word(0) {
            "virtual_server" => reader.virtual_server(statement, &groups),
            "virtual_server_group" => {}
            word => reader.ledger.leave_statement(statement, reason(word)),
        }
    }
    for group in groups.values() {
        reader.ledger.leave_open(group.whole(), &reasons::UNREFERENCED);
    }
    Ok((reader.services, reader.ledger))
}

impl KeepalivedReader<'_, '_> {
    fn virtual_server(&mut self, statement: &Statement, groups: &AddressGroups<'_>) {
        if self.services.len() >= ADDRESSES {
            return self.ledger.leave_statement(statement, &reasons::TOO_MANY);
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
            if inner.word(0) != "real_server" {
                self.setting(&mut service, inner, &mut checks);
            }
        }
        for inner in statement.inner().iter().filter(|inner| inner.word(0) == "real_server") {
            self.real_server(&mut service, inner, &mut checks);
        }
        self.finish_health(&mut service, checks);
        self.ledger.carry_all(service.all_lines());
        self.services.push(service);
    }

    /// The addresses of a group; a range of them is `192.0.2.3-10`.
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

    /// A statement of a virtual server.
    fn setting(&mut self, service: &mut DraftService, statement: &Statement, checks: &mut Checks) {
        let value = statement.word(1);
        let line = statement.first;
        let mut left = None;
        match statement.word(0) {
            "delay_loop" => checks.interval = values::seconds_ms(value).map(|ms| (ms, line)),
            "lb_algo" | "lvs_sched" => {
                let (policy, reason) = policy(value);
                service.policy = policy.or(service.policy);
                left = match reason {
                    Some(reason) if *reason == reasons::ADDRESS_HASH => {
                        features::address_hash(&mut service.keys).err()
                    }
                    reason => reason,
                };
            }
            "lb_kind" | "lvs_method" => {
                service.method = match value {
                    "DR" => DraftMethod::L2,
                    "TUN" => DraftMethod::Tunnel { gue: statement.words.iter().any(|word| word == "gue") },
                    "FNAT" | "FULLNAT" => DraftMethod::Nat { source_nat: true },
                    _ => DraftMethod::Nat { source_nat: false },
                };
            }
            "protocol" => match value {
                "TCP" => {}
                "UDP" => service.is_udp = true,
                _ => left = Some(&reasons::PROTOCOL),
            },
            "persistence_timeout" => {
                if let Err(reason) = features::affinity(&mut service.keys, value.parse().ok()) {
                    return self.ledger.leave_statement(statement, reason);
                }
            }
            "virtualhost" => checks.host = Some(value.to_owned()),
            "sorry_server" => {
                let Some(mut server) = self.server(statement, service) else {
                    return self.ledger.leave_statement(statement, &reasons::NOT_ADDRESS);
                };
                match features::backup(&mut server) {
                    Ok(()) => service.servers.push(server),
                    Err(reason) => return self.ledger.leave_statement(statement, reason),
                }
            }
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

    /// The server that a statement names.
    fn server(&mut self, statement: &Statement, service: &DraftService) -> Option<DraftServer> {
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
            port: values::port(statement.word(2)).or(service.port()),
            weight: 1,
            keys: Vec::new(),
            lines: Vec::new(),
        })
    }

    fn real_server(&mut self, service: &mut DraftService, statement: &Statement, checks: &mut Checks) {
        let line = statement.first;
        if service.servers.len() >= SERVERS {
            return self.ledger.leave_statement(statement, &reasons::TOO_MANY);
        }
        let Some(mut server) = self.server(statement, service) else {
            return self.ledger.leave_statement(statement, &reasons::NOT_ADDRESS);
        };
        if has_server(service, server.address.value, server.port) {
            return self.ledger.leave_statement(statement, &reasons::DUPLICATE);
        }
        server.lines.extend(statement.lines());
        if !service.method.has_ports() && server.port != service.port() {
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
        checks.has_unchecked |= !has_check;
        service.servers.push(server);
    }

    /// The check of one server. The first one is the service's; others have to be like it.
    fn check(&mut self, statement: &Statement, checks: &mut Checks) {
        let mut health = DraftHealth::default();
        let mut carried: Vec<usize> = statement.lines().collect();
        health.kind = Some(if statement.word(0) == "TCP_CHECK" { "tcp" } else { "http" });
        if statement.word(0) == "SSL_GET"
            && let Err(reason) = features::https_check(&mut health)
        {
            self.ledger.leave(statement.first, reason);
        }
        let mut urls = 0;
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
                    // The first failure is no retry.
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
        let line = checks.health.as_ref().map(|(_, line)| *line);
        let has_health = checks.health.is_some();
        let mut health = checks.health.map(|(health, _)| health).unwrap_or_default();
        if health.kind == Some("http") && health.host.is_none() {
            health.host = checks.host;
        }
        // keepalived waits so long between two checks; its default is 60 s.
        match checks.interval {
            Some((ms, _)) if values::INTERVAL_MS.contains(&ms) => health.interval_ms = Some(ms),
            Some((_, line)) => self.ledger.leave(line, &reasons::CHECK_TIME),
            None if has_health => health.interval_ms = Some(60_000),
            None => {}
        }
        let interval = health.interval_ms.unwrap_or(2_000);
        if health.timeout_ms.is_some_and(|timeout| timeout == 0 || timeout >= interval) {
            health.timeout_ms = None;
            if let Some(line) = line {
                self.ledger.leave_part(line, "connect_timeout", &reasons::CHECK_TIME);
            }
        }
        if service.is_udp && health.kind.is_some() {
            health.kind = Some("tcp");
        }
        if has_health && checks.has_unchecked {
            let comment = "keepalived checks some of the servers only; Evener probes all of them.";
            service.comments.push(comment.to_owned());
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
    /// The first one, and its line.
    health: Option<(DraftHealth, usize)>,
    interval: Option<(u64, usize)>,
    host: Option<String>,
    /// Statements of the virtual server that hold for all checks.
    general: Vec<Statement>,
    /// Whether there is a server without a check that Evener has.
    has_unchecked: bool,
}

/// An address, or the addresses of a range by its last number.
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
