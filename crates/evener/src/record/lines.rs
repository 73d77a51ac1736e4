//! Lines of traces and of the access log about packets and connections. Both use the same field
//! names, which are a stable interface.

use serde::{Deserialize, Serialize};

/// Line of the access log: the decision about a connection or a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccessLogEntry {
    /// Time of the decision, as in RFC 3339.
    pub time: String,
    /// Name of the service.
    pub service: String,
    /// `ip:port`, `[ip]:port` with IPv6.
    pub client: String,
    /// `http` or `tls`. `None` if the client sent neither.
    pub kind: Option<String>,
    /// Method of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// `Host` of the request, as sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Server name in a TLS hello.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sni: Option<String>,
    /// Target of the request with its query, as sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// True if a part of the request is missing here, because it is too long or came too late.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cut: bool,
    /// Number of the matched route, from 1. `None` if no route matches, or the route isn't known.
    pub route: Option<u64>,
    /// Name of the selected server.
    pub server: Option<String>,
    /// `kernel`: decided by the data plane. Otherwise the request was read in user space. `punted`:
    /// the connection moved to its server. `spliced`: the daemon carries its bytes. `refused`,
    /// `no_server`, `client_timeout`, `client_closed` or `evicted`: no server got the connection.
    /// With method `redirect`: `redirected` if the client was redirected to the server, `fetched`
    /// if the daemon fetched the response there, `no_member` or `refused`.
    pub mechanism: String,
    /// Status of the daemon's own response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Duration of the decision, in microseconds.
    pub decide_us: f64,
}

/// A packet from or to a traced client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedPacket {
    /// Time of arrival, as in RFC 3339.
    pub time: String,
    /// `tcp`, `udp`, `icmp`, `icmpv6` or a number.
    pub protocol: String,
    /// TCP flags, as in `syn,ack`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<String>,
    /// Source, with its port if there is one.
    pub src: String,
    pub dst: String,
    /// Length of the IP packet on arrival, in bytes.
    pub bytes: u64,
    /// `forward`, `pass`, `drop` or `hold`.
    pub verdict: String,
    /// Reason of the verdict, as in the status.
    pub reason: String,
    /// Second reason, as in the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also_counted: Option<String>,
    /// Name of the server, if the packet went to one.
    pub server: Option<String>,
}

/// State of the access log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessLog {
    /// Path, or `-` for standard output. `None` if there is no log.
    pub path: Option<String>,
    /// Number of lines written since the daemon started.
    pub written: u64,
    /// Number of lines that were lost, and of events that the data plane lost.
    pub lost: u64,
}

/// Duration of decisions about connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionLatency {
    pub count: u64,
    /// Sum of the durations in seconds.
    pub seconds: f64,
    /// Upper bound in seconds and number of decisions, per bucket and not cumulative. The last
    /// bucket has no bound.
    pub buckets: Vec<(Option<f64>, u64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum Traced {
    Packet(TracedPacket),
    Decision(AccessLogEntry),
    /// Lines are missing here.
    Lost {
        count: u64,
    },
}

fn is_false(flag: &bool) -> bool {
    !flag
}
