//! Directors of the farm, as known by this one.

use std::net::IpAddr;

use evener_core::node::directors::{DirectorDifference, DirectorReport, KnownDirector, ReplicationCounts};
use serde::{Deserialize, Serialize};

use super::hosts::NodeRefusal;
use crate::board::DirectorsState;

/// A director of the farm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DirectorView {
    /// Address in the file.
    pub address: IpAddr,
    /// True if it is this director.
    pub own: bool,
    /// `ready` for clients; `unready`, with a reason; `version`, with another version of the
    /// protocol; `silent`, if no longer received; `unknown`, if never received.
    pub state: String,
    pub reason: Option<String>,
    /// Release of its program.
    pub release: Option<String>,
    /// Differences from this director: `file`, `release` or `changes`.
    pub differs: Vec<String>,
    pub differences: Vec<String>,
    /// Reason why all of its messages are refused.
    pub refused: Option<NodeRefusal>,
    /// Seconds since its last message. `None` for this director, and if there was none.
    pub last_seen_seconds: Option<f64>,
    /// Sessions that this director has told it, and that it has told, since the start.
    pub sessions_sent: u64,
    pub sessions_received: u64,
    /// Times that all sessions had to be told anew, since the other director had missed some.
    pub sessions_restarted: u64,
    /// Sessions that did not fit into what waited for the other director, and were told later.
    pub sessions_unsent: u64,
}

/// All directors, this one first, or the reason why they exchange no messages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectorsView {
    /// Reason why there are none to list.
    pub obstacle: Option<String>,
    pub directors: Vec<DirectorView>,
}

pub(crate) fn directors(state: &DirectorsState) -> DirectorsView {
    let own = state.own.iter().map(|(address, report)| {
        let known = KnownDirector {
            address: *address,
            alive: true,
            since_ms: 0,
            received_ms: None,
            report: Some(report.clone()),
            trouble: None,
            replication: ReplicationCounts::default(),
        };
        DirectorView { own: true, ..director(&known, &[], state.at_ms) }
    });
    let others = state.others.iter().map(|(known, differences)| director(known, differences, state.at_ms));
    DirectorsView { obstacle: state.obstacle.clone(), directors: own.chain(others).collect() }
}

/// Returns problems with other directors, in sentences. Empty while all are ready and identical.
pub(crate) fn troubles(state: &DirectorsState) -> Vec<String> {
    let others = directors(state).directors.into_iter().filter(|one| !one.own);
    others
        .filter(|one| one.state != "ready" || !one.differs.is_empty())
        .map(|DirectorView { address, state, differs, .. }| match differs.is_empty() {
            true => format!("{address} is {state}"),
            false => format!("{address} is {state} and differs in {}", differs.join(", ")),
        })
        .collect()
}

fn director(known: &KnownDirector, differences: &[DirectorDifference], at_ms: u64) -> DirectorView {
    let readiness = known.report.as_ref().and_then(|report| report.readiness.as_ref());
    let state = match (known.alive, readiness) {
        (true, Some(Ok(()))) => "ready",
        (true, Some(Err(_))) => "unready",
        (true, None) => "version",
        (false, _) if known.received_ms.is_none() => "unknown",
        (false, _) => "silent",
    };
    let seen = known.received_ms.map(|received_ms| at_ms.saturating_sub(received_ms) as f64 / 1e3);
    DirectorView {
        address: known.address,
        own: false,
        state: state.to_owned(),
        reason: readiness.filter(|_| known.alive).and_then(|readiness| readiness.clone().err()),
        release: known.report.as_ref().and_then(|report: &DirectorReport| report.release.clone()),
        differs: differences.iter().map(|one| name(one).to_owned()).collect(),
        differences: differences.iter().map(sentence).collect(),
        refused: known.trouble.map(NodeRefusal::from),
        last_seen_seconds: seen,
        sessions_sent: known.replication.sent,
        sessions_received: known.replication.received,
        sessions_restarted: known.replication.restarted,
        sessions_unsent: known.replication.unsent,
    }
}

fn name(difference: &DirectorDifference) -> &'static str {
    match difference {
        DirectorDifference::File => "file",
        DirectorDifference::Release { .. } => "release",
        DirectorDifference::Changes { .. } => "changes",
        DirectorDifference::Shared(_) => "addresses",
    }
}

fn sentence(difference: &DirectorDifference) -> String {
    match difference {
        DirectorDifference::File => {
            "its file is another one: bring the same to all directors, and reload".to_owned()
        }
        DirectorDifference::Release { theirs } => {
            format!("it runs release {theirs}, and this one {}", env!("CARGO_PKG_VERSION"))
        }
        DirectorDifference::Changes { theirs, ours } => {
            let of =
                |lines: &[String]| if lines.is_empty() { "nothing".to_owned() } else { lines.join(", ") };
            format!("operators have set there alone: {}; here alone: {}", of(theirs), of(ours))
        }
        DirectorDifference::Shared(address) => {
            format!("both have {address}: VRRP's advertisements don't arrive at one of them")
        }
    }
}
