//! Builds one service from pools of servers and the conditions that select a pool.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::draft::{DraftHealth, DraftMethod, DraftRoute, DraftServer, DraftService, unused_name};
use super::features;
use super::ledger::Ledger;
use super::reasons;
use super::settle::SERVERS;

/// A group of servers with its settings: a backend of HAProxy, or an upstream of nginx.
#[derive(Clone, Debug, Default)]
pub(super) struct DraftPool {
    pub(super) servers: Vec<DraftServer>,
    pub(super) policy: Option<&'static str>,
    pub(super) slow_start_ms: Option<u64>,
    pub(super) health: DraftHealth,
    pub(super) report: Vec<String>,
    /// Further keys of the service, as lines of TOML.
    pub(super) keys: Vec<String>,
    /// Place of the rule that binds clients to servers, if there is one.
    pub(super) stick: Option<usize>,
    /// Places in the source, besides the places of the servers.
    pub(super) lines: BTreeSet<usize>,
    pub(super) comments: Vec<String>,
}

/// Condition of a route on a request. A part that is `None` or empty matches every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DraftPattern {
    pub(super) host: Option<String>,
    pub(super) path: Option<String>,
    pub(super) methods: Vec<String>,
}

/// A pool, by its number, and the patterns of its requests. A request goes to the pool if it
/// matches any pattern.
#[derive(Clone, Debug)]
pub(super) struct PoolChoice {
    pub(super) pool: usize,
    pub(super) patterns: Vec<DraftPattern>,
    pub(super) lines: BTreeSet<usize>,
}

/// Comments in the file that explain the method of the service.
pub(super) struct Wording {
    pub(super) nat: &'static str,
    pub(super) handoff: &'static str,
}

/// Adds servers and routes to a service.
/// With method handoff, the service gets the servers of all pools that the choices select. With
/// nat, it gets the servers of its only pool. A service that needs routes but can't use handoff
/// gets no servers. Without routes, requests would reach the wrong servers.
pub(super) fn fill(
    ledger: &mut Ledger<'_>,
    service: &mut DraftService,
    choices: &[PoolChoice],
    default: Option<usize>,
    pools: &BTreeMap<usize, DraftPool>,
    wording: &Wording,
) {
    let mut used: Vec<usize> = Vec::new();
    for pool in default.into_iter().chain(choices.iter().map(|choice| choice.pool)) {
        if !used.contains(&pool) {
            used.push(pool);
        }
    }
    let lines = || choices.iter().flat_map(|choice| choice.lines.iter().copied());
    let hands_over = used.len() > 1;
    if hands_over && share_addresses(&used, pools) {
        lines().for_each(|line| ledger.leave(line, &reasons::NO_HANDOFF));
        for line in service.all_lines() {
            ledger.leave_open(line..=line, &reasons::NOT_MADE);
        }
        return;
    }
    if default.is_none()
        && let Some(line) = service.lines.first()
    {
        ledger.leave_part(*line, "requests that no rule is for", &reasons::UNMATCHED);
    }
    service.method = if hands_over { DraftMethod::Handoff } else { service.method };
    service.chooses_each_request &= hands_over;
    service.comments.push(if hands_over { wording.handoff } else { wording.nat }.to_owned());
    service.lines.extend(lines().filter(|_| !hands_over));
    let names = add_servers(ledger, service, &used, pools);
    if hands_over {
        add_routes(service, choices, default, &names);
    }
}

/// True if two servers of these pools have the same address but different ports.
fn share_addresses(used: &[usize], pools: &BTreeMap<usize, DraftPool>) -> bool {
    let servers = used.iter().filter_map(|at| pools.get(at)).flat_map(|pool| &pool.servers);
    let endpoints: BTreeSet<(IpAddr, Option<u16>)> =
        servers.map(|server| (server.address.value, server.port)).collect();
    let hosts: BTreeSet<IpAddr> = endpoints.iter().map(|(address, _)| *address).collect();
    hosts.len() < endpoints.len()
}

