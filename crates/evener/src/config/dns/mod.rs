//! `[dns]`: zones, and balanced names with addresses that depend on the state of servers.

mod checks;
mod files;
mod name;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use evener_core::dns::{Limit, Name, OwnServer, PathMode};
use evener_core::farm::Service;
use evener_core::farm::group::Group;
use evener_core::pool::Reporting;
use evener_core::pool::report::Report;
use evener_core::pool::signals::{Signal, Signals};
use toml::Spanned;
use toml::de::DeValue;

use checks::NameFiles;
pub(super) use files::NamesFile;
pub use files::NamesText;
pub use name::NameConfig;
pub(super) use name::{ANSWERS, PATH_MODES, RANKS};
use name::{NameEntry, SettingsInterner};

use super::SourceText;
use super::keys::tables::{dns as keys, zone as zone_keys};
use super::once::FirstSeen;
use super::problems::{Problem, Span};
use super::section::{Complaint, Section};
use super::unwritten::DefaultedPolicies;
use super::{addresses, values};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsConfig {
    /// Addresses to listen on, by UDP and TCP.
    pub listen: Vec<SocketAddr>,
    /// Rate limit for queries from networks without a valid cookie.
    pub limit: Limit,
    /// Identifier of this server (NSID).
    pub nsid: String,
    /// File with the secrets of cookies, if servers share them or cookies must survive a restart.
    pub cookie_secret_file: Option<PathBuf>,
    pub zones: Vec<ZoneConfig>,
    /// Balanced names in the zones.
    pub names: Vec<Arc<NameConfig>>,
}

impl DnsConfig {
    /// True if paths are measured by packets of agents.
    pub fn probes_paths(&self) -> bool {
        self.names
            .iter()
            .filter_map(|name| name.name.probe.as_ref())
            .any(|probing| probing.mode == PathMode::Udp)
    }

    /// Returns the number of servers that are listed for names alone.
    pub fn servers(&self) -> usize {
        self.own_servers().count()
    }

