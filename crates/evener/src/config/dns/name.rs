//! `[[dns.name]]`: a balanced name.

use std::collections::HashSet;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evener_core::dns::{
    AddressesFrom, BalancedName, EmptyPool, NameSettings, OwnServer, PathMode, PathProbing, Selection,
    ServerList,
};
use evener_core::net::Protocol;
use evener_core::pool::Period;
use evener_core::pool::policy::{Consumer, FAILOVER, Policy, rank};
use evener_core::pool::{self, HealthCheck, Reporting};
use toml::Spanned;
use toml::de::DeValue;

use super::domain;
use crate::config::keys::KeyConsumer;
use crate::config::keys::tables::{name as keys, name_server};
use crate::config::once::FirstSeen;
use crate::config::problems::{Problem, Span};
use crate::config::section::{Complaint, Section};
use crate::config::{addresses, defaults, health, report, values};

/// A balanced name, and its files on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameConfig {
    /// The name as `core` needs it.
    pub name: Arc<BalancedName>,
    /// Protocols announced to browsers by an HTTPS record. If empty, only the zone file's record
    /// exists.
    pub alpn: Box<[String]>,
    /// File of ranks that another program writes.
    pub rank_from: Option<Box<Path>>,
    /// File to write ranks to, as lines.
    pub rank_file: Option<Box<Path>>,
    /// File to write states to, in gdnsd's format.
    pub gdnsd_file: Option<Box<Path>>,
}

pub(in crate::config) const PATH_MODES: [(&str, PathMode); 2] =
    [("udp", PathMode::Udp), ("paper", PathMode::Paper)];

pub(in crate::config) const ANSWERS: [(&str, bool); 2] = [("servers", false), ("addresses", true)];
pub(in crate::config) const RANKS: [(&str, bool); 2] = [("corrected", false), ("paper", true)];

/// A name, with the positions of its name, its policy and its services in the file.
pub(super) struct NameEntry {
    pub(super) config: NameConfig,
    /// Index of its file in `names_from`. `None` for the main file.
    pub(super) file: Option<usize>,
    pub(super) name: Span,
    pub(super) policy: Option<Span>,
    pub(super) services: Vec<Spanned<String>>,
    /// Files that are written for the name.
    pub(super) files: Vec<Spanned<PathBuf>>,
}

/// Interned settings of servers. Most names share the same settings.
#[derive(Debug, Default)]
pub(super) struct SettingsInterner {
    healths: HashSet<Arc<HealthCheck>>,
    reports: HashSet<Arc<Reporting>>,
    settings: HashSet<Arc<pool::PoolSettings>>,
}

/// Returns the equal value of the set, or inserts this one.
fn shared<T: Eq + Hash>(all: &mut HashSet<Arc<T>>, one: T) -> Arc<T> {
    if let Some(known) = all.get(&one) {
        return Arc::clone(known);
    }
    let new = Arc::new(one);
    all.insert(Arc::clone(&new));
    new
}

/// Parses the name of a TLS protocol (RFC 7301). Its length must fit an octet, and few names are
/// longer than three letters.
fn protocol(value: &DeValue<'_>) -> Result<String, Complaint> {
    let text = values::text(value)?;
    if (1..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',') {
        return Ok(text);
    }
    Complaint::new(format!("is no protocol's name: {text:?}"), "write for example [\"h2\", \"h3\"]")
}

/// Parses the absolute path of a file that the daemon writes.
fn written(value: &DeValue<'_>) -> Result<PathBuf, Complaint> {
    let path = values::path(value)?;
    if path.is_absolute() && path.file_name().is_some() {
        return Ok(path);
    }
    let help = "write the whole path of a file, such as \"/run/evener/www.ranks\"";
    Complaint::new(format!("is no file's whole path: {:?}", path.display().to_string()), help)
}

