//! Scores of servers by load. The director sends changed scores to the data plane without new
//! tables.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{Director, Output};
use crate::farm::plan::ServerName;
use crate::node::peers::KnownHost;
use crate::path::select::Score;
use crate::pool::policy::score::{Smoothed, gains, scores};
use crate::pool::policy::{self, Weighing};
use crate::pool::signals::Signal;

/// Interval between two comparisons, in milliseconds.
const COMPARES_MS: u64 = 1_000;

#[derive(Clone, Debug)]
pub(super) struct Scores {
    loads: BTreeMap<ServerName, Smoothed>,
    /// Scores in the data plane, by slot. Scores set by an earlier director are not included.
    reported: BTreeMap<u16, Score>,
    /// Limits of active sessions in the data plane, by slot.
    limits: BTreeMap<u16, u32>,
    /// Time of the next comparison in milliseconds; `u64::MAX` if no service needs one.
    pub(super) compare_at_ms: u64,
    /// True if reports arrived since the last snapshot.
    pub(super) has_news: bool,
}

impl Default for Scores {
    fn default() -> Self {
        Scores {
            loads: BTreeMap::new(),
            reported: BTreeMap::new(),
            limits: BTreeMap::new(),
            compare_at_ms: u64::MAX,
            has_news: false,
        }
    }
}

impl Scores {
    /// Score of the server with this slot; 0 for an unknown slot.
    pub(super) fn score(&self, slot: u16) -> u8 {
        self.reported.get(&slot).map_or(0, |score| score.load)
    }
}

impl Director {
    /// Compares the servers' load if that is due. New reports cause a new snapshot.
    pub(super) fn compare_due(&mut self, now_ms: u64) {
        if now_ms < self.scores.compare_at_ms {
            return;
        }
        self.has_changed |= core::mem::take(&mut self.scores.has_news);
        self.compare(now_ms);
    }

    /// Computes the scores with the services' policies, and sends changed scores and limits to the
    /// data plane. Servers whose policy doesn't use load get score 0.
    pub(super) fn compare(&mut self, now_ms: u64) {
        let mut wanted: BTreeMap<u16, Score> =
            self.plan.servers.keys().map(|slot| (*slot, Score::default())).collect();
        let mut loads = BTreeMap::new();
        let mut is_wanted_again = false;
        let (by_service, hosts) = (self.servers_by_service(), self.known_hosts());
        for service in &self.farm.services {
            let weighing = policy::for_packets(service.policy).and_then(|packets| packets.weighing);
            is_wanted_again |= weighing.is_some() || service.report.is_some();
            let Some((weighing, servers)) = weighing.zip(by_service.get(&*service.name)) else { continue };
            let load = |(_, name): &(u16, &ServerName)| self.load(name, weighing, &hosts, &mut loads, now_ms);
            let known: Vec<Option<u64>> = servers.iter().map(load).collect();
            let loads = scores(&known);
            let slots = servers.iter().map(|(slot, _)| *slot);
            let gains = match weighing.needs.contains(&Signal::Load) {
                true => self.gains(&service.name, slots.clone().zip(&loads), service.report_gain_percent),
                // No limit: the director measured these loads itself, so no server can attract
                // sessions by a false report.
                false => alloc::vec![u8::MAX; loads.len()],
            };
            let scores = loads.iter().zip(gains).map(|(load, gain)| Score { load: *load, gain });
            wanted.extend(slots.zip(scores));
        }
        let reported = &self.scores.reported;
        let is_news = |(slot, score): &(&u16, &Score)| reported.get(slot) != Some(score);
        // Scores of removed servers are reset, since one may have reached the data plane after the
        // removal.
        let gone =
            reported.iter().filter(|(slot, score)| !wanted.contains_key(slot) && **score != Score::default());
        let gone = gone.map(|(slot, _)| (*slot, Score::default()));
        let changed = wanted.iter().filter(is_news).map(|(slot, score)| (*slot, *score));
        let changed: Vec<(u16, Score)> = changed.chain(gone).collect();
        let compare_at_ms = if is_wanted_again { now_ms.saturating_add(COMPARES_MS) } else { u64::MAX };
        let (limits, has_news) = (core::mem::take(&mut self.scores.limits), self.scores.has_news);
        self.scores = Scores { loads, reported: wanted, limits, compare_at_ms, has_news };
        self.limit();
        if !changed.is_empty() {
            self.has_changed = true;
            self.outputs.push_back(Output::Score(changed));
        }
    }

    /// Sends changed limits of active sessions to the data plane.
    fn limit(&mut self) {
        let mut wanted: BTreeMap<u16, u32> = self.plan.servers.keys().map(|slot| (*slot, 0)).collect();
        let by_service = self.servers_by_service();
        for service in &self.farm.services {
            let limit = |name: &ServerName| {
                // Only the host itself knows all of its connections.
                if self.other_host(name).is_some() {
                    return None;
                }
                let listed = service.servers.iter().find(|listed| listed.name == name.server)?;
                Some(listed.max_connections)
            };
            let servers = by_service.get(&*service.name).into_iter().flatten();
            wanted.extend(servers.filter_map(|(slot, name)| Some((*slot, limit(name)?))));
        }
        let known = &self.scores.limits;
        let gone = known.iter().filter(|(slot, limit)| !wanted.contains_key(slot) && **limit > 0);
        let changed = wanted.iter().filter(|(slot, limit)| known.get(slot) != Some(limit));
        let changed = changed.map(|(slot, limit)| (*slot, *limit));
        let changed: Vec<(u16, u32)> = changed.chain(gone.map(|(slot, _)| (*slot, 0))).collect();
        self.scores.limits = wanted;
        if !changed.is_empty() {
            self.outputs.push_back(Output::Limit(changed));
        }
    }

    /// Returns the gain of each server of a service: how many additional new sessions a low
    /// reported load may bring the server at most.
    fn gains<'a>(&self, service: &str, loads: impl Iterator<Item = (u16, &'a u8)>, percent: u64) -> Vec<u8> {
        let planned = self.plan.services.values().find(|planned| planned.name == service);
        let members = planned.map_or(&[][..], |planned| &planned.ring_members);
        let weight =
            |slot: u16| members.iter().find(|member| member.slot == slot).map_or(0, |member| member.weight);
        gains(&loads.map(|(slot, load)| (weight(slot), u64::from(*load))).collect::<Vec<_>>(), percent)
    }

    /// Returns the servers of the tables in force with their slots, by service.
    fn servers_by_service(&self) -> BTreeMap<&str, Vec<(u16, &ServerName)>> {
        let mut by_service: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for (slot, name) in &self.plan.servers {
            by_service.entry(&*name.service).or_default().push((*slot, name));
        }
        by_service
    }

    /// Returns the smoothed load of a server; `None` if the load is unknown.
    fn load(
        &self,
        name: &ServerName,
        weighing: &Weighing,
        hosts: &[KnownHost],
        loads: &mut BTreeMap<ServerName, Smoothed>,
        now_ms: u64,
    ) -> Option<u64> {
        let load = match self.other_host(name) {
            Some(_) => self.hosted_server(hosts, name)?.load,
            None => self.pools.server(name)?.load(weighing),
        }?;
        let mut smoothed = self.scores.loads.get(name).copied().unwrap_or(Smoothed::new(load, now_ms));
        smoothed.follow(load, now_ms);
        loads.insert(name.clone(), smoothed);
        Some(smoothed.load())
    }
}
