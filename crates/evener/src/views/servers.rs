//! Views of servers.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use evener_core::director::{Handshakes, ServerSnapshot, Suspicion};
use evener_core::farm::membership::ServerOrigin;
use evener_core::farm::{self, Method, PacketForm};
use evener_core::net::Protocol;
use evener_core::path::tables::{Forwarding, ServerEntry};
use evener_core::pool::report::Report;
use evener_core::pool::reports::ReportsSnapshot;
use evener_core::pool::signals::Signals;
use evener_dataplane::ServerCounters;
use serde::{Deserialize, Serialize};

use super::overrides::{OverrideView, overrides};
use super::{MemberView, cause, groups};
use crate::board::CountedSnapshot;

/// A server of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerView {
    /// Name of the service.
    pub service: String,
    /// Name, unique in the service.
    pub name: String,
    /// Own address. For a discovered server, its MAC.
    pub address: String,
    /// `up`, `down`, `draining` or `maintenance`.
    pub state: String,
    /// Reason if the server is not up.
    pub reason: Option<String>,
    pub weight: u16,
    /// True if the server gets new sessions only while no other server can serve.
    #[serde(default)]
    pub backup: bool,
    /// Current weight: lower during `slow_start`, 0 while the server gets no new sessions.
    #[serde(default)]
    pub effective_weight: f64,
    /// Reason of the current weight, or the load that the choice is based on.
    #[serde(default)]
    pub cause: Option<String>,
    /// Load above the service's least loaded server, in sixteenths, if the policy uses load.
    #[serde(default)]
    pub score: u8,
    /// Maximum number of active sessions with which the server gets a new one. 0 for no limit.
    #[serde(default)]
    pub max_connections: u32,
    /// Reported load, if the server is queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<ReportedLoad>,
    /// Number of active sessions.
    pub sessions: u64,
    /// Number of new sessions that the server was selected for.
    pub connections: u64,
    /// Number of frames sent to the server.
    pub packets: u64,
    /// Number of bytes in these frames.
    pub bytes: u64,
    /// Destination MAC of its frames: its own, or the gateway's.
    pub mac: Option<String>,
    /// Interface towards the server.
    pub interface: Option<String>,
    /// `listed`, `discovered` or `joined`.
    pub source: String,
    /// True if the server is this host itself.
    pub local: bool,
    /// Path of packets: `link` to its MAC, `nat` to its own address, or `tunnel`. `redirect`:
    /// clients connect by themselves.
    pub forwarding: String,
    /// Duration of the last successful probe.
    pub probe_seconds: Option<f64>,
    /// Failure of the last probe, while the server is not up.
    pub probe_error: Option<String>,
    /// Number of failed probes since the daemon started.
    #[serde(default)]
    pub probe_failures: u64,
    /// Number of changes between up and down by probes since the daemon started.
    #[serde(default)]
    pub state_changes: u64,
    /// Time since which the state holds, in seconds since 1970, but not before the daemon's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_since_seconds: Option<f64>,
    /// New connections within the last minute, and how many of them stalled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshakes: Option<HandshakesView>,
    /// Results of the last probes, at most 32, the oldest first: `.` succeeded, `x` failed.
    #[serde(default)]
    pub checks: String,
    /// Values changed at run time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<OverrideView>,
    /// Membership in the group, with method `redirect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<MemberView>,
}

/// New TCP connections of a server within the last minute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandshakesView {
    pub new: u64,
    /// Connections that never continued. With nat, connections without a reply from the server.
    pub stalled: u64,
    /// Number of client networks, /24 of IPv4 and /56 of IPv6.
    pub networks: u64,
    /// Number of connections that never continued, since the daemon started.
    pub stalled_total: u64,
    /// Finding in words, if the server differs from the other servers.
    pub finding: Option<String>,
}

impl HandshakesView {
    /// Returns `None` if nothing is counted, as with UDP.
    fn of(service: &farm::Service, seen: &Handshakes) -> Option<HandshakesView> {
        let finding = seen.suspicion.map(|suspicion| match suspicion {
            Suspicion::Server => seen.sentence(service.method),
            Suspicion::Service => {
                format!("{}, as of all servers of this service", seen.sentence(service.method))
            }
        });
        (service.protocol == Protocol::Tcp && *seen != Handshakes::default()).then_some(HandshakesView {
            new: seen.new,
            stalled: seen.stalled,
            networks: seen.networks as u64,
            stalled_total: seen.stalled_total,
            finding,
        })
    }
}

/// Reported load of a server. Fields that the report lacks are omitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportedLoad {
    /// Age of the report.
    pub age_seconds: Option<f64>,
    /// Utilisation, 1 for full.
    pub utilisation: Option<f64>,
    /// Load of the papers, 10 (r + m).
    pub load: Option<f64>,
    pub requests_per_second: Option<f64>,
    pub bytes_to_send: Option<u64>,
    /// Time to send the outstanding bytes.
    pub delay_seconds: Option<f64>,
    /// Rate to the median client, in bits per second.
    pub available_bps: Option<u64>,
    /// Rate to the fastest client, in bits per second.
    pub bottleneck_bps: Option<u64>,
    /// Share of its weight that the server wants, in percent.
    pub percent: Option<u16>,
    /// Reason why the last report was refused.
    pub error: Option<String>,
    /// Number of refused reports since the daemon started, by reason.
    pub refused: BTreeMap<String, u64>,
}

