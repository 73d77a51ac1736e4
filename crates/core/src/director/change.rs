//! Changes on their way to the engine: one at a time, in force when its answer says so. Facts that
//! come meanwhile lead to the next.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::order::{Applied, Change};
use super::{Director, Event, Moment, Output, Reloads};
use crate::farm::Farm;
use crate::farm::membership::ServiceNotice;
use crate::farm::network::Network;
use crate::farm::plan::{Plan, Slots};
use crate::net::wire::Mac;
use crate::path::tables::Tables;

/// A change that the engine refused is tried again after this time, in milliseconds.
pub(super) const RETRY_MS: u64 = 5_000;

/// Tables of a large farm take a while to make, and what is learned meanwhile goes into the next
/// ones together: those come no sooner than a millisecond later for so many servers.
const SERVERS_PER_MS: u64 = 64;

/// A farm that the operator describes anew, in this network.
#[derive(Clone, Debug)]
pub(super) struct Reload {
    pub(super) farm: Arc<Farm>,
    pub(super) network: Arc<Network>,
    /// The network as it was known when the reload came, or was ordered: what is learned since is
    /// newer than the reload's.
    pub(super) known: Arc<Network>,
    pub(super) links: BTreeMap<u32, Mac>,
    /// The kept members of groups that it has and that aren't served yet.
    pub(super) groups: BTreeMap<String, String>,
}

/// A change on its way.
#[derive(Clone, Debug)]
pub(super) struct PendingChange {
    number: u64,
    /// If it is a reload's: it is followed once it is in force, so that there is nothing to take
    /// back.
    pub(super) reload: Option<Reload>,
    /// Links that no generation in force has had yet.
    newcomers: BTreeSet<u32>,
    /// Whether anything but the reload called for it.
    is_wanted_anyway: bool,
}

impl Director {
    /// Orders a change if anything calls for one and none is on its way, before the orders from
    /// `first` on.
    pub(super) fn order_change(&mut self, first: usize, now_ms: u64) {
        let is_due = self.replan_wanted && now_ms >= self.gather_until_ms;
        if self.applying.is_some() || !is_due && self.reloads_waiting.is_empty() {
            return;
        }
        // Hosts that wait for a word that is said with the tables wait no longer for it.
        let gathered = if self.hosts.is_some() { 0 } else { self.pools.len() as u64 };
        self.gather_until_ms = now_ms.saturating_add(gathered / SERVERS_PER_MS);
        self.ordered += 1;
        let (number, slots) = (self.ordered, core::mem::take(&mut self.slots));
        let mut reload = self.reloads_waiting.pop_front();
        if let Some(reload) = reload.as_mut().filter(|reload| !Arc::ptr_eq(&reload.known, &self.network)) {
            reload.network = Arc::clone(&self.network);
            reload.known = Arc::clone(&self.network);
        }
        let (change, newcomers) = match &reload {
            Some(reload) => {
                let mut tried = self.without_consumers();
                tried.take_in(reload, now_ms);
                (tried.change(slots, false), BTreeSet::new())
            }
            None => {
                let newcomers = core::mem::take(&mut self.newcomers);
                (self.change(slots, self.generation_in_force > 0 && newcomers.is_empty()), newcomers)
            }
        };
        let is_wanted_anyway = core::mem::take(&mut self.replan_wanted);
        self.applying = Some(PendingChange { number, reload, newcomers, is_wanted_anyway });
        self.outputs.insert(first, Output::Apply(Box::new(change)));
    }

    /// All that a plan of the farm as it is now is made of. One that is in force already may be
    /// left at that.
    fn change(&self, slots: Slots, may_be_in_force: bool) -> Change {
        let known = self.known_hosts();
        Change {
            number: self.ordered,
            members: self.members(&known),
            farm: Arc::clone(&self.farm),
            links: self.links.iter().map(|(ifindex, mac)| (*ifindex, *mac)).collect(),
            hosts: self.planned_hosts(&known),
            slots,
            before: Arc::clone(&self.plan),
            in_force: may_be_in_force.then(|| Arc::clone(&self.in_force)),
        }
    }

    /// Holds news of the farm back until the tables that they are about are in force: those on
    /// their way, or those after them.
    pub(super) fn hold_back(&mut self, first: usize) {
        if self.applying.is_none() {
            self.outputs.append(&mut self.held_back);
            return;
        }
        let since = self.outputs.split_off(first.min(self.outputs.len()));
        let waits =
            |output: &Output| matches!(output, Output::Event(_) | Output::Send { .. } | Output::Announce(_));
        let (held_back, others): (Vec<_>, Vec<_>) = since.into_iter().partition(waits);
        self.outputs.extend(others);
        self.held_back.extend(held_back);
        if !self.replan_wanted {
            self.until_answer = self.held_back.len();
        }
    }

    /// The order with whose answer all is settled that was taken in until now; `None` where it is
    /// so already.
    pub fn awaited(&self) -> Option<u64> {
        match (self.reloads_waiting.len() as u64, self.replan_wanted) {
            (0, false) => self.applying.as_ref().map(|applying| applying.number),
            (0, true) => Some(self.ordered + 1),
            (reloads, _) => Some(self.ordered + reloads),
        }
    }