/// Reads a name of the file with this number.
pub(super) fn read(
    section: &mut Section<'_>,
    file: Option<usize>,
    all: &mut SettingsInterner,
) -> Option<NameEntry> {
    section.scope().consumer = KeyConsumer::Names;
    let name = section.get(&keys::NAME, domain);
    let services = section.one_or_list(&keys::SERVICES, values::name);
    let by = section.word(&keys::ANSWER, &ANSWERS);
    let policy_span = section.key_span("policy");
    let by_default = match section.key_span("rank_from") {
        Some(_) => &FAILOVER,
        None => Consumer::Names.default_policy(),
    };
    let policy = section.or(&keys::POLICY, values::policy(Consumer::Names), by_default);
    let rank_from = section.get(&keys::RANK_FROM, written);
    let (policy, period, report_gain_percent) = ranking(section, policy, rank_from.is_some());
    let probe = path_probing(section, policy);
    let boxed = |path: Spanned<PathBuf>| path.into_inner().into_boxed_path();
    let rank_file = section.get(&keys::RANK_FILE, written);
    let gdnsd_file = section.get(&keys::GDNSD_FILE, written);
    let ttl_s = section.number_or(&keys::TTL);
    let top = section.number_or(&keys::TOP);
    let none_alive = section.or(&keys::NONE_ALIVE, none_alive, EmptyPool::All);
    let alpn = section.one_or_list(&keys::ALPN, protocol);
    let slow_start_ms = section.time_or(&keys::SLOW_START);
    let servers = servers(section);
    let health = section.section(&keys::HEALTH, |section| {
        health::read(section, Protocol::Tcp, Some("a balanced name"), true)
    });
    let report = report::read(section, &keys::REPORT);
    if section.key_span("name").is_none() {
        section.missing("name", "this has no name", "add name = \"www.example.com\"");
    }
    let name = name?;
    match (services.first(), servers.is_empty()) {
        (None, true) if !section.has("services") && !section.has("servers") && !section.has("server") => {
            let help = "add services = [\"NAME\"] of this file, or servers = [\"192.0.2.11\"]";
            section.problem(Problem::new(name.span(), "this name has no servers", help));
        }
        (Some(service), false) => {
            let message = "this name has servers of its own, and services as well";
            section.problem(Problem::new(service.span(), message, "remove one of them"));
        }
        _ => {}
    }
    let draw = policy.names.map_or(Selection::Random, |by| by.draw);
    let settings = NameSettings { name: name.get_ref().clone(), ttl_s, top, draw, empty_pool: none_alive };
    let from = match services.is_empty() {
        false => {
            let names = services.iter().map(|name| name.get_ref().clone()).collect();
            AddressesFrom::Services { names, own: by }
        }
        true => AddressesFrom::Servers(ServerList {
            servers: servers.into(),
            settings: {
                let check = shared(&mut all.healths, health);
                let report = report.map(|report| shared(&mut all.reports, report));
                shared(&mut all.settings, pool::PoolSettings { check, report, slow_start_ms })
            },
        }),
    };
    Some(NameEntry {
        file,
        files: rank_file.iter().chain(&gdnsd_file).cloned().collect(),
        config: NameConfig {
            name: Arc::new(BalancedName {
                settings: Arc::new(settings),
                policy,
                period,
                report_gain_percent,
                rank_from: rank_from.as_ref().map(|path| path.get_ref().display().to_string()),
                probe,
                from,
            }),
            alpn: alpn.into_iter().map(Spanned::into_inner).collect(),
            rank_from: rank_from.map(boxed),
            rank_file: rank_file.map(boxed),
            gdnsd_file: gdnsd_file.map(boxed),
        },
        name: name.span(),
        policy: policy_span,
        services,
    })
}

/// Reads the period of ranks, the maximum gain by load, and for [`rank::POLICY`] the formula. The
/// paper's formula answers with the best server alone, and uses reported load unchanged.
fn ranking(section: &Section<'_>, policy: &'static Policy, is_read: bool) -> (&'static Policy, Period, u64) {
    let is_paper = section.word(&keys::RANK, &RANKS);
    let period = section.period_or(&keys::PERIOD);
    if let Some(span) =
        section.key_span("rank_from").filter(|_| policy.names.is_none_or(|by| by.draw != Selection::Failover))
    {
        let message =
            format!("`rank_from` sets the order of answers, and so does policy \"{}\"", policy.name);
        section.problem(Problem::new(span, message, "remove one of the two, or write policy = \"failover\""));
    }
    let gain = section.factor(&keys::REPORT_GAIN);
    let by_load = policy.names.is_some_and(|by| by.weighing.is_some());
    for (key, has_use, goes) in [
        ("rank", policy.name == rank::POLICY, rank::POLICY),
        ("period", by_load || is_read, "expected-delay, or another that goes by load"),
        ("report_gain", by_load, "expected-delay, or another that goes by load"),
    ] {
        if let Some(span) = section.key_span(key).filter(|_| !has_use) {
            let message = format!("policy \"{}\" has no use for `{key}`", policy.name);
            section.problem(Problem::new(span, message, format!("remove it, or use policy {goes}")));
        }
    }
    let is_paper = is_paper && policy.name == rank::POLICY;
    if is_paper { (&rank::PAPER, period, u64::MAX) } else { (policy, period, gain) }
}