impl ReportedLoad {
    /// Builds the view from a server's signals, which are `since_ms` old, and from the results of
    /// its queries.
    pub(super) fn of(signals: &Signals, reports: &ReportsSnapshot, since_ms: u64) -> Option<ReportedLoad> {
        let report = &signals.report;
        let parts = |number: Option<u64>, of: f64| number.map(|number| number as f64 / of);
        let load = ReportedLoad {
            age_seconds: parts(signals.age_ms.map(|age_ms| age_ms + since_ms), 1e3),
            utilisation: parts(report.utilisation_permille, 1e3),
            load: parts(report.load_milli, 1e3),
            requests_per_second: parts(report.requests_milli, 1e3),
            bytes_to_send: report.bytes_to_send,
            delay_seconds: parts(report.delay_us, 1e6),
            available_bps: report.available_bps,
            bottleneck_bps: report.bottleneck_bps,
            percent: report.percent,
            error: reports.error.map(|bad| bad.sentence().to_owned()),
            refused: reports.bad.iter().map(|(bad, count)| (bad.name().to_owned(), *count)).collect(),
        };
        let is_queried = *report != Report::default() || reports.error.is_some() || !reports.bad.is_empty();
        is_queried.then_some(load)
    }
}

/// Returns the servers of each service that forwards packets, in the services' order.
pub(crate) fn by_service(moment: &CountedSnapshot) -> Vec<Vec<ServerView>> {
    let snapshot = &moment.published.snapshot;
    let described = snapshot.farm.services.iter().zip(snapshot.services.iter());
    described
        .map(|(service, seen)| seen.servers.iter().map(|seen| server(service, seen, moment)).collect())
        .collect()
}

/// Returns all servers: of `by_service`, and of groups.
pub(crate) fn servers(moment: &CountedSnapshot, by_service: Vec<Vec<ServerView>>) -> Vec<ServerView> {
    let of_packets = by_service.into_iter().flatten();
    let groups = moment.published.groups();
    let of_groups = groups.iter().flat_map(|group| groups::servers(group, moment.now_ms));
    let with_overrides = |mut server: ServerView| {
        server.overrides = overrides(&moment.published, &server.service, Some(&server.name));
        server
    };
    of_packets.chain(of_groups).map(with_overrides).collect()
}

fn server(service: &farm::Service, seen: &ServerSnapshot, moment: &CountedSnapshot) -> ServerView {
    let (snapshot, memory) = (&moment.published.snapshot, moment.published.readings.memory());
    let ServerSnapshot { name, member, slot, .. } = seen;
    let count = slot.and_then(|slot| moment.counters.servers.get(&slot).copied());
    let ServerCounters { packets, bytes, connections } = count.unwrap_or_default();
    let active = slot.and_then(|slot| memory.counts.active.get(usize::from(slot)));
    let interface = member.ifindex.and_then(|ifindex| snapshot.network.interfaces.get(&ifindex));
    let mac = member.mac.map(|mac| mac.to_string());
    let address = seen.address.map(|address| address.to_string()).or_else(|| mac.clone());
    let entry = slot.and_then(|slot| snapshot.plan.tables.servers.get(&slot));
    // Servers that all failed at once stay up in the tables, and get sessions.
    let takes = entry.is_some_and(|entry| entry.up && entry.weight > 0);
    let since_ms = moment.now_ms.saturating_sub(snapshot.at_ms);
    ServerView {
        service: name.service.clone(),
        name: name.server.clone(),
        address: address.unwrap_or_default(),
        state: seen.state.name().to_owned(),
        reason: seen.reason.clone(),
        weight: member.weight,
        backup: member.backup,
        effective_weight: if takes { f64::from(member.weight) * cause::share(seen) } else { 0.0 },
        cause: if takes { cause::cause(service, seen, since_ms) } else { cause::stands_by(seen) },
        score: seen.score,
        report: ReportedLoad::of(&seen.signals, &seen.reports, since_ms),
        max_connections: service
            .servers
            .iter()
            .find(|listed| listed.name == name.server)
            .map_or(0, |listed| listed.max_connections),
        sessions: active.map_or(0, |active| active.load(Relaxed)),
        connections,
        packets,
        bytes,
        mac,
        interface: interface.map(|interface| interface.name.clone()),
        source: match member.source {
            ServerOrigin::Listed => "listed".to_owned(),
            ServerOrigin::Discovered => "discovered".to_owned(),
        },
        local: member.local,
        forwarding: forwarding_name(service.method, entry).to_owned(),
        probe_seconds: seen.signals.latency_us.map(|us| us as f64 / 1e6),
        probe_error: seen.probe_error.clone(),
        probe_failures: seen.probe_failures,
        state_changes: seen.state_changes,
        state_since_seconds: Some(seen.since_unix_ms as f64 / 1e3),
        handshakes: HandshakesView::of(service, &seen.handshakes),
        checks: seen.checks.to_string(),
        overrides: Vec::new(),
        member: None,
    }
}

/// Returns the word for the path to a server, from its entry or else from its method.
fn forwarding_name(method: Method, entry: Option<&ServerEntry>) -> &'static str {
    match entry.filter(|entry| !entry.local).map(|entry| entry.forwarding) {
        Some(Forwarding::Link) => "link",
        Some(Forwarding::Nat { .. }) => "nat",
        Some(Forwarding::Tunnel { .. }) => "tunnel",
        None => match method.properties().packet_form {
            PacketForm::Framed => "link",
            PacketForm::Translated => "nat",
            PacketForm::Encapsulated => "tunnel",
        },
    }
}
