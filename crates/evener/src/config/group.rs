//! `[[service]]` with method `redirect`: a group of web servers to which clients are redirected by
//! HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use evener_core::farm::group::{
    Claims, Group, GroupMember, JoinerError, Joining, LoadReading, member_host, member_path,
};
use evener_core::net::Protocol;
use evener_core::net::http::{RedirectStatus, Url};
use evener_core::pool::policy::{Choice, Consumer, Policy};
use evener_core::pool::signals::Signal;
use toml::Spanned;
use toml::de::DeValue;

use super::keys;
use super::keys::tables::{group as joins, server, service, tls as tls_keys};
use super::once::FirstSeen;
use super::problems::{Problem, Span};
use super::references::GroupFiles;
use super::route::RouteTargets;
use super::section::{Complaint, Section};
use super::service::service_addresses;
use super::{addresses, defaults, health, report, route, values};

pub(super) const LOADS: [(&str, LoadReading); 2] =
    [("aged", LoadReading::Aged), ("paper", LoadReading::Paper)];

/// Keys of [service.group] for members without a token.
const CLAIM_KEYS: [&str; 3] = ["paths", "hosts", "weight"];

/// A group, and its files on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupService {
    pub group: Arc<Group>,
    /// File of tokens with which members join and report.
    pub token_file: Option<PathBuf>,
    /// File of authorities that sign members' certificates, an alternative to tokens.
    pub client_ca: Option<PathBuf>,
    /// TLS identity for clients. `None` for plain HTTP.
    pub tls: Option<Tls>,
}

/// TLS identity of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// File with the certificate and its chain.
    pub certificate: PathBuf,
    /// File with the private key.
    pub key: PathBuf,
}

/// A group with the positions of its name and addresses in the file, for checks between services.
pub(super) struct PlacedGroup {
    pub(super) service: GroupService,
    pub(super) name: Span,
    pub(super) addresses: Vec<Spanned<SocketAddr>>,
    /// Other files that the file names.
    pub(super) files: GroupFiles,
    /// Positions of the members' URLs.
    pub(super) urls: Vec<Span>,
}

/// Reads one group. `None` if it has no address, which is then reported.
pub(super) fn read(section: &mut Section<'_>) -> Option<PlacedGroup> {
    let name = section.get(&service::NAME, values::name);
    // The value is known. Reading it marks the key as used.
    section.get(&service::METHOD, values::text);
    section.scope().consumer = keys::KeyConsumer::Redirect;
    let addresses = service_addresses(section, addresses::listening);
    let status = section.or(&service::STATUS, status, RedirectStatus::Found);
    let policy =
        section.or(&service::POLICY, values::policy(Consumer::Redirect), Consumer::Redirect.default_policy());
    let load = section.word(&service::LOAD, &LOADS);
    let report_gain_percent = section.factor(&service::REPORT_GAIN);
    let report = report::read(section, &service::REPORT);
    check_policy(section, policy, report.as_ref().is_some_and(|report| report.kind.reports_load()));
    let slow_start_ms = section.time_or(&service::SLOW_START);
    let panic_percent = section.or(&service::PANIC_THRESHOLD, values::share, 0);
    let (joining, claims, allow, token_file, client_ca, joins) =
        section.section(&service::GROUP, |section| {
            let allow = section.list(&joins::ALLOW, addresses::prefix);
            let joining = joining(section);
            let token_file = section.get(&joins::TOKEN_FILE, values::path);
            let client_ca = section.get(&joins::CLIENT_CA, values::path);
            let shown = ["token_file", "client_ca"].iter().any(|key| section.key_span(key).is_some());
            let joins = joining.insecure || shown;
            let claims = claims(section, joining.insecure);
            (joining, claims, allow, token_file, client_ca, joins)
        });
    let tls = section.section(&service::TLS, tls);
    if let Some(client_ca) = client_ca.as_ref().filter(|_| section.key_span("tls").is_none()) {
        let message = "members show certificates by TLS, and this service has no `tls`";
        let help = "add tls = { certificate = \"FILE\", key = \"FILE\" }, or use a token_file";
        section.problem(Problem::new(client_ca.span(), message, help));
    }
    let (members, urls, whole) = members(section, joins);
    let names = members.iter().map(|member| member.name.as_str()).collect();
    let routes = route::read(section, &RouteTargets { names, whole });
    let routed = "method \"redirect\"";
    let health =
        section.section(&service::HEALTH, |section| health::read(section, Protocol::Tcp, Some(routed), true));

    let first = addresses.first()?;
    Some(PlacedGroup {
        name: name.as_ref().map_or(first.span(), Spanned::span),
        service: GroupService {
            group: Arc::new(Group {
                name: name.map_or_else(|| first.get_ref().to_string(), Spanned::into_inner),
                addresses: addresses.iter().map(|address| *address.get_ref()).collect(),
                status,
                policy,
                load,
                report_gain_percent,
                report,
                slow_start_ms,
                panic_percent,
                joining,
                claims,
                allow: allow.into_iter().map(Spanned::into_inner).collect(),
                members,
                routes: routes.into_iter().map(Spanned::into_inner).collect::<Vec<_>>().into(),
                health,
            }),
            token_file: token_file.as_ref().map(|file| file.get_ref().clone()),
            client_ca: client_ca.as_ref().map(|file| file.get_ref().clone()),
            tls: tls.as_ref().map(|tls| tls.get_ref().clone()),
        },
        addresses,
        files: GroupFiles { tls, client_ca, token_file },
        urls,
    })
}

