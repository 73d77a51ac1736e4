//! `[service.report]`: load queries of servers.

use evener_core::pool::policy::{Consumer, Policy};
use evener_core::pool::signals::Signal;
use evener_core::pool::{ReportKind, Reporting};
use toml::Spanned;

use super::keys::ConfigKey;
use super::keys::tables::report as keys;
use super::problems::Problem;
use super::section::Section;
use super::{defaults, values};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportFormat {
    Http,
    AgentCheck,
    ModStatus,
}

pub(super) const KINDS: [(&str, ReportFormat); 3] = [
    ("http", ReportFormat::Http),
    ("agent-check", ReportFormat::AgentCheck),
    ("mod_status", ReportFormat::ModStatus),
];

/// Reads the settings of load queries. `None` if the table of this key is missing.
pub(super) fn read(section: &Section<'_>, key: &ConfigKey) -> Option<Reporting> {
    section.key_span(key.name)?;
    Some(section.section(key, reporting))
}

/// Reports a policy that needs servers' load if servers aren't queried, or only report a share of
/// their weight.
pub(super) fn wanted(service: &Section<'_>, by: Consumer, policy: &Policy, report: Option<&Reporting>) {
    let goes_by_load = by.goes_by(policy, Signal::Load);
    let reports_load = report.is_some_and(|report| report.kind.reports_load());
    let Some(span) = service.key_span("policy").filter(|_| goes_by_load && !reports_load) else { return };
    let message = format!(
        "policy \"{}\" needs load reports of servers, and this service does not query them",
        policy.name
    );
    let without: Vec<&str> = by.policies_without(Signal::Load).map(|policy| policy.name).collect();
    let help =
        format!("add [service.report] with kind = \"http\"; possible without it: {}", without.join(", "));
    service.problem(Problem::new(span, message, help));
}

fn reporting(section: &mut Section<'_>) -> Reporting {
    let kind = section.word(&keys::KIND, &KINDS);
    section.scope().kind = values::name_of(&KINDS, kind);
    let path = section.get(&keys::PATH, values::request_target);
    let port = section.number(&keys::PORT).map(Spanned::into_inner);
    if kind == ReportFormat::AgentCheck && section.key_span("port").is_none() {
        let help = "write the port that your agents listen on, such as port = 9184";
        section.missing("port", "agent-check has no port of its own", help);
    }
    let interval = section.period_or(&keys::INTERVAL);
    Reporting {
        kind: match kind {
            ReportFormat::Http => {
                ReportKind::Http(path.map_or_else(|| defaults::REPORT_PATH.to_owned(), Spanned::into_inner))
            }
            ReportFormat::AgentCheck => ReportKind::AgentCheck,
            ReportFormat::ModStatus => ReportKind::ModStatus(
                path.map_or_else(|| defaults::MOD_STATUS_PATH.to_owned(), Spanned::into_inner),
            ),
        },
        port: port.unwrap_or(match kind {
            ReportFormat::ModStatus => defaults::MOD_STATUS_PORT,
            ReportFormat::Http | ReportFormat::AgentCheck => defaults::LOAD_PORT,
        }),
        timeout_ms: defaults::health_timeout_ms(interval.shortest_ms()),
        interval,
    }
}
