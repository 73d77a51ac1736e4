//! Views of services.

use std::collections::BTreeMap;

use evener_core::director::ServiceSnapshot;
use evener_core::farm::{self, Farm};
use serde::{Deserialize, Serialize};

use super::overrides::{OverrideView, overrides};
use super::{ServerView, groups};
use crate::board::CountedSnapshot;
use crate::runtime::spelling::meant;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceView {
    pub name: String,
    pub addresses: Vec<String>,
    pub protocol: String,
    /// `l2`, `nat`, `tunnel`, `handoff` or `redirect`.
    pub method: String,
    pub placement: String,
    /// Name of the policy.
    pub policy: String,
    /// Number of known servers.
    pub servers: u64,
    /// Number of servers that get new sessions.
    pub servers_up: u64,
    /// `ok`; `partial`, if some of its servers are not up; `degraded`, see below; `empty`, if no
    /// server is up.
    #[serde(default)]
    pub state: String,
    /// True if too few servers work, and some that fail or refuse are used.
    pub degraded: bool,
    /// Number of active sessions.
    pub sessions: u64,
    /// Number of new sessions for which a server was selected.
    pub connections: u64,
    /// Number of frames sent to servers.
    pub packets: u64,
    /// Number of bytes in these frames.
    pub bytes: u64,
    /// With `handoff`, number of first segments without a valid cookie at the current addresses,
    /// for example guesses.
    #[serde(default)]
    pub cookies_bad: u64,
    /// Number of first segments that were not checked, because too many had invalid cookies.
    #[serde(default)]
    pub cookies_unchecked: u64,
    /// Number of affinity entries: clients that return to their servers.
    #[serde(default)]
    pub affinity_entries: u64,
    /// Number of affinity entries that gave way to sessions or newer entries.
    #[serde(default)]
    pub affinity_evicted: u64,
    /// Values changed at run time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<OverrideView>,
    /// With `redirect`, number of requests by outcome. Otherwise empty.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, u64>,
}

pub(crate) fn services(moment: &CountedSnapshot, by_service: &[Vec<ServerView>]) -> Vec<ServiceView> {
    let snapshot = &moment.published.snapshot;
    let described = snapshot.farm.services.iter().zip(snapshot.services.iter()).zip(by_service);
    let of_packets = described.map(|((service, seen), servers)| service_of(service, seen, servers, moment));
    let groups = moment.published.groups();
    let with_overrides = |mut service: ServiceView| {
        service.overrides = overrides(&moment.published, &service.name, None);
        service
    };
    of_packets.chain(groups.iter().map(groups::service)).map(with_overrides).collect()
}

fn service_of(
    service: &farm::Service,
    seen: &ServiceSnapshot,
    servers: &[ServerView],
    moment: &CountedSnapshot,
) -> ServiceView {
    let sum = |of: fn(&ServerView) -> u64| servers.iter().map(of).sum::<u64>();
    let (memory, tables) = (moment.published.readings.memory(), &moment.published.snapshot.plan.tables);
    let (guesses, affinity) = (memory.guesses, memory.sessions.affinity_counts());
    let vips: Vec<_> = service.vip_keys().filter_map(|key| tables.vips.get(&key)).collect();
    let ids: Vec<_> = vips.iter().map(|vip| vip.id).collect();
    let service_number = vips.first().map(|vip| vip.service);
    let gone = moment.published.gone.get(&service.name).copied().unwrap_or_default();
    let up = servers.iter().filter(|server| server.state == "up").count();
    ServiceView {
        name: service.name.clone(),
        addresses: service.addresses.iter().map(ToString::to_string).collect(),
        protocol: service.protocol.to_string(),
        method: service.method.to_string(),
        placement: service.placement.to_string(),
        policy: service.policy.to_owned(),
        servers: servers.len() as u64,
        servers_up: up as u64,
        state: state(servers.len(), up, seen.degraded).to_owned(),
        degraded: seen.degraded,
        sessions: sum(|server| server.sessions),
        connections: gone.connections + sum(|server| server.connections),
        packets: gone.packets + sum(|server| server.packets),
        bytes: gone.bytes + sum(|server| server.bytes),
        cookies_bad: ids.iter().map(|vip| guesses.bad(*vip)).sum(),
        cookies_unchecked: ids.iter().map(|vip| guesses.unchecked(*vip)).sum(),
        affinity_entries: service_number.map_or(0, |number| affinity.entries(number)),
        affinity_evicted: service_number.map_or(0, |number| affinity.evicted(number)),
        overrides: Vec::new(),
        requests: BTreeMap::new(),
    }
}

/// Returns the state of a service, by the number of its servers and the number of servers that are
/// up.
pub(super) fn state(servers: usize, up: usize, degraded: bool) -> &'static str {
    match up {
        _ if degraded => "degraded",
        0 => "empty",
        _ if up < servers => "partial",
        _ => "ok",
    }
}

/// Checks that there is a service of this name with sessions.
///
/// # Errors
/// If there is none. The text suggests a similar name.
pub(crate) fn has_service(farm: &Farm, name: &str) -> Result<(), String> {
    if farm.groups.iter().any(|group| group.name == name) {
        return Err(format!("{name} has method redirect, so it has no sessions"));
    }
    is_service(name, farm.services.iter().map(|service| service.name.as_str()))
}

/// Checks that a service has this name.
///
/// # Errors
/// If no service has it. The text suggests a similar name.
pub(crate) fn is_service<'n>(
    name: &str,
    mut names: impl Iterator<Item = &'n str> + Clone,
) -> Result<(), String> {
    let others = names.clone();
    match names.any(|known| known == name) {
        true => Ok(()),
        false => Err(format!("there is no service {name}; {}", meant(name, others))),
    }
}

#[cfg(test)]
mod tests {
    use super::state;

    #[test]
    fn service_state_follows_its_servers() {
        let states = [(2, 2, false), (2, 1, false), (2, 0, false), (0, 0, false), (2, 0, true), (2, 1, true)];
        let states = states.map(|(servers, up, degraded)| state(servers, up, degraded));
        assert_eq!(states, ["ok", "partial", "empty", "empty", "degraded", "degraded"]);
    }
}
