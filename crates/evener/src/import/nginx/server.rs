//! `server` blocks: of `http`, by address, host and location; of `stream`, by address.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::{Context, NginxReader, WORDING, location};
use crate::import::assemble::{self, DraftPattern, PoolChoice};
use crate::import::draft::{DraftMethod, DraftService, Sourced, usable_name};
use crate::import::reasons;
use crate::import::settle::ADDRESSES;
use crate::import::tree::Statement;
use crate::import::values::{self, EndpointHost};

/// An address that a block listens at.
#[derive(Clone, Debug)]
struct Listen<'t> {
    text: &'t str,
    host: EndpointHost,
    port: u16,
    line: usize,
    is_tls: bool,
    is_default: bool,
    is_udp: bool,
}

/// A virtual host.
struct VirtualHost<'t> {
    statement: &'t Statement,
    names: Vec<String>,
    listens: Vec<Listen<'t>>,
}

/// Virtual hosts at an address, in their order.
type ByAddress<'t> = Vec<((String, u16), Vec<VirtualHost<'t>>)>;

impl NginxReader<'_, '_> {
    pub(super) fn virtual_hosts(&mut self, context: &mut Context<'_>) {
        let servers: Vec<&Statement> =
            context.statements.iter().copied().filter(|one| one.word(0) == "server").collect();
        let mut by_address: ByAddress<'_> = Vec::new();
        for statement in servers {
            let Some(host) = self.virtual_host(statement) else { continue };
            let Some(first) = host.listens.first() else { continue };
            let key = (format!("{:?}", first.host), first.port);
            match by_address.iter_mut().find(|(known, _)| *known == key) {
                Some((_, hosts)) => hosts.push(host),
                None => by_address.push((key, vec![host])),
            }
        }
        for (_, hosts) in by_address {
            self.service(context, &hosts);
        }
    }

