//! The daemon as a whole.

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

/// The daemon as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusView {
    /// Program version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// `xdp` or `packet`.
    pub engine: String,
    /// How the engine is attached, and why `auto` chose it.
    pub engine_detail: String,
    /// Whether it carries on with what an earlier daemon left running.
    pub adopted: bool,
    /// Whether the operator has drained this director itself.
    #[serde(default)]
    pub drained: bool,
    /// Other directors that can't be counted on, and why, in sentences.
    #[serde(default)]
    pub directors: Vec<String>,
    /// The configuration file.
    pub config: String,
    /// The generation of tables that is in force: each change of the farm makes one.
    #[serde(default)]
    pub generation: u64,
    /// The one that is to be. Greater where the engine has refused a change, which is tried again.
    #[serde(default)]
    pub generation_wanted: u64,
    /// Successful reloads since the start.
    pub reloads: u64,
    /// Reloads that changed nothing, for an error.
    #[serde(default)]
    pub reloads_refused: u64,
    /// Whether a reload is on its way to the engine; what is shown is of the farm before.
    #[serde(default)]
    pub reload_pending: bool,
    /// Why the last reload changed nothing, if it did not.
    pub reload_error: Option<String>,
    /// The keys of the file in force that a running daemon can't follow, if there are any.
    #[serde(default)]
    pub restart_needed_for: Option<String>,
    /// When the configuration in force was read, by the start or by a reload, in seconds since
    /// 1970.
    #[serde(default)]
    pub config_loaded_seconds: f64,
    /// Active sessions: neither closing nor idle for too long.
    pub sessions: u64,
    /// Those of them whose clients have answered: nobody can forge them blindly.
    #[serde(default)]
    pub sessions_assured: u64,
    /// Those of which only first packets were seen.
    #[serde(default)]
    pub sessions_embryonic: u64,
    /// Sessions that the table is sized for.
    pub sessions_max: u64,
    /// Places of the table that are in use, taken or not: it grows with its sessions.
    pub session_slots: u64,
    /// The most that there can be.
    #[serde(default)]
    pub session_slots_max: u64,
    /// Whether sessions are on their way to their places in a table that has grown or shrunk.
    #[serde(default)]
    pub sessions_resizing: bool,
    /// Packets by reason; every reason is there.
    pub packets: BTreeMap<String, u64>,
    /// Answers to ARP and neighbour discovery that were not believed, by reason.
    pub refused: BTreeMap<String, u64>,
    /// The counts of events since the start, by name.
    #[serde(default)]
    pub events: BTreeMap<String, u64>,
    /// Events that came faster than somebody read them, and were lost to him.
    #[serde(default)]
    pub events_lost: u64,
    /// The interfaces that packets are taken from.
    pub interfaces: Vec<String>,
    /// The parts set up in the kernel while this daemon runs: programs, pins, rules, settings.
    #[serde(default)]
    pub installed: Vec<InstalledPart>,
    /// The outcomes of other hosts' datagrams, where every host decides; else empty.
    #[serde(default)]
    pub peers: BTreeMap<String, u64>,
    /// The outcomes of packets in tunnels to this host, and of those handed to its servers, by
    /// reason, where a daemon does what an agent does elsewhere; else empty.
    #[serde(default)]
    pub tunnels: BTreeMap<String, u64>,
    /// The outcomes of connections that were read in user space, where connections are handed over;
    /// else empty.
    #[serde(default)]
    pub punted: BTreeMap<String, u64>,
    /// The access log.
    #[serde(default)]
    pub access_log: AccessLog,
    /// Traces that run.
    #[serde(default)]
    pub traces: u64,
    /// How long it took to decide about connections that are handed over, by mechanism; see
    /// [`DecisionTimes`]. The data plane tells of its own only while there is an access log or a
    /// trace.
    #[serde(default)]
    pub decision_latency: BTreeMap<String, DecisionLatency>,
    /// The outcomes of control messages (LCCP), and of actions by them, where connections are
    /// handed over; else empty.
    #[serde(default)]
    pub lccp: BTreeMap<String, u64>,
    /// Other nodes that control messages are exchanged with, by address: `known`, `silent` or
    /// `unknown`.
    #[serde(default)]
    pub nodes: BTreeMap<String, String>,
    /// Those of them of whose messages none is understood, by address, and why.
    #[serde(default)]
    pub nodes_refused: BTreeMap<String, NodeRefusal>,
    /// Which node decides for this one, if another does.
    #[serde(default)]
    pub dispatcher: Option<Dispatcher>,
    /// The outcomes of queries by DNS, by name; empty where none are answered.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dns: BTreeMap<String, u64>,
}

/// A part of what is set up in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledPart {
    /// `program`, `pins`, `guard` or `setting`.
    pub kind: String,
    /// The interface, folder, table, or path below /proc/sys.
    pub location: String,
    /// Why the kernel doesn't hold it, if it doesn't; it is tried again twice a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// The node that decides for this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatcher {
    /// Its address.
    pub address: String,
    /// Whether it is asked and answers; else this host decides by its own tables.
    pub responding: bool,
}

/// The daemon as a whole.
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
    let speaker = local.and_then(|local| local.speaker.as_ref());
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
        reloads: snapshot.reloads.done,
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
        lccp: speaker.map(|speaker| speaker.counted()).unwrap_or_default(),
        nodes: speaker.map(|speaker| speaker.nodes()).unwrap_or_default(),
        nodes_refused: speaker.map(refused).unwrap_or_default(),
        dispatcher: speaker.and_then(|speaker| speaker.dispatcher()).map(dispatcher),
        dns: names::counts(&published.snapshot, &published.queries),
        interfaces: interfaces(snapshot),
        installed: installed(&published.installed),
    }
}

/// Why the last reload changed nothing, or not all.
fn reload_error(reloads: &Reloads, about: &DaemonInfo) -> Option<String> {
    let refused = reloads.error.as_ref().map(|why| format!("nothing was changed: {why}"));
    refused.or_else(|| about.loaded.trouble.clone())
}

/// The names of the interfaces that packets are taken from.
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

fn refused(speaker: &LccpNode) -> BTreeMap<String, NodeRefusal> {
    let refused = speaker.not_understood().into_iter();
    refused.map(|(node, refusal)| (node.to_string(), refusal.into())).collect()
}

fn dispatcher((address, responding): (IpAddr, bool)) -> Dispatcher {
    Dispatcher { address: address.to_string(), responding }
}