fn status(value: &DeValue<'_>) -> Result<RedirectStatus, Complaint> {
    let help = "write 302, 303, 307 or 308";
    let DeValue::Integer(code) = value else {
        return Complaint::wrong_type(value, "a status that sends clients on", help);
    };
    let found = code.as_str().parse().ok().filter(|_| code.radix() == 10).and_then(RedirectStatus::of);
    found.map_or_else(|| Complaint::new(format!("sends no client on: {code}"), help), Ok)
}

/// Reports keys that the policy doesn't use, and signals that the policy needs but that are
/// missing.
fn check_policy(section: &mut Section<'_>, policy: &Policy, is_queried: bool) {
    let name = policy.name;
    let needs_load = Consumer::Redirect.goes_by(policy, Signal::Load);
    let is_reported = policy.redirect.is_some_and(|by| by.choice == Choice::Head);
    for (key, goes) in [("load", is_reported), ("report_gain", is_reported || needs_load)] {
        let Some(span) = section.key_span(key).filter(|_| !goes) else { continue };
        let message = format!("`{key}` is only for policy \"least-load\"; this service has \"{name}\"");
        section.problem(Problem::new(span, message, "remove it, or write policy = \"least-load\""));
    }
    if let Some(span) = section.key_span("policy").filter(|_| needs_load && !is_queried) {
        let message = format!("\"{name}\" needs load reports of members, and none are queried");
        let mut without: Vec<&Policy> = Consumer::Redirect.policies_without(Signal::Load).collect();
        // In the order of the choices, the default's first. Then policies that use Evener's own
        // measurements.
        without.sort_by_key(|policy| policy.redirect.map(|by| (by.weighing.is_some(), by.choice)));
        let without: Vec<&str> = without.iter().map(|policy| policy.name).collect();
        let help = format!(
            "add report = {{}}, by which members' agents are asked; possible without it: {}",
            without.join(", ")
        );
        section.problem(Problem::new(span, message, help));
    }
}

fn joining(section: &Section<'_>) -> Joining {
    let insecure = section.flag(&joins::INSECURE);
    let shown = ["token_file", "client_ca"].iter().find_map(|key| section.key_span(key));
    if let Some(span) = shown.filter(|_| insecure) {
        let message = "with `insecure` anybody may join, whatever is shown";
        section.problem(Problem::new(span, message, "remove one of the two"));
    }
    let report_ms = section.time_or(&joins::REPORT);
    let query = section.time(&joins::QUERY_AFTER);
    let query_after_ms = query.as_ref().map_or(report_ms * defaults::GROUP_QUERY, |query| *query.get_ref());
    if let Some(query) = query.filter(|query| *query.get_ref() <= report_ms) {
        let message = format!("`query_after` is not longer than `report` ({})", values::written(report_ms));
        section.problem(Problem::new(
            query.span(),
            message,
            "a member that reports in time is not silent: raise it",
        ));
    }
    let remove = section.time(&joins::REMOVE_AFTER);
    let remove_after_ms = remove.as_ref().map_or(query_after_ms + report_ms, |remove| *remove.get_ref());
    if let Some(remove) = remove.filter(|remove| *remove.get_ref() <= query_after_ms) {
        let message =
            format!("`remove_after` is not longer than `query_after` ({})", values::written(query_after_ms));
        section.problem(Problem::new(remove.span(), message, "a member must have time to answer: raise it"));
    }
    Joining { insecure, report_ms, query_after_ms, remove_after_ms }
}

/// Reads the claims of members without a token. The claims of a token are on its line.
fn claims(section: &Section<'_>, insecure: bool) -> Claims {
    for key in CLAIM_KEYS {
        let Some(span) =
            section.key_span(key).filter(|_| !insecure && section.key_span("client_ca").is_none())
        else {
            continue;
        };
        let message = format!("`{key}` is for members that join by a certificate, or with `insecure`");
        section.problem(Problem::new(span, message, "write it on the lines of the token_file"));
    }
    let paths = section.list(&joins::PATHS, pattern(member_path));
    let hosts = section.list(&joins::HOSTS, pattern(member_host));
    Claims {
        paths: paths.into_iter().map(Spanned::into_inner).collect(),
        hosts: hosts.into_iter().map(Spanned::into_inner).collect(),
        weight_max: section.number_or(&joins::WEIGHT),
    }
}