    /// Returns the servers that are listed for names alone.
    pub fn own_servers(&self) -> impl Iterator<Item = &OwnServer> {
        self.names.iter().filter_map(|name| name.name.list()).flat_map(|list| &list.servers)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneConfig {
    pub name: Name,
    /// File of the zone's records. `None`: the zone has the minimum of records. Balanced names are
    /// added in both cases.
    pub file: Option<PathBuf>,
}

/// A service with whose servers balanced names may answer.
pub(super) struct ServiceReference<'a> {
    name: &'a str,
    /// Position in the file.
    span: Span,
    /// Signals that may be known about its servers.
    signals: Signals,
}

impl<'a> ServiceReference<'a> {
    pub(super) fn service(service: &'a Service, span: Span) -> ServiceReference<'a> {
        let latency = service.placement.consumer().knows(Signal::Latency);
        ServiceReference { name: &service.name, span, signals: signals(latency, service.report.as_ref()) }
    }

    /// Creates the reference to a group, whose members report their load as one number.
    pub(super) fn group(group: &'a Group, span: Span) -> ServiceReference<'a> {
        let report = Report { load_milli: Some(1), ..Report::default() };
        ServiceReference { name: &group.name, span, signals: Signals { report, ..signals(true, None) } }
    }
}

/// Returns the signals of servers that are probed, and queried by `report`.
fn signals(latency: bool, report: Option<&Reporting>) -> Signals {
    let reports_load = report.is_some_and(|report| report.kind.reports_load());
    let some = reports_load.then_some(1);
    Signals {
        latency_us: latency.then_some(1),
        report: Report { utilisation_permille: some, load_milli: some, delay_us: some, ..Report::default() },
        ..Signals::default()
    }
}

/// Maximum length of the server's identifier.
const NSID_MAX: usize = 64;

/// Reads the section, and its files of names. `services` are the services of the file. Names
/// without a policy are recorded in `unwritten`.
pub(super) fn read(
    section: &Section<'_>,
    services: &[ServiceReference<'_>],
    origin: SourceText<'_>,
    unwritten: &mut DefaultedPolicies,
) -> (DnsConfig, Vec<NamesFile>) {
    let listen = section.one_or_list(&keys::LISTEN, listen);
    let mut once = FirstSeen::new();
    for address in &listen {
        let message = format!("{} is listed twice", address.get_ref());
        once.first(section, *address.get_ref(), address.span(), message, "list it once");
    }
    let limit = Limit {
        per_second: section.number_or(&keys::RATE),
        burst: section.number_or(&keys::BURST),
        total_per_second: section.number_or(&keys::TOTAL_RATE),
    };
    let nsid = section.get(&keys::NSID, values::word);
    if let Some(nsid) = nsid.as_ref().filter(|nsid| nsid.get_ref().len() > NSID_MAX) {
        let help = format!("use at most {NSID_MAX} characters");
        section.problem(Problem::new(nsid.span(), "`nsid` is too long", help));
    }
    let mut zones: Vec<(ZoneConfig, Span)> = Vec::new();
    let mut once = FirstSeen::new();
    for (zone, span) in section.sections(&keys::ZONE, zone).into_iter().flatten() {
        let message = format!("two zones are called {}", zone.name);
        once.first(section, zone.name.clone(), span.clone(), message, "give each a name of its own");
        zones.push((zone, span));
    }
    let mut all = SettingsInterner::default();
    let read = |section: &mut Section<'_>| name::read(section, None, &mut all);
    let mut names: Vec<NameEntry> = section.sections(&keys::NAME, read).into_iter().flatten().collect();
    let (others, more) = files::read(section, origin, &mut all);
    names.extend(more);
    checks::check(&NameFiles { section, origin, others: &others }, &zones, &names, services);
    if !zones.is_empty() && !section.has("listen") {
        let help = "add listen = [\"192.0.2.53:53\"], an address of this host";
        section.missing("listen", "no clients can query these names: there is no address", help);
    }
    for placed in names.iter().filter(|placed| placed.policy.is_none()) {
        unwritten.name(&placed.config.name.settings.name, placed.config.name.policy.name);
    }
    // Collecting in place would keep the larger allocation of the entries.
    let mut configs = Vec::with_capacity(names.len());
    configs.extend(names.into_iter().map(|placed| Arc::new(placed.config)));
    let config = DnsConfig {
        listen: listen.into_iter().map(Spanned::into_inner).collect(),
        limit,
        nsid: nsid.map(Spanned::into_inner).unwrap_or_default(),
        cookie_secret_file: section.get(&keys::COOKIE_SECRET_FILE, values::path).map(Spanned::into_inner),
        zones: zones.into_iter().map(|(zone, _)| zone).collect(),
        names: configs,
    };
    (config, others)
}

/// Parses an address to listen on. Answers must be sent from the queried address, so the
/// unspecified address is refused.
fn listen(value: &DeValue<'_>) -> Result<SocketAddr, Complaint> {
    match addresses::listening(value)? {
        any if any.ip().is_unspecified() => Complaint::new(
            format!("is {}, and an answer must come from the very address that was asked", any.ip()),
            "list this host's addresses, each with its port",
        ),
        address => Ok(address),
    }
}

fn domain(value: &DeValue<'_>) -> Result<Name, Complaint> {
    let text = values::text(value)?;
    Name::parse(&text).or_else(|error| {
        Complaint::new(format!("{error}: {text:?}"), "write for example \"www.example.com\"")
    })
}

fn zone(section: &mut Section<'_>) -> Option<(ZoneConfig, Span)> {
    let name = section.get(&zone_keys::NAME, domain);
    let file = section.get(&zone_keys::FILE, values::path).map(Spanned::into_inner);
    if section.key_span("name").is_none() {
        section.missing("name", "this zone has no name", "add name = \"example.com\"");
    }
    let name = name?;
    Some((ZoneConfig { name: name.get_ref().clone(), file }, name.span()))
}
