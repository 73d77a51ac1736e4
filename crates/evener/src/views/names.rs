//! Balanced names, and the shares of their servers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use evener_core::director::Snapshot;
use evener_core::dns::{AddressSnapshot, NameSnapshot};

use crate::names::QueryCounts;

/// Address that a name may be answered with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NameView {
    pub name: String,
    pub address: String,
    /// Owner: a server's name, or with `answer = "addresses"` a service's.
    pub server: String,
    /// `up`, `down`, `draining` or `silent`.
    pub state: String,
    /// Rank: 1 is the address that is answered most often. `None` if the address is not answered.
    pub rank: Option<u64>,
    /// Share of the answers in which the address is first.
    pub share: f64,
    /// Number of answers in which the address was first.
    pub answers: u64,
    pub policy: String,
    /// TTL of an answer.
    pub ttl_seconds: u32,
    /// Reported rate to the fastest client in bits per second: the bottleneck of the path.
    pub bottleneck_bps: Option<f64>,
    /// Reported rate to the median client, in bits per second.
    pub available_bps: Option<f64>,
    /// Source of both rates: `clients`, or `probe` if clients' data is missing.
    pub path_source: Option<String>,
    /// Age of the probe, if it counts.
    pub path_age_seconds: Option<f64>,
    /// Reported time to send the server's outstanding bytes.
    pub delay_seconds: Option<f64>,
    /// Age of the report.
    pub age_seconds: Option<f64>,
    /// Results of the last probes of a server that the name itself lists, at most 32, the oldest
    /// first: `.` succeeded, `x` failed. Results of other servers are in `servers`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub checks: String,
    /// Reason of the share.
    pub cause: String,
}

/// Returns all addresses, by name in the order of the file.
pub(crate) fn names(snapshot: &Snapshot, now_ms: u64) -> Vec<NameView> {
    snapshot
        .names
        .iter()
        .flat_map(|name| name.addresses.iter().map(|one| name_of(name, one, now_ms)))
        .collect()
}

/// Returns the counters of queries, if there are names or queries.
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
