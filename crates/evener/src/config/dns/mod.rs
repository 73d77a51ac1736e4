//! `[dns]`: zones that are answered for, and names whose addresses depend on how servers are.

mod name;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use evener_core::dns::{Limit, Name, OwnServer};
use evener_core::farm::group::Group;
use evener_core::farm::report::Report;
use evener_core::farm::signals::{Signal, Signals};
use evener_core::farm::{ReportKind, Reporting, Service};
use toml::Spanned;
use toml::de::DeValue;

pub use name::{From, NameConfig, NamePolicy};
use name::{Placed, Shared};

use super::once::Once;
use super::problems::{Problem, Span};
use super::section::{Complaint, Section};
use super::{addresses, defaults, values};
use crate::runtime::spelling::meant;

/// What is answered by DNS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsConfig {
    /// Where, by UDP and TCP.
    pub listen: Vec<SocketAddr>,
    /// For how many queries of a network that hasn't shown where it is.
    pub limit: Limit,
    /// What this server is called by who asks for it.
    pub nsid: String,
    /// For which zones.
    pub zones: Vec<ZoneConfig>,
    /// The names in them that are balanced.
    pub names: Vec<Arc<NameConfig>>,
}

impl DnsConfig {
    /// How many servers are listed for names alone.
    pub fn servers(&self) -> usize {
        self.own_servers().count()
    }

    /// Them.
    pub fn own_servers(&self) -> impl Iterator<Item = &OwnServer> {
        self.names.iter().flat_map(|name| match &name.from {
            From::Services { .. } => &[],
            From::Servers(list) => &list.servers[..],
        })
    }
}

/// A zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneConfig {
    /// Its name.
    pub name: Name,
    /// What is in it besides balanced names; `None`: what every zone has.
    pub file: Option<PathBuf>,
}

/// A service that names may be for.
pub(super) struct Followed<'a> {
    name: &'a str,
    /// Where it stands.
    span: Span,
    /// All that may be known of its servers' load.
    signals: Signals,
}

