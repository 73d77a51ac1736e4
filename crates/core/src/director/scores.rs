//! Scores of servers by their load, told to the data plane as they change: no tables are made for them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{Director, Output};
use crate::farm::plan::ServerName;
use crate::farm::policy::score::{Smoothed, scores};
use crate::farm::policy::{self, Measure};

/// Time between two comparisons, in milliseconds.
const COMPARES_MS: u64 = 1_000;

/// What servers were found to be worth.
#[derive(Clone, Debug, Default)]
pub(super) struct Scores {
    loads: BTreeMap<ServerName, Smoothed>,
    /// What the data plane was told, by slot. What an earlier director told it is not known.
    told: BTreeMap<u16, u8>,
    compare_at_ms: u64,
}

impl Scores {
    /// Of a slot of the tables in force.
    pub(super) fn score(&self, slot: u16) -> u8 {
        self.told.get(&slot).copied().unwrap_or_default()
    }
}

impl Director {
    /// When servers are compared next, in milliseconds, if any service's policy does.
    pub(super) fn next_comparison_at(&self) -> u64 {
        let compares = self.farm.services.iter().any(|service| service.report.is_some());
        let compares = compares || self.measures().next().is_some();
        if compares { self.scores.compare_at_ms } else { u64::MAX }
    }

    /// Compares servers, and has what came of reports shown, when it is time.
    pub(super) fn compare_due(&mut self, now_ms: u64) {
        if now_ms < self.next_comparison_at() {
            return;
        }
        self.scores.compare_at_ms = now_ms.saturating_add(COMPARES_MS);
        self.has_changed |= core::mem::take(&mut self.reports.news);
        self.compare(now_ms);
    }

    /// Compares servers by the policies of their services. Where tables are new, those that nobody compares have no score either.
    pub(super) fn compare(&mut self, now_ms: u64) {
        let mut wanted: BTreeMap<u16, u8> = self.plan.servers.keys().map(|slot| (*slot, 0)).collect();
        let slots = self.slots_by_name();
        let mut loads = BTreeMap::new();
        for (service, measure) in self.measures() {
            let members = self.plan.servers.values().filter(|name| name.service == service);
            let known: Vec<(&ServerName, Option<u64>)> =
                members.map(|name| (name, self.load(name, measure, &mut loads, now_ms))).collect();
            let scores = scores(&known.iter().map(|(_, load)| *load).collect::<Vec<_>>());
            let scored = known.iter().zip(scores);
            wanted.extend(scored.filter_map(|((name, _), score)| Some((*slots.get(name)?, score))));
        }
        let told = &self.scores.told;
        let changed: Vec<(u16, u8)> = wanted
            .iter()
            .filter(|(slot, score)| told.get(slot) != Some(score))
            .map(|(s, c)| (*s, *c))
            .collect();
        self.scores.loads = loads;
        self.scores.told = wanted;
        if !changed.is_empty() {
            self.has_changed = true;
            self.outputs.push_back(Output::Score(changed));
        }
    }

    /// A server's load, without its dips, if it is known.
    fn load(
        &self,
        name: &ServerName,
        measure: Measure,
        loads: &mut BTreeMap<ServerName, Smoothed>,
        now_ms: u64,
    ) -> Option<u64> {
        let load = measure(&self.signals(name, None, &[], now_ms))?;
        let mut smoothed = self.scores.loads.get(name).copied().unwrap_or(Smoothed::new(load, now_ms));
        smoothed.follow(load, now_ms);
        loads.insert(name.clone(), smoothed);
        Some(smoothed.load())
    }

    /// Services whose policies go by load.
    fn measures(&self) -> impl Iterator<Item = (&str, Measure)> {
        let measure = |name| policy::by_name(name).and_then(|policy| policy.measure());
        self.farm.services.iter().filter_map(move |service| Some((&*service.name, measure(service.policy)?)))
    }
}
