//! `[service.health]`: probes of servers.

use evener_core::net::Protocol;
use evener_core::pool::{HealthCheck, HealthKind, ProbeTls};
use toml::Spanned;

use super::Config;
use super::keys::tables::health as keys;
use super::problems::Problem;
use super::section::Section;
use super::{defaults, values};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckKind {
    Tcp,
    Http,
    Https,
    Arp,
    None,
}

pub(super) const KINDS: [(&str, CheckKind); 5] = [
    ("tcp", CheckKind::Tcp),
    ("http", CheckKind::Http),
    ("https", CheckKind::Https),
    ("arp", CheckKind::Arp),
    ("none", CheckKind::None),
];

impl Config {
    /// Returns a warning for each service, group and name whose probes accept any certificate.
    pub fn unverified(&self) -> Vec<String> {
        let services = self.services.iter().map(|service| (service.name.clone(), &service.health));
        let groups = self.groups.iter().map(|service| (service.group.name.clone(), &service.group.health));
        let names = self.dns.names.iter().filter_map(|name| {
            let check: &HealthCheck = &name.name.list()?.settings.check;
            Some((name.name.settings.name.to_string(), check))
        });
        let all = services.chain(groups).chain(names);
        let unverified = all.filter(
            |(_, check)| matches!(&check.kind, HealthKind::Http { tls: Some(tls), .. } if !tls.verify),
        );
        let warning = |name| {
            format!(
                "INSECURE: probes of {name} believe every certificate (`verify` = false): whoever answers in a \
                 server's place counts as healthy"
            )
        };
        unverified.map(|(name, _)| warning(name)).collect()
    }
}

/// Reads the probe settings of a service over `protocol`. `routed` is the reason if servers can't
/// be probed on the link by ARP. `named` is true if each server has a name for its certificate
/// anyway.
pub(super) fn read(
    section: &mut Section<'_>,
    protocol: Protocol,
    routed: Option<&str>,
    named: bool,
) -> HealthCheck {
    let written = section.get(&keys::KIND, values::choice(&KINDS, &[]));
    if let Some(kind) = &written {
        impossible_kind(section, kind, protocol, routed);
    }
    let misspelt = written.is_none() && section.has("kind");
    let kind = written.map_or(default_kind(protocol, routed), Spanned::into_inner);
    section.scope().kind = values::name_of(&KINDS, kind).filter(|_| !misspelt);
    let tls = tls(section, named || kind != CheckKind::Https);
    let http = http(section, tls.filter(|_| kind == CheckKind::Https));
    let (interval_ms, timeout_ms) = times(section);
    HealthCheck {
        kind: match kind {
            CheckKind::Tcp => HealthKind::Tcp,
            CheckKind::Http | CheckKind::Https => http,
            CheckKind::Arp => HealthKind::Arp,
            CheckKind::None => HealthKind::None,
        },
        interval_ms,
        fast_interval_ms: fast_interval_ms(section, interval_ms),
        timeout_ms,
        rise: section.number_or(&keys::RISE),
        fall: section.number_or(&keys::FALL),
        jitter_percent: section.number_or(&keys::JITTER_PERCENT),
        port: section.number(&keys::PORT).map(Spanned::into_inner),
    }
}

/// Reports a kind of probe that this service's servers can't answer.
fn impossible_kind(
    section: &Section<'_>,
    kind: &Spanned<CheckKind>,
    protocol: Protocol,
    routed: Option<&str>,
) {
    match (kind.get_ref(), protocol, routed) {
        (CheckKind::Http | CheckKind::Https, Protocol::Udp, _) => {
            let help = match routed {
                None => "write kind = \"arp\" or \"none\", or \"tcp\" where the servers also listen on TCP",
                Some(_) => "write kind = \"none\", or \"tcp\" where the servers also listen on TCP",
            };
            let message = "an HTTP probe needs a service with protocol \"tcp\"";
            section.problem(Problem::new(kind.span(), message, help));
        }
        (CheckKind::Arp, _, Some(routed)) => {
            let message = format!("ARP can't probe servers by {routed}: they may be behind routers");
            let help = "write kind = \"tcp\", \"http\" or \"none\"";
            section.problem(Problem::new(kind.span(), message, help));
        }
        _ => {}
    }
}