/// Adds the servers of the pools to the service. Returns the names of the servers by pool.
fn add_servers(
    ledger: &mut Ledger<'_>,
    service: &mut DraftService,
    used: &[usize],
    pools: &BTreeMap<usize, DraftPool>,
) -> BTreeMap<usize, Vec<String>> {
    let mut names: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for (number, at) in used.iter().enumerate() {
        let Some(pool) = pools.get(at) else { continue };
        if number == 0 {
            service.policy = pool.policy;
            service.health = pool.health.clone();
            service.slow_start_ms = pool.slow_start_ms;
            service.report.clone_from(&pool.report);
            service.keys.clone_from(&pool.keys);
            if service.method == DraftMethod::Handoff && pool.policy != Some("hash") {
                features::remove_affinity(&mut service.keys);
                pool.stick.iter().for_each(|line| ledger.leave(*line, &reasons::AFFINITY_HANDOFF));
            }
        } else {
            differences(ledger, service, pool);
        }
        service.lines.extend(pool.lines.iter().copied());
        service.comments.extend(pool.comments.iter().cloned());
        let of_pool = names.entry(*at).or_default();
        for server in &pool.servers {
            let same = |known: &DraftServer| {
                (known.address.value, known.port) == (server.address.value, server.port)
            };
            if let Some(known) = service.servers.iter_mut().find(|known| same(known)) {
                join(ledger, known, server, of_pool);
                continue;
            }
            if service.servers.len() >= SERVERS {
                ledger.leave(server.address.line, &reasons::TOO_MANY);
                continue;
            }
            let mut server = server.clone();
            let name = unused_name(&taken, server.name.as_deref().unwrap_or_default());
            taken.insert(name.clone());
            of_pool.push(name.clone());
            server.name = Some(name);
            let is_other = |port: &u16| service.addresses.iter().any(|at| at.value.port() != *port);
            let port = server.port.filter(is_other);
            if let Some(port) = port.filter(|_| service.method == DraftMethod::Handoff) {
                let part = format!("port {port}");
                ledger.leave_part(server.address.line, &part, &reasons::HANDOFF_PORT);
            }
            service.servers.push(server);
        }
    }
    names
}

/// Adds a server that the service already has to one more pool, under its known name.
/// Settings that differ from the known server's are left with a reason.
fn join(ledger: &mut Ledger<'_>, known: &mut DraftServer, server: &DraftServer, of_pool: &mut Vec<String>) {
    let line = server.address.line;
    let Some(name) = known.name.clone().filter(|name| !of_pool.contains(name)) else {
        return ledger.leave(line, &reasons::DUPLICATE);
    };
    of_pool.push(name);
    known.lines.extend(server.lines.iter().copied().chain([line]));
    const BACKUP: &str = "backup = true";
    let is_backup = |server: &DraftServer| server.keys.iter().any(|key| key == BACKUP);
    if is_backup(server) != is_backup(known) || (server.weight == 0) != (known.weight == 0) {
        ledger.leave_part(line, "its part in one of its groups", &reasons::ONE_ROLE);
    } else if server.weight != known.weight {
        ledger.leave_part(line, &format!("weight {}", server.weight), &reasons::ONE_SHARE);
    }
    if server.keys != known.keys {
        ledger.leave_part(line, "its own settings", &reasons::ONE_SHARE);
    }
}

/// Leaves with a reason each setting of a further pool that differs from the service's.
fn differences(ledger: &mut Ledger<'_>, service: &DraftService, pool: &DraftPool) {
    let Some(line) = pool.lines.last().copied() else { return };
    if pool.policy != service.policy {
        let part = format!("policy {}", pool.policy.unwrap_or_default());
        ledger.leave_part(line, &part, &reasons::ONE_POLICY);
    }
    if pool.health != service.health {
        ledger.leave_part(line, "the checks of these servers", &reasons::ONE_CHECK);
    }
    let paces = [
        ("the slow start of these servers", pool.slow_start_ms != service.slow_start_ms),
        ("the reports of these servers", pool.report != service.report),
        ("other settings of these servers", pool.keys != service.keys),
    ];
    for (part, _) in paces.into_iter().filter(|(_, differs)| *differs) {
        ledger.leave_part(line, part, &reasons::ONE_PACE);
    }
}

fn add_routes(
    service: &mut DraftService,
    choices: &[PoolChoice],
    default: Option<usize>,
    names: &BTreeMap<usize, Vec<String>>,
) {
    let mut routes = Vec::new();
    for choice in choices {
        let servers = names.get(&choice.pool).cloned().unwrap_or_default();
        routes.extend(choice.patterns.iter().map(|pattern| DraftRoute {
            host: pattern.host.clone(),
            path: pattern.path.clone(),
            methods: pattern.methods.clone(),
            servers: servers.clone(),
            lines: choice.lines.clone(),
        }));
    }
    // Without this route, requests that match no route would go to the servers of all pools.
    if let Some(servers) = default.and_then(|at| names.get(&at)) {
        routes.push(DraftRoute {
            host: None,
            path: None,
            methods: Vec::new(),
            servers: servers.clone(),
            lines: BTreeSet::new(),
        });
    }
    service.routes = routes.into_iter().filter(|route| !route.servers.is_empty()).collect();
}
