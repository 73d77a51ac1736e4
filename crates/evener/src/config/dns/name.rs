//! `[[dns.name]]`: a name whose addresses depend on how servers are.

use std::collections::HashSet;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evener_core::dns::{
    AddressesFrom, BalancedName, EmptyPool, NameSettings, OwnServer, PathMode, PathProbing, Period,
    Selection, ServerList,
};
use evener_core::farm::Placement;
use evener_core::net::Protocol;
use evener_core::pool::policy::score::GAIN_PERCENT;
use evener_core::pool::policy::{Consumer, FAILOVER, Policy, rank};
use evener_core::pool::{self, HealthCheck, Reporting};
use toml::Spanned;
use toml::de::DeValue;

use super::domain;
use super::period::period;
use crate::config::once::FirstSeen;
use crate::config::problems::{Problem, Span};
use crate::config::section::{Complaint, Section};
use crate::config::{addresses, defaults, health, report, values};

/// A balanced name, and what of it is on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameConfig {
    /// The name as `core` has it.
    pub name: Arc<BalancedName>,
    /// By which protocols browsers are told to come, by an HTTPS record; none: there is no record
    /// but the zone file's.
    pub alpn: Box<[String]>,
    /// Where ranks are read that somebody else made.
    pub rank_from: Option<Box<Path>>,
    /// Where ranks are written, as lines.
    pub rank_file: Option<Box<Path>>,
    /// Where states are written as gdnsd reads them.
    pub gdnsd_file: Option<Box<Path>>,
}

const PATH_MODES: [(&str, PathMode); 2] = [("udp", PathMode::Udp), ("paper", PathMode::Paper)];

/// A name, and where in the file it, its policy and the services that it names stand.
pub(super) struct NameEntry {
    pub(super) config: NameConfig,
    /// The number of its file among those of `names_from`.
    pub(super) file: Option<usize>,
    pub(super) name: Span,
    pub(super) policy: Option<Span>,
    pub(super) services: Vec<Spanned<String>>,
    /// Files that are written for it.
    pub(super) files: Vec<Spanned<PathBuf>>,
}

/// Settings of servers, each once: most of many names have the same.
#[derive(Debug, Default)]
pub(super) struct SettingsInterner {
    healths: HashSet<Arc<HealthCheck>>,
    reports: HashSet<Arc<Reporting>>,
    settings: HashSet<Arc<pool::PoolSettings>>,
}

/// The one of these that is equal, which it becomes where there is none.
fn shared<T: Eq + Hash>(all: &mut HashSet<Arc<T>>, one: T) -> Arc<T> {
    if let Some(known) = all.get(&one) {
        return Arc::clone(known);
    }
    let new = Arc::new(one);
    all.insert(Arc::clone(&new));
    new
}

/// The TLS name of a protocol (RFC 7301). Its length is one octet, and few are longer than three
/// letters.
fn protocol(value: &DeValue<'_>) -> Result<String, Complaint> {
    let text = values::text(value)?;
    if (1..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',') {
        return Ok(text);
    }
    Complaint::new(format!("is no protocol's name: {text:?}"), "write for example [\"h2\", \"h3\"]")
}

/// A file that the daemon writes, wherever it was started.
fn written(value: &DeValue<'_>) -> Result<PathBuf, Complaint> {
    let path = values::path(value)?;
    if path.is_absolute() && path.file_name().is_some() {
        return Ok(path);
    }
    let help = "write the whole path of a file, such as \"/run/evener/www.ranks\"";
    Complaint::new(format!("is no file's whole path: {:?}", path.display().to_string()), help)
}

