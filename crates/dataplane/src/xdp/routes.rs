//! What clients ask for, where the kernel's side looks it up: each service's routes under a generation of their own, so
//! that packets go by the old ones until the VIPs name the new.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evener_core::content::Routes;
use evener_core::tables::{Delta, Tables};
use libbpf_rs::MapCore;

use super::abi::{self, InForce};
use super::apply::GRACE;
use super::program::Program;
use crate::EngineError;

/// What the map of routes holds.
#[derive(Debug, Default)]
pub(super) struct Generations {
    /// By service.
    current: BTreeMap<u16, (u32, Arc<Routes>)>,
    /// What no VIP is to name any more.
    retired: Vec<(u32, Arc<Routes>)>,
    last: u32,
    /// Whether there is more in the map: an earlier daemon's, or what a failed attempt left.
    has_strangers: bool,
}

impl Program {
    /// Writes routes that are new or changed, for VIPs to name.
    pub(super) fn write_routes(&mut self, delta: &Delta) -> Result<(), EngineError> {
        for (service, routes) in &delta.routes {
            let generation = self.generations.last.wrapping_add(1);
            self.generations.last = generation;
            let had_strangers = std::mem::replace(&mut self.generations.has_strangers, true);
            for (key, entry) in &routes.entries {
                self.update("routes", &abi::route_key(key, generation), &abi::route_entry(entry))?;
            }
            let Generations { current, retired, has_strangers, .. } = &mut self.generations;
            *has_strangers = had_strangers;
            retired.extend(current.insert(*service, (generation, Arc::clone(routes))));
        }
        let Generations { current, retired, .. } = &mut self.generations;
        retired.extend(delta.routes_removed.iter().filter_map(|service| current.remove(service)));
        Ok(())
    }

    /// Forgets routes that no VIP names any more, once the last packet is through with them.
    pub(super) fn forget_routes(&mut self) -> Result<(), EngineError> {
        let Generations { retired, has_strangers, .. } = &self.generations;
        if retired.is_empty() && !has_strangers {
            return Ok(());
        }
        std::thread::sleep(GRACE);
        while let Some((generation, routes)) = self.generations.retired.pop() {
            for key in routes.entries.keys() {
                self.delete("routes", &abi::route_key(key, generation))?;
            }
        }
        if self.generations.has_strangers {
            let known = self.generations.current.values().map(|(generation, _)| *generation).collect();
            self.keep_routes(&known)?;
            self.generations.has_strangers = false;
        }
        Ok(())
    }

    /// Removes the routes of all other generations.
    fn keep_routes(&self, known: &BTreeSet<u32>) -> Result<(), EngineError> {
        let is_strange = |key: &Vec<u8>| abi::generation_of(key).is_none_or(|one| !known.contains(&one));
        let strange: Vec<Vec<u8>> = self.borrowed("routes").keys().filter(is_strange).collect();
        strange.iter().try_for_each(|key| self.delete("routes", key))
    }

    /// Carries on where an earlier daemon's VIPs name these generations. Their routes are in use until new ones are
    /// written: they can't be read back, since texts stand there as hashes.
    pub(super) fn adopt_routes(&mut self, in_force: &BTreeSet<u32>) {
        self.generations.last = in_force.last().copied().unwrap_or_default();
        self.generations.has_strangers = true;
        if let Err(error) = self.keep_routes(in_force) {
            tracing::warn!(%error, "routes that an earlier daemon had begun to write may stay");
        }
    }

    /// What a VIP of this service is to name.
    pub(super) fn in_force(&self, service: u16, tables: &Tables) -> (InForce, Option<Arc<Routes>>) {
        let ring_halves =
            self.halves.iter().filter(|(_, half)| **half == 1).fold(0, |bits, (ring, _)| bits | 1 << ring);
        let generation = self.generations.current.get(&service).map_or(0, |(generation, _)| *generation);
        (InForce { generation, ring_halves }, tables.routes.get(&service).map(Arc::clone))
    }
}
