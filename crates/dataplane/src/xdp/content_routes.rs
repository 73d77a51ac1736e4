//! Routes in the kernel's map. Each service's routes are stored under a generation, so packets use
//! the old routes until the VIPs refer to the new generation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evener_core::path::content::RouteIndex;
use evener_core::path::tables::Delta;
use libbpf_rs::MapCore;

use super::abi;
use super::program::Program;
use crate::EngineError;

/// Routes that VIPs refer to, by service, with their generation.
pub(super) type Current = BTreeMap<u16, (u32, Arc<RouteIndex>)>;

/// Generations in the map of routes.
#[derive(Debug, Default)]
pub(super) struct Generations {
    current: Current,
    /// Routes that no VIP refers to any more.
    retired: Vec<(u32, Arc<RouteIndex>)>,
    /// Generations that an earlier daemon's VIPs refer to.
    adopted: BTreeSet<u32>,
    last: u32,
    /// True if the map may hold other generations, after an earlier daemon or a failed change.
    has_strangers: bool,
}

impl Generations {
    /// Makes these routes the current ones.
    pub(super) fn switch(&mut self, routes: Current) {
        self.adopted.clear();
        let before = std::mem::replace(&mut self.current, routes);
        let named = |service: &u16, generation: u32| {
            self.current.get(service).is_some_and(|(current, _)| *current == generation)
        };
        let retired = before.into_iter().filter(|(service, (generation, _))| !named(service, *generation));
        self.retired.extend(retired.map(|(_, routes)| routes));
    }
}

impl Program {
    /// Writes new and changed routes under new generations.
    pub(super) fn stage_routes(&mut self, delta: &Delta) -> Result<Current, EngineError> {
        let mut staged = self.generations.current.clone();
        for (service, routes) in &delta.routes {
            let generation = self.generations.last.wrapping_add(1);
            self.generations.last = generation;
            for (key, entry) in &routes.entries {
                self.update("routes", &abi::route_key(key, generation), &abi::route_entry(entry))?;
            }
            staged.insert(*service, (generation, Arc::clone(routes)));
        }
        delta.routes_removed.iter().for_each(|service| drop(staged.remove(service)));
        Ok(staged)
    }

    /// Removes the routes that a failed change has written.
    pub(super) fn withdraw_routes(&mut self) {
        let Generations { current, retired, adopted, .. } = &self.generations;
        let named = current.values().chain(retired).map(|(generation, _)| *generation);
        if let Err(error) = self.keep_routes(&named.chain(adopted.iter().copied()).collect()) {
            tracing::warn!(%error, "failed to remove the routes of a failed change; the next change removes them");
            self.generations.has_strangers = true;
        }
    }

    /// Removes routes that no VIP refers to, after the last packet has used them.
    pub(super) fn forget_routes(&mut self) -> Result<(), EngineError> {
        let Generations { retired, has_strangers, .. } = &self.generations;
        if retired.is_empty() && !has_strangers {
            return Ok(());
        }
        self.passing.end(&self.grace)?;
        // If the removal fails, remaining routes are found as strangers.
        let had_strangers = std::mem::replace(&mut self.generations.has_strangers, true);
        for (generation, routes) in std::mem::take(&mut self.generations.retired) {
            for key in routes.entries.keys() {
                self.delete("routes", &abi::route_key(key, generation))?;
            }
        }
        if had_strangers {
            let known = self.generations.current.values().map(|(generation, _)| *generation).collect();
            self.keep_routes(&known)?;
        }
        self.generations.has_strangers = false;
        Ok(())
    }

    /// Removes the routes of all other generations.
    fn keep_routes(&self, known: &BTreeSet<u32>) -> Result<(), EngineError> {
        let is_strange = |key: &Vec<u8>| abi::generation_of(key).is_none_or(|one| !known.contains(&one));
        let strange: Vec<Vec<u8>> = self.borrowed("routes").keys().filter(is_strange).collect();
        strange.iter().try_for_each(|key| self.delete("routes", key))
    }

    /// Adopts the generations of routes that an earlier daemon's VIPs refer to. The adopted routes
    /// stay in use until new routes are written. Adopted routes can't be decoded, because the map
    /// contains hashes of texts.
    pub(super) fn adopt_routes(&mut self, in_force: &BTreeSet<u32>) {
        self.generations.last = in_force.last().copied().unwrap_or_default();
        self.generations.has_strangers = true;
        self.generations.adopted.clone_from(in_force);
        if let Err(error) = self.keep_routes(in_force) {
            tracing::warn!(%error, "failed to remove routes that an earlier daemon wrote in part");
        }
    }
}
