//! Tables on their way to the engine: planned whole, in force when it says so, and taken back with the reload that they are of.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::groups::KeptGroup;
use super::hosts::Hosts;
use super::pools::Pools;

use super::{Director, Event, Moment, Output, Reloads};
use crate::farm::Farm;
use crate::farm::membership::{Membership, Notice};
use crate::farm::network::Network;
use crate::farm::plan::{self, Plan, Slots};
use crate::net::wire::Mac;
use crate::path::tables::Tables;

/// A change that the engine refused is tried again after this time, in milliseconds.
pub(super) const RETRY_MS: u64 = 5_000;

/// Tables of a large farm take a while to make, and what is learned meanwhile goes into the next ones together: those come no sooner
/// than a millisecond later for so many servers.
const SERVERS_PER_MS: u64 = 64;

/// A generation on its way.
#[derive(Clone, Debug)]
pub(super) struct Applying {
    pub(super) generation: u64,
    pub(super) plan: Plan,
    pub(super) slots: Slots,
    /// If it is a reload's.
    pub(super) before: Option<Box<Before>>,
}

/// All that a reload changes, as it was; and what is told once it is in force.
#[derive(Clone, Debug)]
pub(super) struct Before {
    pub(super) farm: Arc<Farm>,
    pub(super) network: Arc<Network>,
    pub(super) links: BTreeMap<u32, Mac>,
    pub(super) membership: Membership,
    pub(super) pools: Pools,
    pub(super) hosts: Option<Hosts>,
    /// What was kept of groups that the new farm has.
    pub(super) groups: BTreeMap<String, KeptGroup>,
    pub(super) members_notices: Vec<Notice>,
    pub(super) hosts_notices: Vec<crate::node::peers::Notice>,
}

impl Director {
    /// Plans anew if anything calls for it and no generation is on its way. Tables come before what is said of them: orders given
    /// since `first` wait.
    pub(super) fn settle(&mut self, first: usize, now_ms: u64) {
        if !self.replan_wanted || self.applying.is_some() || now_ms < self.gather_until_ms {
            return;
        }
        self.replan_wanted = false;
        // Hosts that wait for a word that is said with the tables wait no longer for it.
        let gathered = if self.hosts.is_some() { 0 } else { self.pools.len() as u64 };
        self.gather_until_ms = now_ms.saturating_add(gathered / SERVERS_PER_MS);
        let links: Vec<_> = self.links.iter().map(|(ifindex, mac)| (*ifindex, *mac)).collect();
        let mut slots = self.slots.clone();
        let known = self.known_hosts();
        let hosts = self.planned_hosts(&known);
        let before = self.reloading.take();
        let mut fills = core::mem::take(&mut self.fills);
        let states = self.states(&known);
        let planned = plan::plan(&states, &links, &hosts, &mut slots, &mut fills, Some(&self.plan));
        self.fills = fills;
        match planned {
            Ok(plan) if before.is_none() && self.is_in_force(&plan) => {
                (self.slots, self.retry_at_ms, self.has_changed) = (slots, u64::MAX, true);
            }
            Ok(plan) => {
                self.generation += 1;
                let (generation, tables) = (self.generation, Arc::clone(&plan.tables));
                self.outputs.insert(first, Output::Apply { generation, tables });
                self.applying = Some(Applying { generation, plan, slots, before });
            }
            Err(error) => {
                if before.is_some() {
                    self.refused_reload(error.to_string());
                }
                self.take_back(before);
                self.outputs.push_back(Output::Unplanned(error));
            }
        }
    }

    /// Whether the engine has all of this already: most of what hosts tell each other changes no table.
    fn is_in_force(&self, plan: &Plan) -> bool {
        let has_tables = self.generation_in_force > 0 && self.in_force == plan.tables;
        has_tables && self.newcomers.is_empty() && *self.plan == *plan
    }

    pub(super) fn applied(
        &mut self,
        generation: u64,
        in_force: Arc<Tables>,
        error: Option<String>,
        now: Moment,
    ) {
        let now_ms = now.ms;
        let Some(applied) = self.applying.take_if(|applying| applying.generation == generation) else {
            return;
        };
        let was = core::mem::replace(&mut self.in_force, in_force);
        self.has_changed = true;
        let Some(error) = error else {
            self.tell_changes(&applied.plan);
            (self.slots, self.plan) = (applied.slots, Arc::new(applied.plan));
            self.generation_in_force = generation;
            self.retry_at_ms = u64::MAX;
            self.tell_attached();
            self.compare(now_ms);
            if let Some(before) = applied.before {
                self.reloads = Reloads { done: self.reloads.done + 1, error: None, ..self.reloads.clone() };
                self.tell_all(before.hosts_notices.into_iter().map(Event::Hosts));
                self.tell_of_members(before.members_notices);
                self.groups.reload(now, &self.farm.groups, &before.groups);
                self.names.reload(&self.farm, now);
                self.resolve_next_hops(now_ms);
                self.announce(self.announced());
            } else if generation == 1 {
                self.announce(self.announced());
            }
            self.forget_removed(was);
            return;
        };
        // Numbers that the engine has given away are taken.
        self.slots.adopt(&self.in_force);
        if applied.before.is_none() && !self.newcomers.is_empty() {
            // What they are must not keep the farm from following anything else.
            self.tell_unattached(&error);
            let newcomers = core::mem::take(&mut self.newcomers);
            self.links.retain(|ifindex, _| !newcomers.contains(ifindex));
            self.look_around(now_ms);
            return;
        }
        if applied.before.is_none() || self.in_force != self.plan.tables {
            self.retry_at_ms = now_ms.saturating_add(RETRY_MS);
        }
        match applied.before {
            Some(before) => {
                self.refused_reload(error);
                self.take_back(Some(before));
            }
            None => self.tell(Event::NotApplied { error }),
        }
    }

    /// Notes a reload that changes nothing.
    pub(super) fn refused_reload(&mut self, error: String) {
        self.reloads.refused += 1;
        self.reloads.error = Some(error);
        self.has_changed = true;
    }

    /// Goes back to what was known before a reload.
    fn take_back(&mut self, before: Option<Box<Before>>) {
        let Some(before) = before else { return };
        let Before { farm, network, links, membership, pools, hosts, .. } = *before;
        (self.farm, self.network, self.links) = (farm, network, links);
        (self.membership, self.hosts) = (membership, hosts);
        self.pools.take_back(pools);
    }

    /// Sessions of servers and service addresses that were there and are gone are to go too; then their numbers are free again.
    fn forget_removed(&mut self, before: Arc<Tables>) {
        let now = &self.in_force;
        let all_there = before.servers.keys().all(|slot| now.servers.contains_key(slot))
            && before.vips.keys().all(|key| now.vips.contains_key(key));
        if !all_there {
            let retired = self.slots.retired().collect();
            self.outputs.push_back(Output::Forget { before, retired });
        }
    }
}
