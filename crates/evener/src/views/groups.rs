//! Server groups of `redirect` services, in the views of services and servers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use evener_core::farm::REDIRECT;
use evener_core::farm::group::{DispatchRequest, MemberSnapshot, Standing};
use evener_core::net::http::{HeadParse, read};
use evener_core::pool::ServerState;
use evener_core::pool::policy::Choice;
use serde::{Deserialize, Serialize};

use super::servers::ReportedLoad;
use super::{DispatchExplanation, Explanation, ServerView, ServiceView, services};
use crate::board::request::ExplainSubject;
use crate::cli::WebRequest;
use crate::redirect::ShownGroup;

/// A server as a member of its group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberView {
    /// URL to which clients are redirected.
    pub url: String,
    /// True if clients never learn of the member.
    pub anonymous: bool,
    pub load: Option<f64>,
    /// Seconds since that report.
    pub age_seconds: Option<f64>,
    /// Estimated current load, which is compared with that of other members.
    pub load_now: f64,
    /// Number of requests sent to the member.
    pub dispatched: u64,
    /// Effective part of its weight in percent, lower during a slow start.
    pub weight_percent: u64,
    /// Reason of its effective weight.
    pub cause: String,
}

/// Returns a group as a service.
pub(super) fn service(shown: &ShownGroup) -> ServiceView {
    let (group, members) = (&shown.group, &shown.members);
    let up = members.iter().filter(|member| member.state == ServerState::Up).count();
    let degraded = members.iter().any(|member| member.standing == Standing::Disbelieved);
    ServiceView {
        name: group.name.clone(),
        addresses: group.addresses.iter().map(ToString::to_string).collect(),
        protocol: "tcp".to_owned(),
        method: REDIRECT.to_owned(),
        placement: "director".to_owned(),
        policy: group.policy.name.to_owned(),
        servers: members.len() as u64,
        servers_up: up as u64,
        state: services::state(members.len(), up, degraded).to_owned(),
        degraded,
        sessions: 0,
        connections: members.iter().map(|member| dispatched(shown, member)).sum(),
        packets: 0,
        bytes: 0,
        cookies_bad: 0,
        cookies_unchecked: 0,
        affinity_entries: 0,
        affinity_evicted: 0,
        requests: counted(shown),
        overrides: Vec::new(),
    }
}

fn counted(shown: &ShownGroup) -> BTreeMap<String, u64> {
    shown.front.counted().map(|(name, count)| (name.to_owned(), count)).collect()
}

/// Returns a group's members as servers.
pub(super) fn servers(shown: &ShownGroup, now_ms: u64) -> Vec<ServerView> {
    let since_ms = now_ms.saturating_sub(shown.at_ms);
    shown.members.iter().map(|member| server(shown, member, since_ms)).collect()
}

/// Returns the current number of requests of a member. The snapshot's number may be some seconds
/// old.
fn dispatched(shown: &ShownGroup, member: &MemberSnapshot) -> u64 {
    let rules = shown.front.rules();
    let found = rules.dispatch.candidates().iter().find(|candidate| candidate.id == member.id);
    found.map_or(member.dispatched, |candidate| candidate.dispatched.load(Relaxed))
}

fn server(shown: &ShownGroup, member: &MemberSnapshot, since_ms: u64) -> ServerView {
    let dispatched = dispatched(shown, member);
    let failed = member.last_failure.as_ref().filter(|_| member.state == ServerState::Down);
    let failure = failed.map(|(_, failure)| failure.to_string());
    let by_operator = matches!(member.state, ServerState::Draining | ServerState::Maintenance);
    ServerView {
        service: shown.group.name.clone(),
        name: member.name.clone(),
        address: member.joiner.url.to_string(),
        state: member.state.name().to_owned(),
        reason: failure.clone().or_else(|| by_operator.then(|| member.cause.clone())),
        weight: member.joiner.weight,
        backup: member.backup,
        effective_weight: effective_weight(member),
        cause: Some(member.cause.clone()),
        score: 0,
        report: member
            .answers
            .as_ref()
            .and_then(|answers| ReportedLoad::of(&member.signals, answers, since_ms)),
        max_connections: 0,
        sessions: 0,
        connections: dispatched,
        packets: 0,
        bytes: 0,
        mac: None,
        interface: None,
        source: if member.is_listed { "listed" } else { "joined" }.to_owned(),
        local: false,
        forwarding: REDIRECT.to_owned(),
        probe_seconds: member.latency_us.map(|us| us as f64 / 1e6),
        probe_error: failure,
        probe_failures: 0,
        state_changes: 0,
        state_since_seconds: None,
        handshakes: None,
        checks: member.checks.to_string(),
        overrides: Vec::new(),
        member: Some(MemberView {
            url: member.joiner.url.to_string(),
            anonymous: member.joiner.anonymous,
            load: member.reported.map(units),
            age_seconds: member.age_ms.map(|ms| (ms + since_ms) as f64 / 1e3),
            load_now: units(member.load),
            dispatched,
            weight_percent: member.weight_percent,
            cause: member.cause.clone(),
        }),
    }
}