fn pattern<P>(
    read: impl Fn(&str) -> Result<P, JoinerError>,
) -> impl Fn(&DeValue<'_>) -> Result<P, Complaint> {
    move |value| {
        let text = values::text(value)?;
        read(&text).or_else(|error| Complaint::new(format!("is none: {text:?}"), error.to_string()))
    }
}

/// Reads certificate and key. The file must have both keys or neither.
pub(super) fn tls(section: &mut Section<'_>) -> Option<Spanned<Tls>> {
    let certificate = section.get(&tls_keys::CERTIFICATE, values::path);
    let key = section.get(&tls_keys::KEY, values::path);
    let there = |name: &str| section.key_span(name).is_some();
    if there("certificate") != there("key") {
        let lacking = if there("key") { "certificate" } else { "key" };
        let message = format!("TLS needs a certificate and its key, and there is no `{lacking}`");
        section.missing(lacking, &message, &format!("add {lacking} = \"FILE\", in PEM"));
    }
    let (certificate, key) = (certificate?, key?);
    let span = certificate.span();
    Some(Spanned::new(span, Tls { certificate: certificate.into_inner(), key: key.into_inner() }))
}

/// Reports members that are a group themselves, since clients would be redirected in a loop.
pub(super) fn check_circles(root: &Section<'_>, groups: &[PlacedGroup]) {
    for placed in groups {
        for (member, span) in placed.service.group.members.iter().zip(&placed.urls) {
            let Some(address) = member.url.address() else { continue };
            let at = SocketAddr::new(address, member.url.port());
            let mut addresses = groups.iter().flat_map(|group| &group.addresses);
            if let Some(own) = addresses.find(|own| *own.get_ref() == at) {
                let message = format!("redirects to {at} would loop, as it is a group's own address");
                let help = "name the member's own address and port";
                root.problem(Problem::new(span.clone(), message, help).also(own.span(), "the group's"));
            }
        }
    }
}

/// Reads the listed members and the positions of their URLs. The flag is true if all entries are
/// valid.
fn members(section: &Section<'_>, joins: bool) -> (Vec<GroupMember>, Vec<Span>, bool) {
    let (mut names, mut urls) = (FirstSeen::new(), FirstSeen::new());
    let listed = section.sections(&service::SERVER, |section| member(section, &mut names, &mut urls));
    if !joins && !section.has("server") {
        let help = "add [[service.server]] with its url, or token_file or client_ca in [service.group]";
        section.missing("server", "this group has no members, and none may join", help);
    }
    if listed.len() > defaults::SERVERS {
        let message = format!("this service lists {} servers", listed.len());
        let help = format!("a service can have {}; make several services of it", defaults::SERVERS);
        section.problem(Problem::new(section.span(), message, help));
    }
    let whole = listed.iter().all(Option::is_some);
    let (members, urls) = listed.into_iter().flatten().unzip();
    (members, urls, whole)
}

fn member(
    section: &Section<'_>,
    names: &mut FirstSeen<String>,
    urls: &mut FirstSeen<Url>,
) -> Option<(GroupMember, Span)> {
    let name = section.get(&server::NAME, values::name);
    let url = section.get(&server::URL, url);
    let weight = section.number_or(&server::WEIGHT);
    let backup = section.flag(&server::BACKUP);
    let health_address = section.get(&server::HEALTH_ADDRESS, addresses::address).map(Spanned::into_inner);
    let anonymous = section.flag(&server::ANONYMOUS);
    let control = section.get(&server::CONTROL, self::url).map(Spanned::into_inner);
    if section.key_span("url").is_none() && !section.has("address") {
        let help = "add where clients are sent to, such as url = \"http://192.0.2.31:8080\"";
        section.missing("url", "this server has no URL", help);
    }
    let url = url?;
    if anonymous && url.get_ref().is_secure() {
        let message =
            "what clients want of an anonymous member is fetched without TLS, and this URL is https";
        section.problem(Problem::new(url.span(), message, "write an http URL, or remove `anonymous`"));
    }
    let (span, url) = (url.span(), url.into_inner());
    let place = span.clone();
    let same = format!("two servers of this service have the URL {url}");
    let is_new = urls.first(section, url.clone(), span.clone(), same, "give each its own");
    let named = name.as_ref().map_or(span, Spanned::span);
    let name = name.map_or_else(|| host_of(&url), Spanned::into_inner);
    if is_new {
        let message = format!("two servers of this service are called {name:?}");
        names.first(section, name.clone(), named, message, "give each a name of its own");
    }
    Some((GroupMember { name, url, weight, backup, health_address, anonymous, control }, place))
}

/// Returns the default name of a member. Names contain no slash.
fn host_of(url: &Url) -> String {
    format!("{}{}", url.authority(), url.path().replace('/', "_"))
}

fn url(value: &DeValue<'_>) -> Result<Url, Complaint> {
    let text = values::text(value)?;
    Url::parse(&text).or_else(|error| {
        Complaint::new(
            format!("is no server's URL: {text:?}"),
            format!("{error}; write for example \"http://192.0.2.31:8080\""),
        )
    })
}