    /// Takes in what became of an order, and shows it: the servers as they were when it was given,
    /// since what was learned since then waits for its own tables.
    pub(super) fn applied(&mut self, applied: Applied, now: Moment) {
        let Applied { number, members, plan, slots, in_force } = applied;
        let Some(applying) = self.applying.take_if(|applying| applying.number == number) else { return };
        let is_taken_back = applying.reload.is_some() && plan.is_err();
        self.outputs.extend(self.held_back.drain(..core::mem::take(&mut self.until_answer)));
        let was = core::mem::replace(&mut self.in_force, in_force);
        self.slots = slots;
        core::mem::take(&mut self.released).into_iter().for_each(|slot| self.slots.released(slot));
        self.has_changed = true;
        match plan {
            Ok(None) => self.retry_at_ms = u64::MAX,
            Ok(Some(plan)) => self.put_in_force(plan, applying, was, now),
            Err(error) => self.refused(error, applying, now.ms),
        }
        if is_taken_back {
            Arc::make_mut(&mut self.snapshot).reloads = self.reloads.clone();
        } else {
            self.show(Some(members), now.ms);
        }
    }

    fn put_in_force(&mut self, plan: Plan, applying: PendingChange, was: Arc<Tables>, now: Moment) {
        self.report_changes(&plan);
        self.plan = Arc::new(plan);
        self.generation += 1;
        self.generation_in_force = self.generation;
        self.retry_at_ms = u64::MAX;
        self.report_attached(&applying.newcomers);
        if let Some(reload) = &applying.reload {
            self.follow(reload, now.ms);
            self.groups.reload(now, &self.farm.groups, &reload.groups, &self.operator);
            self.names.reload(&self.farm, &self.operator, now);
        } else if self.generation == 1 {
            self.announce(self.announced());
        }
        self.compare(now.ms);
        self.forget_removed(was);
    }

    fn refused(&mut self, error: String, applying: PendingChange, now_ms: u64) {
        self.generation += 1;
        // Numbers that the engine has given away are taken.
        self.slots.adopt(&self.in_force);
        let PendingChange { reload, newcomers, is_wanted_anyway, .. } = applying;
        if !newcomers.is_empty() {
            // Their content must not keep the farm from following anything else.
            self.report_unattached(&newcomers, &error);
            self.links.retain(|ifindex, _| !newcomers.contains(ifindex));
            self.look_around(now_ms);
            return;
        }
        if reload.is_none() || self.in_force != self.plan.tables {
            self.retry_at_ms = now_ms.saturating_add(RETRY_MS);
        }
        match reload {
            Some(_) => {
                self.refused_reload(error);
                self.replan_wanted |= is_wanted_anyway;
            }
            None => self.emit(Event::NotApplied { error }),
        }
    }

    /// Goes on with a reload that is in force. Facts learned since it was ordered stay.
    fn follow(&mut self, reload: &Reload, now_ms: u64) {
        let newer = Some(Arc::clone(&self.network)).filter(|network| !Arc::ptr_eq(network, &reload.known));
        let (hosts_notices, members_notices) = self.take_in(reload, now_ms);
        self.reloads = Reloads { done: self.reloads.done + 1, error: None, ..self.reloads.clone() };
        self.emit_all(hosts_notices.into_iter().map(Event::Hosts));
        self.report_membership(members_notices);
        if let Some(newer) = newer {
            self.surroundings(Network::clone(&newer), now_ms);
        }
        self.resolve_next_hops(now_ms);
        self.announce(self.announced());
    }

    /// Goes on with another farm; what there is to tell of that.
    fn take_in(
        &mut self,
        reload: &Reload,
        now_ms: u64,
    ) -> (Vec<crate::node::peers::PeerEvent>, Vec<ServiceNotice>) {
        self.farm = Arc::clone(&reload.farm);
        self.network = Arc::clone(&reload.network);
        self.links.clone_from(&reload.links);
        let hosts_notices = self.reconfigure_hosts(now_ms);
        let surroundings = self.paths.surroundings(&self.farm, &self.network, &self.links);
        let mut members_notices = self.membership.surroundings(surroundings, now_ms);
        members_notices.extend(self.membership.reconfigure(&self.farm.services, now_ms));
        self.pools.reload(&self.farm.services, now_ms);
        self.match_servers(now_ms);
        self.send_own_report();
        self.newcomers.clear();
        (hosts_notices, members_notices)
    }

    /// Notes a reload that changes nothing.
    pub(super) fn refused_reload(&mut self, error: String) {
        self.reloads.refused += 1;
        self.reloads.error = Some(error);
        self.has_changed = true;
    }

    /// Whether a reload waits for its answer.
    pub(super) fn is_reloading(&self) -> bool {
        !self.reloads_waiting.is_empty()
            || self.applying.as_ref().is_some_and(|applying| applying.reload.is_some())
    }

    /// Notes that no session names a slot any more. If its server comes back by a change that is on
    /// its way, it keeps the slot.
    pub(super) fn released(&mut self, slot: u16) {
        match self.applying {
            Some(_) => self.released.push(slot),
            None => self.slots.released(slot),
        }
    }

    /// Sessions of servers and service addresses that were there and are gone are to go too; then
    /// their numbers are free again.
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
