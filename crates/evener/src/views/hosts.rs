//! Hosts of an every-host farm.

use evener_core::director::{HostSnapshot, Snapshot};
use evener_core::node::association::Refusal;
use evener_core::node::peers::KnownHost;
use serde::{Deserialize, Serialize};

/// A host of an every-host farm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostView {
    /// Name in the file.
    pub name: String,
    pub address: String,
    /// True if it is this host.
    pub own: bool,
    /// `alive`; `joining`, if it does not participate yet; `differs`, with another configuration;
    /// `version`, with another version of the protocol; `silent`, if no longer received; `unknown`,
    /// if never received.
    pub state: String,
    /// Number of sessions that it serves, smoothed.
    pub load: u64,
    /// Services for which its own server is up.
    pub up: Vec<String>,
    /// Services for which its operator drains it.
    pub draining: Vec<String>,
    /// Service addresses that it reports to own.
    pub addresses_owned: Vec<String>,
    /// Service addresses that this host should own, but that another host answers for.
    #[serde(default)]
    pub deferred: Vec<String>,
    /// Reason why all of its messages are refused.
    #[serde(default)]
    pub refused: Option<NodeRefusal>,
    /// Seconds since its last message. `None` for this host.
    pub last_seen_seconds: Option<f64>,
}

/// Reason why all messages of another node are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRefusal {
    /// `forged`, `key`, `version` or `misdirected`, as in the counters.
    pub reason: String,
    /// Explanation in words, with the remedy.
    pub text: String,
}

impl From<Refusal> for NodeRefusal {
    fn from(refusal: Refusal) -> NodeRefusal {
        NodeRefusal { reason: refusal.name().to_owned(), text: refusal.to_string() }
    }
}

pub(crate) fn hosts(snapshot: &Snapshot) -> Vec<HostView> {
    snapshot.hosts.iter().map(|host| host_of(host, snapshot.at_ms)).collect()
}

fn host_of(seen: &HostSnapshot, at_ms: u64) -> HostView {
    let HostSnapshot { host, up, draining, put_off } = seen;
    let received_ms = host.received_ms.filter(|_| !host.own);
    HostView {
        name: host.name.clone(),
        address: host.address.to_string(),
        own: host.own,
        state: state(host).to_owned(),
        load: host.load.into(),
        up: up.clone(),
        draining: draining.clone(),
        // Other hosts own a silent host's addresses by now.
        addresses_owned: host.owned.iter().filter(|_| host.alive).map(ToString::to_string).collect(),
        deferred: put_off.iter().map(ToString::to_string).collect(),
        refused: host.refused.map(NodeRefusal::from),
        last_seen_seconds: received_ms.map(|received_ms| at_ms.saturating_sub(received_ms) as f64 / 1e3),
    }
}

fn state(host: &KnownHost) -> &'static str {
    match (host.received_ms, host.alive, host.ready) {
        (None, false, _) if !host.own => "unknown",
        (_, false, _) => "silent",
        _ if matches!(host.refused, Some(Refusal::Version { .. })) => "version",
        _ if host.generation_differs => "differs",
        (_, true, false) => "joining",
        (_, true, true) => "alive",
    }
}
