//! The servers.

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
    /// Its service's name.
    pub service: String,
    /// Its name, unique in the service.
    pub name: String,
    /// Its own address; the MAC of one that was discovered.
    pub address: String,
    /// `up`, `down`, `draining` or `maintenance`.
    pub state: String,
    /// Why it is not up.
    pub reason: Option<String>,
    /// Its share.
    pub weight: u16,
    /// Whether it takes new sessions only while no server without this can serve.
    #[serde(default)]
    pub backup: bool,
    /// The part of it that is in force now: less while it comes back with `slow_start`, and 0 while
    /// it takes no new sessions.
    #[serde(default)]
    pub effective_weight: f64,
    /// Why that isn't its weight, or by what it is chosen.
    #[serde(default)]
    pub cause: Option<String>,
    /// By how many sixteenths its load is above the least of its service's, where the policy goes
    /// by load.
    #[serde(default)]
    pub score: u8,
    /// The most active sessions with which it is given a new one; 0 for any number.
    #[serde(default)]
    pub max_connections: u32,
    /// Its report of its load, where it is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<ReportedLoad>,
    /// Active sessions.
    pub sessions: u64,
    /// How often it was chosen.
    pub connections: u64,
    /// Frames sent to it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Where its frames go: to itself, or to the gateway before it.
    pub mac: Option<String>,
    /// The interface it is reached by.
    pub interface: Option<String>,
    /// `listed`, `discovered` or `joined`.
    pub source: String,
    /// Whether it is the director itself.
    pub local: bool,
    /// How packets get there: `link` by its MAC, `nat` by its own address, or `tunnel`. `redirect`:
    /// by clients themselves.
    pub forwarding: String,
    /// How long the last good probe took.
    pub probe_seconds: Option<f64>,
    /// Why the last probe failed, while the server is not up.
    pub probe_error: Option<String>,
    /// Probes that failed since the daemon started.
    #[serde(default)]
    pub probe_failures: u64,
    /// How often probes found it up or down since the daemon started, when it was not so before.
    #[serde(default)]
    pub state_changes: u64,
    /// When it became as its state says, in seconds since 1970; not before the daemon began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_since_seconds: Option<f64>,
    /// Its new connections within the last minute, of which some may go nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshakes: Option<HandshakesView>,
    /// The results of the last probes, at most 32, the oldest first: `.` good, `x` failed.
    #[serde(default)]
    pub checks: String,
    /// Its values that were changed at run time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<OverrideView>,
    /// Its part in its group, with method `redirect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<MemberView>,
}

/// New TCP connections of a server within the last minute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandshakesView {
    /// Number of new connections.
    pub new: u64,
    /// Those that never continued; with nat those that got no answer from the server.
    pub stalled: u64,
    /// Networks of their clients, /24 of IPv4 and /56 of IPv6.
    pub networks: u64,
    /// All that never continued since the daemon started.
    pub stalled_total: u64,
    /// Set where the server differs from the others in that: the finding in words.
    pub finding: Option<String>,
}

impl HandshakesView {
    /// `None` where nothing is counted, as with UDP.
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

/// A server's report of its load. Fields that it lacks aren't there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportedLoad {
    /// How long ago it said so.
    pub age_seconds: Option<f64>,
    /// How much of what it can do it does.
    pub utilisation: Option<f64>,
    /// The papers' load, 10 (r + m).
    pub load: Option<f64>,
    /// Requests in a second.
    pub requests_per_second: Option<f64>,
    /// The bytes that it has still to send.
    pub bytes_to_send: Option<u64>,
    /// How long that will take.
    pub delay_seconds: Option<f64>,
    /// The rate to one of its clients, in bits a second: the middle of them.
    pub available_bps: Option<u64>,
    /// The rate to one where nothing else is in the way.
    pub bottleneck_bps: Option<u64>,
    /// How much of its weight it wants.
    pub percent: Option<u16>,
    /// Why its last report isn't believed.
    pub error: Option<String>,
    /// How many weren't since the daemon started, by reason.
    pub refused: BTreeMap<String, u64>,
}

impl ReportedLoad {
    /// Of what is known of a server, so many milliseconds ago, and of what became of its reports.
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

/// The servers of each service whose packets are sent on, in the services' order.
pub(crate) fn by_service(moment: &CountedSnapshot) -> Vec<Vec<ServerView>> {
    let snapshot = &moment.published.snapshot;
    let described = snapshot.farm.services.iter().zip(snapshot.services.iter());
    described
        .map(|(service, seen)| seen.servers.iter().map(|seen| server(service, seen, moment)).collect())
        .collect()
}

/// All servers: these, and those of groups.
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
    // Those that all failed at once are up in the tables, and are given sessions.
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

/// The way to a server, in a word: its own, or what its method will make of it.
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