/// Returns the default kind. The replies of a UDP service are unknown, but on a link ARP shows if
/// the service's servers are up.
fn default_kind(protocol: Protocol, routed: Option<&str>) -> CheckKind {
    match (protocol, routed) {
        (Protocol::Tcp, _) => CheckKind::Tcp,
        (Protocol::Udp, Some(_)) => CheckKind::None,
        (Protocol::Udp, None) => CheckKind::Arp,
    }
}

/// Reads the keys of TLS. Certificates are verified by a name, so the key `name` is required unless
/// `named`.
fn tls(section: &Section<'_>, named: bool) -> Option<ProbeTls> {
    let name = section.get(&keys::NAME, values::host_name).map(Spanned::into_inner);
    let ca = section.get(&keys::CA, values::path);
    let verify = section.flag(&keys::VERIFY);
    if let Some(ca) = &ca {
        section.note_authorities(ca);
    }
    if let Some(ca) = ca.as_ref().filter(|_| !verify) {
        let message = "`verify` = false believes every certificate, whatever `ca` has";
        section.problem(Problem::new(ca.span(), message, "remove one of the two"));
    }
    if verify && !named && section.key_span("name").is_none() {
        let message = "a certificate is verified by the server's name, and there is no `name`";
        let help = "add name = \"www.example.com\"; or verify = false, which believes every certificate";
        section.missing("name", message, help);
    }
    let ca = ca.map(|ca| ca.into_inner().to_string_lossy().into_owned());
    Some(ProbeTls { name, ca, verify })
}

fn http(section: &Section<'_>, tls: Option<ProbeTls>) -> HealthKind {
    let status: Vec<_> =
        section.one_or_list(&keys::STATUS, values::status).into_iter().map(Spanned::into_inner).collect();
    if let Some(span) = section.key_span("status").filter(|_| !section.has("status")) {
        let help = "name the status codes that mean health, such as \"200-399\"";
        section.problem(Problem::new(span, "`status` is empty, so no server would ever be healthy", help));
    }
    HealthKind::Http {
        path: section.or(&keys::PATH, values::request_target, defaults::HEALTH_PATH.to_owned()),
        host: section.get(&keys::HOST, values::host_field).map(Spanned::into_inner),
        status: if status.is_empty() { vec![defaults::HEALTH_STATUS] } else { status },
        body: section.get(&keys::BODY, values::text).map(Spanned::into_inner),
        tls,
    }
}

/// Reads the probe interval while the last probes contradict the server's state, in milliseconds.
fn fast_interval_ms(section: &Section<'_>, interval_ms: u64) -> u64 {
    let Some(fast) = section.time(&keys::FAST_INTERVAL) else { return interval_ms };
    if *fast.get_ref() > interval_ms {
        let message = format!("`fast_interval` is longer than `interval` ({})", values::written(interval_ms));
        section.problem(Problem::new(fast.span(), message, "lower it, or remove it"));
    }
    fast.into_inner()
}

/// Reads interval and timeout, in milliseconds.
fn times(section: &Section<'_>) -> (u64, u64) {
    let interval_ms = section.time_or(&keys::INTERVAL);
    let Some(timeout) = section.time(&keys::TIMEOUT) else {
        return (interval_ms, defaults::health_timeout_ms(interval_ms));
    };
    if *timeout.get_ref() >= interval_ms {
        let message = format!(
            "`timeout` ({}) is not shorter than `interval` ({}), so probes would overlap",
            values::written(*timeout.get_ref()),
            values::written(interval_ms),
        );
        section.problem(Problem::new(timeout.span(), message, "lower the timeout or raise the interval"));
    }
    (interval_ms, timeout.into_inner())
}
