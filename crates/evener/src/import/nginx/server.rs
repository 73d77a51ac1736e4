//! `server` blocks of `http`: by address, host and location.

use std::collections::BTreeSet;

use evener_core::path::content::HostPattern;

use super::listen::Listen;
use super::location::LocationMatch;
use super::{Context, NginxReader, WORDING, location};
use crate::import::assemble::{self, DraftPattern, PoolChoice};
use crate::import::draft::{DraftMethod, DraftService, usable_name};
use crate::import::reasons;
use crate::import::settle::ADDRESSES;
use crate::import::tree::Statement;
use crate::import::values::EndpointHost;

struct VirtualHost<'t> {
    statement: &'t Statement,
    names: Vec<String>,
    listens: Vec<Listen<'t>>,
}

/// Addresses with the same port and the same virtual hosts.
struct SharedAddresses<'t> {
    listens: Vec<Listen<'t>>,
    /// Numbers of the virtual hosts, in the order of the file.
    hosts: Vec<usize>,
    /// Number of the default virtual host, which gets requests for unknown names.
    default: usize,
}

/// The requests of a location, the number of its pool, and its places.
type LocationPool = (LocationMatch, usize, BTreeSet<usize>);

impl NginxReader<'_, '_> {
    pub(super) fn virtual_hosts(&mut self, context: &mut Context<'_>) {
        let servers = context.statements.iter().copied().filter(|one| one.word(0) == "server");
        let hosts: Vec<VirtualHost<'_>> = servers.map(|statement| self.virtual_host(statement)).collect();
        for shared in self.by_address(&hosts) {
            let passes = |at: &usize| hosts.get(*at).is_some_and(|host| passes_on(host.statement));
            if shared.hosts.iter().any(passes) {
                self.service(context, &hosts, &shared);
            }
        }
    }

