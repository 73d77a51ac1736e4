//! Names that are answered for by DNS, and who of their servers is given how often.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use evener_core::director::Snapshot;
use evener_core::dns::{AddressSnapshot, NameSnapshot};

use crate::names::QueryCounts;

/// An address that a name may be answered with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NameView {
    /// The name.
    pub name: String,
    /// The address.
    pub address: String,
    /// The owner: a server's name, or with `answer = "addresses"` a service's.
    pub server: String,
    /// `up`, `down`, `draining` or `silent`.
    pub state: String,
    /// 1 for whoever is given first, or most often; none of who isn't given.
    pub rank: Option<u64>,
    /// The part of the answers that gives it first.
    pub share: f64,
    /// How often it was given first.
    pub answers: u64,
    /// The policy's name.
    pub policy: String,
    /// How long an answer may be kept.
    pub ttl_seconds: u32,
    /// The rate to the fastest of its clients, in bits a second, by its report: the narrowest link
    /// of the path.
    pub bottleneck_bps: Option<f64>,
    /// The rate to one of its clients, in the middle, likewise.
    pub available_bps: Option<f64>,
    /// Whence these are: `clients`, or `probe` where clients show nothing.
    pub path_source: Option<String>,
    /// How old the probe is, where it counts.
    pub path_age_seconds: Option<f64>,
    /// How long the server takes to send what it has to, by its report.
    pub delay_seconds: Option<f64>,
    /// How old that is.
    pub age_seconds: Option<f64>,
    /// The results of the last probes of a server that the name itself lists, at most 32, the
    /// oldest first: `.` good, `x` failed. Those of other servers are theirs in `servers`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub checks: String,
    /// Why its share is what it is.
    pub cause: String,
}

/// All of them, by name in the order of the file.
pub(crate) fn names(snapshot: &Snapshot, now_ms: u64) -> Vec<NameView> {
    snapshot
        .names
        .iter()
        .flat_map(|name| name.addresses.iter().map(|one| name_of(name, one, now_ms)))
        .collect()
}

/// The outcomes of queries, if there are any to answer.
pub(crate) fn counts(snapshot: &Snapshot, counts: &QueryCounts) -> BTreeMap<String, u64> {
    let all: BTreeMap<String, u64> = counts.all().map(|(name, count)| (name.to_owned(), count)).collect();
    if all.values().all(|count| *count == 0) && snapshot.names.is_empty() { BTreeMap::new() } else { all }
}

fn name_of(seen: &NameSnapshot, shown: &AddressSnapshot, now_ms: u64) -> NameView {
    let bps = |number: Option<u64>| number.map(|number| number as f64);
    let (report, since_ms) = (shown.report(), now_ms.saturating_sub(seen.at_ms));
    NameView {
        name: seen.name.settings.name.to_string(),
        address: shown.address.to_string(),
        server: shown.server().into_owned(),
        state: shown.state.name().to_owned(),
        rank: seen.rank(shown),
        share: seen.part(shown),
        answers: shown.counts.given(),
        policy: seen.name.policy.name.to_owned(),
        ttl_seconds: seen.name.settings.ttl_s,
        bottleneck_bps: bps(report.bottleneck_bps),
        available_bps: bps(report.available_bps),
        path_source: path_source(report.available_bps.or(report.bottleneck_bps), shown),
        path_age_seconds: shown.probed_ms().map(|ms| (ms + since_ms) as f64 / 1e3),
        delay_seconds: report.delay_us.map(|us| us as f64 / 1e6),
        age_seconds: shown.age_ms().map(|ms| (ms + since_ms) as f64 / 1e3),
        checks: shown.counts.checks().to_string(),
        cause: seen.cause(shown),
    }
}

fn path_source(bps: Option<u64>, shown: &AddressSnapshot) -> Option<String> {
    let source = if shown.probed_ms().is_some() { "probe" } else { "clients" };
    bps.map(|_| source.to_owned())
}
