//! The hosts of a farm where every host decides.

use evener_core::director::{HostSnapshot, Snapshot};
use evener_core::node::association::Refusal;
use evener_core::node::peers::KnownHost;
use serde::{Deserialize, Serialize};

/// A host of a farm where every host decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostView {
    /// Its name in the file.
    pub name: String,
    /// Its own address.
    pub address: String,
    /// Whether it is this one.
    pub own: bool,
    /// `alive`; `joining`, if it takes no part yet; `differs`, if it runs another configuration;
    /// `version`, if it speaks another version; `silent`, if it is not heard any more; `unknown`,
    /// if it never was.
    pub state: String,
    /// Sessions that it serves, smoothed.
    pub load: u64,
    /// The services that its own server is up for.
    pub up: Vec<String>,
    /// The services that its operator drains it for.
    pub draining: Vec<String>,
    /// The service addresses that it says it answers for.
    pub addresses_owned: Vec<String>,
    /// Service addresses that are this host's to own, but that somebody else answers for.
    #[serde(default)]
    pub deferred: Vec<String>,
    /// Why nothing that it says is understood, as far as this host can tell.
    #[serde(default)]
    pub refused: Option<NodeRefusal>,
    /// Seconds since it was last heard; none of this host.
    pub last_seen_seconds: Option<f64>,
}

/// Why nothing that another node says is understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRefusal {
    /// `forged`, `key`, `version` or `misdirected`, as it is counted.
    pub reason: String,
    /// In words, and what to do about it.
    pub text: String,
}

impl From<Refusal> for NodeRefusal {
    fn from(refusal: Refusal) -> NodeRefusal {
        NodeRefusal { reason: refusal.name().to_owned(), text: refusal.to_string() }
    }
}

/// All hosts.
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
        // The addresses of a silent host are another's by now.
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
