//! Table changes, which the engine applies one at a time. A change is in force once the engine has
//! answered. Facts that arrive before the answer go into the next change.

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

/// Delay before a refused change is retried, in milliseconds.
pub(super) const RETRY_MS: u64 = 5_000;

/// Number of servers that add one millisecond to the minimum interval between two plans. Facts that
/// arrive within this interval share one plan.
const SERVERS_PER_MS: u64 = 64;

/// A reload: a new farm file with the network at that time.
#[derive(Clone, Debug)]
pub(super) struct Reload {
    pub(super) farm: Arc<Farm>,
    pub(super) network: Arc<Network>,
    /// The director's network when the reload arrived, or when its change was ordered. If the
    /// director has a newer network later, that one replaces `network`.
    pub(super) known: Arc<Network>,
    pub(super) links: BTreeMap<u32, Mac>,
    /// Saved members of the farm's groups that are not served yet.
    pub(super) groups: BTreeMap<String, String>,
}

/// A change sent to the engine and not answered.
#[derive(Clone, Debug)]
pub(super) struct PendingChange {
    number: u64,
    /// The reload in this change, if any. The director switches to the new farm only once the
    /// engine has applied its tables, so a refusal leaves nothing to undo.
    pub(super) reload: Option<Reload>,
    /// Indexes of links that no earlier generation contains.
    newcomers: BTreeSet<u32>,
    /// True if facts other than the reload need new tables, too.
    is_wanted_anyway: bool,
}

impl Director {
    /// Orders a change if one is due and none is in progress. Outputs from index `first` on wait
    /// until its tables are in force.
    pub(super) fn order_change(&mut self, first: usize, now_ms: u64) {
        let is_due = self.replan_wanted && now_ms >= self.gather_until_ms;
        if self.applying.is_some() || !is_due && self.reloads_waiting.is_empty() {
            return;
        }
        // In an every-host farm plans are not delayed: the other hosts wait for this host's report,
        // which is sent once the tables are in force.
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

    /// Returns the input of a plan of the current farm. If `may_be_in_force` is true, tables equal
    /// to those in force are not applied again.
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

    /// Holds back events, datagrams and announcements until the tables that they describe are in
    /// force. If another plan is wanted, they wait for its tables, otherwise for the tables in
    /// progress.
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

    /// Number of the change order whose answer puts all inputs so far in force; `None` if no change
    /// is wanted or in progress.
    pub fn awaited(&self) -> Option<u64> {
        match (self.reloads_waiting.len() as u64, self.replan_wanted) {
            (0, false) => self.applying.as_ref().map(|applying| applying.number),
            (0, true) => Some(self.ordered + 1),
            (reloads, _) => Some(self.ordered + reloads),
        }
    }

    /// Applies the answer to a change order and updates the snapshot. The snapshot shows the
    /// members as they were when the change was ordered. Facts that arrived later wait for their
    /// own tables.
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
        // The slots in the engine's tables stay in use.
        self.slots.adopt(&self.in_force);
        let PendingChange { reload, newcomers, is_wanted_anyway, .. } = applying;
        if !newcomers.is_empty() {
            // A link that the engine refuses must not block other changes.
            self.report_unattached(&newcomers, &error);
            self.links.retain(|ifindex, _| !newcomers.contains(ifindex));
            self.update_membership(now_ms);
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

    /// Switches to the farm of a reload that is in force. Facts that arrived since the change was
    /// ordered are kept.
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

    /// Replaces the farm, the network and the links by those of a reload. Returns the notices to
    /// publish.
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

    /// Counts a refused reload, which changes nothing.
    pub(super) fn refused_reload(&mut self, error: String) {
        self.reloads.refused += 1;
        self.reloads.error = Some(error);
        self.has_changed = true;
    }

    /// True while a reload is queued or waits for the engine's answer.
    pub(super) fn is_reloading(&self) -> bool {
        !self.reloads_waiting.is_empty()
            || self.applying.as_ref().is_some_and(|applying| applying.reload.is_some())
    }

    /// Frees a slot that no session refers to any more. While a change is in progress, the slot is
    /// kept. It is freed after the engine's answer, unless the new tables use it again.
    pub(super) fn released(&mut self, slot: u16) {
        match self.applying {
            Some(_) => self.released.push(slot),
            None => self.slots.released(slot),
        }
    }

    /// Orders the end of the sessions of removed servers and service addresses. The slots of these
    /// servers are free afterwards.
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