/// Reads a name of the file of this number.
pub(super) fn read(
    section: &mut Section<'_>,
    file: Option<usize>,
    all: &mut SettingsInterner,
) -> Option<NameEntry> {
    let name = section.get("name", domain);
    let services = section.one_or_list("services", values::name);
    let by = section.or("answer", values::choice(&[("servers", false), ("addresses", true)], &[]), false);
    let policy_span = section.key_span("policy");
    let by_default = match section.key_span("rank_from") {
        Some(_) => &FAILOVER,
        None => Consumer::Names.default_policy(),
    };
    let policy = section.or("policy", values::policy(Consumer::Names), by_default);
    let rank_from = section.get("rank_from", written);
    let (policy, period, report_gain_percent) = ranking(section, policy, rank_from.is_some());
    let probe = path_probing(section, policy);
    let boxed = |path: Spanned<PathBuf>| path.into_inner().into_boxed_path();
    let rank_file = section.get("rank_file", written);
    let gdnsd_file = section.get("gdnsd_file", written);
    let ttl_s = section.or("ttl", values::count(0..=604_800), defaults::DNS_TTL_S);
    let top = section.or("top", values::count(1..=16), 1);
    let why = "is for services and groups: while no server of a name lives, `none_alive` says what is given";
    section.foreign("panic_threshold", why, "remove it");
    let none_alive = section.or("none_alive", none_alive, EmptyPool::All);
    let alpn = section.one_or_list("alpn", protocol);
    let slow_start_ms = section.or("slow_start", values::duration_ms(defaults::SLOW_START_MS), 0);
    let servers = servers(section);
    let health = section
        .section("health", |section| health::read(section, Protocol::Tcp, Some("a balanced name"), true));
    let report = report::read(section, Placement::Director);
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

/// How often loads count anew, how much a server gains by them, and of [`rank::POLICY`], by which
/// formula: the paper's gives the best one alone, and believes what it is reported.
fn ranking(
    section: &mut Section<'_>,
    policy: &'static Policy,
    is_read: bool,
) -> (&'static Policy, Period, u64) {
    let is_paper = section.or("rank", values::choice(&[("corrected", false), ("paper", true)], &[]), false);
    let period = section.or("period", period, Period::always(0));
    if let Some(span) =
        section.key_span("rank_from").filter(|_| policy.names.is_none_or(|by| by.draw != Selection::Failover))
    {
        let message = format!("`rank_from` says who is given first, and so does policy \"{}\"", policy.name);
        section.problem(Problem::new(span, message, "remove one of the two, or write policy = \"failover\""));
    }
    let gain = section.or("report_gain", values::percent(defaults::GAIN_PERCENT), GAIN_PERCENT);
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

/// How paths are probed: off unless the file has it.
fn path_probing(section: &mut Section<'_>, policy: &Policy) -> Option<PathProbing> {
    let interval = section.get("probe", values::duration_ms(defaults::PATH_PROBE_MS));
    let mode = section.get("probe_mode", values::choice(&PATH_MODES, &[]));
    if let (None, Some(mode)) = (&interval, &mode) {
        let message = "`probe_mode` says how paths are probed, and no path is";
        section.problem(Problem::new(mode.span(), message, "add probe = \"60s\", or remove it"));
    }
    if let Some(interval) = interval.as_ref().filter(|_| policy.name != rank::POLICY) {
        let message = format!("policy \"{}\" has no use for `probe`", policy.name);
        let help = format!("remove it, or use policy {}", rank::POLICY);
        section.problem(Problem::new(interval.span(), message, help));
    }
    let mode = mode.map(Spanned::into_inner).unwrap_or_default();
    interval.map(|interval| PathProbing { mode, interval_ms: interval.into_inner() })
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
                || Complaint::new("has something else than addresses", help),
                |all| Ok(EmptyPool::Fixed(all)),
            )
        }
        other => Complaint::wrong_type(other, "text", help),
    }
}

/// Servers by their addresses alone, and those with more to say of them.
fn servers(section: &mut Section<'_>) -> Vec<OwnServer> {
    let mut names = FirstSeen::new();
    let mut servers = Vec::new();
    for address in section.one_or_list("servers", addresses::server_address) {
        servers.extend(server(section, &mut names, None, &address, (defaults::WEIGHT, false, None)));
    }
    let more = section.sections("server", |section| {
        let name = section.get("name", values::name);
        let address = section.get("address", addresses::server_address);
        let weight = section.or("weight", values::count(defaults::WEIGHTS), defaults::WEIGHT);
        if section.key_span("address").is_none() {
            section.missing("address", "this server has no address", "add address = \"192.0.2.11\"");
        }
        let backup = section.or("backup", values::flag, false);
        let why =
            "is for servers that packets are sent to: no connection is seen of those that ask for a name";
        section.foreign("max_connections", why, "remove it");
        let health_address = section.get("health_address", addresses::address).map(Spanned::into_inner);
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
