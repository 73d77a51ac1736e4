//! Clients' requests, where the kernel's side looks them up: each service's routes under a
//! generation of their own, so that packets go by the old ones until the VIPs name the new.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evener_core::path::content::RouteIndex;
use evener_core::path::tables::Delta;
use libbpf_rs::MapCore;

use super::abi;
use super::program::Program;
use crate::EngineError;

/// The routes that VIPs name, by service, each under its generation.
pub(super) type Current = BTreeMap<u16, (u32, Arc<RouteIndex>)>;

/// The content of the map of routes.
#[derive(Debug, Default)]
pub(super) struct Generations {
    current: Current,
    /// The routes that no VIP is to name any more.
    retired: Vec<(u32, Arc<RouteIndex>)>,
    /// The generations that an earlier daemon's VIPs name.
    adopted: BTreeSet<u32>,
    last: u32,
    /// Whether there is more in the map: an earlier daemon's, or what a failed attempt left.
    has_strangers: bool,
}

impl Generations {
    /// From now on VIPs name these.
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
    /// Writes routes that are new or changed, for VIPs to name.
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

    /// Of those that were being written none comes into force. They make room for the next ones.
    pub(super) fn withdraw_routes(&mut self) {
        let Generations { current, retired, adopted, .. } = &self.generations;
        let named = current.values().chain(retired).map(|(generation, _)| *generation);
        if let Err(error) = self.keep_routes(&named.chain(adopted.iter().copied()).collect()) {
            tracing::warn!(%error, "routes that did not come into force stay until the next change");
            self.generations.has_strangers = true;
        }
    }

    /// Forgets routes that no VIP names any more, once the last packet is through with them.
    pub(super) fn forget_routes(&mut self) -> Result<(), EngineError> {
        let Generations { retired, has_strangers, .. } = &self.generations;
        if retired.is_empty() && !has_strangers {
            return Ok(());
        }
        self.passing.end(&self.grace)?;
        // If that is interrupted, what is left is nobody's.
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

    /// Carries on where an earlier daemon's VIPs name these generations. Their routes are in use
    /// until new ones are written: they can't be read back, since texts stand there as hashes.
    pub(super) fn adopt_routes(&mut self, in_force: &BTreeSet<u32>) {
        self.generations.last = in_force.last().copied().unwrap_or_default();
        self.generations.has_strangers = true;
        self.generations.adopted.clone_from(in_force);
        if let Err(error) = self.keep_routes(in_force) {
            tracing::warn!(%error, "routes that an earlier daemon had begun to write may stay");
        }
    }
}
