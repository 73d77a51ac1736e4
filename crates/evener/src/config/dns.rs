//! `[dns]`: zones that are answered for, and names whose addresses depend on how servers are.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::LazyLock;

use evener_core::dns::{Draw, Limit, Name, NoneAlive, Settings, rank};
use evener_core::farm::group::{Group, GroupMember, GroupPolicy, Joining, LoadReading};
use evener_core::farm::policy::score::GAIN_PERCENT;
use evener_core::farm::policy::{self, Weighing};
use evener_core::farm::report::Report;
use evener_core::farm::signals::{Signal, Signals};
use evener_core::farm::{Placement, ReportKind, Reporting, Service};
use evener_core::net::Protocol;
use evener_core::net::http::{Status, Url};
use toml::Spanned;
use toml::de::DeValue;

use super::once::Once;
use super::problems::{Problem, Span};
use super::section::{Complaint, Section};
use super::{addresses, defaults, health, report, values};
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
    /// A file with the secrets of cookies, where others share them or they are to outlive a start.
    pub cookie_secret_file: Option<PathBuf>,
    /// For which zones.
    pub zones: Vec<ZoneConfig>,
    /// The names in them that are balanced.
    pub names: Vec<NameConfig>,
}

impl DnsConfig {
    /// How many servers are listed for names alone.
    pub fn servers(&self) -> usize {
        self.own_servers().count()
    }

