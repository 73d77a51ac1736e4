//! What the daemon shows: one set of names for the command line, the API, metrics and the dashboard.
//!
//! Fields are only ever added. Times are seconds, sizes bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The daemon as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
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
    /// The configuration file.
    pub config: String,
    /// Successful reloads since the start.
    pub reloads: u64,
    /// Reloads that changed nothing, for an error.
    #[serde(default)]
    pub reloads_refused: u64,
    /// Why the last reload changed nothing, if it did not.
    pub reload_error: Option<String>,
    /// The keys of the file in force that a running daemon can't follow, if there are any.
    #[serde(default)]
    pub restart_for: Option<String>,
    /// When the configuration in force was read, by the start or by a reload, in seconds since 1970.
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
    /// Slots of the table.
    pub session_slots: u64,
    /// Packets by reason; every reason is there.
    pub packets: BTreeMap<String, u64>,
    /// Answers to ARP and neighbour discovery that were not believed, by reason.
    pub refused: BTreeMap<String, u64>,
    /// The interfaces that packets are taken from.
    pub interfaces: Vec<String>,
    /// What came of other hosts' datagrams, where every host decides; else empty.
    #[serde(default)]
    pub peers: BTreeMap<String, u64>,
    /// What came of packets in tunnels to this host, and of what is handed to its servers, by reason, where a daemon does what an
    /// agent does elsewhere; else empty.
    #[serde(default)]
    pub tunnels: BTreeMap<String, u64>,
    /// What became of connections that were read in application space, where connections are handed over; else empty.
    #[serde(default)]
    pub asked: BTreeMap<String, u64>,
    /// The access log.
    #[serde(default)]
    pub access_log: AccessLog,
    /// Traces that run.
    #[serde(default)]
    pub traces: u64,
    /// How long it took to decide about connections that are handed over, by mechanism; see [`Decision`]. The data plane
    /// tells of its own only while there is an access log or a trace.
    #[serde(default)]
    pub deciding: BTreeMap<String, Deciding>,
    /// What came of control messages (LCCP), and what was done by them, where connections are handed over; else empty.
    #[serde(default)]
    pub lccp: BTreeMap<String, u64>,
    /// Other nodes that control messages are exchanged with, by address: `known`, `silent` or `unknown`.
    #[serde(default)]
    pub nodes: BTreeMap<String, String>,
    /// Which node decides for this one, if another does.
    #[serde(default)]
    pub dispatcher: Option<Dispatcher>,
}

/// The node that decides for this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatcher {
    /// Its address.
    pub address: String,
    /// Whether it is asked and answers; else this host decides by its own tables.
    pub decides: bool,
}

/// A host of a farm where every host decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its name in the file.
    pub name: String,
    /// Its own address.
    pub address: String,
    /// Whether it is this one.
    pub own: bool,
    /// `alive`; `joining`, if it takes no part yet; `differs`, if it runs another configuration; `silent`, if it is not
    /// heard any more; `unknown`, if it never was.
    pub state: String,
    /// Sessions that it serves, smoothed.
    pub load: u64,
    /// The services that its own server is up for.
    pub up: Vec<String>,
    /// The services that its operator drains it for.
    pub draining: Vec<String>,
    /// The service addresses that it says it answers for.
    pub owns: Vec<String>,
    /// Service addresses that are this host's to own, but that somebody else answers for.
    #[serde(default)]
    pub put_off: Vec<String>,
    /// Seconds since it was last heard; none of this host.
    pub heard_seconds: Option<f64>,
}

/// A service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Its addresses with port.
    pub addresses: Vec<String>,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// `l2`, `nat`, `tunnel` or `handoff`.
    pub method: String,
    /// `director` or `every-host`.
    pub placement: String,
    /// The policy's name.
    pub policy: String,
    /// Servers known.
    pub servers: u64,
    /// Servers that take new sessions.
    pub servers_up: u64,
    /// All servers fail, and the last good set is kept.
    pub degraded: bool,
    /// Active sessions.
    pub sessions: u64,
    /// How often a server was chosen.
    pub connections: u64,
    /// Frames sent to servers.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A server of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Server {
    /// Its service's name.
    pub service: String,
    /// Its name, unique in the service.
    pub name: String,
    /// Its own address; the MAC of one that was discovered.
    pub address: String,
    /// `up`, `down` or `draining`.
    pub state: String,
    /// Why it is not up.
    pub reason: Option<String>,
    /// Its share.
    pub weight: u16,
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
    /// `listed` or `discovered`.
    pub source: String,
    /// Whether it is the director itself.
    pub local: bool,
    /// How packets get there: `link` by its MAC, `nat` by its own address, or `tunnel`.
    pub way: String,
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
}

