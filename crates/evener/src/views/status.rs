//! View of the daemon as a whole.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

use evener_core::director::{Reloads, Snapshot};
use evener_core::path::decide::Reason;
use serde::{Deserialize, Serialize};

use super::directors;
use super::{NodeRefusal, names};
use crate::board::{self, CountedSnapshot, DaemonInfo};
use crate::handoff::lccp::LccpNode;
use crate::record::{AccessLog, DecisionLatency};

/// Status of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusView {
    /// Version of the program.
    pub version: String,
    /// Process ID of the daemon.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    pub engine: String,
    /// Attachment of the engine, and why `auto` chose it.
    pub engine_detail: String,
    /// True if the daemon has adopted an earlier one's data plane.
    pub adopted: bool,
    /// True if the operator has drained this director itself.
    #[serde(default)]
    pub drained: bool,
    /// Other directors that can't replace this one, with the reason, in sentences.
    #[serde(default)]
    pub directors: Vec<String>,
    /// Path of the configuration file.
    pub config: String,
    /// Generation of the tables in force. Each change of the farm makes a new one.
    #[serde(default)]
    pub generation: u64,
    /// Wanted generation. Greater than `generation` while the engine refuses a change, which is
    /// retried.
    #[serde(default)]
    pub generation_wanted: u64,
    /// Number of successful reloads since the start.
    pub reloads: u64,
    /// Number of reloads that changed nothing because of an error.
    #[serde(default)]
    pub reloads_refused: u64,
    /// True if the engine is applying a reload. The views show the previous farm.
    #[serde(default)]
    pub reload_pending: bool,
    /// Error of the last reload, if it changed nothing.
    pub reload_error: Option<String>,
    /// Keys of the file in force that require a restart, if any.
    #[serde(default)]
    pub restart_needed_for: Option<String>,
    /// Time at which the configuration in force was read, in seconds since 1970.
    #[serde(default)]
    pub config_loaded_seconds: f64,
    /// Number of active sessions: neither closing nor idle for too long.
    pub sessions: u64,
    /// Number of assured sessions: their clients have answered, so they can't be forged blindly.
    #[serde(default)]
    pub sessions_assured: u64,
    /// Number of embryonic sessions, which have seen only first packets.
    #[serde(default)]
    pub sessions_embryonic: u64,
    /// Number of sessions that the table is sized for.
    pub sessions_max: u64,
    /// Number of slots in the used part of the table, taken or not. This part grows and shrinks
    /// with the sessions.
    pub session_slots: u64,
    /// Maximum number of slots.
    #[serde(default)]
    pub session_slots_max: u64,
    /// True if sessions are being moved in a resized table.
    #[serde(default)]
    pub sessions_resizing: bool,
    /// Packets by reason, including reasons with no packets.
    pub packets: BTreeMap<String, u64>,
    /// Refused answers to ARP and neighbour discovery, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Number of events since the start, by name.
    #[serde(default)]
    pub events: BTreeMap<String, u64>,
    /// Number of events that slow subscribers lost.
    #[serde(default)]
    pub events_lost: u64,
    /// Names of the director's interfaces.
    pub interfaces: Vec<String>,
    /// Parts that this daemon has set up in the kernel: programs, pins, rules, settings.
    #[serde(default)]
    pub installed: Vec<InstalledPart>,
    /// Outcomes of other hosts' datagrams in an every-host farm. Otherwise empty.
    #[serde(default)]
    pub peers: BTreeMap<String, u64>,
    /// Outcomes, by reason, of packets in tunnels to this host and of connections handed off to its
    /// servers.
    /// Empty unless the daemon does an agent's work.
    #[serde(default)]
    pub tunnels: BTreeMap<String, u64>,
    /// Outcomes of connections that were read in user space, with handoff services. Otherwise
    /// empty.
    #[serde(default)]
    pub punted: BTreeMap<String, u64>,
    /// State of the access log.
    #[serde(default)]
    pub access_log: AccessLog,
    /// Number of running traces.
    #[serde(default)]
    pub traces: u64,
    /// Duration of decisions about handed-off connections, by mechanism; see [`DecisionLatency`].
    /// The data plane reports its own only while there is an access log or a trace.
    #[serde(default)]
    pub decision_latency: BTreeMap<String, DecisionLatency>,
    /// Outcomes of LCCP messages and of their actions, with handoff services. Otherwise empty.
    #[serde(default)]
    pub lccp: BTreeMap<String, u64>,
    /// State of other LCCP nodes, by address: `known`, `silent` or `unknown`.
    #[serde(default)]
    pub nodes: BTreeMap<String, String>,
    /// Peers whose messages are all refused, by address, with the reason.
    #[serde(default)]
    pub nodes_refused: BTreeMap<String, NodeRefusal>,
    /// Dispatcher, if another node is it.
    #[serde(default)]
    pub dispatcher: Option<Dispatcher>,
    /// Outcomes of DNS queries, by name. Empty if no names are answered.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dns: BTreeMap<String, u64>,
}