    /// Them.
    pub fn own_servers(&self) -> impl Iterator<Item = &GroupMember> {
        self.names.iter().flat_map(|name| match &name.from {
            From::Services { .. } => &[],
            From::Servers { group, .. } => &group.members[..],
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

/// A balanced name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameConfig {
    /// How it is answered.
    pub settings: Settings,
    /// By which protocols browsers are told to come, by an HTTPS record; none: there is no record but the zone file's.
    pub alpn: Vec<String>,
    /// Who is given, by name.
    pub policy: NamePolicy,
    /// How long loads count as they were, in milliseconds; 0: until they change.
    pub period_ms: u64,
    /// The most that a server gains by its report, in percent of its fair share.
    pub report_gain_percent: u64,
    /// Where ranks are written, as lines.
    pub rank_file: Option<PathBuf>,
    /// Where states are written as gdnsd reads them.
    pub gdnsd_file: Option<PathBuf>,
    /// Whose addresses.
    pub from: From,
}

/// Whose addresses a name has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// Of services of this file: those of their servers, or their own.
    Services {
        /// The services' names.
        names: Vec<String>,
        /// Their own addresses are given, as long as one of their servers lives.
        own: bool,
    },
    /// Of servers that are listed for the name alone.
    Servers {
        /// They are probed from here, as a group that nobody is sent to.
        group: Box<Group>,
        /// How they are asked for their load, if they are.
        report: Option<Reporting>,
    },
}

/// How it is chosen whose address is given.
#[derive(Clone, Copy)]
pub struct NamePolicy {
    /// Its name.
    pub name: &'static str,
    /// Who is given first.
    pub draw: Draw,
    /// How load is weighed, by which shares are made or servers ranked, if they are.
    pub weighing: Option<&'static Weighing>,
}

impl PartialEq for NamePolicy {
    fn eq(&self, other: &Self) -> bool {
        (self.name, self.draw) == (other.name, other.draw)
    }
}

impl Eq for NamePolicy {}

impl std::fmt::Debug for NamePolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// A name, and where in the file it, its policy and the services that it names stand.
struct Placed {
    config: NameConfig,
    name: Span,
    policy: Option<Span>,
    services: Vec<Spanned<String>>,
    /// Files that are written for it.
    files: Vec<Spanned<PathBuf>>,
}

/// A service that names may be for.
pub(super) struct Followed<'a> {
    name: &'a str,
    /// All that may be known of its servers' load.
    signals: Signals,
}

impl<'a> Followed<'a> {
    pub(super) fn service(service: &'a Service) -> Followed<'a> {
        let latency = service.method.tells(service.placement, Signal::Latency);
        Followed { name: &service.name, signals: signals(latency, service.report.as_ref()) }
    }

    /// Members tell their load in one number.
    pub(super) fn group(group: &'a Group) -> Followed<'a> {
        let report = Report { load_milli: Some(1), ..Report::default() };
        Followed { name: &group.name, signals: Signals { report, ..signals(true, None) } }
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

/// Policies of names that go by no load.
const PLAIN: [(&str, Draw); 4] = [
    ("random", Draw::Random),
    ("round-robin", Draw::Turn),
    ("hash", Draw::Client),
    ("failover", Draw::First),
];

/// The text of a name server's identifier is short.
const NSID_MAX: usize = 64;

/// Reads the section. `services` are those of the file.
pub(super) fn read(
    section: &mut Section<'_>,
    services: &[Followed<'_>],
    cookie_secret_file: &mut Option<Spanned<PathBuf>>,
) -> DnsConfig {
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
    *cookie_secret_file = section.get("cookie_secret_file", values::path);
    let mut zones: Vec<(ZoneConfig, Span)> = Vec::new();
    let mut once = Once::new();
    for (zone, span) in section.sections("zone", zone).into_iter().flatten() {
        let message = format!("two zones are called {}", zone.name);
        once.first(section, zone.name.clone(), span.clone(), message, "give each a name of its own");
        zones.push((zone, span));
    }
    let names: Vec<Placed> = section.sections("name", name).into_iter().flatten().collect();
    check(section, &zones, &names, services);
    if !zones.is_empty() && !section.has("listen") {
        let help = "add listen = [\"192.0.2.53:53\"], an address of this host";
        section.missing("listen", "nobody can ask: there is no address", help);
    }
    DnsConfig {
        listen: listen.into_iter().map(Spanned::into_inner).collect(),
        limit,
        nsid: nsid.map(Spanned::into_inner).unwrap_or_default(),
        cookie_secret_file: cookie_secret_file.as_ref().map(|file| file.get_ref().clone()),
        zones: zones.into_iter().map(|(zone, _)| zone).collect(),
        names: names.into_iter().map(|placed| placed.config).collect(),
    }
}

/// Each name is in a zone, once, and has services that there are.
fn check(section: &Section<'_>, zones: &[(ZoneConfig, Span)], names: &[Placed], services: &[Followed<'_>]) {
    let (mut once, mut files) = (Once::new(), Once::new());
    for placed in names {
        for file in &placed.files {
            let message = format!("{} is written twice", file.get_ref().display());
            files.first(
                section,
                file.get_ref().clone(),
                file.span(),
                message,
                "give each file a name of its own",
            );
        }
        let Placed {
            config: NameConfig { settings: Settings { name, .. }, .. },
            name: span,
            services: named,
            ..
        } = placed;
        let message = format!("{name} is balanced twice");
        once.first(section, name.clone(), span.clone(), message, "name all its services in one [[dns.name]]");
        if !zones.iter().any(|(zone, _)| name.is_in(&zone.name)) {
            let parent = name.to_string();
            let parent = parent.split_once('.').map_or(parent.as_str(), |(_, parent)| parent);
            let help = format!("add [[dns.zone]] with name = \"{parent}\"");
            section.problem(Problem::new(span.clone(), format!("no zone has {name}"), help));
        }
        for service in named {
            if let Some(followed) = services.iter().find(|followed| followed.name == service.get_ref()) {
                let who = format!("nobody asks those of service {:?}", followed.name);
                can_weigh(section, placed, &followed.signals, &who, "[service.report] to it");
                continue;
            }
            let message = format!("there is no service {:?}", service.get_ref());
            let help = meant(service.get_ref(), services.iter().map(|followed| followed.name));
            section.problem(Problem::new(service.span(), message, help));
        }
        if let From::Servers { report, .. } = &placed.config.from {
            let known = signals(true, report.as_ref());
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

/// What TLS calls a protocol (RFC 7301). Of their length one octet tells, and few are longer than three letters.
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

fn name(section: &mut Section<'_>) -> Option<Placed> {
    let name = section.get("name", domain);
    let services = section.one_or_list("services", values::name);
    let by = section.or("answer", values::choice(&[("servers", false), ("addresses", true)], &[]), false);
    let policy_span = section.key_span("policy");
    let policy = section.or("policy", policy_of, PLAIN_DEFAULT);
    let (policy, period_ms, report_gain_percent) = ranking(section, policy);
    let rank_file = section.get("rank_file", written);
    let gdnsd_file = section.get("gdnsd_file", written);
    let ttl_s = section.or("ttl", values::count(0..=604_800), defaults::DNS_TTL_S);
    let top = section.or("top", values::count(1..=16), 1);
    let none_alive = section.or("none_alive", none_alive, NoneAlive::All);
    let alpn = section.one_or_list("alpn", protocol);
    let slow_start_ms = section.or("slow_start", values::duration_ms(defaults::SLOW_START_MS), 0);
    let members = members(section);
    let health =
        section.section("health", |section| health::read(section, Protocol::Tcp, Some("a balanced name")));
    let report = report::read(section, Placement::Director);
    if section.key_span("name").is_none() {
        section.missing("name", "this has no name", "add name = \"www.example.com\"");
    }
    let name = name?;
    match (services.first(), members.is_empty()) {
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
    let settings = Settings { name: name.get_ref().clone(), ttl_s, top, draw: policy.draw, none_alive };
    let from = match services.is_empty() {
        false => {
            From::Services { names: services.iter().map(|name| name.get_ref().clone()).collect(), own: by }
        }
        true => {
            From::Servers { group: Box::new(group(&settings.name, members, health, slow_start_ms)), report }
        }
    };
    Some(Placed {
        files: rank_file.iter().chain(&gdnsd_file).cloned().collect(),
        config: NameConfig {
            settings,
            alpn: alpn.into_iter().map(Spanned::into_inner).collect(),
            policy,
            period_ms,
            report_gain_percent,
            rank_file: rank_file.map(Spanned::into_inner),
            gdnsd_file: gdnsd_file.map(Spanned::into_inner),
            from,
        },
        name: name.span(),
        policy: policy_span,
        services,
    })
}

/// How often loads count anew, how much a server gains by them, and of [`rank::POLICY`], by which formula: the paper's gives the
/// best one alone, and believes what it is reported.
fn ranking(section: &mut Section<'_>, policy: NamePolicy) -> (NamePolicy, u64, u64) {
    let is_paper = section.or("rank", values::choice(&[("corrected", false), ("paper", true)], &[]), false);
    let period_ms = section.or("period", values::duration_ms(defaults::PERIOD_MS), 0);
    let gain = section.or("report_gain", values::percent(defaults::GAIN_PERCENT), GAIN_PERCENT);
    for (key, has_use, goes) in [
        ("rank", policy.name == rank::POLICY, rank::POLICY),
        ("period", policy.weighing.is_some(), "expected-delay, or another that goes by load"),
        ("report_gain", policy.weighing.is_some(), "expected-delay, or another that goes by load"),
    ] {
        if let Some(span) = section.key_span(key).filter(|_| !has_use) {
            let message = format!("policy \"{}\" has no use for `{key}`", policy.name);
            section.problem(Problem::new(span, message, format!("remove it, or use policy {goes}")));
        }
    }
    let paper = NamePolicy { draw: Draw::First, weighing: Some(&rank::PAPER), ..policy };
    if is_paper { (paper, period_ms, u64::MAX) } else { (policy, period_ms, gain) }
}

/// Every answer another draw: clients share resolvers, whose turns would not be theirs.
const PLAIN_DEFAULT: NamePolicy = NamePolicy { name: PLAIN[0].0, draw: PLAIN[0].1, weighing: None };

/// All policies of names: those, and all by which load is weighed.
static POLICIES: LazyLock<Vec<(&str, NamePolicy)>> = LazyLock::new(|| {
    let loaded = policy::POLICIES.iter().filter_map(|policy| {
        let weighing = policy.weighing()?;
        // Names lead over paths that services know nothing of.
        let weighing = if policy.name() == rank::POLICY { &rank::CORRECTED } else { weighing };
        Some(NamePolicy { name: policy.name(), draw: Draw::Random, weighing: Some(weighing) })
    });
    let plain = PLAIN.iter().map(|(name, draw)| NamePolicy { name, draw: *draw, weighing: None });
    plain.chain(loaded).map(|policy| (policy.name, policy)).collect()
});

fn policy_of(value: &DeValue<'_>) -> Result<NamePolicy, Complaint> {
    values::choice(&POLICIES, &[])(value)
}

fn none_alive(value: &DeValue<'_>) -> Result<NoneAlive, Complaint> {
    let help = "write \"all\", \"refuse\", or an address such as \"192.0.2.99\"";
    let fixed = |text: &str| text.parse::<IpAddr>().ok();
    match value {
        DeValue::String(word) if word == "all" => Ok(NoneAlive::All),
        DeValue::String(word) if word == "refuse" => Ok(NoneAlive::Refuse),
        DeValue::String(text) => match fixed(text) {
            Some(address) => Ok(NoneAlive::Fixed(vec![address])),
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
                |all| Ok(NoneAlive::Fixed(all)),
            )
        }
        other => Complaint::wrong_type(other, "text", help),
    }
}

/// Servers by their addresses alone, and those with more to say of them.
fn members(section: &mut Section<'_>) -> Vec<GroupMember> {
    let mut names = Once::new();
    let listed = section.one_or_list("servers", addresses::server_address);
    let mut members = Vec::new();
    for address in listed {
        let (ip, port) = *address.get_ref();
        members.extend(member(section, &mut names, None, (ip, port), address.span(), defaults::WEIGHT));
    }
    let more = section.sections("server", |section| {
        let name = section.get("name", values::name);
        let address = section.get("address", addresses::server_address);
        let weight = section.or("weight", values::count(defaults::WEIGHTS), defaults::WEIGHT);
        if section.key_span("address").is_none() {
            section.missing("address", "this server has no address", "add address = \"192.0.2.11\"");
        }
        Some((name, address?, weight))
    });
    for (name, address, weight) in more.into_iter().flatten() {
        let span = name.as_ref().map_or(address.span(), Spanned::span);
        let name = name.map(Spanned::into_inner);
        members.extend(member(section, &mut names, name, *address.get_ref(), span, weight));
    }
    members
}

fn member(
    section: &Section<'_>,
    names: &mut Once<String>,
    name: Option<String>,
    (ip, port): (IpAddr, Option<u16>),
    span: Span,
    weight: u16,
) -> Option<GroupMember> {
    let name = name.unwrap_or_else(|| ip.to_string());
    let message = format!("two servers of this name are called {name:?}");
    names.first(section, name.clone(), span, message, "give each a name of its own").then_some(())?;
    let at = SocketAddr::new(ip, port.unwrap_or(defaults::DNS_PROBED_PORT));
    // An address with port is always the beginning of a URL.
    let url = Url::parse(&format!("http://{at}")).ok()?;
    Some(GroupMember { name, url, weight, anonymous: false, control: None })
}

/// A name's own servers. Nobody is sent to them by HTTP and nobody joins: they are probed.
fn group(
    name: &Name,
    members: Vec<GroupMember>,
    health: evener_core::farm::Health,
    slow_start_ms: u64,
) -> Group {
    Group {
        name: name.to_string(),
        addresses: Vec::new(),
        status: Status::Found,
        policy: GroupPolicy::Random,
        load: LoadReading::Aged { gain_percent: GAIN_PERCENT },
        slow_start_ms,
        joining: Joining {
            insecure: false,
            report_ms: defaults::GROUP_REPORT_MS,
            query_after_ms: defaults::GROUP_REPORT_MS * defaults::GROUP_QUERY,
            remove_after_ms: u64::MAX,
        },
        allow: Vec::new(),
        members,
        routes: Vec::new().into(),
        health,
    }
}