/// A session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Its service's name.
    pub service: String,
    /// The service address.
    pub address: String,
    /// `ip:port`, `[ip]:port` with IPv6.
    pub client: String,
    /// The server's name.
    pub server: String,
    /// `new`, `established`, `half-closed`, `closing` or `udp`.
    pub state: String,
    /// Seconds since its last packet, to within a 64th of the idle time and at most four seconds.
    pub idle_seconds: u64,
    /// Seconds until it is forgotten unless a packet comes.
    pub expires_seconds: u64,
}

/// Which server a flow or a request gets, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The service, if the address is one's.
    pub service: Option<String>,
    /// The server, if there is one.
    pub server: Option<String>,
    /// Sentences, in the order of the decision.
    pub because: Vec<String>,
    /// Whether the choice waits for what isn't known: what the client asks for, or who it is.
    #[serde(default)]
    pub waits: bool,
    /// What becomes of a request, if one was named.
    #[serde(default)]
    pub request: Option<Dispatch>,
}

/// Who serves a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatch {
    /// The route that takes it, counted from 1 in the order of the file; none if all servers do.
    pub route: Option<u64>,
    /// What the route takes, in words.
    pub pattern: Option<String>,
    /// Names of the servers that it may go to.
    pub servers: Vec<String>,
    /// Whether the data plane leaves the choice to the daemon's own process.
    pub asked: bool,
}

/// How a connection that is handed over came to its server: a line of the access log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// When it was decided, as RFC 3339 has it.
    pub time: String,
    /// The service's name.
    pub service: String,
    /// `ip:port`, `[ip]:port` with IPv6.
    pub client: String,
    /// `http` or `tls`; nothing if the client said neither.
    pub kind: Option<String>,
    /// The request's method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The request's `Host`, as it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The server's name in a hello.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sni: Option<String>,
    /// The request's target with its query, as it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Whether some of what the client asks for is not told, for being too long or too far behind.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cut: bool,
    /// The route that takes it, counted from 1; nothing if none does, or it isn't known.
    pub route: Option<u64>,
    /// The server's name, if one was chosen.
    pub server: Option<String>,
    /// `kernel`: by the data plane. Else it was read in application space, and `asked`: moved to its server; `spliced`:
    /// carried there; `refused`, `unserved`, `late`, `left` or `crowded`: it came to none.
    pub mechanism: String,
    /// What the daemon answered, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How long that took, in microseconds.
    pub decide_us: f64,
}

/// A packet from or to a client that is traced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// When it came, as RFC 3339 has it.
    pub time: String,
    /// `tcp`, `udp`, `icmp`, `icmpv6` or a number.
    pub protocol: String,
    /// TCP's, as in `syn,ack`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<String>,
    /// Where it comes from; with its port where there is one.
    pub src: String,
    /// Where it goes.
    pub dst: String,
    /// Length of the IP packet as it came.
    pub bytes: u64,
    /// `forward`, `pass`, `drop` or `hold`.
    pub verdict: String,
    /// Why, as in the status.
    pub reason: String,
    /// What was remarkable besides, as in the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<String>,
    /// The server's name, if it went to one.
    pub server: Option<String>,
}

/// A line of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum Traced {
    /// A packet came.
    Packet(Packet),
    /// A connection was decided.
    Decision(Decision),
    /// Lines are missing here.
    Lost {
        /// How many.
        count: u64,
    },
}

/// The access log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessLog {
    /// Its file, or `-`; nothing if there is none.
    pub path: Option<String>,
    /// Lines that were written since the daemon started.
    pub written: u64,
    /// Lines that could not be, and events that the data plane could not tell.
    pub lost: u64,
}

/// What deciding about connections took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deciding {
    /// How many were decided.
    pub count: u64,
    /// In how many seconds together.
    pub seconds: f64,
    /// How many of them took so many seconds at most, and more than the one before; the last are those that took longer.
    pub within: Vec<(Option<f64>, u64)>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}
