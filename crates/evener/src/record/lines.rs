//! Lines of a trace and the access log about single packets and connections, and how both are
//! shown: names that others rely on.

use serde::{Deserialize, Serialize};

/// How a connection that is handed over came to its server: a line of the access log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccessLogEntry {
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
    /// `kernel`: by the data plane. Else it was read in application space, and `punted`: moved to
    /// its server; `spliced`: carried there; `refused`, `no_server`, `client_timeout`,
    /// `client_closed` or `evicted`: it came to none. With method `redirect`, `redirected`: its
    /// client was told to go there;
    /// `fetched`: it was fetched from there; `no_member` or `refused`.
    pub mechanism: String,
    /// The daemon's status, if it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How long that took, in microseconds.
    pub decide_us: f64,
}

/// A packet from or to a client that is traced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedPacket {
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
    /// Another remarkable fact, as in the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also_counted: Option<String>,
    /// The server's name, if it went to one.
    pub server: Option<String>,
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

/// The time that decisions about connections took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionLatency {
    /// How many were decided.
    pub count: u64,
    /// In how many seconds together.
    pub seconds: f64,
    /// How many of them took so many seconds at most, and more than the one before; the last are
    /// those that took longer.
    pub buckets: Vec<(Option<f64>, u64)>,
}

/// A line of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum Traced {
    /// A packet came.
    Packet(TracedPacket),
    /// A connection was decided.
    Decision(AccessLogEntry),
    /// Lines are missing here.
    Lost {
        /// How many.
        count: u64,
    },
}

fn is_false(flag: &bool) -> bool {
    !flag
}