fn effective_weight(member: &MemberSnapshot) -> f64 {
    let is_up = match member.standing {
        Standing::Normal => member.state == ServerState::Up,
        Standing::WaitingBackup => false,
        Standing::Disbelieved => true,
    };
    f64::from(member.joiner.weight) * if is_up { member.weight_percent as f64 / 100.0 } else { 0.0 }
}

/// Converts a load from thousandths to whole units.
fn units(thousandths: u64) -> f64 {
    thousandths as f64 / 1e3
}

/// Explains a request or a flow, if it belongs to a group in the list.
pub(super) fn explain(groups: &[ShownGroup], subject: &ExplainSubject) -> Option<Explanation> {
    let (flow, request, named) = match subject {
        ExplainSubject::Flow(flow) => (Some(flow), None, None),
        ExplainSubject::Request { request, flow, service } => {
            (flow.as_ref(), Some(request), service.as_deref())
        }
    };
    let is_meant = |shown: &&ShownGroup| {
        let by_address = flow.is_some_and(|flow| shown.group.addresses.contains(&flow.vip));
        by_address || named == Some(shown.group.name.as_str())
    };
    let shown = groups.iter().find(is_meant)?;
    let client = flow.map(|flow| flow.client.ip());
    let mut explanation = Explanation { service: Some(shown.group.name.clone()), ..Explanation::default() };
    let reasons = &mut explanation.reasons;
    reasons.push(format!(
        "service {} has method redirect: its clients are answered here, and sent to a member by HTTP",
        shown.group.name
    ));
    match request {
        None => {
            reasons.push("the choice waits for the request; --request foretells it".to_owned());
            explanation.pending = true;
        }
        Some(request) => explain_request(shown, request, client, &mut explanation),
    }
    Some(explanation)
}

fn explain_request(
    shown: &ShownGroup,
    request: &WebRequest,
    client: Option<IpAddr>,
    explanation: &mut Explanation,
) {
    let head = request.head();
    let HeadParse::Request(read) = read(head.as_bytes()) else {
        explanation.reasons.push("that is no request that would be answered".to_owned());
        return;
    };
    let rules = shown.front.rules();
    let wanted = DispatchRequest {
        client: client.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)),
        method: read.method,
        host: read.host,
        target: read.target,
    };
    let (route, members) = rules.dispatch.may_have(&wanted);
    let candidates = members.iter().filter_map(|at| rules.dispatch.candidates().get(*at));
    let names: Vec<String> =
        candidates.filter_map(|candidate| rules.names.get(&candidate.id).cloned()).collect();
    let policy = shown.group.policy.name;
    explanation.reasons.push(match (names.len(), shown.group.choice()) {
        (0, _) => "no permitted member works: the answer is 503".to_owned(),
        (1, _) => "one member may have it".to_owned(),
        (_, Choice::Hash) => format!("policy {policy} chooses by the client's address"),
        (_, _) => format!("policy {policy} chooses among them when the request comes"),
    });
    explanation.server = names.first().filter(|_| names.len() == 1).cloned();
    explanation.pending = names.len() > 1;
    explanation.request = Some(DispatchExplanation {
        route: route.map(|route| u64::from(route) + 1),
        pattern: None,
        servers: names,
        punted: true,
    });
}