impl<'a> Followed<'a> {
    pub(super) fn service(service: &'a Service, span: Span) -> Followed<'a> {
        let latency = service.method.tells(service.placement, Signal::Latency);
        Followed { name: &service.name, span, signals: signals(latency, service.report.as_ref()) }
    }

    /// Members tell their load in one number.
    pub(super) fn group(group: &'a Group, span: Span) -> Followed<'a> {
        let report = Report { load_milli: Some(1), ..Report::default() };
        Followed { name: &group.name, span, signals: Signals { report, ..signals(true, None) } }
    }
}

/// What may be known of servers that are probed, and asked like this for their load.
fn signals(latency: bool, report: Option<&Reporting>) -> Signals {
    let tells = report.is_some_and(|report| matches!(report.kind, ReportKind::Http(_)));
    let some = tells.then_some(1);
    Signals {
        latency_us: latency.then_some(1),
        report: Report { utilisation_permille: some, load_milli: some, delay_us: some, ..Report::default() },
        ..Signals::default()
    }
}

/// The text of a name server's identifier is short.
const NSID_MAX: usize = 64;

/// Reads the section. `services` are those of the file.
pub(super) fn read(section: &mut Section<'_>, services: &[Followed<'_>]) -> DnsConfig {
    let listen = section.one_or_list("listen", listen);
    let mut once = Once::new();
    for address in &listen {
        let message = format!("{} is listed twice", address.get_ref());
        once.first(section, *address.get_ref(), address.span(), message, "list it once");
    }
    let limit = Limit {
        per_second: section.or("rate", values::count(0..=1_000_000), defaults::DNS_RATE),
        burst: section.or("burst", values::count(1..=1_000_000), defaults::DNS_BURST),
        total_per_second: section.or("total_rate", values::count(0..=1_000_000), defaults::DNS_TOTAL_RATE),
    };
    let nsid = section.get("nsid", values::word);
    if let Some(nsid) = nsid.as_ref().filter(|nsid| nsid.get_ref().len() > NSID_MAX) {
        let help = format!("use at most {NSID_MAX} characters");
        section.problem(Problem::new(nsid.span(), "`nsid` is too long", help));
    }
    let mut zones: Vec<(ZoneConfig, Span)> = Vec::new();
    let mut once = Once::new();
    for (zone, span) in section.sections("zone", zone).into_iter().flatten() {
        let message = format!("two zones are called {}", zone.name);
        once.first(section, zone.name.clone(), span.clone(), message, "give each a name of its own");
        zones.push((zone, span));
    }
    let mut all = Shared::default();
    let read = |section: &mut Section<'_>| name::read(section, &mut all);
    let names: Vec<Placed> = section.sections("name", read).into_iter().flatten().collect();
    check(section, &zones, &names, services);
    if !zones.is_empty() && !section.has("listen") {
        let help = "add listen = [\"192.0.2.53:53\"], an address of this host";
        section.missing("listen", "nobody can ask: there is no address", help);
    }
    // A list made out of that of what was read would go on to take all of its room.
    let mut configs = Vec::with_capacity(names.len());
    configs.extend(names.into_iter().map(|placed| Arc::new(placed.config)));
    DnsConfig {
        listen: listen.into_iter().map(Spanned::into_inner).collect(),
        limit,
        nsid: nsid.map(Spanned::into_inner).unwrap_or_default(),
        zones: zones.into_iter().map(|(zone, _)| zone).collect(),
        names: configs,
    }
}

/// Each name is in a zone, once, is no service's, and has services that there are.
fn check(section: &Section<'_>, zones: &[(ZoneConfig, Span)], names: &[Placed], services: &[Followed<'_>]) {
    let zones: BTreeSet<&[u8]> = zones.iter().map(|(zone, _)| zone.name.as_wire()).collect();
    let by_name: BTreeMap<&str, &Followed<'_>> =
        services.iter().map(|followed| (followed.name, followed)).collect();
    // Names are read without regard to case, and a service's name needn't be one.
    let like_names =
        services.iter().filter_map(|followed| Some((Name::parse(followed.name).ok()?, followed)));
    let like_names: BTreeMap<Name, &Followed<'_>> = like_names.collect();
    let (mut once, mut files) = (Once::new(), Once::new());
    for placed in names {
        for file in &placed.files {
            let message = format!("{} is written twice", file.get_ref().display());
            let help = "give each file a name of its own";
            files.first(section, file.get_ref().clone(), file.span(), message, help);
        }
        let (name, span) = (&placed.config.settings.name, &placed.name);
        let message = format!("{name} is balanced twice");
        once.first(section, name, span.clone(), message, "name all its services in one [[dns.name]]");
        if !name.and_above().any(|above| zones.contains(above)) {
            let parent = name.to_string();
            let parent = parent.split_once('.').map_or(parent.as_str(), |(_, parent)| parent);
            let help = format!("add [[dns.zone]] with name = \"{parent}\"");
            section.problem(Problem::new(span.clone(), format!("no zone has {name}"), help));
        }
        if let Some(service) = like_names.get(name) {
            let message =
                format!("{name} is a service's name too, and `evener drain` couldn't tell them apart");
            let help = "give the service another name";
            section
                .problem(Problem::new(span.clone(), message, help).also(service.span.clone(), "the service"));
        }
        for service in &placed.services {
            if let Some(followed) = by_name.get(service.get_ref().as_str()) {
                let who = format!("nobody asks those of service {:?}", followed.name);
                can_weigh(section, placed, &followed.signals, &who, "[service.report] to it");
                continue;
            }
            let message = format!("there is no service {:?}", service.get_ref());
            let help = meant(service.get_ref(), services.iter().map(|followed| followed.name));
            section.problem(Problem::new(service.span(), message, help));
        }
        if let From::Servers(list) = &placed.config.from {
            let known = signals(true, list.report.as_deref());
            can_weigh(section, placed, &known, "nobody asks these", "[dns.name.report]");
        }
    }
}

/// Complains of a policy that goes by what nobody will know.
fn can_weigh(section: &Section<'_>, placed: &Placed, known: &Signals, who: &str, add: &str) {
    let policy = placed.config.policy;
    let Some(weighing) = policy.weighing else { return };
    if let (None, Some(span)) = ((weighing.load)(known), placed.policy.clone()) {
        let message =
            format!("policy \"{}\" goes by what servers tell of their load, and {who}", policy.name);
        let help = format!("add {add}, or write policy = \"random\"");
        section.problem(Problem::new(span, message, help));
    }
}

/// Answers go out from the address that was asked, so it has to be known.
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
    let name = section.get("name", domain);
    let file = section.get("file", values::path).map(Spanned::into_inner);
    if section.key_span("name").is_none() {
        section.missing("name", "this zone has no name", "add name = \"example.com\"");
    }
    let name = name?;
    Some((ZoneConfig { name: name.get_ref().clone(), file }, name.span()))
}