/// Part that is set up in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledPart {
    /// `program`, `pins`, `guard` or `setting`.
    pub kind: String,
    /// Interface, folder, table, or path below /proc/sys.
    pub location: String,
    /// Reason why the part is missing, if it is. The daemon retries twice a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// Dispatcher of the farm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatcher {
    pub address: String,
    /// True if the dispatcher responds. Otherwise this host decides by its own tables.
    pub responding: bool,
}

/// Returns the status of the daemon.
pub(crate) fn status(moment: &CountedSnapshot) -> StatusView {
    let published = &moment.published;
    let (snapshot, about, memory) = (&published.snapshot, &published.about, published.readings.memory());
    let packets = Reason::ALL.iter().map(|reason| {
        (reason.name().to_owned(), moment.counters.reasons.get(reason).copied().unwrap_or_default())
    });
    let note = about.engine_note.iter().map(|note| format!("; {note}"));
    let sessions = memory.counts.active.iter().map(|count| count.load(Relaxed)).sum::<u64>();
    let assured = memory.sessions.shares().all_assured();
    let (events, events_lost) = published.bus.counts();
    let (local, recorder) = (published.local.as_ref(), &published.recorder);
    let lccp_node = local.and_then(|local| local.lccp_node.as_ref());
    StatusView {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_seconds: moment.now_ms.saturating_sub(about.started_ms) / 1000,
        engine: published.engine.to_owned(),
        engine_detail: published.engine_detail.clone() + &note.collect::<String>(),
        adopted: about.adopted,
        drained: published.state.states.is_director_drained,
        directors: directors::troubles(&published.directors),
        config: about.config.clone(),
        generation: snapshot.generation,
        generation_wanted: snapshot.wanted,
        reloads: about.loaded.reloads,
        reloads_refused: snapshot.reloads.refused,
        reload_pending: snapshot.reloads.pending,
        reload_error: reload_error(&snapshot.reloads, about),
        restart_needed_for: about.loaded.restart_needed_for.clone(),
        config_loaded_seconds: unix_seconds(about.loaded.at),
        sessions,
        sessions_assured: assured,
        sessions_embryonic: sessions.saturating_sub(assured),
        sessions_max: memory.sessions.sized_for() as u64,
        session_slots: memory.sessions.capacity() as u64,
        session_slots_max: memory.sessions.capacity_max() as u64,
        sessions_resizing: memory.sessions.is_resizing(),
        packets: packets.collect(),
        refused: counted(snapshot.refused.iter().map(|(reason, count)| (*reason, *count))),
        events: counted(events),
        events_lost,
        peers: counted(snapshot.datagrams.iter().map(|(what, count)| (*what, *count))),
        tunnels: local.map(|local| local.tunnels()).unwrap_or_default(),
        punted: local
            .and_then(|local| local.outcomes.as_ref())
            .map(|trace| counted(trace.counted()))
            .unwrap_or_default(),
        access_log: recorder.show_log(),
        traces: recorder.traces(),
        decision_latency: recorder.latencies_shown().collect(),
        lccp: lccp_node.map(|lccp_node| lccp_node.counted()).unwrap_or_default(),
        nodes: lccp_node.map(|lccp_node| lccp_node.nodes()).unwrap_or_default(),
        nodes_refused: lccp_node.map(refused).unwrap_or_default(),
        dispatcher: lccp_node.and_then(|lccp_node| lccp_node.dispatcher()).map(dispatcher),
        dns: names::counts(&published.snapshot, &published.queries),
        interfaces: interfaces(snapshot),
        installed: installed(&published.installed),
    }
}

/// Returns why the last reload changed nothing, or is not fully adopted.
fn reload_error(reloads: &Reloads, about: &DaemonInfo) -> Option<String> {
    let refused = reloads.error.as_ref().map(|why| format!("nothing was changed: {why}"));
    refused.or_else(|| about.loaded.trouble.clone())
}

/// Returns the names of the director's interfaces.
pub(crate) fn interfaces(snapshot: &Snapshot) -> Vec<String> {
    let named = snapshot.plan.tables.interfaces.keys();
    let found = named.filter_map(|ifindex| snapshot.network.interfaces.get(ifindex));
    found.map(|interface| interface.name.clone()).collect()
}

fn installed(installed: &board::installed::Installed) -> Vec<InstalledPart> {
    let parts = installed.parts.iter().map(|part| InstalledPart {
        kind: part.kind().to_owned(),
        location: part.place(),
        missing: installed.missing.get(part).cloned(),
    });
    parts.collect()
}

fn counted(counts: impl IntoIterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    counts.into_iter().map(|(what, count)| (what.to_owned(), count)).collect()
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn refused(lccp_node: &LccpNode) -> BTreeMap<String, NodeRefusal> {
    let refused = lccp_node.not_understood().into_iter();
    refused.map(|(node, refusal)| (node.to_string(), refusal.into())).collect()
}

fn dispatcher((address, responding): (IpAddr, bool)) -> Dispatcher {
    Dispatcher { address: address.to_string(), responding }
}
