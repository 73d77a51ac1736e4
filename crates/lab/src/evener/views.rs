//! Output of the program's commands with `--json`, as far as users may rely on it. The testbed
//! repeats the names, so a renaming in Evener fails here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Output of `evener status --json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Status {
    /// Process id of the daemon.
    pub pid: u32,
    pub engine: String,
    /// True if the daemon has adopted an earlier daemon's state.
    pub adopted: bool,
    /// Unreliable other directors, as sentences.
    #[serde(default)]
    pub directors: Vec<String>,
    /// Number of successful reloads.
    pub reloads: u64,
    /// Error of the last reload.
    pub reload_error: Option<String>,
    /// Changed keys that take effect only after a restart.
    #[serde(default)]
    pub restart_needed_for: Option<String>,
    /// Interfaces that receive service traffic.
    pub interfaces: Vec<String>,
    pub sessions: u64,
    /// Number of assured sessions.
    pub sessions_assured: u64,
    /// Number of embryonic sessions, of which only first packets were seen.
    pub sessions_embryonic: u64,
    /// Number of slots in use of the session table.
    pub session_slots: u64,
    /// Maximum number of slots.
    pub session_slots_max: u64,
    /// True while the session table is resized.
    pub sessions_resizing: bool,
    pub packets: BTreeMap<String, u64>,
    /// Rejected ARP replies by reason.
    pub refused: BTreeMap<String, u64>,
    /// Number of events by name.
    pub events: BTreeMap<String, u64>,
    /// Parts installed in the kernel.
    #[serde(default)]
    pub installed: Vec<Installed>,
    /// Datagrams of other hosts in an every-host farm: `accepted`, or the reason of their
    /// rejection.
    #[serde(default)]
    pub peers: BTreeMap<String, u64>,
    /// Tunnel packets to this host in an every-host farm, by outcome.
    #[serde(default)]
    pub tunnels: BTreeMap<String, u64>,
    /// Connections of handoff services that were read in user space, by outcome.
    #[serde(default)]
    pub punted: BTreeMap<String, u64>,
    pub access_log: AccessLog,
    /// Number of running traces.
    pub traces: u64,
    /// Outcomes of LCCP messages and of their actions.
    #[serde(default)]
    pub lccp: BTreeMap<String, u64>,
    /// Other nodes by address: `known`, `silent` or `unknown`.
    #[serde(default)]
    pub nodes: BTreeMap<String, String>,
    /// Nodes whose messages fail to decode: `reason` and `text`.
    #[serde(default)]
    pub nodes_refused: BTreeMap<String, BTreeMap<String, String>>,
    /// Node that selects servers for this one, if another node does.
    #[serde(default)]
    pub dispatcher: Option<Dispatcher>,
}

/// Part installed in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Installed {
    /// `program`, `pins`, `guard` or `setting`.
    pub kind: String,
    pub location: String,
    /// Cause why the part is missing in the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// Access log in `evener status --json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AccessLog {
    /// Path of the file; `None` without an access log.
    pub path: Option<String>,
    /// Number of written lines.
    pub written: u64,
    /// Number of lost lines.
    pub lost: u64,
}

/// Node that selects servers for another.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Dispatcher {
    pub address: String,
    /// True if the node answers queries.
    pub responding: bool,
}

/// Host in `evener hosts --json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Peer {
    pub name: String,
    /// Address that identifies the host.
    pub address: String,
    /// True for the host that printed the list.
    pub own: bool,
    /// `alive`, `silent`, `joining` ...
    pub state: String,
    /// Service addresses that the host owns.
    pub addresses_owned: Vec<String>,
}

/// Service in `evener services --json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Service {
    pub name: String,
    /// True if all servers fail and the last working ones are kept.
    pub degraded: bool,
    /// Number of times that a server was selected.
    pub connections: u64,
    /// Number of first segments without a valid SYN cookie.
    pub cookies_bad: u64,
    /// Number of first segments that were left unchecked.
    pub cookies_unchecked: u64,
    /// Number of clients that return to their servers.
    pub affinity_entries: u64,
}

/// Load report of a server in `evener servers --json`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Load {
    /// Age of the report in seconds.
    pub age_seconds: Option<f64>,
    /// Utilisation of the server.
    pub utilisation: Option<f64>,
    /// Reason why the last report was rejected.
    pub error: Option<String>,
    /// Number of rejected reports by reason.
    pub refused: BTreeMap<String, u64>,
}

/// Server in `evener servers --json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Server {
    pub service: String,
    /// Name in its service.
    pub name: String,
    pub address: Option<String>,
    /// `up`, `down` or `draining`.
    pub state: String,
    /// Reason why the server is not up.
    pub reason: Option<String>,
    /// Share of new sessions relative to other servers.
    pub weight: u32,
    /// True if the server takes new sessions only while no other server can.
    #[serde(default)]
    pub backup: bool,
    pub effective_weight: f64,
    /// Reason why the weight in force is lower.
    pub cause: Option<String>,
    /// Last load report, if the server is queried.
    pub report: Option<Load>,
    pub sessions: u64,
    /// Number of sessions that the server was selected for.
    pub connections: u64,
    /// Number of packets sent to the server.
    pub packets: u64,
    /// Number of bytes sent to the server.
    pub bytes: u64,
    /// Destination MAC of frames to the server.
    pub mac: Option<String>,
    pub source: String,
    /// True if the server is the director itself.
    pub local: bool,
}

/// Session in `evener sessions --json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Session {
    pub service: String,
    pub client: String,
    /// Name of the server.
    pub server: String,
    /// `new`, `established`, `half-closed`, `closing` or `udp`.
    pub state: String,
    /// Seconds since the last packet.
    pub idle_seconds: u64,
}

/// Entry in `evener affinity --json`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct AffinityEntry {
    pub service: String,
    /// The client's network.
    pub client: String,
    pub server: String,
    pub expires_seconds: u64,
}

impl Session {
    /// True if the session is half-closed or closing.
    pub fn is_ending(&self) -> bool {
        ["half-closed", "closing"].contains(&self.state.as_str())
    }
}

/// Output of `evener explain --json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Explanation {
    pub service: Option<String>,
    pub server: Option<String>,
    pub reasons: Vec<String>,
}
