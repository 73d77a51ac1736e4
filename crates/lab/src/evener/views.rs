//! The output of the program's commands with `--json`, as far as its users may rely on it. The
//! testbed has these names of its own: who renames one in the product must notice here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `evener status --json`
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Status {
    /// The daemon's process.
    pub pid: u32,
    /// `xdp` or `packet`.
    pub engine: String,
    /// Whether it carries on with what an earlier daemon left.
    pub adopted: bool,
    /// Other directors that can't be counted on, in sentences.
    #[serde(default)]
    pub directors: Vec<String>,
    /// Successful reloads.
    pub reloads: u64,
    /// Why the last reload changed nothing.
    pub reload_error: Option<String>,
    /// The keys of the file in force that take a restart.
    #[serde(default)]
    pub restart_needed_for: Option<String>,
    /// The interfaces that packets are taken from.
    pub interfaces: Vec<String>,
    /// Sessions in the table.
    pub sessions: u64,
    /// Those of them whose clients have answered.
    pub sessions_assured: u64,
    /// Those of which only first packets were seen.
    pub sessions_embryonic: u64,
    /// Places of the session table that are in use.
    pub session_slots: u64,
    /// The most that there can be.
    pub session_slots_max: u64,
    /// Whether sessions are on their way to other places.
    pub sessions_resizing: bool,
    /// Packets by reason.
    pub packets: BTreeMap<String, u64>,
    /// ARP answers that were not believed, by reason.
    pub refused: BTreeMap<String, u64>,
    /// The counts of events, by name.
    pub events: BTreeMap<String, u64>,
    /// The parts set up in the kernel.
    #[serde(default)]
    pub installed: Vec<Installed>,
    /// Datagrams of other hosts, where every host decides: `accepted`, and others by why they were
    /// refused.
    #[serde(default)]
    pub peers: BTreeMap<String, u64>,
    /// Packets in tunnels to this host, by what became of them, where every host decides.
    #[serde(default)]
    pub tunnels: BTreeMap<String, u64>,
    /// Connections that were read in application space, where they are handed over, by what became
    /// of them.
    #[serde(default)]
    pub punted: BTreeMap<String, u64>,
    /// The access log.
    pub access_log: AccessLog,
    /// Traces that run.
    pub traces: u64,
    /// Control messages by what became of them, and connections by what was said of them.
    #[serde(default)]
    pub lccp: BTreeMap<String, u64>,
    /// Other nodes by address: `known`, `silent` or `unknown`.
    #[serde(default)]
    pub nodes: BTreeMap<String, String>,
    /// Those that aren't understood: `reason` and `text`.
    #[serde(default)]
    pub nodes_refused: BTreeMap<String, BTreeMap<String, String>>,
    /// The node that decides for this one, if another does.
    #[serde(default)]
    pub dispatcher: Option<Dispatcher>,
}

/// A part of what is set up in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Installed {
    /// `program`, `pins`, `guard` or `setting`.
    pub kind: String,
    /// Where it is.
    pub location: String,
    /// Why the kernel doesn't hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// The access log in `evener status --json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AccessLog {
    /// Its file, if there is one.
    pub path: Option<String>,
    /// Its lines so far.
    pub written: u64,
    /// Those that are missing.
    pub lost: u64,
}

/// The node that decides for another.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Dispatcher {
    /// Its address.
    pub address: String,
    /// Whether it is asked and answers.
    pub responding: bool,
}

/// One host in `evener hosts --json`
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// By which it is known.
    pub address: String,
    /// Whether it is the one that was asked.
    pub own: bool,
    /// `alive`, `silent`, `joining` ...
    pub state: String,
    /// The service addresses that it answers for.
    pub addresses_owned: Vec<String>,
}

/// One service in `evener services --json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Whether all its servers fail and the last good ones are kept.
    pub degraded: bool,
    /// How often a server was chosen.
    pub connections: u64,
    /// First segments that followed no cookie,
    pub cookies_bad: u64,
    /// and that weren't looked at.
    pub cookies_unchecked: u64,
}

/// A server's report of its load, in `evener servers --json`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Load {
    /// How long ago it said so.
    pub age_seconds: Option<f64>,
    /// How much of what it can do it does.
    pub utilisation: Option<f64>,
    /// Why its last report isn't believed.
    pub error: Option<String>,
    /// How many weren't, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// One server in `evener servers --json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Server {
    /// The service it serves.
    pub service: String,
    /// Its name in that service.
    pub name: String,
    /// Where it is, where that is known.
    pub address: Option<String>,
    /// `up`, `down` or `draining`.
    pub state: String,
    /// Why it is not up.
    pub reason: Option<String>,
    /// Its share of new sessions.
    pub weight: u32,
    /// Whether it takes them only while no other server can.
    #[serde(default)]
    pub backup: bool,
    /// The part of it that is in force.
    pub effective_weight: f64,
    /// Why it isn't all.
    pub cause: Option<String>,
    /// Its report of its load, where it is asked.
    pub report: Option<Load>,
    /// Active sessions.
    pub sessions: u64,
    /// Sessions it was chosen for.
    pub connections: u64,
    /// Packets sent to it.
    pub packets: u64,
    /// Bytes sent to it.
    pub bytes: u64,
    /// Where its frames go.
    pub mac: Option<String>,
    /// `listed` or `discovered`.
    pub source: String,
    /// Whether it is the director itself.
    pub local: bool,
}

/// One session in `evener sessions --json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Session {
    /// Its service.
    pub service: String,
    /// `ip:port`.
    pub client: String,
    /// Its server's name.
    pub server: String,
    /// `new`, `established`, `half-closed`, `closing` or `udp`.
    pub state: String,
    /// Seconds since its last packet.
    pub idle_seconds: u64,
}

impl Session {
    /// Whether it is over, or half of it.
    pub fn is_ending(&self) -> bool {
        ["half-closed", "closing"].contains(&self.state.as_str())
    }
}

/// `evener explain --json`
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Explanation {
    /// The service.
    pub service: Option<String>,
    /// The server.
    pub server: Option<String>,
    /// Why.
    pub reasons: Vec<String>,
}