    /// A virtual host, unless it passes nothing on.
    fn virtual_host<'t>(&mut self, statement: &'t Statement) -> Option<VirtualHost<'t>> {
        let is_passing = |one: &Statement| one.word(0) == "proxy_pass";
        let locations = statement.inner().iter().filter(|one| one.word(0) == "location");
        let passes = locations.clone().any(|one| one.inner().iter().any(is_passing));
        if !passes {
            return None;
        }
        let names = statement.inner().iter().filter(|one| one.word(0) == "server_name");
        let names = names.flat_map(|one| one.words.iter().skip(1).cloned()).collect();
        Some(VirtualHost { statement, names, listens: self.listens(statement) })
    }

    /// The addresses of a block; plain ones alone where there are such.
    fn listens<'t>(&mut self, statement: &'t Statement) -> Vec<Listen<'t>> {
        let mut listens: Vec<Listen<'t>> = Vec::new();
        for one in statement.inner().iter().filter(|one| one.word(0) == "listen") {
            let endpoint = match one.word(1).parse::<u16>() {
                Ok(port) => values::Endpoint { host: EndpointHost::Any { is_v6: false }, port: Some(port) },
                Err(_) => values::endpoint(one.word(1)),
            };
            if one.word(1).starts_with("unix:") || one.word(1).is_empty() {
                self.ledger.leave_statement(one, &reasons::LOCAL_SOCKET);
                continue;
            }
            let has = |word: &str| one.words.iter().any(|one| one == word);
            listens.push(Listen {
                text: one.word(1),
                host: endpoint.host,
                port: endpoint.port.filter(|port| *port > 0).unwrap_or(80),
                line: one.first,
                is_tls: has("ssl"),
                is_default: has("default_server") || has("default"),
                is_udp: has("udp"),
            });
        }
        let has_plain = listens.iter().any(|listen| !listen.is_tls);
        listens.retain(|listen| {
            let stays = !(listen.is_tls && has_plain);
            if !stays {
                self.ledger.leave(listen.line, &reasons::PLAIN_SERVERS);
            }
            stays
        });
        if listens.is_empty() && !statement.inner().iter().any(|one| one.word(0) == "listen") {
            listens.push(Listen {
                text: "*:80, by default",
                host: EndpointHost::Any { is_v6: false },
                port: 80,
                line: statement.first,
                is_tls: false,
                is_default: false,
                is_udp: false,
            });
        }
        listens
    }

    /// The service of all virtual hosts at an address.
    fn service(&mut self, context: &mut Context<'_>, hosts: &[VirtualHost<'_>]) {
        if self.services.len() >= ADDRESSES {
            for host in hosts {
                self.ledger.leave_statement(host.statement, &reasons::TOO_MANY);
            }
            return;
        }
        let is_default = |host: &VirtualHost<'_>| host.listens.iter().any(|listen| listen.is_default);
        let default_at = hosts.iter().position(is_default).unwrap_or_default();
        let name = hosts.iter().flat_map(|host| &host.names).find(|name| name.as_str() != "_");
        let port = hosts.first().and_then(|host| host.listens.first()).map(|listen| listen.port);
        let name = match name {
            Some(name) => usable_name(name.trim_start_matches('.')),
            None => format!("http-{}", port.unwrap_or_default()),
        };
        let mut service = DraftService::new(&name, DraftMethod::Nat { source_nat: true });
        for host in hosts {
            service.lines.extend(host.statement.lines());
            self.addresses(&mut service, &host.listens);
        }
        if service.addresses.is_empty() {
            return;
        }
        let mut choices = Vec::new();
        let mut default = None;
        for (at, host) in hosts.iter().enumerate() {
            if at != default_at {
                choices.extend(self.host_choices(context, host, true, &mut service.lines).0);
            }
        }
        if let Some(host) = hosts.get(default_at) {
            let (of_default, pool) = self.host_choices(context, host, false, &mut service.lines);
            choices.extend(of_default);
            default = pool;
        }
        let pools = &context.pools;
        assemble::fill(&mut self.ledger, &mut service, &choices, default, pools, &WORDING);
        self.keep(service);
    }

    /// The routes of a virtual host, and the pool of requests that none of its locations takes.
    /// `by_name` says whether the host's names are part of the routes.
    fn host_choices(
        &mut self,
        context: &mut Context<'_>,
        host: &VirtualHost<'_>,
        by_name: bool,
        used: &mut BTreeSet<usize>,
    ) -> (Vec<PoolChoice>, Option<usize>) {
        let named: Vec<&Statement> =
            host.statement.inner().iter().filter(|one| one.word(0) == "server_name").collect();
        let patterns = match location::hosts(&host.names) {
            Some(hosts) if !hosts.is_empty() => hosts.into_iter().map(Some).collect(),
            _ if by_name => {
                named.iter().for_each(|one| self.ledger.leave_statement(one, &reasons::REGEX));
                return (Vec::new(), None);
            }
            _ => vec![None],
        };
        used.extend(named.iter().flat_map(|one| one.lines()));
        let mut found = Vec::new();
        for one in host.statement.inner().iter().filter(|one| one.word(0) == "location") {
            let passed = one.inner().iter().find(|inner| inner.word(0) == "proxy_pass");
            let Some(passed) = passed else { continue };
            match location::read(one) {
                Some(matching) => {
                    if let Some(pool) = self.passed(context, one, passed) {
                        let lines: BTreeSet<usize> = one.lines().chain(passed.lines()).collect();
                        found.push((matching, pool, lines));
                    }
                }
                None => {
                    self.ledger.leave_lines(one.lines(), &reasons::REGEX);
                    self.ledger.leave_statement(passed, &reasons::REGEX);
                }
            }
        }
        found.sort_by_key(|(matching, ..)| matching.rank);
        let mut choices = Vec::new();
        let mut default = None;
        for (matching, pool, of_location) in found {
            let is_all = matching.paths.iter().all(Option::is_none);
            if is_all && !by_name {
                default = default.or(Some(pool));
                used.extend(of_location);
                continue;
            }
            let hosts = if by_name { patterns.clone() } else { vec![None] };
            let pairs = hosts.iter().flat_map(|host| matching.paths.iter().map(move |path| (host, path)));
            let patterns = pairs.map(|(host, path)| DraftPattern {
                host: host.clone(),
                path: path.clone(),
                methods: Vec::new(),
            });
            choices.push(PoolChoice { pool, patterns: patterns.collect(), lines: of_location });
        }
        (choices, default)
    }

    /// The pool that a location passes requests to.
    fn passed(
        &mut self,
        context: &mut Context<'_>,
        location: &Statement,
        passed: &Statement,
    ) -> Option<usize> {
        let url = passed.word(1);
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let (target, path) = match rest.strip_prefix("unix:").and_then(|rest| rest.split_once(':')) {
            Some((socket, path)) => (format!("unix:{socket}"), path.to_owned()),
            None if rest.starts_with("unix:") => (rest.to_owned(), String::new()),
            None => match rest.find('/') {
                Some(at) => (
                    rest.get(..at).unwrap_or_default().to_owned(),
                    rest.get(at..).unwrap_or_default().to_owned(),
                ),
                None => (rest.to_owned(), String::new()),
            },
        };
        if target.is_empty() || target.contains('$') {
            self.ledger.leave_statement(passed, &reasons::CONTENT);
            return None;
        }
        if !path.is_empty() && path != location.words.last().map_or("", String::as_str) {
            self.ledger.leave_part(passed.first, &path, &reasons::REWRITE);
        }
        if scheme == "https" {
            self.ledger.leave_part(passed.first, url, &reasons::TLS_TO_SERVERS);
        }
        let number = self.pool(context, &target, passed.first);
        let has_servers = context.pools.get(&number).is_some_and(|pool| !pool.servers.is_empty());
        has_servers.then_some(number)
    }

    fn addresses(&mut self, service: &mut DraftService, listens: &[Listen<'_>]) {
        let mut any: Option<IpAddr> =
            service.addresses.iter().find(|known| known.remark.is_some()).map(|known| known.value.ip());
        for listen in listens {
            let (ip, remark) = match &listen.host {
                EndpointHost::Address(ip) => (*ip, None),
                EndpointHost::Any { is_v6: true } if !service.addresses.is_empty() => {
                    self.ledger.leave(listen.line, &reasons::SECOND_FAMILY);
                    continue;
                }
                EndpointHost::Any { .. } | EndpointHost::Other(_) => {
                    let ip = *any.get_or_insert_with(|| self.places.service());
                    let name = &service.name;
                    let todo = format!("the address that clients of {name:?} connect to ({})", listen.text);
                    self.ledger.blank(listen.line, ip, todo.clone());
                    (ip, Some(format!("TO FILL IN: {todo}.")))
                }
            };
            let value = SocketAddr::new(ip, listen.port);
            if !service.addresses.iter().any(|known| known.value == value) {
                service.addresses.push(Sourced { value, line: listen.line, remark });
            }
            service.lines.insert(listen.line);
            if listen.is_tls {
                self.ledger.leave_part(listen.line, "ssl", &reasons::TLS_HERE);
            }
        }
    }

    pub(super) fn stream_servers(&mut self, context: &mut Context<'_>) {
        let servers: Vec<&Statement> =
            context.statements.iter().copied().filter(|one| one.word(0) == "server").collect();
        for statement in servers {
            if self.services.len() >= ADDRESSES {
                self.ledger.leave_statement(statement, &reasons::TOO_MANY);
                continue;
            }
            let passed = statement.inner().iter().find(|one| one.word(0) == "proxy_pass");
            let Some(passed) = passed else { continue };
            let listens = self.listens(statement);
            let (choices, default) = match passed.word(1).starts_with('$') {
                true => self.by_server_name(context, statement, passed),
                false => (Vec::new(), Some(self.pool(context, passed.word(1), passed.first))),
            };
            let port = listens.first().map_or(0, |listen| listen.port);
            let mut service =
                DraftService::new(&format!("stream-{port}"), DraftMethod::Nat { source_nat: true });
            service.is_udp = listens.first().is_some_and(|listen| listen.is_udp);
            service.lines.extend(statement.lines().chain(passed.lines()));
            self.addresses(&mut service, &listens);
            self.stream_timeout(&mut service, statement);
            if !service.addresses.is_empty() {
                let pools = &context.pools;
                assemble::fill(&mut self.ledger, &mut service, &choices, default, pools, &WORDING);
                self.keep(service);
            }
        }
    }

    /// `proxy_timeout` ends idle connections.
    fn stream_timeout(&mut self, service: &mut DraftService, statement: &Statement) {
        for one in statement.inner().iter().filter(|one| one.word(0) == "proxy_timeout") {
            let ms = values::time_ms(one.word(1), 1_000).filter(|ms| values::IDLE_MS.contains(ms));
            if let Some(ms) = ms {
                service.timeouts = vec![(if service.is_udp { "udp" } else { "tcp" }, ms)];
                service.lines.extend(one.lines());
            }
        }
    }

    /// `map $ssl_preread_server_name $variable` as routes by host.
    fn by_server_name(
        &mut self,
        context: &mut Context<'_>,
        server: &Statement,
        passed: &Statement,
    ) -> (Vec<PoolChoice>, Option<usize>) {
        let is_map = |one: &&&Statement| {
            one.word(0) == "map" && one.word(1) == "$ssl_preread_server_name" && one.word(2) == passed.word(1)
        };
        let Some(map) = context.statements.iter().find(is_map).copied() else {
            self.ledger.leave_statement(passed, &reasons::CONTENT);
            return (Vec::new(), None);
        };
        let (mut choices, mut default) = (Vec::new(), None);
        self.ledger.carry_all(map.lines());
        let preread = server.inner().iter().filter(|one| one.word(0) == "ssl_preread");
        preread.for_each(|one| self.ledger.carry_all(one.lines()));
        for entry in map.inner() {
            if matches!(entry.word(0), "hostnames" | "volatile") {
                self.ledger.carry_all(entry.lines());
                continue;
            }
            let target = entry.word(1);
            let hosts = location::hosts(&[entry.word(0).to_owned()]).filter(|hosts| !hosts.is_empty());
            match (entry.word(0), hosts) {
                _ if target.is_empty() || target.starts_with('$') => {
                    self.ledger.leave_statement(entry, &reasons::CONTENT);
                }
                ("default", _) => {
                    default = Some(self.pool(context, target, entry.first));
                    self.ledger.carry_all(entry.lines());
                }
                (_, Some(hosts)) => {
                    let pool = self.pool(context, target, entry.first);
                    let pattern = |host| DraftPattern { host: Some(host), ..DraftPattern::default() };
                    let patterns = hosts.into_iter().map(pattern).collect();
                    choices.push(PoolChoice { pool, patterns, lines: entry.lines().collect() });
                }
                (_, None) => self.ledger.leave_statement(entry, &reasons::REGEX),
            }
        }
        (choices, default)
    }
}