/// Reads how paths are probed. Path probes are off by default.
fn path_probing(section: &Section<'_>, policy: &Policy) -> Option<PathProbing> {
    let interval = section.period(&keys::PROBE);
    let mode = section.get(&keys::PROBE_MODE, values::choice(&PATH_MODES, &[]));
    if let (None, Some(mode)) = (&interval, &mode) {
        let message = "`probe_mode` needs path probes, and no path is probed";
        section.problem(Problem::new(mode.span(), message, "add probe = \"60s\", or remove it"));
    }
    if let Some(interval) = interval.as_ref().filter(|_| policy.name != rank::POLICY) {
        let message = format!("policy \"{}\" has no use for `probe`", policy.name);
        let help = format!("remove it, or use policy {}", rank::POLICY);
        section.problem(Problem::new(interval.span(), message, help));
    }
    let mode = mode.map(Spanned::into_inner).unwrap_or_default();
    interval.map(|interval| PathProbing { mode, interval: interval.into_inner() })
}

fn none_alive(value: &DeValue<'_>) -> Result<EmptyPool, Complaint> {
    let help = "write \"all\", \"refuse\", or an address such as \"192.0.2.99\"";
    let fixed = |text: &str| text.parse::<IpAddr>().ok();
    match value {
        DeValue::String(word) if word == "all" => Ok(EmptyPool::All),
        DeValue::String(word) if word == "refuse" => Ok(EmptyPool::Refuse),
        DeValue::String(text) => match fixed(text) {
            Some(address) => Ok(EmptyPool::Fixed(vec![address])),
            None => Complaint::new(format!("is neither a word nor an address: {text:?}"), help),
        },
        DeValue::Array(entries) => {
            let found: Option<Vec<IpAddr>> = entries
                .iter()
                .map(|entry| match entry.get_ref() {
                    DeValue::String(text) => fixed(text),
                    _ => None,
                })
                .collect();
            found.filter(|all| !all.is_empty()).map_or_else(
                || Complaint::new("has a value that is not an address", help),
                |all| Ok(EmptyPool::Fixed(all)),
            )
        }
        other => Complaint::wrong_type(other, "text", help),
    }
}

/// Reads the servers, each either an address alone or a table.
fn servers(section: &Section<'_>) -> Vec<OwnServer> {
    let mut names = FirstSeen::new();
    let mut servers = Vec::new();
    for address in section.one_or_list(&keys::SERVERS, addresses::server_address) {
        servers.extend(server(section, &mut names, None, &address, (1, false, None)));
    }
    let more = section.sections(&keys::SERVER, |section| {
        let name = section.get(&name_server::NAME, values::name);
        let address = section.get(&name_server::ADDRESS, addresses::server_address);
        let weight = section.number_or(&name_server::WEIGHT);
        if section.key_span("address").is_none() {
            section.missing("address", "this server has no address", "add address = \"192.0.2.11\"");
        }
        let backup = section.flag(&name_server::BACKUP);
        let health_address =
            section.get(&name_server::HEALTH_ADDRESS, addresses::address).map(Spanned::into_inner);
        Some((name, address?, (weight, backup, health_address)))
    });
    for (name, address, share) in more.into_iter().flatten() {
        servers.extend(server(section, &mut names, name, &address, share));
    }
    servers
}

fn server(
    section: &Section<'_>,
    names: &mut FirstSeen<String>,
    name: Option<Spanned<String>>,
    address: &Spanned<(IpAddr, Option<u16>)>,
    (weight, backup, health_address): (u16, bool, Option<IpAddr>),
) -> Option<OwnServer> {
    let (ip, port) = *address.get_ref();
    let (called, span) = match &name {
        Some(name) => (name.get_ref().clone(), name.span()),
        None => (ip.to_string(), address.span()),
    };
    let message = format!("two servers of this name are called {called:?}");
    names.first(section, called, span, message, "give each a name of its own").then_some(())?;
    let name = name.map(|name| Arc::from(name.into_inner()));
    let address = SocketAddr::new(ip, port.unwrap_or(defaults::DNS_PROBED_PORT));
    Some(OwnServer { name, address, weight, backup, health_address })
}
