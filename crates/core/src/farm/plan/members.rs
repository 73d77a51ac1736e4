//! Members of a service's tables: the servers that take new sessions, and the base of the hash
//! table. The base contains also servers that may replace them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use super::{ServiceState, WeightedServer, identity};
use crate::farm;
use crate::path::tables::NO_SERVER;
use crate::pool::HealthKind;
use crate::pool::policy::Weighted;
use crate::pool::serving::{Candidate, Serving, ServingRule, serving};

/// Returns the weights by which this host spreads the load that reaches it. They are the shares of
/// the policy, or the weights if there are no shares.
pub(super) fn shares(servers: &[WeightedServer<'_>], chosen: &[Weighted]) -> Vec<Weighted> {
    let share = |slot| servers.iter().find(|servers| servers.slot_weight.slot == slot)?.state.share;
    let shares = chosen.iter().map(|one| Weighted { weight: share(one.slot).unwrap_or(one.weight), ..*one });
    let shares: Vec<Weighted> = shares.collect();
    if shares.iter().any(|one| one.weight > 0) { shares } else { chosen.to_vec() }
}

/// Returns the servers of a service that take new sessions, and true if failed or refusing servers
/// are among them.
pub(super) fn chosen(service: &farm::Service, servers: &[WeightedServer<'_>]) -> (Vec<Weighted>, bool) {
    let rule = ServingRule {
        panic_percent: service.panic_percent,
        keeps_refusing: service.keep_last,
        keeps_last_ms: service.keep_last.then(|| time_to_notice_ms(service)),
    };
    members_by(rule, servers.iter())
}

/// Returns the base of a hash table: all configured servers, reachable or not, without backups.
/// While backups serve, the base contains only backups.
pub(super) fn configured(
    state: &ServiceState<'_>,
    servers: &[WeightedServer<'_>],
    chosen: &[Weighted],
    is_one: impl Fn(&String) -> bool,
) -> Vec<Weighted> {
    if state.service.is_on_every_host() {
        // A second chance covers a single change of the table. A host that joins would cause two
        // changes if it were in the base before.
        return chosen.to_vec();
    }
    let serves = |server: &&WeightedServer<'_>| chosen.contains(&server.slot_weight);
    let backup = servers.iter().find(serves).is_some_and(|server| server.state.member.backup);
    let slots: BTreeMap<u64, u16> =
        servers.iter().map(|server| (server.slot_weight.seed, server.slot_weight.slot)).collect();
    let members = state.members.iter().map(|state| &state.member);
    members
        .filter(|member| member.backup == backup && is_one(&member.name))
        .map(|member| {
            let seed = identity(&state.service.name, &member.name);
            let slot = slots.get(&seed).copied().unwrap_or(NO_SERVER);
            Weighted { slot, weight: member.weight, seed }
        })
        .collect()
}

/// Returns the servers of a base that get flows without a session: the working servers, even if
/// drained, and those that take new sessions. With handoff, flows without a session are not
/// forwarded, so the result is `chosen`.
pub(super) fn working(
    service: &farm::Service,
    configured: &[Weighted],
    servers: &[WeightedServer<'_>],
    chosen: &[Weighted],
) -> Vec<Weighted> {
    if service.method.hands_over() {
        return chosen.to_vec();
    }
    let able = servers.iter().filter(|server| server.state.is_able()).map(|server| server.slot_weight.slot);
    let slots: BTreeSet<u16> = able.chain(chosen.iter().map(|one| one.slot)).collect();
    configured.iter().filter(|one| one.weight > 0 && slots.contains(&one.slot)).copied().collect()
}

/// Returns the servers that take new sessions by a rule, and true if failed or refusing servers are
/// among them.
pub(super) fn members_by<'s>(
    rule: ServingRule,
    servers: impl Iterator<Item = &'s WeightedServer<'s>> + Clone,
) -> (Vec<Weighted>, bool) {
    let candidates: Vec<Candidate> = servers.clone().map(|server| server.state.candidate()).collect();
    let Serving { serves, degraded } = serving(rule, &candidates);
    let chosen = servers.zip(serves).filter(|(_, serves)| *serves);
    (chosen.map(|(server, _)| server.slot_weight).collect(), degraded)
}

/// Time within which the director notices that all servers failed at the same moment, in
/// milliseconds.
fn time_to_notice_ms(service: &farm::Service) -> u64 {
    let health = &service.health;
    let interval_ms =
        health.interval_ms.saturating_mul(100 + u64::from(health.jitter_percent.min(100))) / 100;
    let probes_ms = match health.kind {
        HealthKind::None => 0,
        _ => interval_ms.saturating_mul(u64::from(health.fall) + 1).saturating_add(health.timeout_ms),
    };
    // A lost answer makes one server silent a round earlier than the others, so two rounds count.
    // Probes notice failures sooner.
    match health.kind == HealthKind::None || service.discover.is_some() {
        true => probes_ms.max(service.discover_interval_ms.saturating_mul(2)),
        false => probes_ms,
    }
}