    fn virtual_host<'t>(&mut self, statement: &'t Statement) -> VirtualHost<'t> {
        let names = statement.inner().iter().filter(|one| one.word(0) == "server_name");
        let names = names.flat_map(|one| one.words.iter().skip(1).cloned()).collect();
        VirtualHost { statement, names, listens: self.listens(statement) }
    }

    /// Groups the addresses that have the same port, virtual hosts and default.
    fn by_address<'t>(&mut self, hosts: &[VirtualHost<'t>]) -> Vec<SharedAddresses<'t>> {
        let mut addresses: Vec<SharedAddresses<'t>> = Vec::new();
        for (at, host) in hosts.iter().enumerate() {
            for listen in &host.listens {
                let is_same = |known: &SharedAddresses<'_>| {
                    known.listens.iter().any(|one| (&one.host, one.port) == (&listen.host, listen.port))
                };
                let index = addresses.iter().position(is_same).unwrap_or(addresses.len());
                if index == addresses.len() {
                    addresses.push(SharedAddresses { listens: Vec::new(), hosts: Vec::new(), default: at });
                }
                let Some(address) = addresses.get_mut(index) else { continue };
                address.listens.push(listen.clone());
                address.hosts.push(at);
                if listen.is_default {
                    address.default = at;
                }
            }
        }
        let is_any = |address: &SharedAddresses<'_>, is_v6: bool| {
            address.listens.iter().any(|one| one.host == EndpointHost::Any { is_v6 })
        };
        let port = |address: &SharedAddresses<'_>| address.listens.first().map(|listen| listen.port);
        let v4: BTreeSet<Option<u16>> =
            addresses.iter().filter(|one| is_any(one, false)).map(&port).collect();
        let mut shared: Vec<SharedAddresses<'t>> = Vec::new();
        for address in addresses {
            if is_any(&address, true) && v4.contains(&port(&address)) {
                for listen in &address.listens {
                    self.ledger.leave(listen.line, &reasons::SECOND_FAMILY);
                }
                continue;
            }
            let key = |one: &SharedAddresses<'_>| (port(one), one.hosts.clone(), one.default);
            match shared.iter_mut().find(|known| key(known) == key(&address)) {
                Some(known) => known.listens.extend(address.listens),
                None => shared.push(address),
            }
        }
        shared
    }

    /// Adds the service of virtual hosts with the same addresses.
    fn service(&mut self, context: &mut Context<'_>, all: &[VirtualHost<'_>], shared: &SharedAddresses<'_>) {
        let hosts: Vec<&VirtualHost<'_>> = shared.hosts.iter().filter_map(|at| all.get(*at)).collect();
        if self.services.len() >= ADDRESSES {
            for host in hosts {
                self.ledger.leave_statement(host.statement, &reasons::TOO_MANY);
            }
            return;
        }
        let name = hosts.iter().flat_map(|host| &host.names).find(|name| name.as_str() != "_");
        let port = shared.listens.first().map_or(0, |listen| listen.port);
        let name = match name {
            Some(name) => usable_name(name.trim_start_matches(['*', '.', '~', '^'])),
            None => format!("http-{port}"),
        };
        let mut service = DraftService::new(&name, DraftMethod::Nat { source_nat: true });
        service.chooses_each_request = true;
        for host in hosts.iter().filter(|host| passes_on(host.statement)) {
            service.lines.extend(host.statement.lines());
        }
        self.addresses(&mut service, &shared.listens);
        if !service.has_address() {
            return;
        }
        let mut choices = Vec::new();
        for (at, host) in shared.hosts.iter().zip(&hosts) {
            // The default host needs routes for its names only if another host's pattern matches
            // one of them.
            let is_needed = *at != shared.default || is_taken_by_others(host, &hosts);
            if is_needed && passes_on(host.statement) {
                choices.extend(self.named_host(context, host, &mut service.lines));
            }
        }
        location::sort_by_host(&mut choices);
        let (of_default, default) = match all.get(shared.default) {
            Some(host) => self.default_host(context, host, &mut service.lines),
            None => (Vec::new(), None),
        };
        choices.extend(of_default);
        let pools = &context.pools;
        assemble::fill(&mut self.ledger, &mut service, &choices, default, pools, &WORDING);
        self.keep(service);
    }

    /// Returns the routes of a virtual host for its names.
    fn named_host(
        &mut self,
        context: &mut Context<'_>,
        host: &VirtualHost<'_>,
        used: &mut BTreeSet<usize>,
    ) -> Vec<PoolChoice> {
        let (names, left) = location::hosts(&host.names);
        for one in host.statement.inner().iter().filter(|one| one.word(0) == "server_name") {
            let left = one.words.iter().skip(1).filter(|word| left.contains(word));
            left.for_each(|word| self.ledger.leave_part(one.first, word, &reasons::REGEX));
            used.extend(one.lines());
        }
        let found = self.locations(context, host.statement);
        let mut choices = Vec::new();
        for name in &names {
            if !found.iter().any(|(matching, ..)| matching.takes_all()) {
                let part = format!("requests of {name} that no location of it passes on");
                self.ledger.leave_part(host.statement.first, &part, &reasons::UNTAKEN);
            }
            choices.extend(found.iter().map(|(matching, pool, lines)| PoolChoice {
                pool: *pool,
                patterns: patterns(Some(name), matching),
                lines: lines.clone(),
            }));
        }
        choices
    }

    /// Returns the routes of the default virtual host.
    /// Also returns the pool for requests that none of its locations matches.
    fn default_host(
        &mut self,
        context: &mut Context<'_>,
        host: &VirtualHost<'_>,
        used: &mut BTreeSet<usize>,
    ) -> (Vec<PoolChoice>, Option<usize>) {
        let mut default = None;
        let mut choices = Vec::new();
        if passes_on(host.statement) {
            let named = host.statement.inner().iter().filter(|one| one.word(0) == "server_name");
            used.extend(named.flat_map(|one| one.lines()));
        }
        for (matching, pool, lines) in self.locations(context, host.statement) {
            match matching.takes_all() {
                true => {
                    default = default.or(Some(pool));
                    used.extend(lines);
                }
                false => choices.push(PoolChoice { pool, patterns: patterns(None, &matching), lines }),
            }
        }
        (choices, default)
    }

    /// Returns the locations of a virtual host in the order in which nginx evaluates them.
    fn locations(&mut self, context: &mut Context<'_>, server: &Statement) -> Vec<LocationPool> {
        let mut found = Vec::new();
        let named: Vec<&Statement> = server
            .inner()
            .iter()
            .filter(|one| one.word(0) == "location" && location::is_named(one))
            .collect();
        self.locations_of(context, server, &named, &mut found);
        // If no location matches all requests, `try_files` of the server does.
        let root = LocationMatch::all();
        let has_root = found.iter().any(|(matching, ..)| matching.takes_all());
        if let Some(target) = fallback(server, &named).filter(|_| !has_root)
            && let Some((pool, lines)) = self.passed(context, target, "/")
        {
            found.push((root, pool, lines));
        }
        let unused = named.into_iter().filter(|one| !self.ledger.has_carried(one.whole()));
        let used: BTreeSet<usize> = found.iter().flat_map(|(.., lines)| lines.iter().copied()).collect();
        for one in unused.filter(|one| !used.contains(&one.first)).collect::<Vec<_>>() {
            self.ledger.leave_span(one.lines(), None, &reasons::NAMED_LOCATION);
            for inner in one.inner().iter().filter(|inner| inner.word(0) == "proxy_pass") {
                self.ledger.leave_statement(inner, &reasons::NAMED_LOCATION);
            }
        }
        self.in_order(server, &mut found);
        found
    }

    /// Collects the locations of a block, including nested ones.
    fn locations_of(
        &mut self,
        context: &mut Context<'_>,
        block: &Statement,
        named: &[&Statement],
        found: &mut Vec<LocationPool>,
    ) {
        let is_nested = block.word(0) == "location";
        for one in block.inner().iter().filter(|one| one.word(0) == "location" && !location::is_named(one)) {
            self.locations_of(context, one, named, found);
            let target = if passes_directly(one) { Some(one) } else { fallback(one, named) };
            let Some(target) = target else { continue };
            let is_internal = one.inner().iter().any(|inner| inner.word(0) == "internal");
            let is_bound = is_nested && (location::is_regex(one) || location::is_regex(block));
            let left = match location::read(one) {
                _ if is_internal => &reasons::NAMED_LOCATION,
                Some(matching) if !is_bound => {
                    if one.word(1).starts_with("~*") {
                        self.ledger.leave_part(one.first, "~*", &reasons::CASE);
                    }
                    if let Some((pool, mut lines)) =
                        self.passed(context, target, one.word(one.words.len() - 1))
                    {
                        lines.extend(one.lines());
                        found.push((matching, pool, lines));
                    }
                    continue;
                }
                _ => &reasons::REGEX,
            };
            self.ledger.leave_span(one.lines(), None, left);
            for inner in one.inner().iter().filter(|inner| inner.word(0) == "proxy_pass") {
                self.ledger.leave_statement(inner, left);
            }
        }
    }

    /// Sorts the locations: exact ones, then regular expressions, then the longest prefix.
    /// A prefix with `^~` precedes the regular expressions. Routes can do so only if no longer
    /// prefix extends it.
    fn in_order(&mut self, server: &Statement, found: &mut Vec<LocationPool>) {
        let has_regex = found.iter().any(|(matching, ..)| matching.is_regex());
        let prefixes: Vec<String> = found.iter().filter_map(|(matching, ..)| matching.prefix()).collect();
        for (matching, _, lines) in found.iter_mut() {
            let Some(prefix) = matching.prefix().filter(|_| matching.is_before_regexes()) else { continue };
            let goes_on =
                prefixes.iter().any(|other| other.len() > prefix.len() && other.starts_with(&prefix));
            if goes_on || !has_regex {
                matching.set_plain();
            }
            if goes_on && has_regex {
                let place = lines.first().copied().unwrap_or(server.first);
                self.ledger.leave_part(place, "^~", &reasons::LOCATION_ORDER);
            }
        }
        // If the root location has `^~`, nginx never evaluates the regular expressions.
        if found.iter().any(|(matching, ..)| matching.is_before_regexes() && matching.takes_all()) {
            for (.., lines) in found.extract_if(.., |(matching, ..)| matching.is_regex()) {
                lines.into_iter().for_each(|line| self.ledger.leave(line, &reasons::UNREACHED));
            }
        }
        found.sort_by_key(|(matching, ..)| matching.rank);
    }

    /// Returns the pool of the block's `proxy_pass`, and the places of the statement.
    fn passed(
        &mut self,
        context: &mut Context<'_>,
        block: &Statement,
        location: &str,
    ) -> Option<(usize, BTreeSet<usize>)> {
        let passed = block.inner().iter().find(|inner| inner.word(0) == "proxy_pass")?;
        let url = passed.word(1);
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let (target, path) = match rest.strip_prefix("unix:").and_then(|rest| rest.split_once(':')) {
            Some((socket, path)) => (format!("unix:{socket}"), path),
            None if rest.starts_with("unix:") => (rest.to_owned(), ""),
            None => {
                let (target, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                (target.to_owned(), path)
            }
        };
        let is_https = scheme.eq_ignore_ascii_case("https");
        let port = if is_https { 443 } else { 80 };
        let number = match target.is_empty() {
            true => None,
            false => self.pool(context, &target, Some(port), passed.first),
        };
        let Some(number) = number else {
            self.ledger.leave_statement(passed, &reasons::CONTENT);
            return None;
        };
        if !path.is_empty() && path != location {
            self.ledger.leave_part(passed.first, path, &reasons::REWRITE);
        }
        if is_https {
            self.ledger.leave_part(passed.first, url, &reasons::TLS_TO_SERVERS);
        }
        let has_servers = context.pools.get(&number).is_some_and(|pool| !pool.servers.is_empty());
        has_servers.then(|| (number, block.lines().chain(passed.lines()).collect()))
    }
}

/// True if names of other virtual hosts match names of this one.
fn is_taken_by_others(host: &VirtualHost<'_>, all: &[&VirtualHost<'_>]) -> bool {
    let patterns = |host: &VirtualHost<'_>| -> Vec<HostPattern> {
        location::hosts(&host.names).0.iter().filter_map(|name| HostPattern::parse(name).ok()).collect()
    };
    let own = patterns(host);
    let others = all.iter().filter(|other| !std::ptr::eq(other.statement, host.statement));
    let mut others = others.flat_map(|other| patterns(other));
    others.any(|other| own.iter().any(|own| other.covers(own)))
}

/// True if a location of the virtual host forwards requests.
pub(super) fn passes_on(block: &Statement) -> bool {
    let mut locations = block.inner().iter().filter(|one| one.word(0) == "location");
    locations.any(|one| passes_directly(one) || passes_on(one))
}

/// True if the block itself has `proxy_pass`.
pub(super) fn passes_directly(block: &Statement) -> bool {
    block.inner().iter().any(|inner| inner.word(0) == "proxy_pass")
}

/// Returns the named location that is the last word of the block's `try_files`.
fn fallback<'t>(block: &Statement, named: &[&'t Statement]) -> Option<&'t Statement> {
    let tried = block.inner().iter().find(|inner| inner.word(0) == "try_files")?;
    let last = tried.words.last()?;
    named.iter().copied().find(|one| one.word(1) == last)
}

/// Returns the patterns of a location for a host.
fn patterns(host: Option<&String>, matching: &LocationMatch) -> Vec<DraftPattern> {
    let pattern =
        |path: &Option<String>| DraftPattern { host: host.cloned(), path: path.clone(), methods: Vec::new() };
    matching.paths.iter().map(pattern).collect()
}
